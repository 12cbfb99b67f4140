//! From logits to the next token.

mod math;
mod params;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};

pub use params::SamplingParams;

use crate::Error;
use backend::largest;
use math::{Random, exp_all, sum_exp};

/// A token that was chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampled {
    /// The token.
    pub id: u32,
    /// Natural logarithm of the probability the model itself gave the token, before penalties, temperature and
    /// filters, so that it means the same under all settings; present when the parameters ask for it.
    pub logprob: Option<f32>,
}

/// Largest top-k for which only the largest logits are asked for.
const MOST_TOP: usize = 128;

/// A token with its logit while the set is narrowed down.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
}

/// Chooses tokens.
///
/// In this order: repetition penalty, presence and frequency penalty, bias, temperature, top-k, top-p over what top-k
/// left, min-p, then a draw. With the same seed and the same logits the tokens are the same on every platform.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    random: Random,
    seed: u64,
    prompt_len: usize,
    adjusted: Vec<f32>,
    candidates: Vec<Candidate>,
    weights: Vec<f64>,
}

impl Sampler {
    /// A sampler with these settings.
    pub fn new(params: SamplingParams) -> Result<Self, Error> {
        params.validate()?;
        // The standard library's hash keys are the one source of randomness that needs no dependency.
        let seed = params
            .seed
            .unwrap_or_else(|| std::collections::hash_map::RandomState::new().build_hasher().finish());
        Ok(Self {
            params,
            random: Random::new(seed),
            seed,
            prompt_len: 0,
            adjusted: Vec::new(),
            candidates: Vec::new(),
            weights: Vec::new(),
        })
    }

    /// Says that the first `prompt_len` tokens of every history are the prompt: the repetition penalty counts them,
    /// presence and frequency penalties, which are about what was generated, do not.
    pub fn set_prompt_len(&mut self, prompt_len: usize) {
        self.prompt_len = prompt_len;
    }

    /// Tokens of the prompt, as far as they were said.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// The seed in use, also when none was given, so that a run can be repeated.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The settings in use.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Chooses the next token. `history` is all tokens so far, prompt first.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<Sampled, Error> {
        let best = argmax(logits)?;
        let id = if self.params.has_penalties() {
            let mut adjusted = std::mem::take(&mut self.adjusted);
            adjusted.clear();
            adjusted.extend_from_slice(logits);
            self.adjust(&mut adjusted, history);
            let id = argmax(&adjusted).map(|best| self.choose(&adjusted, best));
            self.adjusted = adjusted;
            id?
        } else {
            self.choose(logits, best)
        };
        let logprob = self.params.logprobs.then(|| logprob(logits, id, logits[best as usize]));
        Ok(Sampled { id, logprob })
    }

    /// How many of the largest logits suffice to choose by, where not all are needed.
    pub fn needed(&self) -> Option<usize> {
        let params = &self.params;
        match params.top_k {
            _ if params.has_penalties() || params.logprobs => None,
            _ if params.temperature == 0.0 => Some(1),
            1..=MOST_TOP => Some(params.top_k),
            _ => None,
        }
    }

    /// Chooses the next token from the largest logits, largest first, as many as are [`needed`](Self::needed): the same
    /// token that [`sample`](Self::sample) chooses from all of them.
    pub fn sample_largest(&mut self, largest: &[(u32, f32)]) -> Result<Sampled, Error> {
        let best = match largest.first() {
            Some(best) if best.1.is_finite() => *best,
            Some((id, logit)) if *logit != f32::NEG_INFINITY => return Err(not_a_number(*id, *logit)),
            _ => {
                return Err(Error::InvalidLogits {
                    reason: "all logits are -infinity, or there are none".into(),
                });
            }
        };
        if self.params.temperature == 0.0 {
            return Ok(Sampled { id: best.0, logprob: None });
        }
        self.candidates.clear();
        self.candidates.extend(largest.iter().map(|(id, logit)| Candidate { id: *id, logit: *logit }));
        self.narrow(best.1, None);
        Ok(Sampled { id: self.draw(best.0), logprob: None })
    }

    /// Applies penalties and bias.
    fn adjust(&self, logits: &mut [f32], history: &[u32]) {
        let params = &self.params;
        let window = match params.repetition_window {
            0 => history.len(),
            window => window.min(history.len()),
        };
        let start = history.len() - window;
        let (mut seen, mut generated) = (HashSet::new(), HashMap::new());
        for (position, &id) in history.iter().enumerate().skip(start) {
            seen.insert(id);
            if position >= self.prompt_len {
                *generated.entry(id).or_insert(0u32) += 1;
            }
        }
        for id in seen {
            if let Some(logit) = logits.get_mut(id as usize) {
                let penalty = params.repetition_penalty;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        for (&id, &count) in &generated {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= params.presence_penalty + params.frequency_penalty * count as f32;
            }
        }
        for (&id, &bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
    }

    /// Filters and draws; `best` is the index of the largest logit.
    fn choose(&mut self, logits: &[f32], best: u32) -> u32 {
        if self.params.temperature == 0.0 {
            return best;
        }
        self.filter(logits, logits[best as usize]);
        self.draw(best)
    }

    /// Draws one of the candidates by their weights.
    fn draw(&mut self, best: u32) -> u32 {
        let total: f64 = self.weights.iter().sum();
        let mut rest = self.random.uniform() * total;
        for (candidate, &weight) in self.candidates.iter().zip(&self.weights) {
            rest -= weight;
            if rest < 0.0 {
                return candidate.id;
            }
        }
        // Rounding can leave a crumb above the last weight; the last token that has any weight takes it.
        self.candidates
            .iter()
            .zip(&self.weights)
            .rev()
            .find(|(_, weight)| **weight > 0.0)
            .map_or(best, |(candidate, _)| candidate.id)
    }

    /// Leaves in `candidates` the tokens that may be drawn and in `weights` their probabilities up to a factor, the
    /// most likely token having 1.
    fn filter(&mut self, logits: &[f32], max: f32) {
        let &SamplingParams { temperature, top_k, top_p, min_p, .. } = &self.params;
        let (top_p, min_p) = (f64::from(top_p), f64::from(min_p));
        let candidates = &mut self.candidates;
        let mut total = None;
        if top_k > 0 && top_k < logits.len() {
            candidates.clear();
            candidates.extend(largest(logits, top_k).into_iter().map(|(id, logit)| Candidate { id, logit }));
        } else {
            let mut floor = min_p;
            if top_p < 1.0 {
                // All tokens below this weight together hold less than what top-p cuts off, so none of them is
                // needed; only the others, usually a few hundred, have to be sorted.
                let sum = sum_exp(logits, max, temperature);
                floor = floor.max((1.0 - top_p) * sum / logits.len() as f64);
                total = Some(sum);
            }
            // A little too many are kept, so that the rounding of the logarithm decides nothing.
            let least =
                f64::from(max) + f64::from(temperature) * (floor.ln() - 1e-6) - 1e-6 * f64::from(max.abs());
            let all = logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit });
            candidates.clear();
            candidates.extend(all.filter(|candidate| f64::from(candidate.logit) >= least));
        }
        if top_p < 1.0 {
            candidates.sort_unstable_by(likelier_first);
        }
        self.narrow(max, total);
    }

    /// Weighs the candidates and takes away what top-p and min-p do not want; for top-p they are sorted. `total` is
    /// the sum of all weights, where others than the candidates have some.
    fn narrow(&mut self, max: f32, total: Option<f64>) {
        let &SamplingParams { temperature, top_p, min_p, .. } = &self.params;
        let (top_p, min_p) = (f64::from(top_p), f64::from(min_p));
        let scale = 1.0 / f64::from(temperature);
        let candidates = &mut self.candidates;
        self.weights.clear();
        self.weights
            .extend(candidates.iter().map(|candidate| (f64::from(candidate.logit) - f64::from(max)) * scale));
        exp_all(&mut self.weights);

        if top_p < 1.0 {
            let target = top_p * total.unwrap_or_else(|| self.weights.iter().sum());
            let mut sum = 0.0;
            let reached = self.weights.iter().position(|weight| {
                sum += weight;
                sum >= target
            });
            let keep = reached.map_or(candidates.len(), |last| last + 1);
            candidates.truncate(keep);
            self.weights.truncate(keep);
        }
        if min_p > 0.0 {
            let mut weights = self.weights.iter();
            candidates.retain(|_| weights.next().is_some_and(|&weight| weight >= min_p));
            self.weights.retain(|&weight| weight >= min_p);
        }
    }
}

/// The `k` most likely tokens with the natural logarithms of their probabilities, most likely first.
pub fn top_logprobs(logits: &[f32], k: usize) -> Result<Vec<(u32, f32)>, Error> {
    let max = logits[argmax(logits)? as usize];
    let log_sum = log_sum(logits, max);
    let top = largest(logits, k).into_iter();
    Ok(top.map(|(id, logit)| (id, (f64::from(logit) - log_sum) as f32)).collect())
}

/// Natural logarithm of the probability that logits give a token.
pub(crate) fn log_probability(logits: &[f32], id: u32) -> Result<f32, Error> {
    let best = argmax(logits)?;
    Ok(logprob(logits, id, logits[best as usize]))
}

/// Index of the largest logit, the lowest of equals. This is also where bad logits are found.
fn argmax(logits: &[f32]) -> Result<u32, Error> {
    let invalid = |reason: String| Err(Error::InvalidLogits { reason });
    // First the value, lane by lane, then where it is.
    let (mut lanes, mut sound) = ([f32::NEG_INFINITY; 16], true);
    for block in logits.chunks(lanes.len()) {
        for (max, &logit) in lanes.iter_mut().zip(block) {
            sound &= logit < f32::INFINITY;
            *max = if logit > *max { logit } else { *max };
        }
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    let best = logits.iter().position(|logit| *logit == max).unwrap_or_default();
    if !sound {
        let at =
            logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY).unwrap_or_default();
        return Err(not_a_number(at as u32, logits[at]));
    }
    if max == f32::NEG_INFINITY {
        return invalid(match logits.len() {
            0 => "the model gave no logits".to_string(),
            n => format!("all {n} logits are -infinity"),
        });
    }
    Ok(best as u32)
}

fn not_a_number(id: u32, logit: f32) -> Error {
    Error::InvalidLogits { reason: format!("the logit of token {id} is {logit}") }
}

fn likelier_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

fn logprob(logits: &[f32], id: u32, max: f32) -> f32 {
    (f64::from(logits[id as usize]) - log_sum(logits, max)) as f32
}

/// log of the sum of e^logit.
fn log_sum(logits: &[f32], max: f32) -> f64 {
    f64::from(max) + sum_exp(logits, max, 1.0).ln()
}
