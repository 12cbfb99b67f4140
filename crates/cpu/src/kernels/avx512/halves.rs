//! Products of floats with halves, which become floats in registers: a half is converted once for eight rows.

use std::arch::x86_64::*;

use super::{low_bits, sum_lanes};
use crate::ops::dense::{Rows, RowsMut, Size};
use crate::ops::halves::Halves;

/// Rows that share what has been read for them: with two registers of sums for each, half of all registers.
const ROWS: usize = 8;

/// Columns of a step: two registers of sums.
const COLUMNS: usize = 32;

/// Asks for memory that is wanted soon. Into the second cache: the first cannot hold a block of keys or values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn prefetch(place: *const u16) {
    _mm_prefetch::<_MM_HINT_T1>(place.cast());
}

/// `c[i][j] = sum_l a[i][l] b[l][j]`, plus the present `c` when `add`, with the same bits as from `dense::nn`. `ahead` is memory
/// that is wanted soon.
pub(crate) fn nn(size: Size, a: Rows<'_>, b: Halves<'_>, c: RowsMut<'_>, add: bool, ahead: &[u16]) {
    let Size { m, n, k } = size;
    assert!(m == 0 || (m - 1) * a.1 + k <= a.0.len() && (m - 1) * c.1 + n <= c.0.len());
    assert!(k == 0 || (k - 1) * b.1 + n <= b.0.len());
    // SAFETY: called for the set `Avx512` alone; the matrices are as large as `size` says.
    unsafe { nn_tiles(size, a, b, (c.0.as_mut_ptr(), c.1), add, ahead) }
}

/// # Safety
/// The matrices are as large as `size` says, on a machine with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn nn_tiles(
    Size { m, n, k }: Size,
    a: Rows<'_>,
    b: Halves<'_>,
    c: (*mut f32, usize),
    add: bool,
    ahead: &[u16],
) {
    let tiles = n.div_ceil(COLUMNS);
    for t in 0..tiles {
        let j = t * COLUMNS;
        let mut i = 0;
        while i < m {
            // The first rows ask for what comes next, in good time for the others.
            let part = if i == 0 { t * ahead.len() / tiles..(t + 1) * ahead.len() / tiles } else { 0..0 };
            // SAFETY: the tile begins inside the matrices.
            unsafe {
                let tile = Tile {
                    a: a.0.as_ptr().add(i * a.1),
                    a_stride: a.1,
                    b: b.0.as_ptr().add(j),
                    b_stride: b.1,
                    c: c.0.add(i * c.1 + j),
                    c_stride: c.1,
                    columns: COLUMNS.min(n - j),
                    k,
                };
                i += match m - i {
                    ROWS.. => tile.rows::<ROWS>(add, &ahead[part]),
                    4.. => tile.rows::<4>(add, &ahead[part]),
                    2.. => tile.rows::<2>(add, &ahead[part]),
                    _ => tile.rows::<1>(add, &ahead[part]),
                };
            }
        }
    }
}

/// Some rows of a product, and at most [`COLUMNS`] columns.
struct Tile {
    a: *const f32,
    a_stride: usize,
    b: *const u16,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    columns: usize,
    k: usize,
}

impl Tile {
    /// Computes `R` rows and returns `R`.
    ///
    /// # Safety
    /// There are so many rows, and the matrices are as large as the tile says, on a machine with these instructions.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
    unsafe fn rows<const R: usize>(&self, add: bool, ahead: &[u16]) -> usize {
        // SAFETY: as for this function.
        unsafe {
            if self.columns == COLUMNS {
                // Compiled without masks.
                self.columns::<R>([u16::MAX; 2], add, ahead);
            } else {
                let mask = low_bits(self.columns);
                self.columns::<R>([mask as u16, (mask >> 16) as u16], add, ahead);
            }
        }
        R
    }

    /// Computes those columns of `R` rows that are in the masks.
    ///
    /// # Safety
    /// As for `rows`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
    unsafe fn columns<const R: usize>(&self, masks: [u16; 2], add: bool, ahead: &[u16]) {
        // A line is read in a step; if more have to come, they come at the end.
        let (lines, late) = ahead.split_at(ahead.len().min(32 * self.k));
        // SAFETY: rows and columns of this tile, the others are masked; prefetches may point anywhere.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); 2]; R];
            if add {
                for (r, sums) in sums.iter_mut().enumerate() {
                    *sums = [
                        _mm512_maskz_loadu_ps(masks[0], self.place(r, 0)),
                        _mm512_maskz_loadu_ps(masks[1], self.place(r, 16)),
                    ];
                }
            }
            let mut rows = [self.a; R];
            for r in 1..R {
                rows[r] = rows[r - 1].add(self.a_stride);
            }
            for l in 0..self.k {
                if !lines.is_empty() {
                    prefetch(lines.as_ptr().wrapping_add(32 * l));
                }
                let halves = self.b.add(l * self.b_stride);
                let low = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(masks[0], halves.cast()));
                let high =
                    _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(masks[1], halves.wrapping_add(16).cast()));
                for r in 0..R {
                    let factor = _mm512_set1_ps(*rows[r].add(l));
                    sums[r][0] = _mm512_fmadd_ps(factor, low, sums[r][0]);
                    sums[r][1] = _mm512_fmadd_ps(factor, high, sums[r][1]);
                }
            }
            late.iter().step_by(32).for_each(|half| prefetch(half));
            for (r, [low, high]) in sums.into_iter().enumerate() {
                _mm512_mask_storeu_ps(self.place(r, 0), masks[0], low);
                _mm512_mask_storeu_ps(self.place(r, 16), masks[1], high);
            }
        }
    }

    /// Where the result of a row and a column goes.
    #[inline(always)]
    fn place(&self, row: usize, column: usize) -> *mut f32 {
        self.c.wrapping_add(row * self.c_stride + column)
    }
}

/// `c[i][j] = sum_l a[i][l] b[j][l]`. `ahead` is memory that is wanted soon.
pub(crate) fn nt(size: Size, a: Rows<'_>, b: Halves<'_>, c: RowsMut<'_>, ahead: &[u16]) {
    let Size { m, n, k } = size;
    assert!(m == 0 || (m - 1) * a.1 + k <= a.0.len() && (m - 1) * c.1 + n <= c.0.len());
    assert!(n == 0 || (n - 1) * b.1 + k <= b.0.len());
    // SAFETY: called for the set `Avx512` alone; the matrices are as large as `size` says.
    unsafe { nt_tiles(size, a, b, (c.0.as_mut_ptr(), c.1), ahead) }
}

/// # Safety
/// The matrices are as large as `size` says, on a machine with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn nt_tiles(Size { m, n, k }: Size, a: Rows<'_>, b: Halves<'_>, c: (*mut f32, usize), ahead: &[u16]) {
    // The rows of `a` stay in the nearest cache while those of `b` go by.
    for i in (0..m).step_by(ROWS) {
        for j in (0..n).step_by(2) {
            let end = n.min(j + 2);
            if i == 0 {
                let part = &ahead[j * ahead.len() / n..end * ahead.len() / n];
                part.iter().step_by(32).for_each(|half| prefetch(half));
            }
            // SAFETY: rows and columns beyond the last are the last once more, and are not written.
            unsafe {
                let mut rows = [a.0.as_ptr(); ROWS];
                for (r, row) in rows.iter_mut().enumerate() {
                    *row = row.add((i + r).min(m - 1) * a.1);
                }
                let sums = dots(rows, [b.0.as_ptr().add(j * b.1), b.0.as_ptr().add((end - 1) * b.1)], k);
                for (j, sums) in (j..end).zip(sums) {
                    for (r, sum) in sums.into_iter().enumerate().take(m - i) {
                        *c.0.add((i + r) * c.1 + j) = sum;
                    }
                }
            }
        }
    }
}

/// Products of every row with two columns of `k` terms.
///
/// # Safety
/// They can be read, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn dots(rows: [*const f32; ROWS], columns: [*const u16; 2], k: usize) -> [[f32; ROWS]; 2] {
    let mut sums = [[_mm512_setzero_ps(); ROWS]; 2];
    let whole = k / 16 * 16;
    for l in (0..whole).step_by(16) {
        // SAFETY: sixteen terms from here on.
        unsafe { add_terms(rows, columns, l, u16::MAX, &mut sums) };
    }
    if whole < k {
        // SAFETY: the other terms.
        unsafe { add_terms(rows, columns, whole, low_bits(k - whole) as u16, &mut sums) };
    }
    let mut out = [[0.0; ROWS]; 2];
    for (out, sums) in out.iter_mut().zip(&sums) {
        for (out, sums) in out.chunks_exact_mut(4).zip(sums.as_chunks().0) {
            // SAFETY: four values.
            unsafe { _mm_storeu_ps(out.as_mut_ptr(), sum_lanes(*sums)) };
        }
    }
    out
}

/// Adds those of sixteen terms from `l` on that are in the mask.
///
/// # Safety
/// They can be read, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn add_terms(
    rows: [*const f32; ROWS],
    columns: [*const u16; 2],
    l: usize,
    mask: u16,
    sums: &mut [[__m512; ROWS]; 2],
) {
    // SAFETY: masked lanes are not read.
    unsafe {
        let first = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, columns[0].add(l).cast()));
        let second = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, columns[1].add(l).cast()));
        for r in 0..ROWS {
            let row = _mm512_maskz_loadu_ps(mask, rows[r].add(l));
            sums[0][r] = _mm512_fmadd_ps(row, first, sums[0][r]);
            sums[1][r] = _mm512_fmadd_ps(row, second, sums[1][r]);
        }
    }
}
