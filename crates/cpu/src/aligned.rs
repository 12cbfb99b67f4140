//! Memory that begins at a cache line, so that vectors of values do not lie across two of them.

use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

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
// SAFETY: two bytes, any pattern.
unsafe impl Number for half::f16 {}
// SAFETY: as above.
unsafe impl Number for i16 {}
// SAFETY: one byte, any pattern.
unsafe impl Number for i8 {}

/// From so many bytes on memory comes from the system and goes back there: a server keeps and gives up caches of every length, and between
/// them an allocator would keep ever more that fits nobody.
const PAGES: usize = 64 << 10;

/// From so many on in large pages, where the system has them: states and long caches are read from end to end for every token.
const LARGE: usize = 2 << 20;

/// Where the numbers are.
enum Memory {
    Lines(Vec<Line>),
    Pages(MmapMut),
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
            return Ok(MmapMut::map_anon(bytes).map_or_else(|_| lines(), Memory::Pages));
        }
        let pages = MmapMut::map_anon(bytes.next_multiple_of(LARGE))?;
        // A refusal changes nothing but the speed.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage);
        Ok(Memory::Pages(pages))
    }

    fn bytes(&self) -> usize {
        match self {
            Memory::Lines(lines) => lines.len() * 64,
            Memory::Pages(pages) => pages.len(),
        }
    }

    fn start(&self) -> *const u8 {
        match self {
            Memory::Lines(lines) => lines.as_ptr().cast(),
            Memory::Pages(pages) => pages.as_ptr(),
        }
    }

    fn start_mut(&mut self) -> *mut u8 {
        match self {
            Memory::Lines(lines) => lines.as_mut_ptr().cast(),
            Memory::Pages(pages) => pages.as_mut_ptr(),
        }
    }
}

/// A vector that begins at a cache line.
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
    ///
    /// # Panics
    /// If there is no memory.
    pub fn zeros(len: usize) -> Self {
        let memory = Memory::zeros(len * size_of::<T>());
        Self { memory: memory.expect("memory for activations"), len, number: PhantomData }
    }

    /// Makes it longer, with zeros, in memory for at least `room`.
    pub fn grow(&mut self, len: usize, room: usize) -> io::Result<()> {
        if len * size_of::<T>() > self.memory.bytes() {
            let room = len.max(room);
            let mut longer = Self { memory: Memory::zeros(room * size_of::<T>())?, len, number: PhantomData };
            longer[..self.len].copy_from_slice(self);
            *self = longer;
        }
        self.len = self.len.max(len);
        Ok(())
    }

    /// Asks the system for the large pages that hold up to `len` numbers, as far as there is room, so that whoever writes there does not wait for
    /// them: it takes milliseconds to fill one with zeros.
    pub fn expect(&mut self, len: usize) {
        let bytes = size_of::<T>() * len;
        if let Memory::Pages(pages) = &mut self.memory
            && pages.len() >= LARGE
        {
            let (from, to) = (size_of::<T>() * self.len, bytes.min(pages.len()));
            // One byte of each, and the last: beyond the numbers all are zeros.
            (from..to).step_by(LARGE).chain(to.checked_sub(1)).filter(|at| *at >= from).for_each(|at| {
                // SAFETY: in the mapping, which is borrowed exclusively. Volatile, since the value stays what it was.
                unsafe { pages.as_mut_ptr().add(at).write_volatile(0) }
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
    fn grown_values_stay_and_new_ones_are_zero() {
        let mut values = Aligned::<half::f16>::new();
        assert!(values.is_empty());
        values.grow(5, 0).unwrap();
        values.fill(half::f16::ONE);
        values.grow(100, 200).unwrap();
        let place = values.as_ptr();
        values.grow(7, 0).unwrap();
        values.grow(100, 400).unwrap();
        assert_eq!(values.as_ptr(), place);
        assert!(values.as_ptr().addr().is_multiple_of(64) && values.len() == 100);
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(i, v)| *v == if i < 5 { half::f16::ONE } else { half::f16::ZERO })
        );
        assert_eq!(*Aligned::<f32>::zeros(3), [0.0; 3]);
        // Into pages, and into large ones.
        values.grow(PAGES, 0).unwrap();
        assert!(values[..5].iter().all(|v| *v == half::f16::ONE) && values.len() == PAGES);
        values.grow(LARGE, 0).unwrap();
        assert!(
            values[..5].iter().all(|v| *v == half::f16::ONE) && values[5..].iter().all(|v| v.to_bits() == 0)
        );
    }

    #[test]
    fn memory_that_is_expected_holds_zeros_and_no_number_changes() {
        for (len, room) in [(10, 20), (PAGES, 2 * PAGES), (LARGE, 4 * LARGE), (LARGE / 2 - 7, LARGE)] {
            let mut values = Aligned::<half::f16>::new();
            values.grow(len, room).unwrap();
            values.fill(half::f16::ONE);
            // Less than there is, all of the room, and more than that.
            [len - 1, len, len + 1, room, 10 * room].iter().for_each(|len| values.expect(*len));
            values.grow(room, 0).unwrap();
            let kept = values.iter().take_while(|v| **v == half::f16::ONE).count();
            assert!(kept == len && values[len..].iter().all(|v| v.to_bits() == 0), "{len} of {room}");
        }
    }
}
