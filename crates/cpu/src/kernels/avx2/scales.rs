//! Scales and biases with AVX2.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use crate::kernels::codes::{Codes, MAX_GROUPS, ScaleType};

/// Eight stored scales as floats; `TYPE` is a [`ScaleType`].
///
/// # Safety
/// They can be read, on a machine with these instructions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load_scales<const TYPE: usize>(place: *const u8) -> __m256 {
    // SAFETY: as for this function.
    unsafe {
        if TYPE == ScaleType::Bf16 as usize {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(place.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        } else if TYPE == ScaleType::F16 as usize {
            _mm256_cvtph_ps(_mm_loadu_si128(place.cast()))
        } else if TYPE == ScaleType::F32 as usize {
            _mm256_loadu_ps(place.cast())
        } else {
            let bits = _mm256_cvtepu8_epi32(_mm_loadl_epi64(place.cast()));
            // 2^-127 is subnormal, and 255 is NaN.
            let zero = _mm256_cmpeq_epi32(bits, _mm256_setzero_si256());
            let nan = _mm256_cmpeq_epi32(bits, _mm256_set1_epi32(255));
            let scale = _mm256_slli_epi32::<23>(bits);
            let scale = _mm256_or_si256(scale, _mm256_and_si256(zero, _mm256_set1_epi32(1 << 22)));
            let scale = _mm256_or_si256(scale, _mm256_and_si256(nan, _mm256_set1_epi32(0x7fc0_0000)));
            _mm256_castsi256_ps(scale)
        }
    }
}

/// As many of the stored scales at the beginning of `bytes` as are `left`, at most eight; the other lanes are 0.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_some_scales<const TYPE: usize>(bytes: &[u8], left: usize) -> __m256 {
    const LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut copy = [0; 32];
    // What follows a row's scales is the next row's, except at the end of the matrix.
    let place = if bytes.len() >= copy.len() {
        bytes.as_ptr()
    } else {
        copy[..bytes.len()].copy_from_slice(bytes);
        copy.as_ptr()
    };
    let left = left.min(8);
    // SAFETY: eight scales are at most 32 bytes, and so is what follows the first of the lanes.
    unsafe {
        let mask = _mm256_loadu_ps(LANES[8 - left..].as_ptr().cast());
        _mm256_and_ps(load_scales::<TYPE>(place), mask)
    }
}

/// Scales of `ROWS` rows as floats.
pub(super) type Scales<const ROWS: usize> = [[MaybeUninit<f32>; SCALES]; ROWS];

/// Most scales of a row, and what is read beyond.
const SCALES: usize = MAX_GROUPS + 8;

/// Writes the scales of rows as floats; those of a row are followed by zeros to a whole eight. Biases meet the sums of their groups at once, and the lanes of
/// that are returned.
///
/// # Safety
/// The rows are some of `w`, with at most [`MAX_GROUPS`]; there are sums to whole eights; on a machine with these instructions.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_as<const PACKING: usize, const TYPE: usize, const ROWS: usize>(
    w: &Codes<'_>,
    first: usize,
    sums: *const f32,
    out: &mut Scales<ROWS>,
) -> [__m256; ROWS] {
    let (groups, size) = (w.groups(), w.scale_type.bytes());
    let scales = &w.scales[first * groups * size..];
    // Where there are none, a bias is a multiple of its scale.
    let biases = if PACKING == 0 { scales } else { &w.biases[first * groups * size..] };
    let scale_factor = _mm256_set1_ps(if PACKING == 0 { w.scale_factor() } else { 1.0 });
    let bias_factor = _mm256_set1_ps(if PACKING == 0 { w.bias_factor() } else { 1.0 });
    for row in 0..ROWS {
        let ahead = (ROWS + row) * groups * size;
        _mm_prefetch::<_MM_HINT_T0>(scales.as_ptr().wrapping_add(ahead).cast());
        _mm_prefetch::<_MM_HINT_T0>(biases.as_ptr().wrapping_add(ahead).cast());
    }
    let mut biased = [_mm256_setzero_ps(); ROWS];
    let mut g = 0;
    while g < groups {
        // SAFETY: eight scales and biases are read where a row has as many; else as for this function.
        unsafe {
            let sums = _mm256_loadu_ps(sums.add(g));
            for row in 0..ROWS {
                let at = (row * groups + g) * size;
                let (scales, biases) = (&scales[at..], &biases[at..]);
                let (scale, bias) = if g + 8 <= groups {
                    (load_scales::<TYPE>(scales.as_ptr()), load_scales::<TYPE>(biases.as_ptr()))
                } else {
                    let left = groups - g;
                    (load_some_scales::<TYPE>(scales, left), load_some_scales::<TYPE>(biases, left))
                };
                _mm256_storeu_ps(out[row].as_mut_ptr().add(g).cast(), _mm256_mul_ps(scale, scale_factor));
                biased[row] = _mm256_fmadd_ps(_mm256_mul_ps(bias, bias_factor), sums, biased[row]);
            }
        }
        g += 8;
    }
    biased
}

/// As [`unpack_as`], for the type of scales that `w` has.
///
/// # Safety
/// As for `unpack_as`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn unpack<const PACKING: usize, const ROWS: usize>(
    w: &Codes<'_>,
    first: usize,
    sums: *const f32,
    out: &mut Scales<ROWS>,
) -> [__m256; ROWS] {
    // SAFETY: as for this function.
    unsafe {
        match w.scale_type {
            ScaleType::Bf16 => unpack_as::<PACKING, { ScaleType::Bf16 as usize }, ROWS>(w, first, sums, out),
            ScaleType::F16 => unpack_as::<PACKING, { ScaleType::F16 as usize }, ROWS>(w, first, sums, out),
            ScaleType::F32 => unpack_as::<PACKING, { ScaleType::F32 as usize }, ROWS>(w, first, sums, out),
            ScaleType::E8m0 => unpack_as::<PACKING, { ScaleType::E8m0 as usize }, ROWS>(w, first, sums, out),
        }
    }
}
