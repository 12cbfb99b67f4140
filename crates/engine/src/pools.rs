//! What all sequences of an engine keep, within one budget.

use backend::pool::{Pool, Slot};
use backend::{Backend, CacheFloat};
use models::Model;

use crate::Error;

/// The pool of the model's sequences, and that of its drafting head's.
pub(crate) struct Pools<B: Backend> {
    sequences: Pool<B>,
    drafts: Option<Pool<B>>,
    budget: u64,
}

impl<B: Backend> Pools<B> {
    /// Pools that take at most `budget` bytes together.
    pub fn new(model: &Model<B>, float: CacheFloat, budget: u64) -> Result<Self, Error> {
        let (sequences, drafts) = (model.pool(float, budget)?, model.draft_pool(float, budget)?);
        Ok(Self { sequences, drafts, budget })
    }

    /// Bytes in use, what sequences share counted once.
    pub fn used(&self) -> u64 {
        self.sequences.tables().used() + self.draft_bytes()
    }

    fn draft_bytes(&self) -> u64 {
        self.drafts.as_ref().map_or(0, |drafts| drafts.tables().used())
    }

    /// Bytes that may still be taken.
    pub fn free(&self) -> u64 {
        self.budget.saturating_sub(self.used())
    }

    /// Bytes that may be taken in all.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes that these sequences take in the model's pool, and these in the drafting head's.
    pub fn bytes_of(
        &self,
        slots: impl IntoIterator<Item = Slot>,
        drafts: impl IntoIterator<Item = Slot>,
    ) -> u64 {
        let of_drafts = self.drafts.as_ref().map_or(0, |pool| pool.tables().bytes_of(drafts));
        self.sequences.tables().bytes_of(slots) + of_drafts
    }

    /// The pool of the model's sequences, to be read.
    pub fn sequences_ref(&self) -> &Pool<B> {
        &self.sequences
    }

    /// The pool of the model's sequences, which may take what drafts leave.
    pub fn sequences(&mut self) -> &mut Pool<B> {
        self.sequences.set_budget(self.budget.saturating_sub(self.draft_bytes()));
        &mut self.sequences
    }

    /// The pool of the drafting head's sequences, which may take what the others leave.
    pub fn drafts(&mut self) -> Option<&mut Pool<B>> {
        let budget = self.budget.saturating_sub(self.sequences.tables().used());
        let drafts = self.drafts.as_mut()?;
        drafts.set_budget(budget);
        Some(drafts)
    }
}
