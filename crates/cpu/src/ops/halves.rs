//! Halves to floats.

use crate::kernels::Set;
use crate::vector::{LANES, widen_half};

/// Widens `n` rows of `width` halves, `stride` apart, into rows one after the other.
pub(crate) fn widen_rows(set: Set, halves: &[u16], stride: usize, width: usize, out: &mut [f32]) {
    match set {
        // SAFETY: a set is only made where the machine has its instructions.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => unsafe { x86::rows_avx512(halves, stride, width, out) },
        // SAFETY: as above; every machine with this set has F16C.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => unsafe { x86::rows_f16c(halves, stride, width, out) },
        _ => {
            for (i, out) in out.chunks_exact_mut(width).enumerate() {
                widen(&halves[i * stride..][..width], out);
            }
        }
    }
}

/// Asks for memory that will be read soon.
pub(crate) fn prefetch(halves: &[u16]) {
    #[cfg(target_arch = "x86_64")]
    for line in halves.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = halves;
}

/// Halves of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 32;

fn widen(halves: &[u16], out: &mut [f32]) {
    out.iter_mut().zip(halves).for_each(|(y, h)| *y = widen_half(*h));
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{LANES, widen};

    #[target_feature(enable = "avx512f")]
    pub fn rows_avx512(halves: &[u16], stride: usize, width: usize, out: &mut [f32]) {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let (blocks, rest) = halves[i * stride..][..width].as_chunks::<LANES>();
            let (out_blocks, out_rest) = out.as_chunks_mut::<LANES>();
            for (h, y) in blocks.iter().zip(out_blocks) {
                // SAFETY: both arrays hold 16 values.
                unsafe {
                    _mm512_storeu_ps(y.as_mut_ptr(), _mm512_cvtph_ps(_mm256_loadu_si256(h.as_ptr().cast())));
                }
            }
            widen(rest, out_rest);
        }
    }

    #[target_feature(enable = "avx,f16c")]
    pub fn rows_f16c(halves: &[u16], stride: usize, width: usize, out: &mut [f32]) {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let (blocks, rest) = halves[i * stride..][..width].as_chunks::<8>();
            let (out_blocks, out_rest) = out.as_chunks_mut::<8>();
            for (h, y) in blocks.iter().zip(out_blocks) {
                // SAFETY: both arrays hold 8 values.
                unsafe {
                    _mm256_storeu_ps(y.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(h.as_ptr().cast())))
                };
            }
            widen(rest, out_rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_widens_alike() {
        let halves: Vec<u16> = (0..=u16::MAX).step_by(7).collect();
        for set in Set::available() {
            for (width, stride) in [(1, 1), (7, 9), (16, 16), (45, 50), (256, 256)] {
                let n = (halves.len() - width) / stride + 1;
                let mut out = vec![0.0; n * width];
                widen_rows(set, &halves, stride, width, &mut out);
                for (i, y) in out.iter().enumerate() {
                    let expected = half::f16::from_bits(halves[i / width * stride + i % width]).to_f32();
                    assert!(
                        *y == expected || y.is_nan() && expected.is_nan(),
                        "{set:?}: {y}, not {expected}"
                    );
                }
            }
        }
    }
}
