//! A request on its way: its sequence on the device, and the writer that knows its tokens.

use backend::Backend;
use backend::pool::BLOCK;

use super::costs::MOST;
use super::plan::Part;
use super::writer::{Gain, Writer};
use super::{Queued, lock};
use crate::sequence::Sequence;
use crate::{Engine, Error};

/// A job that waits or runs.
pub(super) struct Request {
    /// Its number, by which steps under way know it.
    pub number: u64,
    pub writer: Writer,
    /// `None` while it waits.
    pub sequence: Option<Sequence>,
}

impl Request {
    pub fn new(number: u64, queued: Queued) -> Self {
        Self { number, writer: Writer::new(queued), sequence: None }
    }

    /// Tokens that the model has seen, or will have when steps under way are over.
    pub fn seen(&self) -> usize {
        self.sequence.as_ref().map_or(0, |sequence| sequence.len)
    }

    /// Tokens that it has not.
    pub fn unseen(&self) -> usize {
        self.writer.tokens().len().saturating_sub(self.seen())
    }

    /// Whether it decodes: its prompt is computed, and it waits for nothing but its next token, or for few that a
    /// rejected draft took back.
    pub fn is_decoding(&self) -> bool {
        self.writer.has_started() && self.unseen() <= 1 + MOST
    }

    /// Bytes that its sequence may take beside what it holds until it has `margin` tokens more: blocks, its state, and a
    /// place to return to. It has, or will share, the blocks of the first `seen` tokens.
    pub fn growth<B: Backend>(&self, engine: &Engine<B>, seen: usize, margin: usize) -> u64 {
        let tokens = (self.writer.tokens().len() + margin).min(engine.context());
        let states = u64::from(self.sequence.is_none()) + u64::from(self.writer.job.stable > seen);
        // A block that is shared will be copied.
        let held = engine.state_bytes(seen - seen % BLOCK);
        engine.state_bytes(tokens).saturating_sub(held) + states * engine.recurrent_bytes()
    }

    /// Drops draft tokens that were rejected. A sequence that cannot go back begins anew.
    pub fn reject_drafts<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        part: &Part,
        gain: &Gain,
    ) -> Result<(), Error> {
        let Some(sequence) = self.sequence.as_mut().filter(|_| part.drafts > 0) else { return Ok(()) };
        if !sequence.reject_drafts(engine, part.drafts - gain.accepted) {
            self.release(engine);
            self.sequence = Sequence::create(engine)?;
        }
        Ok(())
    }

    /// Gives its sequence up.
    pub fn release<B: Backend>(&mut self, engine: &mut Engine<B>) {
        if let Some(sequence) = self.sequence.take() {
            sequence.release(engine);
        }
    }

    /// What the next token needs to know and can be computed while the model runs: the mask of its constraint.
    pub fn next_mask(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let constraint = self.writer.constraint()?;
        // Whoever needs the result meets the same error.
        Some(Box::new(move || drop(lock(&constraint).allowed())))
    }
}
