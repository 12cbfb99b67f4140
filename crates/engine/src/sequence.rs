//! A sequence: the tokens a model has seen, what it remembers of them, and how to get from there to another prompt.

use backend::Backend;
use models::{RecurrentSnapshot, State};

use crate::draft_state::DraftState;
use crate::{Engine, Error};

/// Snapshots kept per sequence. Each is as large as the recurrent part of the state (tens of megabytes for a large
/// model); two serve the next turn of a chat and a change to the last one.
const SNAPSHOTS: usize = 2;

/// One sequence of tokens and its state.
pub struct Sequence<B: Backend> {
    pub(crate) tokens: Vec<u32>,
    pub(crate) state: State<B>,
    /// Logits after the last token, when they were computed; they stay on the device until somebody reads them.
    pub(crate) logits: Option<B::Tensor>,
    /// Places to return to, oldest first; only for models with recurrent layers.
    snapshots: Vec<RecurrentSnapshot<B>>,
    /// What a drafting head has seen of it, where one has followed.
    pub(crate) draft: Option<DraftState<B>>,
}

/// The number of tokens two sequences begin with in common.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<B: Backend> Sequence<B> {
    pub(crate) fn new(state: State<B>, tokens: Vec<u32>, logits: Option<B::Tensor>) -> Self {
        Self { tokens, state, logits, snapshots: Vec::new(), draft: None }
    }

    /// The tokens seen.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens at the beginning of `prompt` that need not be computed if it continues this sequence.
    pub(crate) fn reachable(&self, prompt: &[u32]) -> usize {
        let common = common_prefix(&self.tokens, prompt);
        if common == self.tokens.len() || !self.state.is_recurrent() {
            return common;
        }
        self.snapshots.iter().map(RecurrentSnapshot::len).filter(|len| *len <= common).max().unwrap_or(0)
    }

    /// Another sequence that has seen the first `len` tokens of this one, if `len` can be reached.
    pub(crate) fn copy(&self, b: &B, len: usize) -> Result<Option<Self>, Error> {
        let snapshot = self.snapshots.iter().find(|s| s.len() == len);
        let Some(state) = self.state.copy(b, len, snapshot)? else { return Ok(None) };
        let draft = self.draft.as_ref().map(|draft| draft.copy(b, len)).transpose()?.flatten();
        Ok(Some(Self { draft, ..Self::new(state, self.tokens[..len].to_vec(), None) }))
    }

    /// Bytes of its state, snapshots included.
    pub(crate) fn bytes(&self, engine: &Engine<B>) -> u64 {
        engine.state_bytes(self.tokens.len()) + self.snapshots.len() as u64 * engine.state_bytes(0)
    }

    /// Remembers the present place, if the state could not return to it otherwise.
    pub(crate) fn mark(&mut self, b: &B) -> Result<(), Error> {
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

    /// Goes back to the latest place at or before `len` that can be reached, and returns where that is; `fresh` makes
    /// an empty state for when it is the beginning.
    pub(crate) fn rewind(
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
        self.logits = None;
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
