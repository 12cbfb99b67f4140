//! A request on its way: its sequence on the device, and the writer that chooses its tokens.

use backend::Backend;

use super::costs::MOST;
use super::plan::Part;
use super::writer::{Gain, Writer};
use super::{Queued, lock};
use crate::sequence::{SNAPSHOTS, Sequence};
use crate::{Engine, Error};

/// A job that waits or runs.
pub(super) struct Request<B: Backend> {
    /// Its number, by which steps under way know it.
    pub number: u64,
    pub writer: Writer,
    /// `None` while it waits.
    pub sequence: Option<Sequence<B>>,
}

impl<B: Backend> Request<B> {
    pub fn new(number: u64, queued: Queued) -> Self {
        Self { number, writer: Writer::new(queued), sequence: None }
    }

    /// Tokens that the model has seen.
    pub fn seen(&self) -> usize {
        self.sequence.as_ref().map_or(0, |sequence| sequence.tokens.len())
    }

    /// Tokens that it has not.
    pub fn unseen(&self) -> usize {
        self.writer.tokens().len() - self.seen()
    }

    /// Whether it decodes: its prompt is computed, and it waits for nothing but its next token, or
    /// for few that a rejected draft took back.
    pub fn is_decoding(&self) -> bool {
        self.writer.has_started() && self.unseen() <= 1 + MOST
    }

    /// Bytes of its sequence when it has `margin` tokens more, with the snapshots that it may hold
    /// by then: those to return to, and one before draft tokens if it may `speculate`.
    pub fn bytes(&self, engine: &Engine<B>, margin: usize, speculate: bool) -> u64 {
        let tokens = (self.writer.tokens().len() + margin).min(engine.context());
        let held = self.sequence.as_ref().map_or(0, Sequence::snapshots);
        let marks = usize::from(self.writer.job.stable > self.seen());
        let snapshots = (held + marks).min(SNAPSHOTS) + usize::from(speculate);
        engine.state_bytes(tokens) + snapshots as u64 * engine.snapshot_bytes()
    }

    /// Takes over what its part of a step has seen.
    pub fn settle(&mut self, b: &B, part: &Part) -> Result<(), Error> {
        let Some(sequence) = &mut self.sequence else { return Ok(()) };
        sequence.tokens.extend_from_slice(&part.tokens);
        if sequence.tokens.len() == self.writer.job.stable {
            sequence.mark(b)?;
        }
        Ok(())
    }

    /// Drops draft tokens that were rejected. A sequence that cannot go back begins anew.
    pub fn reject_drafts(&mut self, engine: &Engine<B>, part: &Part, gain: &Gain) -> Result<(), Error> {
        let Some(sequence) = self.sequence.as_mut().filter(|_| part.drafts > 0) else { return Ok(()) };
        if !sequence.reject_drafts(engine.model().backend(), part.drafts - gain.accepted)? {
            *sequence = engine.sequence()?;
        }
        Ok(())
    }

    /// What the next token needs to know and can be computed while the model runs: the mask of its
    /// constraint.
    pub fn next_mask(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let constraint = self.writer.constraint()?;
        // Whoever needs the result meets the same error.
        Some(Box::new(move || drop(lock(&constraint).allowed())))
    }
}
