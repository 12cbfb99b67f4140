//! One job on its way: the tokens so far, what of them the model has seen, and how the next is chosen.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backend::{Backend, largest_allowed};
use llguidance::toktrie::SimpleVob;
use models::{Logits, RecurrentSnapshot, Request};

use super::ahead::Next;
use super::costs::{Costs, MOST, Trust};
use super::guess::Guesses;
use super::job::{Job, Timing, TokenUpdate, Update};
use super::lock;
use super::run::Queued;
use crate::sampling::log_probability;
use crate::sequence::Sequence;
use crate::{Constraint, Error, Finish, Sampler, top_logprobs};

/// Logits of one token, as much of them as is needed.
#[derive(Clone, Copy)]
pub(super) enum Row<'a> {
    /// All of them.
    All(&'a [f32]),
    /// The largest of those that may be chosen, largest first.
    Top(&'a [(u32, f32)]),
}

/// A job that has begun.
pub(super) struct Answer<B: Backend> {
    pub writer: Writer,
    /// `None` while it waits for memory.
    pub sequence: Option<Sequence<B>>,
    /// The place before the present step, for when guesses are wrong.
    before: Option<RecurrentSnapshot<B>>,
    /// Its next step, if that is recorded or runs already.
    pub next: Option<Next<B>>,
    /// Tokens that the model had seen before the present step.
    pub begin: usize,
}

/// The side of an answer that chooses tokens and tells them. It knows no backend, so that any thread may do it.
pub(super) struct Writer {
    pub job: Job,
    sampler: Sampler,
    /// Shared with whoever finds out beside a step what may come next.
    constraint: Option<Arc<Mutex<Constraint>>>,
    /// Prompt and answer. What the model has not seen yet is what the sequence lacks of them.
    tokens: Vec<u32>,
    /// The token that ended the answer, which is not part of it.
    ended_by: Option<u32>,
    guesses: Guesses,
    /// What a drafting head guesses for the next step, and how its guesses went.
    drafted: Vec<u32>,
    trust: Trust,
    /// Logits of which only those of allowed tokens are left, where all are needed.
    masked: Vec<f32>,
    /// What the present step runs: tokens, then guesses.
    part: Vec<u32>,
    guessed: usize,
    /// Whether the guesses are the drafting head's.
    by_head: bool,
    pub reused: usize,
    queued_at: Instant,
    /// When its first step could come.
    begun_at: Option<Instant>,
    started_at: Option<Instant>,
}

/// How a step went.
#[derive(Clone, Copy, Default)]
pub(super) struct Gain {
    /// Tokens of the answer.
    pub tokens: u64,
    /// Guesses that were right.
    pub right: u64,
    /// Why the answer is over, if it is.
    pub finish: Option<Finish>,
}

impl<B: Backend> Answer<B> {
    pub fn new(queued: Queued) -> Self {
        Self { writer: Writer::new(queued), sequence: None, before: None, next: None, begin: 0 }
    }

    fn seen(&self) -> usize {
        self.sequence.as_ref().map_or(0, |sequence| sequence.tokens().len())
    }

    /// Tokens that the model has not seen.
    pub fn unseen(&self) -> usize {
        self.writer.tokens.len() - self.seen()
    }

    /// Whether its prompt is computed and it waits for nothing but its next token, or for few that a wrong guess took back.
    pub fn is_writing(&self) -> bool {
        self.writer.started_at.is_some() && self.unseen() <= 1 + MOST
    }

    /// Chooses what the next step runs: at most `budget` tokens, and guesses if there may be any.
    pub fn plan(&mut self, b: &B, budget: usize, guess: bool, context: usize) -> Result<(), Error> {
        self.begin = self.seen();
        self.writer.plan(self.begin, budget, guess, context);
        self.before = match &self.sequence {
            Some(sequence) if self.writer.guessed > 0 && sequence.state.is_recurrent() => {
                Some(sequence.state.snapshot(b)?)
            }
            _ => None,
        };
        Ok(())
    }

    /// Rows of logits it will get.
    pub fn rows(&self) -> usize {
        let Writer { part, guessed, tokens, .. } = &self.writer;
        let last = self.seen() + part.len() - guessed == tokens.len();
        if last { 1 + guessed } else { 0 }
    }

    /// Its part of the batch.
    pub fn request(&mut self) -> Option<Request<'_, B>> {
        let logits = match self.rows() {
            0 => Logits::None,
            rows => Logits::Tail(rows),
        };
        let sequence = self.sequence.as_mut()?;
        Some(Request { tokens: &self.writer.part, state: &mut sequence.state, logits })
    }

    /// The end of a step that went well: takes over what was seen.
    pub fn settle(&mut self, b: &B) -> Result<(), Error> {
        let Some(sequence) = &mut self.sequence else { return Ok(()) };
        sequence.tokens.extend_from_slice(&self.writer.part);
        sequence.logits = None;
        if sequence.tokens.len() == self.writer.job.stable {
            sequence.mark(b)?;
        }
        Ok(())
    }

    /// Forgets guesses that were wrong, when its tokens have been chosen.
    pub fn drop_guesses(&mut self, b: &B, gain: &Gain) -> Result<(), Error> {
        let (right, guessed) = (gain.right as usize, self.writer.guessed);
        let Some(sequence) = &mut self.sequence else { return Ok(()) };
        if right == guessed {
            return Ok(());
        }
        let kept = sequence.tokens.len() - (guessed - right);
        let (reached, len) = match &self.before {
            Some(snapshot) => (sequence.state.restore(b, snapshot)?, self.begin),
            None => (sequence.state.truncate(b, kept)?, kept),
        };
        sequence.tokens.truncate(len);
        if !reached {
            // Computed anew from the beginning.
            self.sequence = None;
        }
        Ok(())
    }
}

impl Writer {
    fn new(queued: Queued) -> Self {
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
            guesses: Guesses::default(),
            drafted: Vec::new(),
            trust: Trust::default(),
            masked: Vec::new(),
            part: Vec::new(),
            guessed: 0,
            by_head: false,
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

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The token at a place behind those that the model has seen, or what ended the answer there; any will do where nothing was chosen.
    pub fn token_at(&self, place: usize) -> u32 {
        self.tokens.get(place).copied().or(self.ended_by).unwrap_or(0)
    }

    /// Tokens of the answer so far.
    fn written(&self) -> usize {
        self.tokens.len() - self.sampler.prompt_len()
    }

    fn plan(&mut self, seen: usize, budget: usize, guess: bool, context: usize) {
        let mut end = self.tokens.len().min(seen + budget.max(1));
        if (seen + 1..end).contains(&self.job.stable) {
            end = self.job.stable;
        }
        self.part.clear();
        self.part.extend_from_slice(&self.tokens[seen..end]);
        let tokens = self.part.len();
        // What a wrong guess took back is computed again, and with every further one there is more of it.
        if guess && end == self.tokens.len() && tokens <= 2 {
            let most = self.most(context);
            if tokens == 1 {
                self.part.extend_from_slice(self.guesses.guess(&self.tokens, most));
            }
            self.by_head = self.part.len() == tokens;
            if self.by_head {
                self.part.extend_from_slice(&self.drafted[..self.drafted.len().min(most)]);
            }
        }
        self.drafted.clear();
        self.guessed = self.part.len() - tokens;
    }

    /// Most guesses that could be of use.
    fn most(&self, context: usize) -> usize {
        let left = self.job.max_tokens.map_or(usize::MAX, |most| most - self.written());
        (left - 1).min(context - self.tokens.len())
    }

    /// Whether another token will follow the one that is chosen next, unless that ends the answer, and the text does not repeat itself here
    /// where that would be a reason to `guess`.
    pub fn goes_on(&self, guess: bool, context: usize) -> bool {
        let most = self.most(context);
        most > 0 && (!guess || self.guesses.guess(&self.tokens, most).is_empty())
    }

    /// How many guesses of a drafting head the next step should check.
    pub fn wanted(&mut self, costs: &Costs, answers: usize, context: usize) -> usize {
        let most = self.most(context);
        if most == 0 || !self.guesses.guess(&self.tokens, most).is_empty() {
            return 0;
        }
        self.trust.length(costs, answers, self.tokens.len()).min(most)
    }

    /// Whether the head's guesses do not pay at present, so that it need not see anything either.
    pub fn is_without_head(&self) -> bool {
        self.trust.pauses(self.tokens.len())
    }

    /// The tokens so far, and where guesses of what follows them go.
    pub fn drafting(&mut self) -> (&[u32], &mut Vec<u32>) {
        (&self.tokens, &mut self.drafted)
    }

    /// Guesses of the drafting head in the present step; `None` where there are others.
    pub fn checked(&self) -> Option<usize> {
        (self.guessed == 0 || self.by_head).then_some(self.guessed)
    }

    /// Tokens of the step, guesses included, and how many of them are guesses.
    pub fn planned(&self) -> (usize, usize) {
        (self.part.len(), self.guessed)
    }

    /// How many of the largest logits [that may be chosen](Self::allowed) suffice, if not all are needed. What may be chosen behind a guess
    /// is known only when that has turned out to be right.
    pub fn needed(&self) -> Option<usize> {
        let all = self.job.logprobs.is_some() || (self.constraint.is_some() && self.guessed > 0);
        if all { None } else { self.sampler.needed() }
    }

    /// Whether the next token is the one with the largest logit, whatever came before.
    pub fn takes_likeliest(&self) -> bool {
        self.constraint.is_none() && self.needed() == Some(1)
    }

    /// The tokens that may come next, where not all may.
    pub fn allowed(&self) -> Option<Arc<SimpleVob>> {
        // Whoever chooses meets the same error.
        self.constraint.as_ref().and_then(|constraint| lock(constraint).allowed().ok())
    }

    /// What the next token needs to know and can be found out while the model runs, if there is anything.
    pub fn beside(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let constraint = self.constraint.clone()?;
        // Whoever needs the result meets the same error.
        Some(Box::new(move || drop(lock(&constraint).allowed())))
    }

    /// Chooses tokens by `rows` and tells the listener.
    pub fn advance(&mut self, rows: &[Row<'_>], context: usize) -> Result<Gain, Error> {
        let mut gain = Gain::default();
        if rows.is_empty() {
            return Ok(gain);
        }
        if self.started_at.is_none() {
            self.started_at = Some(Instant::now());
            self.job.listener.update(Update::Started { reused: self.reused });
        }
        let before = self.tokens.len();
        for (i, row) in rows.iter().enumerate() {
            gain.finish = self.write(*row, context, &mut gain.tokens)?;
            let guess = self.part.get(self.part.len() - self.guessed + i);
            if gain.finish.is_some() || guess.is_none() || self.tokens.last() != guess {
                break;
            }
            gain.right += 1;
        }
        if self.guessed > 0 {
            // An end is nobody's fault: what came before it was right.
            let right = gain.right as usize;
            let judged = if gain.finish.is_some() { right } else { self.guessed };
            match self.by_head {
                true => self.trust.learn(judged, right),
                false => self.guesses.learn(before, judged, right),
            }
        }
        Ok(gain)
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
    fn write(&mut self, row: Row<'_>, context: usize, written: &mut u64) -> Result<Option<Finish>, Error> {
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

    /// Tells the listener that it is over.
    pub fn finish(&mut self, finish: Finish) {
        let now = Instant::now();
        let begun = self.begun_at.unwrap_or(now);
        let started = self.started_at.unwrap_or(now);
        let timing =
            Timing { queued: begun - self.queued_at, prompt: started - begun, decode: now - started };
        self.job.listener.update(Update::Finished(finish, timing));
    }
}
