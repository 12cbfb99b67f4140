//! The end of a step: tokens are told, drafts accepted or rejected, requests end.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use backend::Backend;

use super::device::Collected;
use super::draft::draft;
use super::job::{Finish, Update};
use super::lock;
use super::plan::{Part, Plan};
use super::request::Request;
use super::step_loop::Loop;
use super::trace::Phase;
use super::writer::Gain;
use crate::Error;

/// What a step brought its requests that still run, in their order.
pub(super) type Gains = Vec<(u64, Result<Gain, Error>)>;

impl<B: Backend> Loop<B> {
    /// Tells the tokens of a step, accepts and rejects drafts, makes the next ones, and ends requests that are over.
    /// `begun` is when the loop turned to this step.
    pub(super) fn commit(&mut self, plan: Plan, collected: Collected<B>, begun: Instant) {
        let clock = self.trace.clock();
        let mut gains = self.tell(&plan, &collected);
        self.compute_masks(&gains);
        self.reject_drafts(&plan, &mut gains);
        let made = match &collected.hidden {
            // There is nothing to draft for a step that is under way already.
            Some(hidden) if self.in_flight.is_empty() => {
                draft(&mut self.engine, &mut self.running, &plan, &gains, hidden, &self.costs).map(Some)
            }
            _ => Ok(self.has_head().then_some(0)),
        };
        if let (Ok(Some(made)), Some(checked), 0) = (&made, plan.head_drafts(), plan.prompt_tokens)
            && !gains.is_empty()
        {
            self.costs.learn(plan.parts.len(), checked, *made, begun.elapsed());
        }
        self.learn_pace(&plan, begun);
        for (request, gain) in gains {
            self.account(request, gain);
        }
        if let Err(error) = made {
            self.fail_all(&error);
        }
        self.trace.tell(Phase::Commit, &plan, clock);
    }

    /// Tells the tokens of all requests, on the backend's threads: so whoever hears of them wakes up once, when all are
    /// told, and not for each.
    fn tell(&mut self, plan: &Plan, collected: &Collected<B>) -> Gains {
        let Self { engine, running, .. } = self;
        let (brought, context) = (collected.of(plan), engine.context());
        // Each is locked once: it is how threads get one request each.
        let mut told = Vec::with_capacity(plan.parts.len());
        for (part, request) in plan.with(running) {
            let own = plan.parts.iter().position(|other| other.request == part.request);
            let brought = own.map(|i| brought[i]).unwrap_or_default();
            told.push(Mutex::new((part, &mut request.writer, brought, Ok(Gain::default()))));
        }
        engine.model().backend().parallel_for(told.len(), &|i| {
            let (part, writer, (sampled, logits), gain) = &mut *lock(&told[i]);
            *gain = writer.advance(part, sampled, logits, context);
        });
        let gain = |told: Mutex<(&Part, _, _, _)>| {
            let (part, _, _, gain) = told.into_inner().unwrap_or_else(PoisonError::into_inner);
            (part.request, gain)
        };
        told.into_iter().map(gain).collect()
    }

    /// Has the next masks of constraints computed from here on, while others wait for this thread.
    fn compute_masks(&mut self, gains: &Gains) {
        let b = self.engine.model().backend();
        for (number, gain) in gains {
            if matches!(gain, Ok(Gain { finish: None, .. }))
                && let Some(request) = self.running.iter().find(|request| request.number == *number)
                && let Some(mask) = request.next_mask()
            {
                b.background(mask);
            }
        }
    }

    fn reject_drafts(&mut self, plan: &Plan, gains: &mut Gains) {
        let Self { engine, running, .. } = self;
        for ((part, request), (_, gain)) in plan.with(running).zip(gains) {
            if let Ok(found) = gain
                && let Err(error) = request.reject_drafts(engine, part, found)
            {
                *gain = Err(error);
            }
        }
    }

    /// Learns how long a prompt takes from steps that are mostly prompt.
    fn learn_pace(&mut self, plan: &Plan, begun: Instant) {
        self.stats.prompt_tokens += plan.prompt_tokens as u64;
        if plan.prompt_tokens > 4 * plan.parts.len() {
            let now = begun.elapsed().as_secs_f64() / plan.prompt_tokens as f64;
            self.pace = Some(self.pace.map_or(now, |before| 0.7 * before + 0.3 * now));
        }
    }

    /// Counts what a step brought a request, and ends it if it is over.
    fn account(&mut self, request: u64, gain: Result<Gain, Error>) {
        let Some(i) = self.running.iter().position(|running| running.number == request) else { return };
        match gain {
            Ok(Gain { tokens, accepted, finish }) => {
                self.stats.tokens += tokens as u64;
                self.stats.accepted += accepted as u64;
                if let Some(finish) = finish {
                    self.end(i, finish);
                }
            }
            Err(error) => {
                // Its state is whole, but nobody knows what it would have said.
                let request = self.running.remove(i);
                self.fail(request, error);
            }
        }
    }

    /// Ends a running request.
    pub(super) fn end(&mut self, i: usize, finish: Finish) {
        let mut request = self.running.remove(i);
        self.stats.finished += 1;
        self.stats.busy += request.writer.age();
        // The sequence is kept before the client hears of it: its next request may come at once.
        if let Some(mut sequence) = request.sequence.take() {
            // A step under way has seen the last token, and nothing that is not known.
            sequence.tokens = request.writer.text();
            sequence.tokens.truncate(sequence.len);
            self.prefixes.put(&mut self.engine, &self.running, sequence);
        }
        request.writer.finish(finish);
    }

    pub(super) fn fail(&mut self, mut request: Request, error: Error) {
        self.stats.failed += 1;
        self.stats.finished += 1;
        request.release(&mut self.engine);
        request.writer.job.listener.update(Update::Failed(error));
    }

    /// Fails all running requests: a step that failed leaves their states in between.
    pub(super) fn fail_all(&mut self, error: &Error) {
        self.in_flight.clear();
        let reason = error.to_string();
        for request in std::mem::take(&mut self.running) {
            self.fail(request, Error::Step { reason: reason.clone() });
        }
    }
}
