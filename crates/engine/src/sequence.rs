//! A sequence: what a model keeps of the tokens it has seen, and the ways back to an earlier place.

use backend::Backend;
use backend::pool::Slot;

use crate::draft_state::DraftState;
use crate::{Engine, Error};

/// Places kept per sequence: two serve the next turn of a chat and a change to the last one. Each costs what the
/// sequence has moved on from: recurrent states, blocks that windows have passed.
pub(crate) const MARKS: usize = 2;

/// One sequence of tokens and its place in the pool.
pub(crate) struct Sequence {
    pub slot: Slot,
    /// Tokens it has seen, those of steps under way included.
    pub len: usize,
    /// These, of a sequence that nobody is writing.
    pub tokens: Vec<u32>,
    /// Forks to return to, oldest first; only for models that cannot go back to any place.
    marks: Vec<Mark>,
    /// The place before draft tokens that are being checked.
    before_drafts: Option<Mark>,
    /// That of a drafting head, where one follows this sequence.
    pub draft: Option<DraftState>,
}

/// A sequence as it was at an earlier place.
struct Mark {
    slot: Slot,
    len: usize,
}

/// The number of tokens two sequences begin with in common.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Sequence {
    /// One that has seen nothing; `None` where memory is missing.
    pub fn create<B: Backend>(engine: &mut Engine<B>) -> Result<Option<Self>, Error> {
        let (b, pools) = engine.parts();
        Ok(pools.sequences().create(b)?.map(|slot| Self::at(slot, Vec::new())))
    }

    /// One that has seen these tokens.
    pub fn at(slot: Slot, tokens: Vec<u32>) -> Self {
        Self { slot, len: tokens.len(), tokens, marks: Vec::new(), before_drafts: None, draft: None }
    }

    /// Gives it up.
    pub fn release<B: Backend>(self, engine: &mut Engine<B>) {
        let slots = self.slots();
        let pool = engine.parts().1.sequences();
        slots.into_iter().for_each(|slot| pool.release(slot));
        if let Some(draft) = self.draft {
            draft.release(engine);
        }
    }

    /// All that it holds in the pool of sequences.
    pub fn slots(&self) -> Vec<Slot> {
        let marks = self.marks.iter().chain(&self.before_drafts).map(|mark| mark.slot);
        std::iter::once(self.slot).chain(marks).collect()
    }

    /// The last place at or before `len` that it can go back to.
    pub fn reachable<B: Backend>(&self, engine: &Engine<B>, len: usize) -> usize {
        if engine.pools().sequences_ref().tables().reaches(self.slot, len) {
            return len;
        }
        self.marks.iter().map(|mark| mark.len).filter(|place| *place <= len).max().unwrap_or(0)
    }

    /// Another sequence with the first tokens of this one, up to a [place it reaches](Self::reachable).
    pub fn fork<B: Backend>(&self, engine: &mut Engine<B>, tokens: &[u32]) -> Result<Option<Self>, Error> {
        let len = tokens.len();
        let (b, pools) = engine.parts();
        let pool = pools.sequences();
        let mark = self.marks.iter().find(|mark| mark.len == len).map(|mark| mark.slot);
        let from = if pool.tables().reaches(self.slot, len) { Some(self.slot) } else { mark };
        let Some(from) = from else { return Ok(None) };
        let Some(slot) = pool.fork(b, from, len)? else { return Ok(None) };
        let draft = match &self.draft {
            Some(draft) => draft.fork(engine, len)?,
            None => None,
        };
        Ok(Some(Self { draft, ..Self::at(slot, tokens.to_vec()) }))
    }

    /// Remembers the present place, if it could not return to it otherwise and there is memory.
    pub fn mark<B: Backend>(&mut self, engine: &mut Engine<B>) -> Result<(), Error> {
        let (b, pools) = engine.parts();
        let pool = pools.sequences();
        if !pool.layers().forgets() || self.marks.last().is_some_and(|mark| mark.len == self.len) {
            return Ok(());
        }
        if self.marks.len() == MARKS {
            pool.release(self.marks.remove(0).slot);
        }
        let slot = pool.fork(b, self.slot, self.len)?;
        self.marks.extend(slot.map(|slot| Mark { slot, len: self.len }));
        Ok(())
    }

    /// Forgets the oldest place to return to; whether there was one.
    pub fn forget_mark<B: Backend>(&mut self, engine: &mut Engine<B>) -> bool {
        if self.marks.is_empty() {
            return false;
        }
        engine.parts().1.sequences().release(self.marks.remove(0).slot);
        true
    }

    /// Gets ready to see draft tokens and to drop them again. Returns false where that cannot be.
    pub fn begin_drafts<B: Backend>(&mut self, engine: &mut Engine<B>) -> Result<bool, Error> {
        let (b, pools) = engine.parts();
        let pool = pools.sequences();
        if !pool.layers().is_recurrent() {
            return Ok(true);
        }
        let slot = pool.fork(b, self.slot, self.len)?;
        self.before_drafts = slot.map(|slot| Mark { slot, len: self.len });
        Ok(slot.is_some())
    }

    /// Drops the last `rejected` draft tokens: caches are cut back, a recurrent state returns to where the drafts
    /// began. Returns false, with the sequence unusable, if that place is gone.
    pub fn reject_drafts<B: Backend>(&mut self, engine: &mut Engine<B>, rejected: usize) -> bool {
        let pool = engine.parts().1.sequences();
        let before = self.before_drafts.take();
        let kept = self.len - rejected;
        if pool.truncate(self.slot, kept) {
            before.into_iter().for_each(|mark| pool.release(mark.slot));
            self.len = kept;
            return true;
        }
        let Some(before) = before else { return false };
        pool.release(self.slot);
        (self.slot, self.len) = (before.slot, before.len);
        true
    }

    /// Returns to the last [place it reaches](Self::reachable) at or before `len`; `None`, with the sequence given up,
    /// where that is the beginning.
    pub fn rewind<B: Backend>(mut self, engine: &mut Engine<B>, len: usize) -> Result<Option<Self>, Error> {
        let reached = self.reachable(engine, len);
        if reached == 0 {
            self.release(engine);
            return Ok(None);
        }
        let (b, pools) = engine.parts();
        let pool = pools.sequences();
        let passed = self.marks.partition_point(|mark| mark.len <= reached);
        self.marks.drain(passed..).for_each(|mark| pool.release(mark.slot));
        if !pool.truncate(self.slot, reached) {
            // The place is the last mark's, which stays one if there is memory for both.
            let Some(mark) = self.marks.pop() else { return Ok(None) };
            pool.release(std::mem::replace(&mut self.slot, mark.slot));
            let copy = pool.fork(b, mark.slot, mark.len)?;
            self.marks.extend(copy.map(|slot| Mark { slot, len: mark.len }));
        }
        self.len = reached;
        self.tokens.truncate(reached);
        self.draft = self.draft.take().and_then(|draft| draft.rewind(engine, reached));
        Ok(Some(self))
    }
}
