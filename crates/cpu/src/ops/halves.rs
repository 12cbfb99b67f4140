//! Halves to floats, and products with them.

use super::dense::{self, Rows, RowsMut, Size};
use crate::kernels::Set;
#[cfg(target_arch = "x86_64")]
use crate::kernels::avx512;
use crate::vector::{LANES, widen_half};

/// Rows of halves and the distance between them.
pub(crate) type Halves<'a> = (&'a [u16], usize);

/// Rows and columns that are widened at a time: they are used while they are in the nearest cache, and the memory behind
/// them has time to deliver what comes next.
const CHUNK: usize = 64;

/// Up to so many rows, halves are converted on their way: for eight rows at a time, where widening serves all of them at once. The
/// results are the same.
#[cfg(target_arch = "x86_64")]
const FEW_ROWS: usize = 16;

/// Memory that [`nn`] works in.
pub(crate) const SCRATCH: usize = CHUNK * CHUNK;

/// `c[i][j] = sum_l a[i][l] b[l][j]`, plus the present `c` when `add`. `ahead` is memory that is wanted next: it is asked for little
/// by little, since all at once would be waited for.
#[expect(clippy::too_many_arguments, reason = "a product and its surroundings")]
pub(crate) fn nn(
    set: Set,
    size: Size,
    a: Rows<'_>,
    b: Halves<'_>,
    c: RowsMut<'_>,
    add: bool,
    ahead: &[u16],
    scratch: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    if set == Set::Avx512 && size.m <= FEW_ROWS {
        return avx512::halves::nn(size, a, b, c, add, ahead);
    }
    let Size { m, n, k } = size;
    let chunks = k.div_ceil(CHUNK) * n.div_ceil(CHUNK);
    let mut done = 0;
    for j in (0..n).step_by(CHUNK) {
        let columns = CHUNK.min(n - j);
        for l in (0..k).step_by(CHUNK) {
            prefetch(part(ahead, done, chunks));
            done += 1;
            let terms = CHUNK.min(k - l);
            let wide = &mut scratch[..terms * columns];
            widen_rows(set, &b.0[l * b.1 + j..], b.1, columns, wide);
            let size = Size { m, n: columns, k: terms };
            dense::nn(set, size, (&a.0[l..], a.1), (wide, columns), (&mut c.0[j..], c.1), add || l > 0);
        }
    }
}

/// Part `i` of `parts` of some memory.
pub(crate) fn part(of: &[u16], i: usize, parts: usize) -> &[u16] {
    &of[i * of.len() / parts..(i + 1) * of.len() / parts]
}

/// `c[i][j] = sum_l a[i][l] b[j][l]`; for sets that have this product, else it returns false and does nothing.
pub(crate) fn nt(set: Set, size: Size, a: Rows<'_>, b: Halves<'_>, c: RowsMut<'_>, ahead: &[u16]) -> bool {
    match set {
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => {
            avx512::halves::nt(size, a, b, c, ahead);
            true
        }
        _ => false,
    }
}

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
fn prefetch(halves: &[u16]) {
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

    /// Between -2 and 2, one of fifty far larger.
    fn floats(len: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 7919 + seed * 104_729) % 1013) as f32 / 253.0 - 2.0;
        (0..len).map(|i| value(i) * if i % 50 == seed % 50 { 100.0 } else { 1.0 }).collect()
    }

    fn halves(len: usize, seed: usize) -> Vec<u16> {
        floats(len, seed).into_iter().map(|v| half::f16::from_f32(v).to_bits()).collect()
    }

    /// Queries of 1 to 16 heads, and more than a tile; widths of heads, and odd ones; positions that fill no register.
    fn sizes() -> impl Iterator<Item = Size> {
        let widths = [1, 7, 64, 80, 128, 192, 256, 512, 576];
        let rows = (1..=16).chain([19, 64]);
        rows.flat_map(move |m| {
            let positions = [1, 2, 31, 33, 64];
            let width = move |i: usize| widths[(i + m) % widths.len()];
            (0..15).map(move |i| (width(i), positions[i % 5])).flat_map(move |(width, position)| {
                [Size { m, n: width, k: position }, Size { m, n: position, k: width }]
            })
        })
    }

    #[test]
    fn products_are_right_and_rows_do_not_matter() {
        let mut scratch = vec![f32::NAN; SCRATCH];
        for set in Set::available() {
            for size @ Size { m, n, k } in sizes() {
                let (a_stride, b_stride, bt_stride, stride) = (k + 3, n + 2, k + 5, n + 1);
                let (a, b, bt) = (floats(m * a_stride, 1), halves(k * b_stride, 2), halves(n * bt_stride, 3));
                let (b, bt) = ((&b[..], b_stride), (&bt[..], bt_stride));
                let mut c = vec![0.5; m * stride];
                nn(set, size, (&a, a_stride), b, (&mut c, stride), true, b.0, &mut scratch);
                let mut d = vec![0.5; m * stride];
                let has_nt = nt(set, size, (&a, a_stride), bt, (&mut d, stride), bt.0);
                for i in 0..m {
                    let name = format!("{set:?}: row {i} of {m}x{n}x{k}");
                    let (one, a) = (Size { m: 1, ..size }, (&a[i * a_stride..], a_stride));
                    let (c, d) = (&c[i * stride..][..stride], &d[i * stride..][..stride]);
                    let mut row = vec![0.5; stride];
                    nn(set, one, a, b, (&mut row, stride), true, &[], &mut scratch);
                    assert_eq!(row, c, "{name}");
                    row.fill(0.5);
                    nt(set, one, a, bt, (&mut row, stride), &[]);
                    assert_eq!(row, d, "{name}");
                    for j in 0..n {
                        check(&name, c[j], 0.5, a.0, k, |l| b.0[l * b_stride + j]);
                        if has_nt {
                            check(&name, d[j], 0.0, a.0, k, |l| bt.0[j * bt_stride + l]);
                        }
                    }
                    assert_eq!((c[n], d[n]), (0.5, 0.5), "{name}: written beyond a row");
                }
            }
        }
    }

    /// That `got` is `start` and the sum of products in f64, up to rounding.
    fn check(name: &str, got: f32, start: f64, a: &[f32], k: usize, b: impl Fn(usize) -> u16) {
        let terms = || (0..k).map(|l| f64::from(a[l]) * half::f16::from_bits(b(l)).to_f64());
        let (expected, size) = (start + terms().sum::<f64>(), start + terms().map(f64::abs).sum::<f64>());
        assert!((f64::from(got) - expected).abs() <= 1e-6 * size, "{name}: {got}, not {expected}");
    }

    #[test]
    fn what_is_not_a_number_stays_none() {
        let size = Size { m: 2, n: 3, k: 64 };
        let (a, mut scratch) = (vec![1.0; 128], vec![0.0; SCRATCH]);
        for set in Set::available() {
            for bad in [half::f16::NAN, half::f16::INFINITY] {
                let mut b = halves(192, 1);
                b[3 * 33 + 1] = bad.to_bits();
                let mut c = [0.0; 6];
                nn(set, size, (&a, 64), (&b, 3), (&mut c, 3), false, &[], &mut scratch);
                assert_eq!(c.map(f32::is_finite), [true, false, true, true, false, true], "{set:?}: {c:?}");
            }
        }
    }
}
