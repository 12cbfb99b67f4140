//! The host's side of a request: says how its tokens are to be chosen, and tells them. It knows no backend.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backend::Sampled;

use super::costs::{Costs, Trust};
use super::job::{Finish, Job, Timing, TokenUpdate, Update};
use super::lookup::Lookup;
use super::plan::Part;
use super::{Queued, lock};
use crate::{Constraint, Error, Sampler, check_sampled};

/// The tokens of a request and how the next is chosen.
pub(super) struct Writer {
    pub job: Job,
    pub sampler: Sampler,
    /// Shared with whoever computes its next mask while a step runs.
    constraint: Option<Arc<Mutex<Constraint>>>,
    /// Prompt and answer. What the model has not seen yet is what the sequence lacks of them.
    tokens: Vec<u32>,
    /// The token that ended the answer, which is not part of it.
    ended_by: Option<u32>,
    /// Why its constraint cannot go on, if it cannot.
    pub broken: Option<Error>,
    lookup: Lookup,
    /// Draft tokens of a drafting head for the next step, and how its drafts fared.
    drafted: Vec<u32>,
    trust: Trust,
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
        let Queued { mut job, sampler, since } = queued;
        let tokens = std::mem::take(&mut job.prompt);
        job.stable = job.stable.min(tokens.len());
        let constraint = job.constraint.take().map(|constraint| Arc::new(Mutex::new(constraint)));
        Self {
            job,
            sampler,
            constraint,
            tokens,
            ended_by: None,
            broken: None,
            lookup: Lookup::default(),
            drafted: Vec::new(),
            trust: Trust::default(),
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

    /// The tokens, and the one that ended the answer behind them.
    pub fn text(&self) -> Vec<u32> {
        self.tokens.iter().copied().chain(self.ended_by).collect()
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
        let (known, is_last) = (tokens.len(), end == self.tokens.len());
        // What a rejected draft took back is computed again, and there is more of it with every
        // further one.
        if speculate && is_last && known <= 2 {
            let most = self.most_drafts(context);
            if known == 1 {
                tokens.extend_from_slice(self.lookup.find(&self.tokens, most));
            }
            by_head = tokens.len() == known;
            if by_head {
                tokens.extend_from_slice(&self.drafted[..self.drafted.len().min(most)]);
            }
            tokens.truncate(known + self.conforming(&tokens[known..]));
        }
        self.drafted.clear();
        let (drafts, scores, is_prompt) = (tokens.len() - known, self.is_scoring(), false);
        let draws = match is_last {
            true => self.sampler.with_drafts(&self.tokens, &tokens[known..]),
            false => Vec::new(),
        };
        let rows = 0..if scores { known } else { draws.len() };
        if !self.has_started() {
            let of = self.sampler.prompt_len();
            self.job.listener.update(Update::Prompt { done: seen, of });
        }
        Part { request, begin: seen, tokens, follows: false, is_prompt, drafts, by_head, rows, draws, scores }
    }

    /// Its part of the step after one under way, for the token that this will bring.
    pub fn plan_next(&mut self, request: u64, seen: usize) -> Part {
        Part {
            request,
            begin: seen,
            tokens: vec![0],
            follows: true,
            is_prompt: false,
            drafts: 0,
            by_head: false,
            rows: 0..1,
            draws: vec![self.sampler.after_next(&self.tokens)],
            scores: false,
        }
    }

    /// How many of some draft tokens its constraint allows.
    fn conforming(&self, drafts: &[u32]) -> usize {
        match &self.constraint {
            Some(constraint) if !drafts.is_empty() => lock(constraint).allows(drafts),
            _ => drafts.len(),
        }
    }

    /// Most draft tokens that could be of use.
    fn most_drafts(&self, context: usize) -> usize {
        let left = self.job.max_tokens.map_or(usize::MAX, |most| most - self.written());
        left.saturating_sub(1).min(context.saturating_sub(self.tokens.len()))
    }

    /// Whether another token will follow the one that is chosen next, unless that ends the answer.
    pub fn goes_on(&self, context: usize) -> bool {
        self.most_drafts(context) > 0
    }

    /// Whether the text repeats itself here, so that draft tokens can be looked up.
    pub fn is_repeating(&self, context: usize) -> bool {
        !self.lookup.find(&self.tokens, self.most_drafts(context)).is_empty()
    }

    /// How many draft tokens of a drafting head the next step should check.
    pub fn wanted_drafts(&mut self, costs: &Costs, requests: usize, context: usize) -> usize {
        let most = self.most_drafts(context);
        if most == 0 || self.is_repeating(context) {
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

    /// Takes over the tokens that were chosen by its part of a step, of which `logits` are those it tells, and tells
    /// them.
    pub fn advance(
        &mut self,
        part: &Part,
        chosen: &[Sampled],
        logits: &[f32],
        context: usize,
    ) -> Result<Gain, Error> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let mut gain = Gain::default();
        if part.scores {
            self.score(part, logits);
        }
        if chosen.is_empty() {
            return Ok(gain);
        }
        if self.started_at.is_none() {
            self.started_at = Some(Instant::now());
            self.job.listener.update(Update::Started { reused: self.reused });
        }
        let (before, drafts) = (self.tokens.len(), part.draft_tokens());
        for (i, sampled) in chosen.iter().enumerate() {
            gain.finish = self.write(sampled, context, &mut gain.tokens)?;
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

    /// Tells the logits of prompt tokens, each once: a request that was preempted computes them again.
    fn score(&mut self, part: &Part, logits: &[f32]) {
        let width = logits.len() / part.rows.len().max(1);
        let known = self.scored.saturating_sub(part.begin).min(part.rows.len());
        self.scored = self.scored.max(part.begin + part.rows.len());
        let logits = &logits[known * width..];
        if !logits.is_empty() {
            self.job.listener.update(Update::PromptLogits(logits.to_vec()));
        }
    }

    /// Takes one token over and tells it; says why the answer is over, if it is.
    fn write(
        &mut self,
        sampled: &Sampled,
        context: usize,
        written: &mut usize,
    ) -> Result<Option<Finish>, Error> {
        if self.job.max_tokens == Some(0) {
            return Ok(Some(Finish::Length));
        }
        check_sampled(sampled)?;
        let Sampled { token: id, logprob, ref top, .. } = *sampled;
        if let Some(constraint) = &self.constraint {
            lock(constraint).push(id)?;
        }
        if self.job.end_ids.contains(&id) {
            self.ended_by = Some(id);
            return Ok(Some(Finish::End));
        }
        self.tokens.push(id);
        *written += 1;
        self.job.listener.update(Update::Token(TokenUpdate { id, logprob, top: top.clone() }));
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
