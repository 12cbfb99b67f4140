//! Memory for activations, used again and again.
//!
//! The activations of a long prompt are tens of megabytes per operation. Fresh memory of that size comes from the system
//! page by page and goes back as soon as it is dropped, which costs more than most operations. So buffers return to a
//! list here when they are dropped and are handed out again, with whatever values they hold.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::aligned::Aligned;

/// Free buffers by the class of their size.
#[derive(Default)]
struct Lists {
    free: Vec<Vec<Aligned<f32>>>,
    /// Values of all free buffers.
    free_values: usize,
    /// Values of all buffers in use, but for those that are kept: there may be gigabytes of these, and what is free
    /// must not be measured by them.
    used_values: usize,
    /// The most that have been in use at once: little more than that is ever free.
    most_values: usize,
}

/// Values that are kept beyond the most that were in use at once, apart from a quarter of these. Buffers that are not in use at the
/// same time would otherwise drive each other out in every step.
const SPARE: usize = 1 << 20;

/// A free buffer that is larger than asked for is used if it is at most so many classes larger, which is four times as large: steps
/// of a server differ in their tokens, and memory from the system costs more than the operation.
const LARGER: usize = 8;

/// Where buffers come from and return to.
#[derive(Default)]
pub(crate) struct Arena(Mutex<Lists>);

/// Size of a buffer for `len` values: rounded up to four sizes per power of two, so that lengths that differ a little
/// share their buffers.
fn size_for(len: usize) -> usize {
    let len = len.max(64);
    len.next_multiple_of(1 << (len.ilog2() - 2))
}

/// The number of a size among all sizes.
fn class_of(size: usize) -> usize {
    let power = size.ilog2() as usize;
    4 * power + (size >> (power - 2))
}

impl Arena {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Counters and lists are never left half-changed by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `len` values that nobody has set: what is in them is left over from earlier use.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        self.take_for(len, Use::Passing)
    }

    fn take_for(self: &Arc<Self>, len: usize, purpose: Use) -> Buffer {
        let found = self.lists().take(size_for(len), purpose);
        let mut values = found.unwrap_or_else(|| Aligned::zeros(size_for(len)));
        if cfg!(debug_assertions) {
            // What is read before it is written must show in tests.
            values.fill(f32::NAN);
        }
        Buffer { values, len, purpose, arena: self.clone() }
    }

    /// A buffer with these values, for keeping: no larger than needed.
    pub fn copy(self: &Arc<Self>, values: &[f32]) -> Buffer {
        let mut buffer = self.take_for(values.len(), Use::Keeping);
        buffer.copy_from_slice(values);
        buffer
    }
}

impl Lists {
    /// A free buffer of this size, or one that is larger; counts it, or the one that has to be made, as used.
    fn take(&mut self, size: usize, purpose: Use) -> Option<Aligned<f32>> {
        let classes = match purpose {
            Use::Passing => LARGER,
            Use::Keeping => 0,
        };
        let found = self.free.iter_mut().skip(class_of(size)).take(1 + classes).find_map(Vec::pop);
        let found_size = found.as_ref().map_or(size, |values| values.len());
        if purpose == Use::Passing {
            self.used_values += found_size;
            self.most_values = self.most_values.max(self.used_values);
        }
        match found {
            Some(_) => self.free_values -= found_size,
            None => self.shrink(),
        }
        found
    }

    /// Takes back a buffer.
    fn put(&mut self, values: Aligned<f32>, purpose: Use) {
        let size = values.len();
        self.free_values += size;
        let class = class_of(size);
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push(values);
        match purpose {
            Use::Passing => self.used_values -= size,
            Use::Keeping => self.shrink(),
        }
    }

    /// Values that may be free and in use together.
    fn limit(&self) -> usize {
        self.most_values + self.most_values / 4 + SPARE
    }

    /// Forgets free buffers, the largest first, until those that remain and those in use are within the limit.
    fn shrink(&mut self) {
        while self.free_values > 0 && self.used_values + self.free_values > self.limit() {
            let Some(values) = self.free.iter_mut().rev().find_map(Vec::pop) else { return };
            self.free_values -= values.len();
        }
    }
}

/// What a buffer is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Activations, for as long as an operation or a few.
    Passing,
    /// Values that stay, such as learned vectors: no larger than needed.
    Keeping,
}

/// Values that return to their arena when dropped.
pub(crate) struct Buffer {
    values: Aligned<f32>,
    len: usize,
    purpose: Use,
    arena: Arc<Arena>,
}

impl Buffer {
    /// Another buffer with the same values.
    pub fn duplicate(&self) -> Self {
        self.arena.copy(self)
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let values = std::mem::replace(&mut self.values, Aligned::new());
        self.arena.lists().put(values, self.purpose);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let arena = Arc::new(Arena::default());
        let a = arena.take(1000);
        let place = a.as_ptr();
        assert!(place.addr().is_multiple_of(64) && a.len() == 1000);
        drop(a);
        // A little shorter, and still the same memory.
        assert_eq!(arena.take(990).as_ptr(), place);
        assert_eq!(*arena.copy(&[1.0, 2.0]).duplicate(), [1.0, 2.0]);
        assert!(arena.take(0).is_empty());
    }

    #[test]
    fn classes_are_in_order() {
        let sizes: Vec<usize> = (1..10_000).map(size_for).collect();
        for pair in sizes.windows(2) {
            assert_eq!(class_of(pair[1]) - class_of(pair[0]), usize::from(pair[1] > pair[0]));
        }
        assert_eq!(class_of(4 * 1024), class_of(1024) + LARGER);
    }

    #[test]
    fn a_larger_buffer_serves_but_not_for_keeping() {
        let with_one = || {
            let arena = Arc::new(Arena::default());
            drop(arena.take(4000));
            arena
        };
        let values = |buffer: Buffer| buffer.values.len();
        assert_eq!(values(with_one().take(4000)), 4096);
        assert_eq!(values(with_one().take(1000)), 4096);
        assert_eq!(values(with_one().take(700)), 768);
        assert_eq!(values(with_one().copy(&[0.0; 1000])), 1024);
    }

    #[test]
    fn buffers_that_take_turns_stay() {
        let arena = Arc::new(Arena::default());
        let turn = |len: usize| arena.take(len).as_ptr();
        let first = [turn(50_000), turn(500)];
        assert_eq!([turn(50_000), turn(500)], first);
    }

    #[test]
    fn little_more_is_kept_than_was_in_use() {
        let arena = Arc::new(Arena::default());
        // One size after the other, never two at once.
        for i in 1..50 {
            drop(arena.take(i * 100_000));
        }
        let lists = arena.lists();
        assert_eq!(lists.used_values, 0);
        assert_eq!(lists.most_values, size_for(4_900_000));
        assert!(lists.free_values <= lists.limit(), "{} of {}", lists.free_values, lists.limit());
        assert_eq!(lists.free_values, lists.free.iter().flatten().map(|values| values.len()).sum::<usize>());
    }

    #[test]
    fn what_is_kept_does_not_count_as_in_use() {
        let arena = Arc::new(Arena::default());
        let kept: Vec<Buffer> = (0..100).map(|_| arena.copy(&[0.0; 100_000])).collect();
        for i in 1..50 {
            drop(arena.take(i * 10_000));
        }
        let lists = arena.lists();
        assert_eq!((lists.used_values, lists.most_values), (0, size_for(490_000)));
        assert!(lists.free_values <= lists.limit());
        drop(lists);
        drop(kept);
        let lists = arena.lists();
        assert!(lists.free_values <= lists.limit(), "{} of {}", lists.free_values, lists.limit());
    }
}
