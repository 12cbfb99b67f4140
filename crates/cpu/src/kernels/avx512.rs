//! Integer products with AVX-512: `vpdpbusd` multiplies unsigned codes with signed bytes, 64 at a time.
//!
//! A 15-bit activation is two bytes, `i = 128 * high + low`, so a product takes two instructions per 64 codes. Codes stay
//! where they are in a register; activations have been arranged to meet them:
//! - 4 bits: the low and the high halves of the bytes of a register are the even and the odd elements of 128;
//! - 2 bits: likewise four quarters of 256;
//! - other widths: unpacked to 64 bytes in order.
//!
//! `rows` is for few tokens: a register holds codes of one row, lanes are added at the end. `panel` is for many: 32 rows are
//! unpacked once and turned, so that a lane is a row, and then meet every token.

use std::arch::x86_64::*;

use super::codes::{Codes, FP4_CODES, Packing, ScaleType};
use super::rounded::{Form, Rounded};

/// Rows that `panel` takes at a time.
pub(super) const PANEL: usize = 32;

/// Tokens that meet a panel together.
const TOKENS: usize = 4;

/// How far ahead of their use codes are asked for, in the order of addresses and into the second cache. The hardware does not
/// look beyond a page, and does not see that four rows side by side are one stream; the first cache alone cannot wait for
/// enough lines at a time to fill the memory's bandwidth.
const AHEAD: usize = 16 << 10;

/// How far ahead they come into the first cache.
const NEAR: usize = 2 << 10;

/// Elements in a register of codes.
fn register_elements(packing: Packing) -> usize {
    match packing {
        Packing::Bits(4) | Packing::Fp4 => 128,
        Packing::Bits(2) => 256,
        Packing::Bits(_) => 64,
    }
}

/// Writes whole numbers as bytes, in the order that the kernels for `form` want.
pub(super) fn arrange(form: Form, numbers: &[i16], out: &mut [i8]) {
    assert!(numbers.len().is_multiple_of(256) && out.len() == 2 * numbers.len());
    // SAFETY: called for the set `Avx512` alone; the lengths are as the function wants them.
    unsafe { arrange_blocks(form, numbers, out) }
}

/// Where byte `i` of a block of 64, or of 128 or 256, comes from.
fn source(form: Form, i: usize) -> usize {
    let planes = match form.packing {
        Packing::Bits(4) | Packing::Fp4 => 2,
        Packing::Bits(2) => 4,
        Packing::Bits(_) => return i,
    };
    if form.panel {
        // Of every dword of codes: first elements of each byte, then second, ...
        let (dword, byte, plane) = (i / (4 * planes), i % 4, i / 4 % planes);
        dword * 4 * planes + byte * planes + plane
    } else {
        // Of every register of codes likewise.
        (i % 64) * planes + i / 64
    }
}

/// # Safety
/// Lengths as `arrange` checks them, on a machine with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn arrange_blocks(form: Form, numbers: &[i16], out: &mut [i8]) {
    // For few tokens `[all high bytes | all low bytes]`, for many `[64 high | 64 low]` block by block.
    let padded = numbers.len();
    let registers = if form.panel { 1 } else { register_elements(form.packing) / 64 };
    let order: [u8; 256] = std::array::from_fn(|i| source(form, i % (64 * registers)) as u8);
    let mut planes = [[0i8; 256]; 2];
    for (b, numbers) in numbers.chunks_exact(64 * registers).enumerate() {
        for (r, numbers) in numbers.chunks_exact(32).enumerate() {
            // SAFETY: 32 numbers are 64 bytes; the two stores fill 32 bytes of 256 each.
            unsafe {
                let n = _mm512_loadu_si512(numbers.as_ptr().cast());
                let high = _mm512_srai_epi16::<7>(_mm512_add_epi16(n, _mm512_set1_epi16(64)));
                let low = _mm512_sub_epi16(n, _mm512_slli_epi16::<7>(high));
                _mm256_storeu_si256(planes[0].as_mut_ptr().add(32 * r).cast(), _mm512_cvtepi16_epi8(high));
                _mm256_storeu_si256(planes[1].as_mut_ptr().add(32 * r).cast(), _mm512_cvtepi16_epi8(low));
            }
        }
        for r in 0..registers {
            for (p, plane) in planes.iter().enumerate() {
                // SAFETY: all reads are inside the 256 bytes of a plane. Writes: for many tokens, block `b` of 128 bytes,
                // of which there are `padded / 64`; for few, 64 bytes of the plane's `padded`.
                unsafe {
                    let order = _mm512_loadu_si512(order.as_ptr().add(64 * r).cast());
                    let at = |i: usize| _mm512_loadu_si512(plane.as_ptr().add(64 * i).cast());
                    let value = match registers {
                        1 => _mm512_permutexvar_epi8(order, at(0)),
                        2 => _mm512_permutex2var_epi8(at(0), order, at(1)),
                        _ => {
                            let lower = _mm512_permutex2var_epi8(at(0), order, at(1));
                            let upper = _mm512_permutex2var_epi8(at(2), order, at(3));
                            _mm512_mask_blend_epi8(_mm512_movepi8_mask(order), lower, upper)
                        }
                    };
                    let place =
                        if form.panel { b * 128 + p * 64 } else { p * padded + (b * registers + r) * 64 };
                    _mm512_storeu_si512(out.as_mut_ptr().add(place).cast(), value);
                }
            }
        }
    }
}

/// A mask of the `n` lowest bits.
fn low_bits(n: usize) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

/// Those of sixteen stored scales that are in the mask; the others are 0.
///
/// # Safety
/// They can be read, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn load_scales(scale_type: ScaleType, mask: u16, bytes: *const u8) -> __m512 {
    // SAFETY: masked lanes are not read.
    unsafe {
        match scale_type {
            ScaleType::Bf16 => widen_bf16(mask, bytes),
            ScaleType::F16 => _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, bytes.cast())),
            ScaleType::F32 => _mm512_maskz_loadu_ps(mask, bytes.cast()),
            ScaleType::E8m0 => {
                let bits = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, bytes.cast()));
                let scale = _mm512_slli_epi32::<23>(bits);
                // 2^-127 is subnormal, and 255 is NaN.
                let zero = _mm512_mask_cmpeq_epi32_mask(mask, bits, _mm512_setzero_si512());
                let scale = _mm512_mask_mov_epi32(scale, zero, _mm512_set1_epi32(1 << 22));
                let nan = _mm512_cmpeq_epi32_mask(bits, _mm512_set1_epi32(255));
                let scale = _mm512_mask_mov_epi32(scale, nan, _mm512_set1_epi32(0x7fc0_0000));
                _mm512_castsi512_ps(scale)
            }
        }
    }
}

/// Those of sixteen floats that are in the mask, from their upper halves; the others are 0.
///
/// # Safety
/// They can be read, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn widen_bf16(mask: u16, bytes: *const u8) -> __m512 {
    // SAFETY: masked lanes are not read.
    let bits = _mm512_cvtepu16_epi32(unsafe { _mm256_maskz_loadu_epi16(mask, bytes.cast()) });
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
}

/// Codes of a stream of 3, 5 or 6 bits: 64 of them from `BITS * 8` bytes, one per byte.
struct Unpack {
    spread: __m512i,
    shifts: __m512i,
    mask: __m512i,
}

impl Unpack {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
    fn new(bits: usize) -> Self {
        // Eight codes begin at a whole byte: their bytes go into a qword, from which eight fields are picked.
        let spread: [u8; 64] = std::array::from_fn(|i| ((i / 8) * bits + (i % 8).min(bits - 1)) as u8);
        let shifts: [u8; 64] = std::array::from_fn(|i| ((i % 8) * bits) as u8);
        // SAFETY: 64 bytes each.
        let load = |bytes: &[u8; 64]| unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) };
        Self {
            spread: load(&spread),
            shifts: load(&shifts),
            mask: _mm512_set1_epi8(((1u32 << bits) - 1) as i8),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
    fn codes(&self, bytes: __m512i) -> __m512i {
        let spread = _mm512_permutexvar_epi8(self.spread, bytes);
        _mm512_and_si512(_mm512_multishift_epi64_epi8(self.shifts, spread), self.mask)
    }
}

/// Splits a register of codes into registers of bytes; how many depends on the packing: `PACKING` is the number of bits, or 0 for
/// [`Packing::Fp4`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn split<const PACKING: usize>(stored: __m512i, unpack: &Unpack) -> [__m512i; 4] {
    let zero = _mm512_setzero_si512();
    match PACKING {
        0 | 4 => {
            let mask = _mm512_set1_epi8(15);
            let low = _mm512_and_si512(stored, mask);
            let high = _mm512_and_si512(_mm512_srli_epi16::<4>(stored), mask);
            if PACKING == 4 {
                return [low, high, zero, zero];
            }
            // SAFETY: 16 bytes.
            let table = unsafe { _mm_loadu_si128(FP4_CODES.as_ptr().cast()) };
            let table = _mm512_broadcast_i32x4(table);
            [_mm512_shuffle_epi8(table, low), _mm512_shuffle_epi8(table, high), zero, zero]
        }
        2 => {
            let mask = _mm512_set1_epi8(3);
            [
                _mm512_and_si512(stored, mask),
                _mm512_and_si512(_mm512_srli_epi16::<2>(stored), mask),
                _mm512_and_si512(_mm512_srli_epi16::<4>(stored), mask),
                _mm512_and_si512(_mm512_srli_epi16::<6>(stored), mask),
            ]
        }
        8 => [stored, zero, zero, zero],
        _ => [unpack.codes(stored), zero, zero, zero],
    }
}

/// Registers that [`split`] makes of one.
const fn planes(packing: usize) -> usize {
    match packing {
        0 | 4 => 2,
        2 => 4,
        _ => 1,
    }
}

/// Bytes that a register of codes takes in a row.
const fn register_bytes(packing: usize) -> usize {
    match packing {
        3 | 5 | 6 => packing * 8,
        _ => 64,
    }
}

/// Calls a function with the packing as a constant.
macro_rules! by_packing {
    ($packing:expr, $function:ident($($arg:expr),*)) => {
        match $packing {
            Packing::Fp4 => $function::<0>($($arg),*),
            Packing::Bits(2) => $function::<2>($($arg),*),
            Packing::Bits(3) => $function::<3>($($arg),*),
            Packing::Bits(4) => $function::<4>($($arg),*),
            Packing::Bits(5) => $function::<5>($($arg),*),
            Packing::Bits(6) => $function::<6>($($arg),*),
            Packing::Bits(_) => $function::<8>($($arg),*),
        }
    };
}

/// `y[i] = W[first + i] x[t]`
pub(super) fn rows(w: &Codes<'_>, first: usize, x: &Rounded, t: usize, y: &mut [f32], next: &[u8]) {
    assert!(first + y.len() <= w.rows && x.cols == w.cols && t < x.tokens() && x.form == Form::of(w, false));
    // SAFETY: called for the set `Avx512` alone. `Codes` has checked its slices; rows, token and form are checked above.
    unsafe { by_packing!(w.packing, rows_of(w, first, x, t, y, next)) }
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
            unpack: Unpack::new(if matches!(PACKING, 3 | 5 | 6) { PACKING } else { 8 }),
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

/// The sums of the lanes of four registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn sum_lanes([a, b, c, d]: [__m512; 4]) -> __m128 {
    let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    let all = _mm512_add_ps(_mm512_shuffle_ps::<0x44>(ab, cd), _mm512_shuffle_ps::<0xee>(ab, cd));
    let all = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps::<1>(all));
    _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all))
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

/// Turns 16 registers of 16 dwords: dword `j` of register `i` becomes dword `i` of register `j`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn transpose(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut t = r;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut u = t;
    for i in 0..4 {
        for j in 0..2 {
            u[4 * i + 2 * j] = _mm512_unpacklo_epi64(t[4 * i + j], t[4 * i + 2 + j]);
            u[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(t[4 * i + j], t[4 * i + 2 + j]);
        }
    }
    // u[4 i + j] holds columns j, 4 + j, 8 + j, 12 + j of rows 4 i .. 4 i + 4, a lane of 128 bits each.
    let mut out = u;
    for j in 0..4 {
        let a = _mm512_shuffle_i32x4::<0x88>(u[j], u[4 + j]);
        let b = _mm512_shuffle_i32x4::<0x88>(u[8 + j], u[12 + j]);
        let c = _mm512_shuffle_i32x4::<0xdd>(u[j], u[4 + j]);
        let d = _mm512_shuffle_i32x4::<0xdd>(u[8 + j], u[12 + j]);
        out[j] = _mm512_shuffle_i32x4::<0x88>(a, b);
        out[8 + j] = _mm512_shuffle_i32x4::<0xdd>(a, b);
        out[4 + j] = _mm512_shuffle_i32x4::<0x88>(c, d);
        out[12 + j] = _mm512_shuffle_i32x4::<0xdd>(c, d);
    }
    out
}

/// Rows of a matrix, unpacked and turned.
#[derive(Default)]
pub(crate) struct Panel {
    /// `[dword of elements][PANEL rows][4 elements]`
    codes: Vec<u8>,
    /// `[group][PANEL rows]`
    scales: Vec<f32>,
    biases: Vec<f32>,
}

impl Panel {
    /// Unpacks rows `first..first + PANEL`, as far as there are.
    pub fn fill(&mut self, w: &Codes<'_>, first: usize) {
        assert!(first < w.rows);
        self.codes.resize(w.cols.next_multiple_of(256) * PANEL, 0);
        let scales = w.groups().next_multiple_of(16) * PANEL;
        self.scales.resize(scales, 0.0);
        self.biases.resize(scales, 0.0);
        // SAFETY: called for the set `Avx512` alone; `Codes` has checked its slices, and there is room.
        unsafe { by_packing!(w.packing, unpack_panel(w, first, self)) }
    }
}

/// # Safety
/// `first` is a row of `w`, and the panel has room, on a machine with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn unpack_panel<const PACKING: usize>(w: &Codes<'_>, first: usize, panel: &mut Panel) {
    let (row_bytes, groups) = (w.row_bytes(), w.groups());
    let elements = 64 * planes(PACKING);
    let unpack = Unpack::new(if matches!(PACKING, 3 | 5 | 6) { PACKING } else { 8 });
    let (codes, scales, biases) =
        (panel.codes.as_mut_ptr(), panel.scales.as_mut_ptr(), panel.biases.as_mut_ptr());
    for half in 0..PANEL / 16 {
        // Rows past the last are the last again; nobody looks at their results.
        let row_at = |i: usize| (first + 16 * half + i).min(w.rows - 1);
        for i in 0..w.cols.div_ceil(elements) {
            let from = i * register_bytes(PACKING);
            let mask = low_bits((row_bytes - from).min(register_bytes(PACKING)));
            // SAFETY: reads end with the row, by the mask; a register of codes fills `elements / 4` dwords of all rows, and
            // the panel is padded to whole registers.
            unsafe {
                let mut stored = [_mm512_setzero_si512(); 16];
                for (r, stored) in stored.iter_mut().enumerate() {
                    let place = w.codes.as_ptr().add(row_at(r) * row_bytes + from);
                    *stored = _mm512_maskz_loadu_epi8(mask, place.cast());
                    if matches!(PACKING, 3 | 5 | 6) {
                        *stored = unpack.codes(*stored);
                    }
                    _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(512).cast());
                }
                for (d, turned) in transpose(stored).into_iter().enumerate() {
                    // Already one code per byte for widths that are streams.
                    let split = if matches!(PACKING, 3 | 5 | 6) {
                        [turned; 4]
                    } else {
                        split::<PACKING>(turned, &unpack)
                    };
                    for (p, split) in split.into_iter().enumerate().take(planes(PACKING)) {
                        let dword = i * elements / 4 + d * planes(PACKING) + p;
                        _mm512_storeu_si512(codes.add((dword * PANEL + 16 * half) * 4).cast(), split);
                    }
                }
            }
        }
        let mut g = 0;
        while g < groups {
            // SAFETY: reads end with the row's scales; 16 groups of all rows are written, and there is room for whole 16s.
            unsafe {
                let turned = turned_scales(w, w.scales, first + 16 * half, g, w.scale_factor());
                let turned_biases = if PACKING == 0 {
                    turned_scales(w, w.scales, first + 16 * half, g, w.bias_factor())
                } else {
                    turned_scales(w, w.biases, first + 16 * half, g, 1.0)
                };
                for i in 0..16 {
                    let place = (g + i) * PANEL + 16 * half;
                    _mm512_storeu_si512(scales.add(place).cast(), turned[i]);
                    _mm512_storeu_si512(biases.add(place).cast(), turned_biases[i]);
                }
            }
            g += 16;
        }
    }
}

/// Sixteen scales, from group `g` on, of sixteen rows; register `i` holds those of group `g + i`.
///
/// # Safety
/// `plane` holds the scales or the biases of `w`, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn turned_scales(w: &Codes<'_>, plane: &[u8], first: usize, g: usize, factor: f32) -> [__m512i; 16] {
    let some = low_bits((w.groups() - g).min(16)) as u16;
    let mut stored = [_mm512_setzero_si512(); 16];
    for (r, stored) in stored.iter_mut().enumerate() {
        let row = (first + r).min(w.rows - 1);
        // SAFETY: inside the row's scales, by the mask.
        let scale = unsafe {
            let place = plane.as_ptr().add(row * w.scale_row_bytes() + g * w.scale_type.bytes());
            match w.scale_type {
                ScaleType::Bf16 => widen_bf16(some, place),
                _ => load_scales(w.scale_type, some, place),
            }
        };
        *stored = _mm512_castps_si512(_mm512_mul_ps(scale, _mm512_set1_ps(factor)));
    }
    transpose(stored)
}

/// `out[i][r] = W[first + r] x[tokens[i]]` for the rows of a filled panel.
pub(super) fn panel(w: &Codes<'_>, panel: &Panel, x: &Rounded, tokens: &[u32], out: &mut [[f32; PANEL]]) {
    assert!(x.cols == w.cols && x.form == Form::of(w, true) && tokens.len() == out.len());
    assert!(tokens.iter().all(|t| (*t as usize) < x.tokens()));
    assert!(panel.codes.len() >= w.cols * PANEL && panel.scales.len() >= w.groups() * PANEL);
    let (fours, rest) = tokens.as_chunks::<TOKENS>();
    let (fours_out, rest_out) = out.as_chunks_mut::<TOKENS>();
    // SAFETY: called for the set `Avx512` alone; the panel is filled for as many columns and groups, tokens and form are
    // checked above.
    unsafe {
        for (tokens, out) in fours.iter().zip(fours_out) {
            some_tokens::<TOKENS>(w, panel, x, *tokens, out);
        }
        match (rest, rest_out) {
            ([a, b, c], [x_out, y_out, z_out]) => {
                let mut three = [[0.0; PANEL]; 3];
                some_tokens::<3>(w, panel, x, [*a, *b, *c], &mut three);
                [*x_out, *y_out, *z_out] = three;
            }
            ([a, b], [x_out, y_out]) => {
                let mut two = [[0.0; PANEL]; 2];
                some_tokens::<2>(w, panel, x, [*a, *b], &mut two);
                [*x_out, *y_out] = two;
            }
            ([a], [x_out]) => {
                let mut one = [[0.0; PANEL]; 1];
                some_tokens::<1>(w, panel, x, [*a], &mut one);
                [*x_out] = one;
            }
            _ => {}
        }
    }
}

/// # Safety
/// The panel is filled for the columns and groups of `w`; `x` has these tokens in the form for panels of `w`; on a machine
/// with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn some_tokens<const N: usize>(
    w: &Codes<'_>,
    panel: &Panel,
    x: &Rounded,
    tokens: [u32; N],
    out: &mut [[f32; PANEL]; N],
) {
    // SAFETY: dwords, groups and bytes of activations up to the last column are there.
    unsafe {
        let activations = tokens.map(|t| x.data.as_ptr().add(t as usize * x.stride));
        let sums = tokens.map(|t| x.sums.as_ptr().add(t as usize * x.sum_stride()));
        let mut totals = [[_mm512_setzero_ps(); 2]; N];
        for g in 0..w.groups() {
            let mut high = [[_mm512_setzero_si512(); 2]; N];
            let mut low = [[_mm512_setzero_si512(); 2]; N];
            // 32 elements at a time: half of a block `[64 high | 64 low]`.
            for run in g * w.group / 32..(g + 1) * w.group / 32 {
                let codes = panel.codes.as_ptr().add(run * 8 * PANEL * 4);
                let from = run / 2 * 128 + run % 2 * 32;
                for dword in 0..8 {
                    let halves =
                        [0, 1].map(|h| _mm512_loadu_si512(codes.add((dword * PANEL + 16 * h) * 4).cast()));
                    for t in 0..N {
                        let place = activations[t].add(from + 4 * dword);
                        let x = _mm512_set1_epi32(place.cast::<i32>().read_unaligned());
                        for h in 0..2 {
                            high[t][h] = _mm512_dpbusd_epi32(high[t][h], halves[h], x);
                        }
                        let x = _mm512_set1_epi32(place.add(64).cast::<i32>().read_unaligned());
                        for h in 0..2 {
                            low[t][h] = _mm512_dpbusd_epi32(low[t][h], halves[h], x);
                        }
                    }
                }
            }
            for h in 0..2 {
                let scales = _mm512_loadu_ps(panel.scales.as_ptr().add(g * PANEL + 16 * h));
                let biases = _mm512_loadu_ps(panel.biases.as_ptr().add(g * PANEL + 16 * h));
                for t in 0..N {
                    let sum = _mm512_add_epi32(_mm512_slli_epi32::<7>(high[t][h]), low[t][h]);
                    totals[t][h] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, totals[t][h]);
                    totals[t][h] = _mm512_fmadd_ps(biases, _mm512_set1_ps(*sums[t].add(g)), totals[t][h]);
                }
            }
        }
        for t in 0..N {
            let scale = _mm512_set1_ps(x.scales[tokens[t] as usize]);
            for (h, total) in totals[t].into_iter().enumerate() {
                _mm512_storeu_ps(out[t].as_mut_ptr().add(16 * h), _mm512_mul_ps(total, scale));
            }
        }
    }
}
