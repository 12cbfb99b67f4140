//! Products of few tokens: four rows at a time, read as one stream of memory.

use std::arch::x86_64::*;

use super::{Unpack, load_scales, low_bits, planes, register_bytes, split, sum_lanes, widen_bf16};
use crate::kernels::codes::{Codes, Packing, ScaleType};
use crate::kernels::forms::is_stream;
use crate::kernels::rounded::{Form, Rounded};

/// How far ahead of their use codes are asked for, in the order of addresses and into the second cache. The hardware does not
/// look beyond a page, and does not see that four rows side by side are one stream; the first cache alone cannot wait for
/// enough lines at a time to fill the memory's bandwidth.
const AHEAD: usize = 16 << 10;

/// How far ahead they come into the first cache.
const NEAR: usize = 2 << 10;

/// `y[i] = W[first + i] x[t]`
pub(in crate::kernels) fn rows(
    w: &Codes<'_>,
    first: usize,
    x: &Rounded,
    t: usize,
    y: &mut [f32],
    next: &[u8],
) {
    assert!(first + y.len() <= w.rows && x.cols == w.cols && t < x.tokens() && x.form == Form::of(w, false));
    // SAFETY: called for the set `Avx512` alone. `Codes` has checked its slices; rows, token and form are checked above.
    unsafe { super::by_packing!(w.packing, rows_of(w, first, x, t, y, next)) }
}

/// # Safety
/// The rows, the token and the form fit, on a machine with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn rows_of<const PACKING: usize>(
    w: &Codes<'_>,
    first: usize,
    x: &Rounded,
    t: usize,
    y: &mut [f32],
    next: &[u8],
) {
    let end = w.codes.as_ptr().wrapping_add((first + y.len()) * w.row_bytes());
    let stream = Stream { end, next: if next.is_empty() { end } else { next.as_ptr() } };
    // Lane `l` of a register of codes belongs to this group, counted from the register's first.
    let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let group_of = _mm512_srl_epi32(
        _mm512_mullo_epi32(lanes, _mm512_set1_epi32(4 * planes(PACKING) as i32)),
        _mm_cvtsi32_si128(w.group.trailing_zeros() as i32),
    );
    let (fours, rest) = y.as_chunks_mut::<4>();
    for (i, y) in fours.iter_mut().enumerate() {
        // SAFETY: as for this function.
        *y = unsafe { some_rows::<PACKING, 4>(w, first + 4 * i, x, t, group_of, stream) };
    }
    for (i, y) in rest.iter_mut().enumerate() {
        // SAFETY: as for this function.
        [*y] = unsafe { some_rows::<PACKING, 1>(w, first + 4 * fours.len() + i, x, t, group_of, stream) };
    }
}

/// Where codes are asked for in advance: up to `end`, then from `next` on.
#[derive(Clone, Copy)]
struct Stream {
    end: *const u8,
    next: *const u8,
}

/// Products of `ROWS` neighbouring rows with one token.
///
/// # Safety
/// As for `rows_of`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn some_rows<const PACKING: usize, const ROWS: usize>(
    w: &Codes<'_>,
    first: usize,
    x: &Rounded,
    t: usize,
    group_of: __m512i,
    stream: Stream,
) -> [f32; ROWS] {
    let groups = w.groups();
    let (row_bytes, scale_bytes) = (w.row_bytes(), w.scale_row_bytes());
    let elements = 64 * planes(PACKING);
    // Groups are powers of two; dividing by their size would cost as much as the rest of a step.
    let shift = w.group.trailing_zeros();
    // SAFETY: all reads of codes, scales and biases are inside rows `first..first + ROWS`, by masks at their ends;
    // activations and sums are padded to what is read; prefetches may point anywhere.
    unsafe {
        let sums = x.sums.as_ptr().add(t * x.sum_stride());
        let codes = w.codes.as_ptr().add(first * row_bytes);
        let mut rows = [codes; ROWS];
        for row in 1..ROWS {
            rows[row] = rows[row - 1].add(row_bytes);
        }
        let high = x.data.as_ptr().add(t * x.stride);
        let step = Step::<ROWS> {
            rows,
            high,
            low: high.add(x.stride / 2),
            unpack: Unpack::new(if is_stream(PACKING) { PACKING } else { 8 }),
        };
        let mut ahead = codes.wrapping_add(AHEAD);
        let jump = (stream.next as usize).wrapping_sub(stream.end as usize);
        let whole = row_bytes / register_bytes(PACKING);

        let mut total = [_mm512_setzero_ps(); ROWS];
        let mut i = 0;
        let mut g = 0;
        while g < groups {
            // Sixteen groups at a time: their scales stay in a register, their biases meet the sums of their groups.
            let mut scales = [_mm512_setzero_ps(); ROWS];
            let some = low_bits((groups - g).min(16)) as u16;
            for row in 0..ROWS {
                let at = (first + row) * scale_bytes + g * w.scale_type.bytes();
                let place = w.scales.as_ptr().add(at);
                // Where there are none, the scales once more.
                let bias_place = if PACKING == 0 { place } else { w.biases.as_ptr().add(at) };
                let mut bias;
                // By far the most common, and what is done here counts when rows are short.
                if w.scale_type == ScaleType::Bf16 {
                    (scales[row], bias) = (widen_bf16(some, place), widen_bf16(some, bias_place));
                } else {
                    scales[row] = load_scales(w.scale_type, some, place);
                    bias = load_scales(w.scale_type, some, bias_place);
                }
                if PACKING == 0 {
                    scales[row] = _mm512_mul_ps(scales[row], _mm512_set1_ps(w.scale_factor()));
                    bias = _mm512_mul_ps(bias, _mm512_set1_ps(w.bias_factor()));
                }
                total[row] = _mm512_fmadd_ps(bias, _mm512_loadu_ps(sums.add(g)), total[row]);
                _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(16 * scale_bytes).cast());
                _mm_prefetch::<_MM_HINT_T0>(bias_place.wrapping_add(16 * scale_bytes).cast());
            }
            // Registers of codes up to the last of these groups.
            let to = ((g + 16).min(groups) << shift).div_ceil(elements);
            while i < to.min(whole) {
                let lines = if ahead < stream.end { ahead } else { ahead.wrapping_add(jump) };
                for row in 0..ROWS {
                    let line = row * register_bytes(PACKING);
                    _mm_prefetch::<_MM_HINT_T1>(lines.wrapping_add(line).cast());
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_sub(AHEAD - NEAR).wrapping_add(line).cast());
                }
                ahead = ahead.wrapping_add(ROWS * register_bytes(PACKING));
                let first_group = _mm512_set1_epi32((((i * elements) >> shift) - g) as i32);
                let group_of = _mm512_add_epi32(group_of, first_group);
                step.take::<PACKING, false>(i, 0, group_of, &scales, &mut total);
                i += 1;
            }
            if i < to {
                // The rows' ends are lines of the stream too.
                let lines = if ahead < stream.end { ahead } else { ahead.wrapping_add(jump) };
                for line in (0..ROWS * (row_bytes - whole * register_bytes(PACKING))).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T1>(lines.wrapping_add(line).cast());
                    _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_sub(AHEAD - NEAR).wrapping_add(line).cast());
                }
                let mask = low_bits(row_bytes - whole * register_bytes(PACKING));
                let first_group = _mm512_set1_epi32((((i * elements) >> shift) - g) as i32);
                let group_of = _mm512_add_epi32(group_of, first_group);
                step.take::<PACKING, true>(i, mask, group_of, &scales, &mut total);
                i += 1;
            }
            g += 16;
        }
        let mut y = [0.0; ROWS];
        if let [a, b, c, d] = total[..] {
            _mm_storeu_ps(y.as_mut_ptr(), sum_lanes([a, b, c, d]));
        } else {
            for row in 0..ROWS {
                y[row] = _mm512_reduce_add_ps(total[row]);
            }
        }
        y.map(|y| y * x.scales[t])
    }
}

/// A walk along `ROWS` rows.
struct Step<const ROWS: usize> {
    rows: [*const u8; ROWS],
    high: *const i8,
    low: *const i8,
    unpack: Unpack,
}

impl<const ROWS: usize> Step<ROWS> {
    /// Adds register `i` of each row, by a mask if `MASKED`; a lane's scale is that of `scales` which `group_of` names.
    ///
    /// # Safety
    /// The codes of all rows, as far as the mask goes, and the activations can be read, on a machine with these instructions.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
    unsafe fn take<const PACKING: usize, const MASKED: bool>(
        &self,
        i: usize,
        mask: u64,
        group_of: __m512i,
        scales: &[__m512; ROWS],
        total: &mut [__m512; ROWS],
    ) {
        // SAFETY: as for this function.
        unsafe {
            let mut activations = [[_mm512_setzero_si512(); 2]; 4];
            for (p, pair) in activations.iter_mut().enumerate().take(planes(PACKING)) {
                let at = (i * planes(PACKING) + p) * 64;
                pair[0] = _mm512_loadu_si512(self.high.add(at).cast());
                pair[1] = _mm512_loadu_si512(self.low.add(at).cast());
            }
            for row in 0..ROWS {
                let place = self.rows[row].add(i * register_bytes(PACKING));
                let stored = if MASKED || register_bytes(PACKING) < 64 {
                    let mask = if MASKED { mask } else { low_bits(register_bytes(PACKING)) };
                    _mm512_maskz_loadu_epi8(mask, place.cast())
                } else {
                    _mm512_loadu_si512(place.cast())
                };
                let split = split::<PACKING>(stored, &self.unpack);
                let mut sum = _mm512_setzero_si512();
                for p in 0..planes(PACKING) {
                    sum = _mm512_dpbusd_epi32(sum, split[p], activations[p][0]);
                }
                sum = _mm512_slli_epi32::<7>(sum);
                for p in 0..planes(PACKING) {
                    sum = _mm512_dpbusd_epi32(sum, split[p], activations[p][1]);
                }
                let scales = _mm512_permutexvar_ps(group_of, scales[row]);
                total[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, total[row]);
            }
        }
    }
}
