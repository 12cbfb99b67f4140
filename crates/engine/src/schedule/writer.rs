//! The host's side of a request: chooses its tokens and tells them. It knows no backend, so that
//! any thread may do it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backend::largest_allowed;
use llguidance::toktrie::SimpleVob;

use super::costs::{Costs, Trust};
use super::job::{Finish, Job, Timing, TokenUpdate, Update};
use super::lookup::Lookup;
use super::plan::Part;
use super::{Queued, lock};
use crate::sampling::log_probability;
use crate::{Constraint, Error, Sampler, top_logprobs};

/// Logits of one token, as much of them as is needed.
#[derive(Clone, Copy)]
pub(super) enum Row<'a> {
    /// All of them.
    All(&'a [f32]),
    /// The largest of those that may be chosen, largest first.
    Top(&'a [(u32, f32)]),
}

/// The tokens of a request and how the next is chosen.
pub(super) struct Writer {
    pub job: Job,
    sampler: Sampler,
    /// Shared with whoever computes its next mask while a step runs.
    constraint: Option<Arc<Mutex<Constraint>>>,
    /// Prompt and answer. What the model has not seen yet is what the sequence lacks of them.
    tokens: Vec<u32>,
    /// The token that ended the answer, which is not part of it.
    ended_by: Option<u32>,
    lookup: Lookup,
    /// Draft tokens of a drafting head for the next step, and how its drafts fared.
    drafted: Vec<u32>,
    trust: Trust,
    /// Logits with those of forbidden tokens at minus infinity, where all are needed.
    masked: Vec<f32>,
    /// Tokens of the prompt whose logits have been told.
    scored: usize,
    /// Tokens of the prompt that did not have to be computed.
    pub reused: usize,
    queued_at: Instant,
    /// When its first step could come.
    begun_at: Option<Instant>,
    started_at: Option<Instant>,
}

/// What a step brought one request.
#[derive(Clone, Copy, Default)]
pub(super) struct Gain {
    /// Tokens of the answer.
    pub tokens: usize,
    /// Draft tokens that were accepted.
    pub accepted: usize,
    /// Why the answer is over, if it is.
    pub finish: Option<Finish>,
}

impl Writer {
    pub fn new(queued: Queued) -> Self {
        let Queued { mut job, mut sampler, since } = queued;
        let tokens = std::mem::take(&mut job.prompt);
        job.stable = job.stable.min(tokens.len());
        sampler.set_prompt_len(tokens.len());
        let constraint = job.constraint.take().map(|constraint| Arc::new(Mutex::new(constraint)));
        Self {
            job,
            sampler,
            constraint,
            tokens,
            ended_by: None,
            lookup: Lookup::default(),
            drafted: Vec::new(),
            trust: Trust::default(),
            masked: Vec::new(),
            scored: 0,
            reused: 0,
            queued_at: since,
            begun_at: None,
            started_at: None,
        }
    }

    /// It waits no longer.
    pub fn begin(&mut self) {
        self.begun_at.get_or_insert_with(Instant::now);
    }

    /// Time since then.
    pub fn age(&self) -> Duration {
        self.begun_at.map_or(Duration::ZERO, |begun| begun.elapsed())
    }

    /// Whether its prompt has been computed once.
    pub fn has_started(&self) -> bool {
        self.started_at.is_some()
    }

    /// Prompt and answer so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn constraint(&self) -> Option<Arc<Mutex<Constraint>>> {
        self.constraint.clone()
    }

    /// The token at a place of the text, or what ended it there; 0 where nothing was chosen.
    pub fn token_at(&self, place: usize) -> u32 {
        self.tokens.get(place).copied().or(self.ended_by).unwrap_or(0)
    }

    /// Tokens of the answer so far.
    fn written(&self) -> usize {
        self.tokens.len() - self.sampler.prompt_len()
    }

    /// Whether the logits of its prompt are still to be told.
    fn is_scoring(&self) -> bool {
        self.job.prompt_logits && !self.has_started()
    }

    /// Its part of the next step, behind `seen` tokens: at most `budget` tokens, and draft tokens
    /// behind them if it may `speculate`.
    pub fn plan(
        &mut self,
        request: u64,
        seen: usize,
        budget: usize,
        speculate: bool,
        context: usize,
    ) -> Part {
        let mut end = self.tokens.len().min(seen + budget.max(1));
        if (seen + 1..end).contains(&self.job.stable) {
            end = self.job.stable;
        }
        let (mut tokens, mut by_head) = (self.tokens[seen..end].to_vec(), false);
        let known = tokens.len();
        // What a rejected draft took back is computed again, and there is more of it with every
        // further one.
        if speculate && end == self.tokens.len() && known <= 2 {
            let most = self.most_drafts(context);
            if known == 1 {
                tokens.extend_from_slice(self.lookup.find(&self.tokens, most));
            }
            by_head = tokens.len() == known;
            if by_head {
                tokens.extend_from_slice(&self.drafted[..self.drafted.len().min(most)]);
            }
        }
        self.drafted.clear();
        let drafts = tokens.len() - known;
        let rows = match end == self.tokens.len() {
            _ if self.is_scoring() => known,
            true => 1 + drafts,
            false => 0,
        };
        if !self.has_started() {
            let of = self.sampler.prompt_len();
            self.job.listener.update(Update::Prompt { done: seen, of });
        }
        Part { request, begin: seen, tokens, drafts, by_head, rows: 0..rows }
    }

    /// Its part of the step after the one under way, for the token that this will bring.
    pub fn plan_next(&self, request: u64, seen: usize) -> Part {
        let (drafts, by_head) = (0, false);
        Part { request, begin: seen, tokens: vec![0], drafts, by_head, rows: 0..1 }
    }

    /// Most draft tokens that could be of use.
    fn most_drafts(&self, context: usize) -> usize {
        let left = self.job.max_tokens.map_or(usize::MAX, |most| most - self.written());
        left.saturating_sub(1).min(context.saturating_sub(self.tokens.len()))
    }

    /// Whether another token will follow the one that is chosen next, unless that ends the answer,
    /// and there is nothing to look up here that would be a reason to `speculate`.
    pub fn goes_on(&self, speculate: bool, context: usize) -> bool {
        let most = self.most_drafts(context);
        most > 0 && (!speculate || self.lookup.find(&self.tokens, most).is_empty())
    }

    /// How many draft tokens of a drafting head the next step should check.
    pub fn wanted_drafts(&mut self, costs: &Costs, requests: usize, context: usize) -> usize {
        let most = self.most_drafts(context);
        if most == 0 || !self.lookup.find(&self.tokens, most).is_empty() {
            return 0;
        }
        self.trust.length(costs, requests, self.tokens.len()).min(most)
    }

    /// Whether the head's drafts do not pay at present, so that it need not follow either.
    pub fn is_without_head(&self) -> bool {
        self.trust.pauses(self.tokens.len())
    }

    /// The tokens so far, and where draft tokens for what follows them go.
    pub fn drafting(&mut self) -> (&[u32], &mut Vec<u32>) {
        (&self.tokens, &mut self.drafted)
    }

    /// How many of the largest logits [that may be chosen](Self::allowed) suffice for its part of a
    /// step, if not all are needed. What may be chosen behind a draft token is known only when that
    /// has been accepted.
    pub fn needed(&self, part: &Part) -> Option<usize> {
        let constrained = self.constraint.is_some() && part.drafts > 0;
        let all = self.job.logprobs.is_some() || self.is_scoring() || constrained;
        if all { None } else { self.sampler.needed() }
    }

    /// Whether the next token is the one with the largest logit, whatever came before.
    pub fn takes_likeliest(&self) -> bool {
        self.constraint.is_none() && self.job.logprobs.is_none() && self.sampler.needed() == Some(1)
    }

    /// The tokens that may come next, where not all may.
    pub fn allowed(&self) -> Option<Arc<SimpleVob>> {
        // Whoever chooses meets the same error.
        self.constraint.as_ref().and_then(|constraint| lock(constraint).allowed().ok())
    }

    /// Chooses tokens by the `rows` of its part of a step and tells them.
    pub fn advance(&mut self, part: &Part, mut rows: &[Row<'_>], context: usize) -> Result<Gain, Error> {
        let mut gain = Gain::default();
        if self.is_scoring() {
            self.score(part, rows);
            let left = if part.end() == self.tokens.len() { 1 } else { 0 };
            rows = &rows[rows.len().saturating_sub(left)..];
        }
        if rows.is_empty() {
            return Ok(gain);
        }
        if self.started_at.is_none() {
            self.started_at = Some(Instant::now());
            self.job.listener.update(Update::Started { reused: self.reused });
        }
        let (before, drafts) = (self.tokens.len(), &part.tokens[part.tokens.len() - part.drafts..]);
        for (i, row) in rows.iter().enumerate() {
            gain.finish = self.write(*row, context, &mut gain.tokens)?;
            let draft = drafts.get(i);
            if gain.finish.is_some() || draft.is_none() || self.tokens.last() != draft {
                break;
            }
            gain.accepted += 1;
        }
        if part.drafts > 0 {
            // An end is nobody's fault: what came before it was right.
            let judged = if gain.finish.is_some() { gain.accepted } else { part.drafts };
            match part.by_head {
                true => self.trust.learn(judged, gain.accepted),
                false => self.lookup.learn(before, judged, gain.accepted),
            }
        }
        Ok(gain)
    }

    /// Tells the logits of prompt tokens, each once: a request that was preempted computes them
    /// again.
    fn score(&mut self, part: &Part, rows: &[Row<'_>]) {
        let known = self.scored.saturating_sub(part.begin).min(rows.len());
        let mut logits = Vec::new();
        for row in &rows[known..] {
            if let Row::All(values) = row {
                logits.extend_from_slice(values);
            }
        }
        self.scored = self.scored.max(part.begin + rows.len());
        if !logits.is_empty() {
            self.job.listener.update(Update::PromptLogits(logits));
        }
    }

    /// Chooses the token that follows.
    fn choose(&mut self, row: Row<'_>) -> Result<TokenUpdate, Error> {
        let Self { job, sampler, constraint, tokens, masked, .. } = self;
        let mut constraint = constraint.as_ref().map(|constraint| lock(constraint));
        let needed = sampler.needed();
        let id = match (row, &mut constraint) {
            (Row::Top(largest), constraint) => {
                if let Some(constraint) = constraint {
                    constraint.allowed()?;
                }
                sampler.sample_largest(&largest[..largest.len().min(needed.unwrap_or(usize::MAX))])?.id
            }
            (Row::All(logits), Some(constraint)) => match needed {
                Some(k) => {
                    let allowed = constraint.allowed()?;
                    sampler.sample_largest(&largest_allowed(logits, k, Some(allowed.as_slice())))?.id
                }
                None => {
                    masked.clear();
                    masked.extend_from_slice(logits);
                    constraint.mask(masked)?;
                    sampler.sample(masked, tokens)?.id
                }
            },
            (Row::All(logits), None) => sampler.sample(logits, tokens)?.id,
        };
        if let Some(constraint) = &mut constraint {
            constraint.push(id)?;
        }
        Ok(match (job.logprobs, row) {
            (Some(k), Row::All(logits)) => {
                TokenUpdate { id, logprob: Some(log_probability(logits, id)?), top: top_logprobs(logits, k)? }
            }
            _ => TokenUpdate { id, logprob: None, top: Vec::new() },
        })
    }

    /// Chooses one token and tells it; says why the answer is over, if it is.
    fn write(&mut self, row: Row<'_>, context: usize, written: &mut usize) -> Result<Option<Finish>, Error> {
        if self.job.max_tokens == Some(0) {
            return Ok(Some(Finish::Length));
        }
        let token = self.choose(row)?;
        if self.job.end_ids.contains(&token.id) {
            self.ended_by = Some(token.id);
            return Ok(Some(Finish::End));
        }
        self.tokens.push(token.id);
        *written += 1;
        self.job.listener.update(Update::Token(token));
        Ok(if self.constraint.as_ref().is_some_and(|constraint| lock(constraint).is_finished()) {
            Some(Finish::End)
        } else if Some(self.written()) == self.job.max_tokens {
            Some(Finish::Length)
        } else if self.tokens.len() > context {
            Some(Finish::Context)
        } else {
            None
        })
    }

    /// Tells that it is over.
    pub fn finish(&mut self, finish: Finish) {
        let now = Instant::now();
        let begun = self.begun_at.unwrap_or(now);
        let started = self.started_at.unwrap_or(now);
        let timing =
            Timing { queued: begun - self.queued_at, prompt: started - begun, decode: now - started };
        self.job.listener.update(Update::Finished(finish, timing));
    }
}
