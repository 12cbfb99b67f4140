//! How tokens are chosen, as a request says. Both APIs use the same names.

use engine::{GenerationDefaults, SamplingParams};

use crate::fault::Fault;
use crate::fields::Fields;

/// Largest bias of OpenAI's API; its negative bans a token.
const BAN: f64 = 100.0;

/// The model's own recommendation, overruled by what the request says.
pub fn sampling(fields: &Fields<'_>, defaults: &GenerationDefaults) -> Result<SamplingParams, Fault> {
    let mut params = SamplingParams::default();
    defaults.apply(&mut params);
    let set = |name, expected, range, param: &mut f32| -> Result<(), Fault> {
        if let Some(value) = fields.number(name, expected, range)? {
            *param = value as f32;
        }
        Ok(())
    };
    set("temperature", "a number from 0 to 2", [0.0, 2.0], &mut params.temperature)?;
    // The next number above 0 that an f32 can be: nothing but the most probable token.
    set("top_p", "a number from 0 to 1", [0.0, 1.0], &mut params.top_p)?;
    params.top_p = params.top_p.max(f32::MIN_POSITIVE);
    set("min_p", "a number from 0 to 1", [0.0, 1.0], &mut params.min_p)?;
    set("presence_penalty", "a number from -2 to 2", [-2.0, 2.0], &mut params.presence_penalty)?;
    set("frequency_penalty", "a number from -2 to 2", [-2.0, 2.0], &mut params.frequency_penalty)?;
    set("repetition_penalty", "a number from 0.01 to 10", [0.01, 10.0], &mut params.repetition_penalty)?;
    params.top_k = top_k(fields)?.unwrap_or(params.top_k);
    params.seed = seed(fields)?;
    if let Some(biases) = fields.object("logit_bias")? {
        for (token, bias) in biases.map() {
            let id = token.parse().map_err(|_| {
                Fault::invalid(
                    "logit_bias",
                    format!("`logit_bias` has the key {token:?}, which is no token id"),
                )
            })?;
            let expected = "a number from -100 (never) to 100";
            let Some(bias) = bias.as_f64().filter(|bias| bias.abs() <= BAN) else {
                return Err(biases.wrong(token, expected));
            };
            let bias = if bias == -BAN { f32::NEG_INFINITY } else { bias as f32 };
            params.logit_bias.insert(id, bias);
        }
    }
    params.validate().map_err(crate::fault::request_fault)?;
    Ok(params)
}

/// 0 and, as some clients have it, -1 mean no limit.
fn top_k(fields: &Fields<'_>) -> Result<Option<usize>, Fault> {
    if fields.get("top_k").is_some_and(|json| json.as_i64() == Some(-1)) {
        return Ok(Some(0));
    }
    let count = fields.count("top_k", "a whole number, 0 for no limit", [0, u64::from(u32::MAX)])?;
    Ok(count.map(|count| count as usize))
}

/// Any 64 bits, with or without a sign.
fn seed(fields: &Fields<'_>) -> Result<Option<u64>, Fault> {
    match fields.get("seed") {
        Some(json) => match json.as_i64() {
            Some(seed) => Ok(Some(seed as u64)),
            None => fields.count("seed", "a whole number", [0, u64::MAX]),
        },
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn read(body: Json) -> Result<SamplingParams, Fault> {
        let defaults = GenerationDefaults { temperature: Some(0.6), ..Default::default() };
        sampling(&Fields::new(body.as_object().unwrap()), &defaults)
    }

    #[test]
    fn what_is_absent_follows_the_model() {
        let params = read(json!({"top_k": 5, "seed": -1, "temperature": null})).unwrap();
        assert_eq!((params.temperature, params.top_k, params.seed), (0.6, 5, Some(u64::MAX)));
        assert_eq!(read(json!({"top_k": -1})).unwrap().top_k, 0);
        assert!(read(json!({"top_p": 0})).unwrap().top_p > 0.0);
    }

    #[test]
    fn minus_one_hundred_bans_a_token() {
        let params = read(json!({"logit_bias": {"7": -100, "8": 1.5}})).unwrap();
        assert_eq!(params.logit_bias, [(7, f32::NEG_INFINITY), (8, 1.5)].into());
    }

    #[test]
    fn wrong_values_name_their_field() {
        for (body, param) in [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -1}), "temperature"),
            (json!({"temperature": 2.5}), "temperature"),
            (json!({"top_p": 1.1}), "top_p"),
            (json!({"min_p": [0.1]}), "min_p"),
            (json!({"top_k": 1.5}), "top_k"),
            (json!({"seed": 0.5}), "seed"),
            (json!({"presence_penalty": 3}), "presence_penalty"),
            (json!({"frequency_penalty": true}), "frequency_penalty"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
            (json!({"logit_bias": {"the": 1}}), "logit_bias"),
            (json!({"logit_bias": {"1": 101}}), "logit_bias.1"),
            (json!({"logit_bias": [1]}), "logit_bias"),
        ] {
            let fault = read(body.clone()).unwrap_err();
            assert_eq!(fault.param.as_deref(), Some(param), "{body}: {}", fault.message);
            assert!(fault.message.contains(param.split('.').next().unwrap()), "{}", fault.message);
        }
    }
}
