//! How the next token is chosen: the settings and their ranges.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Settings of the sampler. The order in which they act is the order of the fields up to `min_p`, penalties first;
/// see [`Sampler`](super::Sampler).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingParams {
    /// Divides positive and multiplies negative logits of tokens seen in the window; 1 is off.
    pub repetition_penalty: f32,
    /// How many of the last tokens the penalties look at; 0 is all of them.
    pub repetition_window: usize,
    /// Subtracted once from the logit of every token generated in the window; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it was generated in the window; 0 is off.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub logit_bias: BTreeMap<u32, f32>,
    /// Divides the logits; 0 takes the most likely token, ties to the lowest id.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 is off.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens that reaches this probability; 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this likely relative to the most likely one; 0 is off.
    pub min_p: f32,
    /// Seed of the draw; without one, every sampler draws differently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            repetition_window: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            temperature: 0.7,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.0,
            seed: None,
        }
    }
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, ..Self::default() }
    }

    /// Draws from the model's own distribution: no filter, temperature 1.
    pub fn unfiltered() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, ..Self::default() }
    }

    /// Checks every range. NaN is outside all of them.
    pub fn validate(&self) -> Result<(), Error> {
        check("temperature", self.temperature, "0 (greedy) or more", |v| v >= 0.0)?;
        check("top_p", self.top_p, "above 0 and at most 1", |v| v > 0.0 && v <= 1.0)?;
        check("min_p", self.min_p, "from 0 to 1", |v| (0.0..=1.0).contains(&v))?;
        check("repetition_penalty", self.repetition_penalty, "above 0", |v| v > 0.0)?;
        check("presence_penalty", self.presence_penalty, "a finite number", |_| true)?;
        check("frequency_penalty", self.frequency_penalty, "a finite number", |_| true)?;
        // Minus infinity bans a token, which is a sensible wish.
        for &bias in self.logit_bias.values().filter(|bias| **bias != f32::NEG_INFINITY) {
            check("logit_bias", bias, "a number, or -infinity to ban a token", |_| true)?;
        }
        Ok(())
    }

    /// Whether it matters which tokens came before.
    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

fn check(
    name: &'static str,
    value: f32,
    expected: &'static str,
    ok: impl Fn(f32) -> bool,
) -> Result<(), Error> {
    if value.is_finite() && ok(value) {
        Ok(())
    } else {
        Err(Error::InvalidSampling { name, value: value.to_string(), expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_and_named() {
        assert!(SamplingParams::default().validate().is_ok());
        assert!(SamplingParams::greedy().validate().is_ok());
        let base = SamplingParams::default;
        let bad = [
            ("temperature", SamplingParams { temperature: -0.1, ..base() }),
            ("temperature", SamplingParams { temperature: f32::NAN, ..base() }),
            ("temperature", SamplingParams { temperature: f32::INFINITY, ..base() }),
            ("top_p", SamplingParams { top_p: 0.0, ..base() }),
            ("top_p", SamplingParams { top_p: 1.01, ..base() }),
            ("top_p", SamplingParams { top_p: f32::NAN, ..base() }),
            ("min_p", SamplingParams { min_p: -0.1, ..base() }),
            ("min_p", SamplingParams { min_p: 1.5, ..base() }),
            ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..base() }),
            ("presence_penalty", SamplingParams { presence_penalty: f32::NAN, ..base() }),
            ("frequency_penalty", SamplingParams { frequency_penalty: f32::INFINITY, ..base() }),
            ("logit_bias", SamplingParams { logit_bias: [(1, f32::NAN)].into(), ..base() }),
            ("logit_bias", SamplingParams { logit_bias: [(1, f32::INFINITY)].into(), ..base() }),
        ];
        for (expected, params) in bad {
            match params.validate() {
                Err(Error::InvalidSampling { name, .. }) => assert_eq!(name, expected),
                other => panic!("{expected}: {other:?} for {params:?}"),
            }
        }
        assert!(SamplingParams { logit_bias: [(1, f32::NEG_INFINITY)].into(), ..base() }.validate().is_ok());
    }

    #[test]
    fn missing_json_fields_are_defaults() {
        let params: SamplingParams = serde_json::from_str(r#"{"temperature": 0, "seed": 7}"#).unwrap();
        assert_eq!(params, SamplingParams { temperature: 0.0, seed: Some(7), ..SamplingParams::default() });
        let text = serde_json::to_string(&params).unwrap();
        assert_eq!(serde_json::from_str::<SamplingParams>(&text).unwrap(), params);
    }
}
