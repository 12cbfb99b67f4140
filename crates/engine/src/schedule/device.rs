//! The device's side of a step: starts it, has tokens chosen, and brings them.

use std::sync::{Arc, Mutex, PoisonError};

use backend::{Backend, Checked, Handle, Sampled, Tokens};
use llguidance::toktrie::SimpleVob;
use models::{Logits, Stepped};

use super::lock;
use super::plan::{Part, Plan};
use super::request::Request;
use crate::{Engine, Error};

/// A step under way.
pub(super) struct Ticket<B: Backend> {
    ticket: B::Ticket,
    /// Logits that somebody wants to be told.
    logits: Option<B::Tensor>,
    /// What a drafting head takes of every token, where there is such a head.
    hidden: Option<B::Tensor>,
}

/// What a step has brought.
pub(super) struct Collected<B: Backend> {
    /// The tokens of all parts, in their order.
    sampled: Vec<Sampled>,
    logits: Vec<f32>,
    width: usize,
    pub hidden: Option<B::Tensor>,
}

/// What the next tokens of a request may be, one mask for each of its draws; none where all may.
type Masks = Result<Vec<Arc<SimpleVob>>, Error>;

/// Starts a step; with what a drafting head takes of it if that is `drafting`.
pub(super) fn submit<B: Backend>(
    engine: &mut Engine<B>,
    plan: &Plan,
    running: &mut [Request],
    drafting: bool,
) -> Result<Ticket<B>, Error> {
    let Stepped { logits, hidden } = forward(engine, plan, running, drafting)?;
    let scores = plan.parts.iter().any(|part| part.scores);
    let chosen: Vec<usize> = plan.parts.iter().flat_map(Part::chosen_rows).collect();
    let rows = plan.parts.last().map_or(0, |part| part.rows.end);
    let (model, pools) = engine.model_and_pools();
    let b = model.backend();
    let from = match &logits {
        Some(logits) if chosen.len() == rows => Some(logits.clone()),
        Some(logits) if !chosen.is_empty() => Some(Checked(b).select_rows(logits, &chosen)?),
        _ => None,
    };
    let masks = masks(b, plan, running);
    let mut choices = Vec::with_capacity(chosen.len());
    for ((part, request), masks) in plan.with(running).zip(&masks) {
        let (writer, slot) = (&request.writer, request.sequence.as_ref().map(|sequence| sequence.slot));
        for (i, draw) in part.draws.iter().enumerate() {
            let masks = masks.as_deref().unwrap_or_default();
            let allowed = masks.get(i).or(masks.last()).map(|mask| mask.as_slice());
            choices.push(writer.sampler.choice(draw, slot, allowed, writer.job.logprobs));
        }
    }
    let ticket = b.submit(from.as_ref(), &choices, pools.sequences().slabs_mut())?;
    drop(choices);
    for ((_, request), masks) in plan.with(running).zip(masks) {
        if let Err(error) = masks {
            request.writer.broken = Some(error);
        }
    }
    Ok(Ticket { ticket, logits: logits.filter(|_| scores), hidden })
}

/// Runs the model over the tokens of a step, and remembers the places that requests may return to.
fn forward<B: Backend>(
    engine: &mut Engine<B>,
    plan: &Plan,
    running: &mut [Request],
    drafting: bool,
) -> Result<Stepped<B>, Error> {
    let mut batch = Vec::with_capacity(plan.parts.len());
    for (part, request) in plan.with(running) {
        let Some(sequence) = &mut request.sequence else { continue };
        let logits = match part.rows.len() {
            0 => Logits::None,
            rows => Logits::Tail(rows),
        };
        let tokens = if part.follows { Tokens::Last } else { Tokens::Ids(&part.tokens) };
        batch.push(models::Request { slot: sequence.slot, tokens, logits });
        sequence.len = part.end();
    }
    let (model, pools) = engine.model_and_pools();
    let pool = pools.sequences();
    let stepped = match drafting {
        true => model.step_with_hidden(pool, &batch)?,
        false => Stepped { logits: model.step(pool, &batch)?, hidden: None },
    };
    for (part, request) in plan.with(running) {
        if let Some(sequence) = &mut request.sequence
            && part.end() == request.writer.job.stable
        {
            sequence.mark(engine)?;
        }
    }
    Ok(stepped)
}

/// The masks of all requests that have a constraint, on the backend's threads.
fn masks<B: Backend>(b: &B, plan: &Plan, running: &mut [Request]) -> Vec<Masks> {
    let mut masks = Vec::with_capacity(plan.parts.len());
    let mut constrained = Vec::new();
    for (i, (part, request)) in plan.with(running).enumerate() {
        masks.push(Ok(Vec::new()));
        if let Some(constraint) = request.writer.constraint().filter(|_| !part.draws.is_empty()) {
            constrained.push((i, part.draft_tokens(), constraint));
        }
    }
    let found: Vec<Mutex<Masks>> = constrained.iter().map(|_| Mutex::new(Ok(Vec::new()))).collect();
    b.parallel_for(constrained.len(), &|i| {
        let (_, drafts, constraint) = &constrained[i];
        *lock(&found[i]) = lock(constraint).allowed_with(drafts);
    });
    for ((i, ..), found) in constrained.iter().zip(found) {
        masks[*i] = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    }
    masks
}

/// Waits for what a step brings.
pub(super) fn collect<B: Backend>(engine: &Engine<B>, ticket: Ticket<B>) -> Result<Collected<B>, Error> {
    let b = engine.model().backend();
    let Ticket { ticket, logits, hidden } = ticket;
    let sampled = b.collect(ticket)?;
    let (logits, width) = match logits {
        Some(logits) => (b.read(&logits)?, logits.shape().cols),
        None => (Vec::new(), 0),
    };
    Ok(Collected { sampled, logits, width, hidden })
}

impl<B: Backend> Collected<B> {
    /// The tokens and the logits of each part of a step.
    pub fn of<'a>(&'a self, plan: &Plan) -> Vec<(&'a [Sampled], &'a [f32])> {
        let mut rest = &self.sampled[..];
        let part = |part: &Part| {
            let (own, others) = rest.split_at(part.draws.len().min(rest.len()));
            rest = others;
            let logits = self.logits.get(part.rows.start * self.width..part.rows.end * self.width);
            (own, logits.filter(|_| part.scores).unwrap_or_default())
        };
        plan.parts.iter().map(part).collect()
    }
}
