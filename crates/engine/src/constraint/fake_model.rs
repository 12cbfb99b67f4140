//! A model for tests that knows nothing: any token that a constraint allows, with the wish to come to an end.

use std::time::{Duration, Instant};

use crate::{Constraint, Error, Tokenizer};

/// Random numbers, the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n.max(1) as u64) as usize
    }
}

/// Whether an answer is possible, token by token, up to an end.
pub fn allows(mut constraint: Constraint, tokenizer: &Tokenizer, width: usize, answer: &str) -> bool {
    let mut logits = vec![0.0f32; width];
    for id in tokenizer.encode(answer, false).unwrap() {
        logits.fill(0.0);
        constraint.mask(&mut logits).unwrap();
        if logits[id as usize] != 0.0 {
            return false;
        }
        constraint.push(id).unwrap();
    }
    logits.fill(0.0);
    constraint.mask(&mut logits).unwrap();
    logits[tokenizer.eos_ids()[0] as usize] == 0.0
}

/// After so many tokens a fake model writes little but its wishes.
const PATIENCE: usize = 60;

/// A fake model: it begins to write one of its `wishes` now and then, and anything else in between.
pub struct FakeModel<'a> {
    pub tokenizer: &'a Tokenizer,
    pub width: usize,
    pub wishes: &'a [&'a str],
}

impl FakeModel<'_> {
    /// The text of a whole answer; `None` if it does not end within `limit` tokens.
    pub fn answer(&self, constraint: &mut Constraint, random: &mut Random, limit: usize) -> Option<String> {
        self.answer_timed(constraint, random, limit, &mut Vec::new())
    }

    /// The same; `times` get the time of every mask.
    pub fn answer_timed(
        &self,
        constraint: &mut Constraint,
        random: &mut Random,
        limit: usize,
        times: &mut Vec<Duration>,
    ) -> Option<String> {
        let wishes: Vec<Vec<u32>> =
            self.wishes.iter().map(|wish| self.tokenizer.encode(wish, false).unwrap()).collect();
        let ends = self.tokenizer.eos_ids();
        let (mut ids, mut wish): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        let mut logits = vec![0.0f32; self.width];
        while ids.len() < limit {
            if constraint.is_finished() {
                return Some(self.tokenizer.decode(&ids, false).unwrap());
            }
            logits.fill(0.0);
            let started = Instant::now();
            constraint.mask(&mut logits).unwrap();
            times.push(started.elapsed());
            let allowed = |id: u32| logits[id as usize] == 0.0;
            let may_end = allowed(ends[0]);
            assert!(ends.iter().all(|end| allowed(*end) == may_end), "all ends or none");
            let mut somewhere = || random.below(self.width) as u32;
            let can_follow = |id: &u32| allowed(*id) && !ends.contains(id);
            // By chance, or, where few tokens are allowed, the first of them after some place.
            let by_chance = (0..64).map(|_| somewhere()).find(can_follow);
            let from = somewhere();
            let any = by_chance.or_else(|| (from..self.width as u32).chain(0..from).find(can_follow));
            assert!(may_end || any.is_some(), "something can follow");
            let urgent = ids.len() > PATIENCE;
            if wish.is_empty() && !wishes.is_empty() && (urgent || random.below(3) == 0) {
                wish = wishes[random.below(wishes.len())].iter().rev().copied().collect();
            }
            let wished = wish.pop().filter(|id| allowed(*id));
            if wished.is_none() {
                wish.clear();
            }
            match wished.or(any) {
                Some(id) if !may_end || !(urgent || random.below(4) == 0) => {
                    constraint.push(id).unwrap();
                    ids.push(id);
                }
                _ => {
                    constraint.push(ends[random.below(ends.len())]).unwrap();
                    assert!(constraint.is_finished());
                }
            }
        }
        None
    }
}

impl Constraint {
    /// Sets the logits of all tokens that cannot come next to minus infinity.
    pub(super) fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let allowed = self.allowed()?;
        let is_allowed =
            |id: usize| allowed.as_slice().get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1);
        let forbidden = logits.iter_mut().enumerate().filter(|(id, _)| !is_allowed(*id));
        forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        Ok(())
    }
}
