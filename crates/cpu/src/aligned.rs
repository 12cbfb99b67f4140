//! Memory that begins at a cache line, so that vectors of values do not lie across two of them.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

use memmap2::MmapMut;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Numbers for which every pattern of bits is a value, and zeros are zero.
///
/// # Safety
/// That must be so, and a line must hold a whole number of them.
pub(crate) unsafe trait Number: Copy {}

// SAFETY: four bytes, any pattern.
unsafe impl Number for f32 {}
// SAFETY: as above.
unsafe impl Number for u32 {}
// SAFETY: two bytes, any pattern.
unsafe impl Number for half::f16 {}
// SAFETY: as above.
unsafe impl Number for i16 {}
// SAFETY: one byte, any pattern.
unsafe impl Number for i8 {}
// SAFETY: as above.
unsafe impl Number for u8 {}

/// Bytes as numbers.
///
/// # Panics
/// If they do not begin and end where numbers can.
pub(crate) fn numbers<T: Number>(bytes: &[u8]) -> &[T] {
    // SAFETY: every pattern of bits is a number.
    let (before, numbers, after) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && after.is_empty(), "bytes that are no whole numbers");
    numbers
}

/// The same, to be written.
pub(crate) fn numbers_mut<T: Number>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: every pattern of bits is a number, and the bytes of a number may be any.
    let (before, numbers, after) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && after.is_empty(), "bytes that are no whole numbers");
    numbers
}

/// From so many bytes on memory comes from the system and goes back there: an allocator would keep ever more between
/// buffers of every length that fits nobody.
const PAGES: usize = 64 << 10;

/// A large page. From so many bytes on memory is in such, where the system has them: states and long caches are read from
/// end to end for every token.
pub(crate) const LARGE: usize = 2 << 20;

/// Where the numbers are.
enum Memory {
    Lines(Vec<Line>),
    /// Large pages begin at `start`, a multiple of their size.
    Pages {
        map: MmapMut,
        start: usize,
    },
}

impl Memory {
    /// Zeros.
    fn zeros(bytes: usize) -> io::Result<Self> {
        let lines = || Memory::Lines(vec![Line([0; 64]); bytes.div_ceil(64)]);
        if bytes < PAGES {
            return Ok(lines());
        }
        if bytes < LARGE {
            // A system has only so many mappings, 65,530 by default on Linux.
            let map = MmapMut::map_anon(bytes);
            return Ok(map.map_or_else(|_| lines(), |map| Memory::Pages { map, start: 0 }));
        }
        // Older kernels map anywhere: with room for one page more there is a multiple to begin at. What is not touched
        // takes no memory.
        let spare = if cfg!(target_os = "linux") { LARGE } else { 0 };
        let map = MmapMut::map_anon(bytes.next_multiple_of(LARGE) + spare)?;
        // A refusal changes nothing but the speed.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = if spare == 0 { 0 } else { map.as_ptr().addr().wrapping_neg() % LARGE };
        Ok(Memory::Pages { map, start })
    }

    fn start(&self) -> *const u8 {
        match self {
            Memory::Lines(lines) => lines.as_ptr().cast(),
            // SAFETY: within the mapping.
            Memory::Pages { map, start } => unsafe { map.as_ptr().add(*start) },
        }
    }

    fn start_mut(&mut self) -> *mut u8 {
        match self {
            Memory::Lines(lines) => lines.as_mut_ptr().cast(),
            // SAFETY: within the mapping.
            Memory::Pages { map, start } => unsafe { map.as_mut_ptr().add(*start) },
        }
    }
}

/// A vector that begins at a cache line, and at a large page where it fills one.
pub(crate) struct Aligned<T> {
    memory: Memory,
    len: usize,
    number: PhantomData<T>,
}

impl<T: Number> Aligned<T> {
    pub const fn new() -> Self {
        Self { memory: Memory::Lines(Vec::new()), len: 0, number: PhantomData }
    }

    /// Zeros.
    pub fn try_zeros(len: usize) -> io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory: Memory::zeros(bytes)?, len, number: PhantomData })
    }

    /// Zeros.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn zeros(len: usize) -> Self {
        Self::try_zeros(len).expect("memory for activations")
    }

    /// The first number. Makes no reference to any.
    pub fn start_mut(&mut self) -> *mut T {
        self.memory.start_mut().cast()
    }

    /// Asks the system for the large pages that begin in a range of numbers, all of which are zeros, so that whoever
    /// writes there does not wait for them: it takes long to fill one with zeros.
    pub fn touch(&mut self, range: Range<usize>) {
        let (from, to) = (range.start * size_of::<T>(), range.end.min(self.len) * size_of::<T>());
        if self.len * size_of::<T>() >= LARGE {
            (from.next_multiple_of(LARGE)..to).step_by(LARGE).for_each(|at| {
                // SAFETY: among the numbers, which are borrowed exclusively. Volatile, since the value stays what it was.
                unsafe { self.memory.start_mut().add(at).write_volatile(0) }
            });
        }
    }
}

impl<T: Number> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory holds `len` numbers, and whatever their bytes are, they are numbers.
        unsafe { std::slice::from_raw_parts(self.memory.start().cast(), self.len) }
    }
}

impl<T: Number> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start_mut().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_every_size_are_aligned_zeros() {
        assert!(Aligned::<f32>::new().is_empty());
        for len in
            [0, 1, 3, 1000, PAGES / 2 - 1, PAGES / 2, LARGE / 2 - 1, LARGE / 2, LARGE / 2 + 5, 3 * LARGE]
        {
            let mut values = Aligned::<half::f16>::zeros(len);
            assert!(values.len() == len && values.iter().all(|v| v.to_bits() == 0), "{len}");
            let unit = if 2 * len >= LARGE && cfg!(target_os = "linux") { LARGE } else { 64 };
            assert!(values.as_ptr().addr().is_multiple_of(unit), "{len}");
            values.fill(half::f16::ONE);
            assert!(values.iter().all(|v| *v == half::f16::ONE), "{len}");
        }
        assert!(Aligned::<f32>::try_zeros(usize::MAX / 2).is_err());
    }

    #[test]
    fn touched_memory_holds_zeros_and_no_other_number_changes() {
        for len in [10, PAGES, LARGE, 5 * LARGE / 2] {
            let mut values = Aligned::<half::f16>::zeros(len);
            let used = len / 3;
            values[..used].fill(half::f16::ONE);
            // Some of the rest, all of it, and more than there is.
            [used..used, used..used + 2, used..len, used..10 * len].into_iter().for_each(|r| values.touch(r));
            let kept = values.iter().take_while(|v| **v == half::f16::ONE).count();
            assert!(kept == used && values[used..].iter().all(|v| v.to_bits() == 0), "{len}");
        }
    }

    #[test]
    fn bytes_are_numbers() {
        let mut bytes = Aligned::<u8>::zeros(128);
        numbers_mut::<f32>(&mut bytes[64..])[1] = 1.0;
        assert_eq!(numbers::<u32>(&bytes[68..72]), [1.0f32.to_bits()]);
    }
}
