//! The device's side of a step: starts it, and reads what it brings. All that the loop knows of
//! states and of how a backend looks ahead is here and in [`Sequence`](crate::sequence::Sequence).
//!
//! A step that follows one under way begins with a token that the host does not know. Where the
//! device chooses it (greedy decoding), the step starts at once; else it is recorded, and starts
//! when [`supply`] brings the token.

use std::sync::Arc;

use backend::{Backend, Checked, Handle};
use llguidance::toktrie::SimpleVob;
use models::{Ahead, Logits, Stepped};

use super::plan::{Part, Plan};
use super::request::Request;
use super::writer::Row;
use crate::{Engine, Error};

/// A step under way.
pub(super) enum Ticket<B: Backend> {
    /// It runs.
    Started {
        /// The wanted logits, where there are any.
        logits: Option<B::Tensor>,
        /// The likeliest token by them, if the device was asked.
        chosen: Option<B::Chosen>,
        /// What a drafting head takes of every token, where there is such a head.
        hidden: Option<B::Tensor>,
    },
    /// It waits for its token.
    Recorded(Ahead<B>),
}

/// What the host wants of a step's logits.
pub(super) struct Wanted {
    /// So many of the largest, or all of them.
    pub largest: Option<usize>,
    /// For each row, the tokens that may be chosen, where not all may.
    pub allowed: Vec<Option<Arc<SimpleVob>>>,
}

/// What a step has brought.
pub(super) struct Collected<B: Backend> {
    largest: Vec<Vec<(u32, f32)>>,
    all: Vec<f32>,
    width: usize,
    pub hidden: Option<B::Tensor>,
}

/// How many steps of so many requests may be under way.
pub(super) fn depth<B: Backend>(engine: &Engine<B>, requests: usize) -> usize {
    if requests == 1 && engine.model().records_ahead() { 2 } else { 1 }
}

/// Starts a step; with what a drafting head takes of it if that is `drafting`.
pub(super) fn submit<B: Backend>(
    engine: &Engine<B>,
    plan: &Plan,
    running: &mut [Request<B>],
    drafting: bool,
) -> Result<Ticket<B>, Error> {
    let mut batch = Vec::with_capacity(plan.parts.len());
    for (part, request) in plan.with(running) {
        let Some(sequence) = &mut request.sequence else { continue };
        if part.drafts > 0 {
            sequence.begin_drafts(engine.model().backend())?;
        }
        let logits = match part.rows.len() {
            0 => Logits::None,
            rows => Logits::Tail(rows),
        };
        batch.push(models::Request { tokens: &part.tokens, state: &mut sequence.state, logits });
    }
    let Stepped { logits, hidden } = match drafting {
        true => engine.model().step_with_hidden(&mut batch)?,
        false => Stepped { logits: engine.model().step(&mut batch)?, hidden: None },
    };
    Ok(Ticket::Started { logits, chosen: None, hidden })
}

/// Starts or records the step of one request that follows the one under way.
pub(super) fn submit_next<B: Backend>(
    engine: &Engine<B>,
    before: &mut Ticket<B>,
    request: &mut Request<B>,
) -> Result<Ticket<B>, Error> {
    let model = engine.model();
    let (Ticket::Started { logits: Some(logits), chosen, .. }, Some(sequence)) =
        (before, &mut request.sequence)
    else {
        return Err(Error::Step { reason: "the step before brings no token".into() });
    };
    if !request.writer.takes_likeliest() {
        return Ok(Ticket::Recorded(model.step_ahead(&mut sequence.state)?));
    }
    let present = match chosen {
        Some(chosen) => chosen,
        None => chosen.insert(model.backend().choose(logits)?),
    };
    let (logits, chosen) = model.step_chosen(present, &mut sequence.state)?;
    Ok(Ticket::Started { logits: Some(logits), chosen: Some(chosen), hidden: None })
}

/// Tells a step the token that it follows, now that it is known.
pub(super) fn supply<B: Backend>(
    engine: &Engine<B>,
    ticket: Ticket<B>,
    part: &mut Part,
    token: u32,
) -> Result<Ticket<B>, Error> {
    part.tokens[0] = token;
    Ok(match ticket {
        Ticket::Recorded(ahead) => {
            let logits = Some(engine.model().start(ahead, token)?);
            Ticket::Started { logits, chosen: None, hidden: None }
        }
        started => started,
    })
}

/// Waits for what a step brings. `all` is memory that is used again.
pub(super) fn collect<B: Backend>(
    engine: &Engine<B>,
    ticket: Ticket<B>,
    wanted: &Wanted,
    mut all: Vec<f32>,
) -> Result<Collected<B>, Error> {
    let b = engine.model().backend();
    all.clear();
    let Ticket::Started { logits, chosen, hidden } = ticket else {
        return Err(Error::Step { reason: "nobody has told it its token".into() });
    };
    let mut collected = Collected { largest: Vec::new(), all, width: 1, hidden };
    let Some(logits) = logits else { return Ok(collected) };
    match (wanted.largest, chosen) {
        (Some(_), Some(chosen)) => collected.largest = vec![vec![b.read_chosen(chosen)?]],
        (Some(k), None) => {
            let words = wanted.allowed.iter().map(|words| words.as_ref().map(|w| w.as_slice()));
            collected.largest = Checked(b).read_top(&logits, k, &words.collect::<Vec<_>>())?;
        }
        (None, _) => {
            collected.width = logits.shape().cols.max(1);
            b.read_into(&logits, &mut collected.all)?;
        }
    }
    Ok(collected)
}

impl<B: Backend> Collected<B> {
    /// The rows of logits of a part.
    pub fn rows(&self, part: &Part) -> Vec<Row<'_>> {
        let row = |row: usize| match self.largest.get(row) {
            Some(largest) => Some(Row::Top(largest)),
            None => self.all.get(row * self.width..(row + 1) * self.width).map(Row::All),
        };
        part.rows.clone().filter_map(row).collect()
    }

    /// The memory to be used again.
    pub fn into_memory(self) -> Vec<f32> {
        self.all
    }
}
