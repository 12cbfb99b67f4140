//! A sequence: the tokens a model has seen, what it keeps of them, and the ways back to an earlier
//! place.

use backend::Backend;
use models::{RecurrentSnapshot, State};

use crate::draft_state::DraftState;
use crate::{Engine, Error};

/// Snapshots kept per sequence. Each is as large as the recurrent part of the state (tens of
/// megabytes for a large model); two serve the next turn of a chat and a change to the last one.
pub(crate) const SNAPSHOTS: usize = 2;

/// One sequence of tokens and its state.
pub(crate) struct Sequence<B: Backend> {
    /// Tokens the state has seen.
    pub tokens: Vec<u32>,
    pub state: State<B>,
    /// Places to return to, oldest first; only for models with recurrent layers.
    snapshots: Vec<RecurrentSnapshot<B>>,
    /// The place before draft tokens that are being checked.
    before_drafts: Option<RecurrentSnapshot<B>>,
    /// The state of a drafting head, where one follows this sequence.
    pub draft: Option<DraftState<B>>,
}

/// The number of tokens two sequences begin with in common.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<B: Backend> Sequence<B> {
    pub fn new(state: State<B>, tokens: Vec<u32>) -> Self {
        Self { tokens, state, snapshots: Vec::new(), before_drafts: None, draft: None }
    }

    /// Tokens at the beginning of `prompt` that need not be computed if it continues this sequence.
    pub fn reachable(&self, prompt: &[u32]) -> usize {
        let common = common_prefix(&self.tokens, prompt);
        if common == self.tokens.len() || !self.state.is_recurrent() {
            return common;
        }
        let places = self.snapshots.iter().map(RecurrentSnapshot::len);
        places.filter(|len| *len <= common).max().unwrap_or(0)
    }

    /// Another sequence with the first `len` tokens of this one, if `len` can be reached.
    pub fn copy(&self, b: &B, len: usize) -> Result<Option<Self>, Error> {
        let snapshot = self.snapshots.iter().find(|s| s.len() == len);
        let Some(state) = self.state.copy(b, len, snapshot)? else { return Ok(None) };
        let draft = self.draft.as_ref().map(|draft| draft.copy(b, len)).transpose()?.flatten();
        Ok(Some(Self { draft, ..Self::new(state, self.tokens[..len].to_vec()) }))
    }

    /// Bytes of its state, snapshots included.
    pub fn bytes(&self, engine: &Engine<B>) -> u64 {
        engine.state_bytes(self.tokens.len()) + self.snapshots() as u64 * engine.snapshot_bytes()
    }

    /// Snapshots it holds to return to.
    pub fn snapshots(&self) -> usize {
        self.snapshots.len()
    }

    /// Remembers the present place, if the state could not return to it otherwise.
    pub fn mark(&mut self, b: &B) -> Result<(), Error> {
        let here = self.tokens.len();
        if !self.state.is_recurrent() || self.snapshots.last().is_some_and(|s| s.len() == here) {
            return Ok(());
        }
        if self.snapshots.len() == SNAPSHOTS {
            self.snapshots.remove(0);
        }
        self.snapshots.push(self.state.snapshot(b)?);
        Ok(())
    }

    /// Remembers the place before draft tokens, if the state could not return to it otherwise.
    pub fn begin_drafts(&mut self, b: &B) -> Result<(), Error> {
        if self.state.is_recurrent() {
            self.before_drafts = Some(self.state.snapshot(b)?);
        }
        Ok(())
    }

    /// Drops the last `rejected` draft tokens: a state that can be cut back keeps what comes before
    /// them, a recurrent one returns to where the drafts began. Returns false, with the sequence
    /// unusable, if that place is gone.
    pub fn reject_drafts(&mut self, b: &B, rejected: usize) -> Result<bool, Error> {
        let before = self.before_drafts.take();
        if rejected == 0 {
            return Ok(true);
        }
        let (reached, len) = match &before {
            Some(snapshot) => (self.state.restore(b, snapshot)?, snapshot.len()),
            None => {
                let kept = self.tokens.len() - rejected;
                (self.state.truncate(b, kept)?, kept)
            }
        };
        self.tokens.truncate(len);
        Ok(reached)
    }

    /// Returns to the latest place at or before `len` that can be reached; `fresh` makes an empty
    /// state for when that is the beginning. The result is that place.
    pub fn rewind(
        &mut self,
        b: &B,
        len: usize,
        fresh: impl FnOnce() -> Result<State<B>, Error>,
    ) -> Result<usize, Error> {
        let reached = self.rewind_state(b, len, fresh)?;
        self.draft = self.draft.take().map(|draft| draft.rewind(b, reached)).transpose()?.flatten();
        Ok(reached)
    }

    fn rewind_state(
        &mut self,
        b: &B,
        len: usize,
        fresh: impl FnOnce() -> Result<State<B>, Error>,
    ) -> Result<usize, Error> {
        if len == self.tokens.len() {
            return Ok(len);
        }
        self.snapshots.retain(|s| s.len() <= len);
        let reached = match self.snapshots.last() {
            Some(snapshot) if self.state.restore(b, snapshot)? => snapshot.len(),
            None if !self.state.is_recurrent() && self.state.truncate(b, len)? => len,
            _ => {
                self.state = fresh()?;
                self.snapshots.clear();
                0
            }
        };
        self.tokens.truncate(reached);
        Ok(reached)
    }
}
