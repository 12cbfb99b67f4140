//! Rows of equal length in shared bytes.

use std::ops::Range;

use crate::{Bytes, Error, Result};

/// One plane (codes, scales or biases) of a stack of matrices: row `r` of matrix `m` starts at
/// `m * matrix_stride + r * row_bytes` inside the bytes.
#[derive(Clone, Debug)]
pub struct Plane {
    bytes: Bytes,
    count: usize,
    rows: usize,
    row_bytes: usize,
    matrix_stride: usize,
}

impl Plane {
    /// Checks that `bytes` is exactly `count` matrices of `rows` rows. Wide arithmetic: the numbers come from
    /// files.
    pub(crate) fn new(name: &str, count: usize, rows: usize, row_bytes: u128, bytes: Bytes) -> Result<Plane> {
        let matrix = (rows as u128).saturating_mul(row_bytes);
        let expected = matrix.saturating_mul(count as u128);
        if expected != bytes.len() as u128 {
            return Err(Error::WrongSize { name: name.to_owned(), expected, found: bytes.len() });
        }
        // Only an empty plane (a zero count) can fail to convert here, and it has no row to find.
        let row_bytes = usize::try_from(row_bytes).unwrap_or(0);
        let matrix_stride = usize::try_from(matrix).unwrap_or(0);
        Ok(Plane { bytes, count, rows, row_bytes, matrix_stride })
    }

    /// One row.
    ///
    /// # Panics
    /// If there is no such matrix or row.
    #[inline]
    pub fn row(&self, matrix: usize, row: usize) -> &[u8] {
        self.rows(matrix, row..row + 1)
    }

    /// Neighbouring rows of one matrix, without gaps.
    ///
    /// # Panics
    /// If there is no such matrix, or the rows reach beyond its end.
    #[inline]
    pub fn rows(&self, matrix: usize, range: Range<usize>) -> &[u8] {
        // Without this a row past the end would silently be the next matrix's.
        assert!(
            matrix < self.count && range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of matrix {matrix} in {} matrices of {} rows",
            self.count,
            self.rows
        );
        let start = matrix * self.matrix_stride;
        &self.bytes[start + range.start * self.row_bytes..start + range.end * self.row_bytes]
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Bytes from a row of one matrix to the same row of the next.
    pub fn matrix_stride(&self) -> usize {
        self.matrix_stride
    }

    /// What the offsets count in. After [`crate::Weight::row_range`] it also holds rows of others, between
    /// matrices.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The same rows of every matrix.
    pub(crate) fn row_range(&self, range: Range<usize>) -> Plane {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        let (start, end) = match self.count {
            0 => (0, 0),
            n => (range.start * self.row_bytes, (n - 1) * self.matrix_stride + range.end * self.row_bytes),
        };
        Plane { bytes: self.bytes.slice(start..end), rows: range.len(), ..self.clone() }
    }

    /// Bytes of the rows themselves.
    pub(crate) fn stored_bytes(&self) -> u64 {
        // Wide, because an empty plane can still have huge sides.
        let sides = [self.count, self.rows, self.row_bytes];
        sides.iter().fold(1u128, |bytes, &side| bytes.saturating_mul(side as u128)) as u64
    }
}
