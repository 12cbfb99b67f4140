//! What a backend needs to know to choose a request's next token.

mod counts;
mod params;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, Hasher};

use backend::pool::Slot;
use backend::{Adjusted, Choice, Sampled, Sampling};

pub use params::SamplingParams;

use crate::Error;
use counts::Counts;

/// A request's settings, and the tokens that its penalties are about.
///
/// A token depends on the settings, the seed, its place in the text and the logits, and on nothing that was drawn
/// before: tokens are the same whether they are chosen one by one, ahead of the host or as draft tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    params: SamplingParams,
    prompt_len: usize,
    counts: Counts,
}

/// How the token at one place of a text is to be chosen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draw {
    place: usize,
    adjusted: Vec<Adjusted>,
    counts_last: bool,
}

impl Sampler {
    /// For a text of which the first `prompt_len` tokens are the prompt: the repetition penalty counts them, presence
    /// and frequency penalties, which are about what was generated, do not.
    pub fn new(params: SamplingParams, prompt_len: usize) -> Result<Self, Error> {
        params.validate()?;
        // The standard library's hash keys are the one source of randomness that needs no dependency.
        let seed = params
            .seed
            .unwrap_or_else(|| std::collections::hash_map::RandomState::new().build_hasher().finish());
        let sampling = Sampling {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition_penalty: params.repetition_penalty,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            seed,
        };
        Ok(Self { sampling, params, prompt_len, counts: Counts::default() })
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// The draw of the token after `text`.
    pub fn next(&mut self, text: &[u32]) -> Draw {
        self.draw(text, text.len(), false)
    }

    /// The draw of the token after the next, which nobody knows yet.
    pub(crate) fn after_next(&mut self, text: &[u32]) -> Draw {
        self.draw(text, text.len(), true)
    }

    /// The draws of the tokens after `text` and after each of `drafts` behind it.
    pub(crate) fn with_drafts(&mut self, text: &[u32], drafts: &[u32]) -> Vec<Draw> {
        if drafts.is_empty() {
            return vec![self.next(text)];
        }
        let all = [text, drafts].concat();
        // From the last to the first, so that in the end no draft is counted.
        let lens = (text.len()..=all.len()).rev();
        let mut draws: Vec<_> = lens.map(|len| self.draw(&all, len, false)).collect();
        draws.reverse();
        draws
    }

    /// The draw of the token after the first `len` of a text, or after one more.
    fn draw(&mut self, text: &[u32], len: usize, after_next: bool) -> Draw {
        let place = len + usize::from(after_next);
        let penalties = self.params.has_penalties();
        if penalties {
            let begin = match self.params.repetition_window {
                0 => 0,
                window => place.saturating_sub(window).min(len),
            };
            self.counts.cover(text, begin..len, self.prompt_len);
        }
        let adjusted = self.counts.adjusted(&self.params.logit_bias);
        Draw { place, adjusted, counts_last: penalties && after_next }
    }

    /// A draw as backends take it, for a sequence in `slot`, among the tokens in `allowed`, all where absent; with the
    /// log probabilities of the token and so many others where that is wanted.
    pub fn choice<'a>(
        &'a self,
        draw: &'a Draw,
        slot: Option<Slot>,
        allowed: Option<&'a [u32]>,
        logprobs: Option<usize>,
    ) -> Choice<'a> {
        let Draw { place, adjusted, counts_last } = draw;
        let (draw, counts_last) = (*place as u32, *counts_last);
        Choice { slot, sampling: &self.sampling, draw, adjusted, counts_last, allowed, logprobs }
    }
}

/// That a token could be chosen.
pub fn check_sampled(sampled: &Sampled) -> Result<(), Error> {
    let Sampled { token, logit, .. } = sampled;
    let reason = match logit {
        logit if logit.is_finite() => return Ok(()),
        &f32::NEG_INFINITY => "all logits are -infinity".to_string(),
        logit => format!("the logit of token {token} is {logit}"),
    };
    Err(Error::InvalidLogits { reason })
}
