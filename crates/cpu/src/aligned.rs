//! Memory that begins at a cache line, so that vectors of values do not lie across two of them.

use std::collections::TryReserveError;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

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

/// A vector that begins at a cache line.
pub(crate) struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    number: PhantomData<T>,
}

impl<T: Number> Aligned<T> {
    pub const fn new() -> Self {
        Self { lines: Vec::new(), len: 0, number: PhantomData }
    }

    /// Zeros.
    pub fn zeros(len: usize) -> Self {
        Self { lines: vec![Line([0; 64]); Self::lines(len)], len, number: PhantomData }
    }

    const fn lines(len: usize) -> usize {
        len.div_ceil(64 / size_of::<T>())
    }

    /// Makes it longer, with zeros.
    pub fn grow(&mut self, len: usize) -> Result<(), TryReserveError> {
        let lines = Self::lines(len);
        self.lines.try_reserve(lines.saturating_sub(self.lines.len()))?;
        self.lines.resize(lines.max(self.lines.len()), Line([0; 64]));
        self.len = self.len.max(len);
        Ok(())
    }
}

impl<T: Number> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold `len` numbers, and whatever their bytes are, they are numbers.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Number> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grown_values_stay_and_new_ones_are_zero() {
        let mut values = Aligned::<half::f16>::new();
        assert!(values.is_empty());
        values.grow(5).unwrap();
        values.fill(half::f16::ONE);
        values.grow(100).unwrap();
        values.grow(7).unwrap();
        assert!(values.as_ptr().addr().is_multiple_of(64) && values.len() == 100);
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(i, v)| *v == if i < 5 { half::f16::ONE } else { half::f16::ZERO })
        );
        assert_eq!(*Aligned::<f32>::zeros(3), [0.0; 3]);
    }
}
