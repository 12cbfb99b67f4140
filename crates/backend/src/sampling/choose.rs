//! The choice itself.

use std::borrow::Cow;

use super::math::{exp, sum_exp, sum_of};
use super::noise::{gumbel, most_gumbel, noise_bits};
use super::{Choice, LIKELIHOOD_REACH, LIKELIHOOD_STEPS, Sampled, Sampling};
use crate::largest;

/// Tokens whose noise is looked at together.
const TOGETHER: usize = 64;

/// The step of tokens that are out of reach, the last one.
const FURTHEST: u32 = LIKELIHOOD_REACH * LIKELIHOOD_STEPS;

/// Chooses a token from a row of logits, as a [`Choice`] says; what `counts_last` adds is the caller's to add.
pub fn choose(logits: &[f32], choice: &Choice<'_>) -> Sampled {
    if let Err((token, logit)) = check(logits) {
        return Sampled { token, logit, logprob: None, top: Vec::new() };
    }
    let adjusted = adjust(logits, choice);
    let (best, max) = likeliest(&adjusted);
    let token = match max == f32::NEG_INFINITY || choice.sampling.is_greedy() {
        true => best,
        false => draw(&adjusted, max, choice),
    };
    let logit = if max == f32::NEG_INFINITY { max } else { logits[token as usize] };
    let mut sampled = Sampled { token, logit, logprob: None, top: Vec::new() };
    if let Some(count) = choice.logprobs.filter(|_| logit.is_finite()) {
        let (_, max) = likeliest(logits);
        let log_sum = f64::from(max) + sum_exp(logits, max).ln();
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        sampled.logprob = Some(logprob(logit));
        sampled.top = largest(logits, count).into_iter().map(|(id, logit)| (id, logprob(logit))).collect();
    }
    sampled
}

/// Finds the first logit that is not a number or plus infinity.
fn check(logits: &[f32]) -> Result<(), (u32, f32)> {
    // All of them first, without a branch for each.
    if logits.iter().fold(true, |sound, logit| sound & (*logit < f32::INFINITY)) {
        return Ok(());
    }
    let mut all = (0..).zip(logits);
    match all.find(|(_, logit)| logit.is_nan() || **logit == f32::INFINITY) {
        Some((token, logit)) => Err((token, *logit)),
        None => Ok(()),
    }
}

/// The logits to choose by: minus infinity for what is out.
fn adjust<'a>(logits: &'a [f32], choice: &Choice<'_>) -> Cow<'a, [f32]> {
    if choice.adjusted.is_empty() && choice.allowed.is_none() {
        return Cow::Borrowed(logits);
    }
    let mut own = logits.to_vec();
    for adjusted in choice.adjusted {
        if let Some(logit) = own.get_mut(adjusted.token as usize) {
            *logit = choice.sampling.adjust(*logit, adjusted);
        }
    }
    if let Some(words) = choice.allowed {
        let words = words.iter().copied().chain(std::iter::repeat(0));
        for (values, word) in own.chunks_mut(u32::BITS as usize).zip(words) {
            for (bit, value) in values.iter_mut().enumerate().filter(|_| word != u32::MAX) {
                *value = if word >> bit & 1 == 1 { *value } else { f32::NEG_INFINITY };
            }
        }
    }
    Cow::Owned(own)
}

/// The largest value and the lowest token that has it.
fn likeliest(logits: &[f32]) -> (u32, f32) {
    let mut lanes = [f32::NEG_INFINITY; 16];
    for block in logits.chunks(lanes.len()) {
        for (max, &logit) in lanes.iter_mut().zip(block) {
            *max = if logit > *max { logit } else { *max };
        }
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (logits.iter().position(|logit| *logit == max).unwrap_or_default() as u32, max)
}

/// How likely tokens are, relative to the most likely one.
#[derive(Clone, Copy)]
struct Scale {
    max: f32,
    factor: f32,
}

impl Scale {
    /// `z`: 0 for the most likely token.
    fn z(self, logit: f32) -> f32 {
        (logit - self.max) * self.factor
    }

    /// Steps that a token is below the most likely one.
    fn step(self, logit: f32) -> u32 {
        Self::step_of(self.z(logit))
    }

    fn step_of(z: f32) -> u32 {
        ((-z * LIKELIHOOD_STEPS as f32) as u32).min(FURTHEST)
    }
}

/// What filters leave: tokens down to a step and to a `z`.
struct Kept {
    step: u32,
    floor: f32,
}

fn draw(logits: &[f32], max: f32, choice: &Choice<'_>) -> u32 {
    let scale = Scale { max, factor: choice.sampling.scale() };
    let top_k = choice.sampling.top_k;
    if (1..logits.len()).contains(&top_k) {
        let step = largest(logits, top_k).last().map_or(FURTHEST, |(_, kth)| scale.step(*kth));
        if step < FURTHEST {
            // Few are left: nothing else is looked at again.
            let (tokens, logits): (Vec<u32>, Vec<f32>) = down_to(logits, scale, step).into_iter().unzip();
            return tokens[draw_among(&logits, |i| tokens[i as usize], scale, step, choice) as usize];
        }
    }
    draw_among(logits, |i| i, scale, FURTHEST, choice)
}

/// Tokens down to a step, with their logits.
fn down_to(logits: &[f32], scale: Scale, step: u32) -> Vec<(u32, f32)> {
    const BLOCK: usize = 32;
    // A little below that of the step's last token, so that rounding decides nothing here.
    let reach = (f64::from(step) + 2.0) / (f64::from(LIKELIHOOD_STEPS) * f64::from(scale.factor));
    let least = (f64::from(scale.max) - reach - 1e-6 * f64::from(scale.max.abs()) - 1e-30) as f32;
    let mut found = Vec::new();
    for (block, values) in logits.chunks(BLOCK).enumerate() {
        if values.iter().fold(false, |some, value| some | (*value >= least)) {
            let tokens = ((block * BLOCK) as u32..).zip(values);
            let kept = tokens.filter(|(_, value)| **value >= least && scale.step(**value) <= step);
            found.extend(kept.map(|(token, value)| (token, *value)));
        }
    }
    found
}

/// The place, among the logits of some tokens in ascending order, of the one that is drawn; none of those down to `step`
/// is missing.
fn draw_among(
    logits: &[f32],
    token: impl Fn(u32) -> u32,
    scale: Scale,
    step: u32,
    choice: &Choice<'_>,
) -> u32 {
    let kept = filter(logits, scale, step, choice.sampling);
    let key = choice.noise_key();
    let (mut chosen, mut best) = (0, f64::NEG_INFINITY);
    let mut bounds = [0.0; TOGETHER];
    for (block, values) in logits.chunks(TOGETHER).enumerate() {
        let first = (block * TOGETHER) as u32;
        let least = best as f32;
        let mut some = false;
        for ((bound, value), place) in bounds.iter_mut().zip(values).zip(first..) {
            // Rounding is far less than what the noise's bound is too large by.
            *bound = scale.z(*value) + most_gumbel(noise_bits(key, token(place)));
            some |= *bound >= least;
        }
        if !some {
            continue;
        }
        for ((bound, value), place) in bounds.iter().zip(values).zip(first..) {
            let kept = *bound >= best as f32
                && *value > f32::NEG_INFINITY
                && scale.step(*value) <= kept.step
                && scale.z(*value) >= kept.floor;
            if kept {
                let noisy = f64::from(scale.z(*value)) + gumbel(noise_bits(key, token(place)));
                if noisy > best {
                    (chosen, best) = (place, noisy);
                }
            }
        }
    }
    chosen
}

/// What top-p, then min-p leave of tokens down to a step.
fn filter(logits: &[f32], scale: Scale, step: u32, sampling: &Sampling) -> Kept {
    let step = if sampling.top_p < 1.0 { top_p(logits, scale, step, sampling.top_p) } else { step };
    Kept { step, floor: if sampling.min_p > 0.0 { sampling.floor() } else { f32::NEG_INFINITY } }
}

/// The last step of the smallest set of tokens, of those down to `step`, that reaches this probability.
fn top_p(logits: &[f32], scale: Scale, step: u32, top_p: f32) -> u32 {
    let top_p = f64::from(top_p);
    let weight = |z: f32| if Scale::step_of(z) <= step { exp(f64::from(z)) } else { 0.0 };
    let total = sum_of(logits, |logit| weight(scale.z(logit)));
    // All tokens below this weight together hold less than what top-p cuts off, so that only the others, usually a few
    // hundred, have to be sorted. A little too many are, so that rounding decides nothing.
    let least = (((1.0 - top_p) * total / logits.len() as f64).ln() - 1e-3) as f32;
    let candidates = logits.iter().map(|logit| scale.z(*logit)).filter(|z| *z >= least);
    let mut candidates: Vec<_> =
        candidates.map(|z| (Scale::step_of(z), weight(z))).filter(|(own, _)| *own <= step).collect();
    candidates.sort_by_key(|(step, _)| *step);
    let mut rest = top_p * total;
    let reached = candidates.iter().find(|(_, weight)| {
        rest -= weight;
        rest <= 0.0
    });
    reached.map_or(step, |(step, _)| *step)
}
