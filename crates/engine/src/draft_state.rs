//! What a drafting head remembers of a sequence.

use backend::Backend;
use backend::pool::Slot;

use crate::{Engine, Error};

/// The head's cache, and how far it has come.
///
/// It follows a sequence while drafts are worth making. What it was not shown it does not know, and its positions count
/// what it has seen: attention only asks how far apart two of them are. Right or wrong, it changes drafts and never an
/// answer, so that it is not saved with a sequence.
pub(crate) struct DraftState {
    /// In the head's pool.
    pub slot: Slot,
    /// The sequence's position behind the last one that it has seen.
    pub seen: usize,
}

impl DraftState {
    /// One that has seen nothing; `None` where there is no head, or no memory.
    pub fn new<B: Backend>(engine: &mut Engine<B>) -> Result<Option<Self>, Error> {
        let (b, pools) = engine.parts();
        let Some(pool) = pools.drafts() else { return Ok(None) };
        Ok(pool.create(b)?.map(|slot| Self { slot, seen: 0 }))
    }

    /// Goes back with its sequence; `None` if it cannot.
    pub fn rewind<B: Backend>(mut self, engine: &mut Engine<B>, len: usize) -> Option<Self> {
        let pool = engine.parts().1.drafts()?;
        let (kept, seen) = reduced(pool.len(self.slot), self.seen, len);
        self.seen = seen;
        if pool.truncate(self.slot, kept) {
            return Some(self);
        }
        pool.release(self.slot);
        None
    }

    /// That of another sequence with the same first `len` tokens.
    pub fn fork<B: Backend>(&self, engine: &mut Engine<B>, len: usize) -> Result<Option<Self>, Error> {
        let (b, pools) = engine.parts();
        let Some(pool) = pools.drafts() else { return Ok(None) };
        let (kept, seen) = reduced(pool.len(self.slot), self.seen, len);
        Ok(pool.fork(b, self.slot, kept)?.map(|slot| Self { slot, seen }))
    }

    /// Gives it up.
    pub fn release<B: Backend>(self, engine: &mut Engine<B>) {
        if let Some(pool) = engine.parts().1.drafts() {
            pool.release(self.slot);
        }
    }
}

/// What is left of `cached` positions that end at `seen` when the sequence goes back to `len` tokens: how many, and
/// where they end. What is known of the last token includes the one that followed it, which will be another.
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
