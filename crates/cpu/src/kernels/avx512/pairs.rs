//! Products of pairs of whole numbers: `vpdpwssd` multiplies 32 of them, twice as many as an instruction for floats.

use std::arch::asm;
use std::arch::x86_64::*;

use super::low_bits;
use crate::ops::dense::{RowsMut, Size};
use crate::ops::pairs::{Pair, Pairs};

/// Rows that share what has been read for them: with two registers of sums for each, half of all registers.
const ROWS: usize = 8;

/// Columns of a step: two registers of sums.
const COLUMNS: usize = 32;

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
    // SAFETY: called for the set `Avx512` alone; the matrices are as large as `size` says.
    unsafe { tiles(size, a, factors, b, (c.0.as_mut_ptr(), c.1), add, ahead) }
}

/// # Safety
/// The matrices are as large as `size` says, on a machine with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn tiles(
    Size { m, n, k }: Size,
    a: Pairs<'_>,
    factors: &[f32],
    b: Pairs<'_>,
    c: (*mut f32, usize),
    add: bool,
    ahead: &[i16],
) {
    let tiles = n.div_ceil(COLUMNS);
    for t in 0..tiles {
        let j = t * COLUMNS;
        let mut i = 0;
        while i < m {
            // The first rows ask for what comes next, in good time for the others.
            let part = if i == 0 { t * ahead.len() / tiles..(t + 1) * ahead.len() / tiles } else { 0..0 };
            let ahead = &ahead[part];
            // SAFETY: the tile begins inside the matrices.
            unsafe {
                let tile = Tile {
                    a: a.0.as_ptr().add(i * a.1),
                    a_stride: a.1,
                    factors: factors.as_ptr().add(i),
                    b: b.0.as_ptr().add(j),
                    b_stride: b.1,
                    c: c.0.add(i * c.1 + j),
                    c_stride: c.1,
                    columns: COLUMNS.min(n - j),
                    k,
                };
                i += match m - i {
                    ROWS.. => tile.rows::<ROWS>(add, ahead),
                    4.. => tile.rows::<4>(add, ahead),
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
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
    unsafe fn rows<const R: usize>(&self, add: bool, ahead: &[i16]) -> usize {
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
    unsafe fn columns<const R: usize>(&self, masks: [u16; 2], add: bool, ahead: &[i16]) {
        // Two lines are read in a step, so two are asked for; if more have to come, they come at the end.
        let (lines, late) = ahead.split_at(ahead.len().min(2 * LINE * self.k));
        // SAFETY: rows and columns of this tile, the others are masked; prefetches may point anywhere.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); 2]; R];
            let mut rows = [self.a; R];
            for r in 1..R {
                rows[r] = rows[r - 1].add(self.a_stride);
            }
            for l in 0..self.k {
                if 2 * LINE * l < lines.len() {
                    prefetch(lines.as_ptr().wrapping_add(2 * LINE * l));
                    prefetch(lines.as_ptr().wrapping_add(2 * LINE * l + LINE));
                }
                let pairs = self.b.add(l * self.b_stride);
                let low = _mm512_maskz_loadu_epi32(masks[0], pairs.cast());
                let high = _mm512_maskz_loadu_epi32(masks[1], pairs.wrapping_add(16).cast());
                for r in 0..R {
                    let factor = _mm512_set1_epi32(rows[r].add(l).cast::<i32>().read_unaligned());
                    sums[r] = [multiply(sums[r][0], factor, low), multiply(sums[r][1], factor, high)];
                }
            }
            late.iter().step_by(LINE).for_each(|number| prefetch(number));
            for (r, sums) in sums.into_iter().enumerate() {
                let factor = _mm512_set1_ps(*self.factors.add(r));
                for (w, sum) in sums.into_iter().enumerate() {
                    let (place, sum) =
                        (self.c.wrapping_add(r * self.c_stride + 16 * w), _mm512_cvtepi32_ps(sum));
                    let present =
                        if add { _mm512_maskz_loadu_ps(masks[w], place) } else { _mm512_setzero_ps() };
                    _mm512_mask_storeu_ps(place, masks[w], _mm512_fmadd_ps(sum, factor, present));
                }
            }
        }
    }
}

/// Adds products of pairs. The intrinsic would be taken apart into a product and a sum, since the compiler thinks that a sum waits
/// for the one before; but there are enough of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn multiply(mut sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: an instruction between registers, which this machine has.
    unsafe {
        asm!(
            "vpdpwssd {0}, {1}, {2}",
            inout(zmm_reg) sums,
            in(zmm_reg) a,
            in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// Asks for memory that is wanted soon. Into the second cache: the first cannot hold a block of keys or values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn prefetch(place: *const i16) {
    _mm_prefetch::<_MM_HINT_T1>(place.cast());
}
