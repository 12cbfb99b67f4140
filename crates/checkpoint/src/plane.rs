//! Rows of equal length in shared bytes.

use std::{ops::Range, sync::Arc};

use crate::{Bytes, Error, Result};

/// One plane (codes, scales or biases) of a stack of matrices. The matrices may lie in one piece of memory or in
/// one piece each, and neighbouring rows may share what is stored (the scales of square blocks).
#[derive(Clone, Debug)]
pub struct Plane {
    pieces: Pieces,
    count: usize,
    rows: usize,
    row_bytes: usize,
    /// Row `r` of matrix `m` is row `first + m * step + r` of its piece, counted before sharing.
    first: usize,
    step: usize,
    /// Neighbouring rows that share one stored row.
    shared: usize,
}

#[derive(Clone, Debug)]
enum Pieces {
    /// Matrix `m` begins `m * stride` bytes into these.
    One { bytes: Bytes, stride: usize },
    /// Matrix `m` begins where these do.
    Each(Arc<[Bytes]>),
}

impl Plane {
    /// Checks that `bytes` is exactly `count` matrices of `rows` rows. Wide arithmetic: the numbers come from
    /// files.
    pub(crate) fn new(name: &str, count: usize, rows: usize, row_bytes: u128, bytes: Bytes) -> Result<Plane> {
        Self::shared(name, count, rows, 1, row_bytes, bytes)
    }

    /// The same where `shared` neighbouring rows, counted from each matrix's first, are stored once; the last of them
    /// may be fewer.
    pub(crate) fn shared(
        name: &str,
        count: usize,
        rows: usize,
        shared: usize,
        row_bytes: u128,
        bytes: Bytes,
    ) -> Result<Plane> {
        let matrix = (rows.div_ceil(shared) as u128).saturating_mul(row_bytes);
        let expected = matrix.saturating_mul(count as u128);
        if expected != bytes.len() as u128 {
            return Err(Error::WrongSize { name: name.to_owned(), expected, found: bytes.len() });
        }
        // Only an empty plane (a zero count) can fail to convert here, and it has no row to find.
        let row_bytes = usize::try_from(row_bytes).unwrap_or(0);
        let stride = usize::try_from(matrix).unwrap_or(0);
        Ok(Plane { pieces: Pieces::One { bytes, stride }, count, rows, row_bytes, first: 0, step: 0, shared })
    }

    /// One row.
    ///
    /// # Panics
    /// If there is no such matrix or row.
    #[inline]
    pub fn row(&self, matrix: usize, row: usize) -> &[u8] {
        self.check(matrix, &(row..row + 1));
        let first = self.stored_row(matrix, row);
        self.stored(matrix, first..first + 1)
    }

    /// Neighbouring rows of one matrix, without gaps.
    ///
    /// # Panics
    /// If there is no such matrix, or the rows reach beyond its end, or neighbours share what is stored
    /// ([`Plane::rows_sharing`] is not 1), so that there is no such memory.
    #[inline]
    pub fn rows(&self, matrix: usize, range: Range<usize>) -> &[u8] {
        self.check(matrix, &range);
        assert!(self.shared == 1, "{} rows share one stored row", self.shared);
        let first = self.first + matrix * self.step;
        self.stored(matrix, first + range.start..first + range.end)
    }

    /// All rows of one matrix.
    ///
    /// # Panics
    /// As [`Plane::rows`].
    pub fn matrix(&self, matrix: usize) -> &[u8] {
        self.rows(matrix, 0..self.rows)
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// How many neighbouring rows have the same bytes, because they are stored once: 1 but for the scales of square
    /// blocks. The first row need not be the first of its block.
    pub fn rows_sharing(&self) -> usize {
        self.shared
    }

    /// The same rows of every matrix.
    pub(crate) fn row_range(&self, range: Range<usize>) -> Plane {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        // The rows of an empty stack are numbers without memory, and can be absurdly large.
        let first = if self.count == 0 { 0 } else { self.first + range.start };
        Plane { first, rows: range.len(), ..self.clone() }
    }

    /// A single matrix as a stack of `heads` equal parts, of each of which the rows in `range`.
    pub(crate) fn head_rows(&self, heads: usize, range: Range<usize>) -> Plane {
        let bytes = match &self.pieces {
            Pieces::One { bytes, .. } => bytes.clone(),
            Pieces::Each(pieces) => pieces[0].clone(),
        };
        Plane {
            pieces: Pieces::One { bytes, stride: 0 },
            count: heads,
            rows: range.len(),
            first: self.first + range.start,
            step: self.rows / heads,
            ..*self
        }
    }

    /// A stack of single matrices of one layout, each where it is.
    pub(crate) fn stack(planes: &[Plane]) -> Option<Plane> {
        let one = planes.first()?;
        let piece = |plane: &Plane| match &plane.pieces {
            Pieces::One { bytes, .. } => bytes.clone(),
            Pieces::Each(pieces) => pieces[0].clone(),
        };
        let same = |plane: &Plane| {
            (plane.rows, plane.row_bytes, plane.first, plane.shared)
                == (one.rows, one.row_bytes, one.first, one.shared)
        };
        assert!(planes.iter().all(|plane| plane.count == 1 && same(plane)), "planes of different layouts");
        let pieces = Pieces::Each(planes.iter().map(piece).collect());
        Some(Plane { pieces, count: planes.len(), step: 0, ..*one })
    }

    /// Stored rows of one matrix, those it shares with a neighbour included.
    fn stored_rows(&self, matrix: usize) -> Range<usize> {
        match self.rows {
            0 => 0..0,
            rows => self.stored_row(matrix, 0)..self.stored_row(matrix, rows - 1) + 1,
        }
    }

    /// What is stored of one matrix, sharing the bytes.
    ///
    /// # Panics
    /// If there is no such matrix.
    pub(crate) fn piece(&self, matrix: usize) -> Bytes {
        self.check(matrix, &(0..self.rows));
        let (bytes, range) = self.place(matrix, self.stored_rows(matrix));
        bytes.slice(range)
    }

    /// One matrix as a plane of its own, over a copy of its [`Plane::piece`].
    ///
    /// # Panics
    /// If there is no such matrix, or the copy has another length.
    pub(crate) fn moved(&self, matrix: usize, piece: Bytes) -> Plane {
        let stored = self.stored_rows(matrix);
        assert_eq!(piece.len(), stored.len() * self.row_bytes, "a copy of another length");
        Plane {
            pieces: Pieces::One { bytes: piece, stride: 0 },
            count: 1,
            // The first row need not be the first of those that share a stored one.
            first: (self.first + matrix * self.step) % self.shared,
            step: 0,
            ..*self
        }
    }

    /// The same over copies of all bytes that it lies in.
    pub(crate) fn relocated<E>(
        &self,
        copy: &mut impl FnMut(&Bytes) -> std::result::Result<Bytes, E>,
    ) -> std::result::Result<Plane, E> {
        let pieces = match &self.pieces {
            Pieces::One { bytes, stride } => Pieces::One { bytes: copy(bytes)?, stride: *stride },
            Pieces::Each(pieces) => {
                Pieces::Each(pieces.iter().map(copy).collect::<std::result::Result<_, E>>()?)
            }
        };
        Ok(Plane { pieces, ..*self })
    }

    /// Bytes of the rows themselves.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let rows = if self.shared == 1 {
            (self.count as u128).saturating_mul(self.rows as u128)
        } else if self.rows == 0 || self.row_bytes == 0 {
            0
        } else {
            // Neighbouring matrices can share a stored row; it counts once.
            let mut total = 0;
            let mut counted = 0;
            for matrix in 0..self.count {
                let (from, to) = (self.stored_row(matrix, 0), self.stored_row(matrix, self.rows - 1) + 1);
                let from = if self.step > 0 { from.max(counted) } else { from };
                total += to.saturating_sub(from) as u128;
                counted = to;
            }
            total
        };
        // Wide, because an empty plane can still have huge sides.
        rows.saturating_mul(self.row_bytes as u128) as u64
    }

    /// Without this a row past the end would silently be the next matrix's.
    #[inline]
    fn check(&self, matrix: usize, range: &Range<usize>) {
        assert!(
            matrix < self.count && range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of matrix {matrix} in {} matrices of {} rows",
            self.count,
            self.rows
        );
    }

    #[inline]
    fn stored_row(&self, matrix: usize, row: usize) -> usize {
        let row = self.first + matrix * self.step + row;
        if self.shared == 1 { row } else { row / self.shared }
    }

    #[inline]
    fn stored(&self, matrix: usize, rows: Range<usize>) -> &[u8] {
        let (bytes, range) = self.place(matrix, rows);
        &bytes[range]
    }

    /// Where stored rows of a matrix are.
    #[inline]
    fn place(&self, matrix: usize, rows: Range<usize>) -> (&Bytes, Range<usize>) {
        let (bytes, start) = match &self.pieces {
            Pieces::One { bytes, stride } => (bytes, matrix * stride),
            Pieces::Each(pieces) => (&pieces[matrix], 0),
        };
        (bytes, start + rows.start * self.row_bytes..start + rows.end * self.row_bytes)
    }

    /// Says that these rows will not be read again soon.
    pub(crate) fn release(&self, matrix: usize, range: Range<usize>) {
        self.check(matrix, &range);
        if range.is_empty() {
            return;
        }
        let rows = self.stored_row(matrix, range.start)..self.stored_row(matrix, range.end - 1) + 1;
        let (bytes, range) = self.place(matrix, rows);
        bytes.release(range);
    }
}
