//! How a token is chosen from logits.
//!
//! Every machine chooses by the rules that [`Choice`] states. [`choose()`] is the reference, and what
//! a CPU uses as it is.

mod choose;
mod math;
mod noise;
#[cfg(test)]
mod tests;

use crate::pool::Slot;

pub use choose::choose;
pub use noise::noise_bits;

/// Settings of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token, ties to the lowest id.
    pub temperature: f32,
    /// Keeps the k most likely tokens, and those as likely as the last of them; 0 is off. 1 takes
    /// the most likely token, ties to the lowest id.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens that reaches this probability, and those as
    /// likely as the last of them; 1 is off.
    pub top_p: f32,
    /// Keeps tokens at least this likely relative to the most likely one; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that were seen; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token that was generated; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it was generated; 0 is off.
    pub frequency_penalty: f32,
    /// Of the draw.
    pub seed: u64,
}

/// Steps of `z` in which likelihoods are compared, for each 1: tokens in the same step are equally
/// likely.
pub const LIKELIHOOD_STEPS: u32 = 1 << 15;

/// Tokens whose `z` is further than this below the largest are equally unlikely.
pub const LIKELIHOOD_REACH: u32 = 64;

impl Sampling {
    /// The most likely token, by the model alone.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
    };

    /// Whether the most likely token is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// `1 / temperature`, at most so much that differences of logits remain numbers.
    pub fn scale(&self) -> f32 {
        (1.0 / self.temperature).min(1e30)
    }

    /// Lowest `z` that min-p leaves, that of the most likely token being 0.
    pub fn floor(&self) -> f32 {
        self.min_p.ln()
    }

    /// Applies penalties and bias to a token's logit.
    pub fn adjust(&self, logit: f32, adjusted: &Adjusted) -> f32 {
        let mut logit = logit;
        if adjusted.seen {
            logit *= if logit > 0.0 { 1.0 / self.repetition_penalty } else { self.repetition_penalty };
        }
        if adjusted.generated > 0 {
            logit -= self.presence_penalty + self.frequency_penalty * adjusted.generated as f32;
        }
        (logit + adjusted.bias).min(f32::MAX)
    }
}

/// A token whose logit is changed before the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adjusted {
    /// Which.
    pub token: u32,
    /// Whether the repetition penalty applies.
    pub seen: bool,
    /// How often it was generated.
    pub generated: u32,
    /// Added to its logit.
    pub bias: f32,
}

/// How a token is to be chosen from one row of logits.
///
/// In this order: repetition penalty, presence and frequency penalty and bias of `adjusted` tokens;
/// tokens that are not `allowed` are out, and those at minus infinity; temperature
/// `z = (l - max l) / temperature`; top-k; top-p over what top-k left; min-p. Among the tokens that
/// are left the one with the largest `z + gumbel(seed, draw, token)` is chosen, ties to the lowest
/// id: that is a draw by their probabilities, which depends on no order, so that all machines draw
/// alike.
///
/// - Top-k and top-p compare `z` in steps of 1 / [`LIKELIHOOD_STEPS`], down to
///   [`LIKELIHOOD_REACH`]: tokens in the same step are kept together. So the rounding of sums
///   decides nothing between tokens that are as likely as each other, and machines keep the same.
/// - `gumbel = -ln(-ln(1 - (h + 1/2) / 2^32))`, `h` being [`noise_bits`] of the
///   [key](Self::noise_key) and the token.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The sequence that a step with [`Tokens::Last`](crate::Tokens::Last) may continue with this
    /// token. Of several rows with the same slot the last is remembered.
    pub slot: Option<Slot>,
    /// The request's settings.
    pub sampling: &'a Sampling,
    /// The number of the draw: the place of the token in its text.
    pub draw: u32,
    /// Tokens whose logits are changed, each once, in ascending order. Those beyond the vocabulary
    /// change nothing.
    pub adjusted: &'a [Adjusted],
    /// Whether penalties count the token that was last chosen for `slot`, too, which the host does
    /// not know yet. The host passes what it knows; the machine adds that token, as
    /// [`counting`] does, before the choice replaces it.
    pub counts_last: bool,
    /// Which tokens may be chosen: bit `t % 32` of word `t / 32` says whether token `t` may be, and those beyond the
    /// last word may not. All where absent.
    pub allowed: Option<&'a [u32]>,
    /// Whether the token's log probability is wanted, and those of so many of the likeliest.
    pub logprobs: Option<usize>,
}

impl Choice<'_> {
    /// The most likely token, by the model alone, which no step goes on with.
    pub const LIKELIEST: Choice<'static> = Choice {
        slot: None,
        sampling: &Sampling::GREEDY,
        draw: 0,
        adjusted: &[],
        counts_last: false,
        allowed: None,
        logprobs: None,
    };

    /// Key of the draw's noise, different for every seed and draw.
    pub fn noise_key(&self) -> [u32; 2] {
        noise::key(self.sampling.seed, self.draw)
    }

    /// Whether logits are as the model gave them when the token is chosen.
    pub fn is_plain(&self) -> bool {
        self.adjusted.is_empty() && !self.counts_last && self.allowed.is_none()
    }
}

/// The tokens whose logits are changed once `last` has been generated, too.
pub fn counting(adjusted: &[Adjusted], last: u32) -> Vec<Adjusted> {
    let mut adjusted = adjusted.to_vec();
    match adjusted.binary_search_by_key(&last, |adjusted| adjusted.token) {
        Ok(at) => {
            let known = &mut adjusted[at];
            (known.seen, known.generated) = (true, known.generated + 1);
        }
        Err(at) => adjusted.insert(at, Adjusted { token: last, seen: true, generated: 1, bias: 0.0 }),
    }
    adjusted
}

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Which.
    pub token: u32,
    /// Its logit, as the model gave it; not finite where some logit is not a number or plus
    /// infinity, or no token can be chosen.
    pub logit: f32,
    /// Natural logarithm of the probability that the model itself gave it, before adjustments,
    /// masks and temperature, where that was wanted.
    pub logprob: Option<f32>,
    /// The likeliest tokens by the model itself with theirs, as many as were wanted.
    pub top: Vec<(u32, f32)>,
}
