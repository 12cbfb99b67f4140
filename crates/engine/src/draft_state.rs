//! What a drafting head remembers of a sequence.

use backend::Backend;
use models::State;

use crate::Error;

/// The head's cache, and how far it has come. It follows a sequence while guesses are worth making; what it was not shown it does not
/// know, and its positions count what it has seen: attention only asks how far apart two of them are. Right or wrong,
/// it changes guesses and never an answer, so that it is not saved with a sequence.
pub(crate) struct DraftState<B: Backend> {
    pub state: State<B>,
    /// The sequence's position behind the last one that it has seen.
    pub seen: usize,
}

impl<B: Backend> DraftState<B> {
    pub fn new(state: State<B>) -> Self {
        Self { state, seen: 0 }
    }

    /// What is left when the sequence goes back to `len` tokens: the number of positions in the cache, and where they end. What is known
    /// of the last token includes the one that followed it, which will be another.
    fn reduced(&self, len: usize) -> (usize, usize) {
        let seen = self.seen.min(len.saturating_sub(1));
        (self.state.len().saturating_sub(self.seen - seen), seen)
    }

    /// Goes back with its sequence; `None` if it cannot.
    pub fn rewind(mut self, b: &B, len: usize) -> Result<Option<Self>, Error> {
        let (kept, seen) = self.reduced(len);
        self.seen = seen;
        Ok(self.state.truncate(b, kept)?.then_some(self))
    }

    /// That of another sequence with the same first `len` tokens.
    pub fn copy(&self, b: &B, len: usize) -> Result<Option<Self>, Error> {
        let (kept, seen) = self.reduced(len);
        Ok(self.state.copy(b, kept, None)?.map(|state| Self { state, seen }))
    }
}
