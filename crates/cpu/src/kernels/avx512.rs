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

pub(crate) mod pairs;
mod panel;
mod rows;

use std::arch::x86_64::*;

use super::codes::{FP4_CODES, Packing, ScaleType};
use super::forms::is_stream;
use super::rounded::Form;

pub(super) use panel::{Panel, panel};
pub(super) use rows::rows;

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
    assert!(numbers.len().is_multiple_of(form.padding()) && out.len() == 2 * numbers.len());
    // SAFETY: called for the set `Avx512` alone; the lengths are as the function wants them.
    unsafe { arrange_blocks(form, numbers, out) }
}

/// Where each byte of a block of 64, or of 128 or 256, comes from, when codes have so many elements in a byte.
const fn order(planes: usize, panel: bool) -> [u8; 256] {
    let mut order = [0; 256];
    let mut i = 0;
    while i < 256 {
        let source = if panel {
            // Of every dword of codes: first elements of each byte, then second, ...
            let (dword, byte, plane) = (i % 64 / (4 * planes), i % 4, i / 4 % planes);
            dword * 4 * planes + byte * planes + plane
        } else {
            // Of every register of codes likewise.
            let i = i % (64 * planes);
            (i % 64) * planes + i / 64
        };
        order[i] = source as u8;
        i += 1;
    }
    order
}

/// For few tokens and for many: to compute it takes longer than to arrange a short token.
static ORDERS: [[[u8; 256]; 2]; 3] =
    [[order(1, false), order(1, true)], [order(2, false), order(2, true)], [order(4, false), order(4, true)]];

/// # Safety
/// Lengths as `arrange` checks them, on a machine with these instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn arrange_blocks(form: Form, numbers: &[i16], out: &mut [i8]) {
    let planes = register_elements(form.packing) / 64;
    let order = &ORDERS[planes.ilog2() as usize][usize::from(form.panel)];
    // SAFETY: as for this function.
    unsafe {
        match planes {
            _ if form.panel => arrange_by::<1>(order, [128, 64], numbers, out),
            1 => arrange_by::<1>(order, [64, numbers.len()], numbers, out),
            2 => arrange_by::<2>(order, [128, numbers.len()], numbers, out),
            _ => arrange_by::<4>(order, [256, numbers.len()], numbers, out),
        }
    }
}

/// Writes the high and the low bytes of numbers, `R` registers of each at a time. The steps are the distances between what is
/// written at a time, and from high to low bytes: for few tokens `[all high bytes | all low bytes]`, for many
/// `[64 high | 64 low]` block by block.
///
/// # Safety
/// As for `arrange_blocks`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn arrange_by<const R: usize>(
    order: &[u8; 256],
    [step, low_step]: [usize; 2],
    numbers: &[i16],
    out: &mut [i8],
) {
    for (b, numbers) in numbers.chunks_exact(64 * R).enumerate() {
        let (mut high, mut low) = ([_mm512_setzero_si512(); R], [_mm512_setzero_si512(); R]);
        for r in 0..R {
            // SAFETY: of `64 R` numbers.
            let [first, second] =
                [0, 32].map(|at| unsafe { _mm512_loadu_si512(numbers.as_ptr().add(64 * r + at).cast()) });
            let ([first_high, first_low], [second_high, second_low]) = (digits(first), digits(second));
            high[r] = narrow(first_high, second_high);
            low[r] = narrow(first_low, second_low);
        }
        for r in 0..R {
            // SAFETY: 64 bytes of the order's 256, and of `out`, which has two for each number.
            unsafe {
                let order = _mm512_loadu_si512(order.as_ptr().add(64 * r).cast());
                let place = out.as_mut_ptr().add(b * step + 64 * r);
                _mm512_storeu_si512(place.cast(), in_order(order, &high));
                _mm512_storeu_si512(place.add(low_step).cast(), in_order(order, &low));
            }
        }
    }
}

/// `n = 128 * high + low`
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn digits(n: __m512i) -> [__m512i; 2] {
    let high = _mm512_srai_epi16::<7>(_mm512_add_epi16(n, _mm512_set1_epi16(64)));
    [high, _mm512_sub_epi16(n, _mm512_slli_epi16::<7>(high))]
}

/// Words that are bytes, as bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn narrow(first: __m512i, second: __m512i) -> __m512i {
    let first = _mm512_castsi256_si512(_mm512_cvtepi16_epi8(first));
    _mm512_inserti64x4::<1>(first, _mm512_cvtepi16_epi8(second))
}

/// Bytes of one, two or four registers by their numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi")]
fn in_order<const R: usize>(order: __m512i, bytes: &[__m512i; R]) -> __m512i {
    match R {
        1 => _mm512_permutexvar_epi8(order, bytes[0]),
        2 => _mm512_permutex2var_epi8(bytes[0], order, bytes[1]),
        _ => {
            let lower = _mm512_permutex2var_epi8(bytes[0], order, bytes[1]);
            let upper = _mm512_permutex2var_epi8(bytes[2], order, bytes[3]);
            _mm512_mask_blend_epi8(_mm512_movepi8_mask(order), lower, upper)
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

/// Codes of a stream of 1, 3, 5 or 6 bits: 64 of them from `BITS * 8` bytes, one per byte.
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
        bits if is_stream(bits) => bits * 8,
        _ => 64,
    }
}

/// Calls a function with the packing as a constant.
macro_rules! by_packing {
    ($packing:expr, $function:ident($($arg:expr),*)) => {
        match $packing {
            Packing::Fp4 => $function::<0>($($arg),*),
            Packing::Bits(1) => $function::<1>($($arg),*),
            Packing::Bits(2) => $function::<2>($($arg),*),
            Packing::Bits(3) => $function::<3>($($arg),*),
            Packing::Bits(4) => $function::<4>($($arg),*),
            Packing::Bits(5) => $function::<5>($($arg),*),
            Packing::Bits(6) => $function::<6>($($arg),*),
            Packing::Bits(_) => $function::<8>($($arg),*),
        }
    };
}
use by_packing;
