//! Products of pairs of whole numbers: `vpmaddwd` multiplies 16 of them.

use std::arch::x86_64::*;

use crate::ops::dense::{RowsMut, Size};
use crate::ops::pairs::{Pair, Pairs};

/// Rows that share what has been read for them: with two registers of sums for each, half of all registers.
const ROWS: usize = 4;

/// Columns of a step: two registers of sums.
const COLUMNS: usize = 16;

/// Numbers of a cache line.
const LINE: usize = 32;

/// `c[i][j] = factors[i] * sum_l a[i][l] . b[l][j]`, plus the present `c` when `add`. `ahead` is memory that is wanted soon.
pub(crate) fn nn(
    size: Size,
    a: Pairs<'_>,
    factors: &[f32],
    b: Pairs<'_>,
    c: RowsMut<'_>,
    add: bool,
    ahead: &[i16],
) {
    let Size { m, n, k } = size;
    assert!(m == 0 || (m - 1) * a.1 + k <= a.0.len() && (m - 1) * c.1 + n <= c.0.len());
    assert!(m <= factors.len() && (k == 0 || (k - 1) * b.1 + n <= b.0.len()));
    let tiles = n.div_ceil(COLUMNS);
    for t in 0..tiles {
        let j = t * COLUMNS;
        let mut i = 0;
        while i < m {
            // The first rows ask for what comes next, in good time for the others.
            let part = if i == 0 { t * ahead.len() / tiles..(t + 1) * ahead.len() / tiles } else { 0..0 };
            let ahead = &ahead[part];
            // SAFETY: called for the set `Avx2` alone; the tile begins inside the matrices, which are as large as `size` says.
            unsafe {
                let tile = Tile {
                    a: a.0.as_ptr().add(i * a.1),
                    a_stride: a.1,
                    factors: factors.as_ptr().add(i),
                    b: b.0.as_ptr().add(j),
                    b_stride: b.1,
                    c: c.0.as_mut_ptr().add(i * c.1 + j),
                    c_stride: c.1,
                    columns: COLUMNS.min(n - j),
                    k,
                };
                i += match m - i {
                    ROWS.. => tile.rows::<ROWS>(add, ahead),
                    2.. => tile.rows::<2>(add, ahead),
                    _ => tile.rows::<1>(add, ahead),
                };
            }
        }
    }
}

/// Some rows of a product, and at most [`COLUMNS`] columns.
struct Tile {
    a: *const Pair,
    a_stride: usize,
    factors: *const f32,
    b: *const Pair,
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
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn rows<const R: usize>(&self, add: bool, ahead: &[i16]) -> usize {
        // SAFETY: as for this function.
        unsafe {
            if self.columns == COLUMNS {
                self.columns::<R, true>(add, ahead);
            } else {
                self.columns::<R, false>(add, ahead);
            }
        }
        R
    }

    /// Computes `R` rows; of all columns if `WHOLE`.
    ///
    /// # Safety
    /// As for `rows`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn columns<const R: usize, const WHOLE: bool>(&self, add: bool, ahead: &[i16]) {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let left = |from: usize| _mm256_set1_epi32(self.columns as i32 - from as i32);
        let masks = [_mm256_cmpgt_epi32(left(0), lanes), _mm256_cmpgt_epi32(left(8), lanes)];
        // A line is read in a step, so one is asked for; if more have to come, they come at the end.
        let (lines, late) = ahead.split_at(ahead.len().min(LINE * self.k));
        // SAFETY: rows and columns of this tile, the others are masked; prefetches may point anywhere.
        unsafe {
            let load = |place: *const Pair, w: usize| {
                if WHOLE {
                    _mm256_loadu_si256(place.cast())
                } else {
                    _mm256_maskload_epi32(place.cast(), masks[w])
                }
            };
            let mut sums = [[_mm256_setzero_si256(); 2]; R];
            let mut rows = [self.a; R];
            for r in 1..R {
                rows[r] = rows[r - 1].add(self.a_stride);
            }
            for l in 0..self.k {
                if LINE * l < lines.len() {
                    prefetch(lines.as_ptr().wrapping_add(LINE * l));
                }
                let pairs = self.b.add(l * self.b_stride);
                let (low, high) = (load(pairs, 0), load(pairs.wrapping_add(8), 1));
                for r in 0..R {
                    let factor = _mm256_set1_epi32(rows[r].add(l).cast::<i32>().read_unaligned());
                    sums[r] = [
                        _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(factor, low)),
                        _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(factor, high)),
                    ];
                }
            }
            late.iter().step_by(LINE).for_each(|number| prefetch(number));
            for (r, sums) in sums.into_iter().enumerate() {
                let factor = _mm256_set1_ps(*self.factors.add(r));
                for (w, sum) in sums.into_iter().enumerate() {
                    let (place, sum) =
                        (self.c.wrapping_add(r * self.c_stride + 8 * w), _mm256_cvtepi32_ps(sum));
                    let present = if add { _mm256_maskload_ps(place, masks[w]) } else { _mm256_setzero_ps() };
                    _mm256_maskstore_ps(place, masks[w], _mm256_fmadd_ps(sum, factor, present));
                }
            }
        }
    }
}

/// Asks for memory that is wanted soon. Into the second cache: the first cannot hold a block of keys or values.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn prefetch(place: *const i16) {
    _mm_prefetch::<_MM_HINT_T1>(place.cast());
}
