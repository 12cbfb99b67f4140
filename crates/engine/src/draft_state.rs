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

    /// Goes back with its sequence; `None` if it cannot.
    pub fn rewind(mut self, b: &B, len: usize) -> Result<Option<Self>, Error> {
        let (kept, seen) = reduced(self.state.len(), self.seen, len);
        self.seen = seen;
        Ok(self.state.truncate(b, kept)?.then_some(self))
    }

    /// That of another sequence with the same first `len` tokens.
    pub fn copy(&self, b: &B, len: usize) -> Result<Option<Self>, Error> {
        let (kept, seen) = reduced(self.state.len(), self.seen, len);
        Ok(self.state.copy(b, kept, None)?.map(|state| Self { state, seen }))
    }
}

/// What is left of `cached` positions that end at `seen` when the sequence goes back to `len` tokens: how many, and where they end. What
/// is known of the last token includes the one that followed it, which will be another.
fn reduced(cached: usize, seen: usize, len: usize) -> (usize, usize) {
    let left = seen.min(len.saturating_sub(1));
    (cached.saturating_sub(seen - left), left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_ends_before_the_last_token_it_shares() {
        for (cached, seen, len, expected) in [
            // Not as far as the sequence goes back to.
            (10, 10, 20, (10, 10)),
            (10, 10, 11, (10, 10)),
            // The last token that is shared has another one behind it.
            (10, 10, 10, (9, 9)),
            (10, 10, 4, (3, 3)),
            (10, 10, 0, (0, 0)),
            // It came later than the sequence, or missed a part of it.
            (10, 30, 25, (4, 24)),
            (10, 30, 12, (0, 11)),
        ] {
            assert_eq!(reduced(cached, seen, len), expected, "{cached} up to {seen}, back to {len}");
        }
    }
}
