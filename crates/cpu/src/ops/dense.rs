//! Small products of f32 matrices, for use inside a task.
//!
//! Matrices are slices of rows with a stride. How a value of the result is summed depends on the inner width alone: not
//! on the other rows or columns, nor on the block it happens to be in. So one row of queries and many give the same bits.

use super::transpose::transpose;
use crate::kernels::Set;
use crate::vector::{Arch, LANES, Lanes, vectorised};

/// A matrix: its values and the distance from one row to the next.
pub(crate) type Rows<'a> = (&'a [f32], usize);

/// A matrix to write to.
pub(crate) type RowsMut<'a> = (&'a mut [f32], usize);

/// Sizes of a product: `m` rows and `n` columns of the result, `k` terms in each of its sums.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Columns of a turned panel of `b`.
pub(crate) const PANEL: usize = 2 * LANES;

/// Rows of a turned panel: more would not stay in the nearest cache.
const TERMS: usize = 128;

/// `c[i][j] = sum_l a[i][l] b[j][l]`
pub(crate) fn nt(set: Set, Size { m, n, k }: Size, a: Rows<'_>, b: Rows<'_>, c: RowsMut<'_>) {
    let mut turned = [0.0; TERMS * PANEL];
    for j in (0..n).step_by(PANEL) {
        let columns = PANEL.min(n - j);
        for l in (0..k).step_by(TERMS) {
            let terms = TERMS.min(k - l);
            transpose(set, columns, terms, (&b.0[j * b.1 + l..], b.1), (&mut turned, PANEL));
            let size = Size { m, n: columns, k: terms };
            nn(set, size, (&a.0[l..], a.1), (&turned, PANEL), (&mut c.0[j..], c.1), l > 0);
        }
    }
    if k == 0 {
        (0..m).for_each(|i| c.0[i * c.1..][..n].fill(0.0));
    }
}

/// `c[i][j] = sum_l a[i][l] b[l][j]`, plus the present `c` when `add`.
pub(crate) fn nn(set: Set, size: Size, a: Rows<'_>, b: Rows<'_>, c: RowsMut<'_>, add: bool) {
    let Size { m, n, .. } = size;
    // The loops always add: written with both ways in them, the compiler keeps their sums in memory.
    if !add {
        (0..m).for_each(|i| c.0[i * c.1..][..n].fill(0.0));
    }
    match set {
        // As many sums at a time as there are registers for.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => nn_wide(set, size, a, b, c),
        _ => nn_narrow(set, size, a, b, c),
    }
}

#[cfg(target_arch = "x86_64")]
vectorised! {
    fn nn_wide<A>(size: Size, a: Rows<'_>, b: Rows<'_>, c: RowsMut<'_>) {
        nn_blocks::<A, 8, 2>(size, a, b, c);
    }
}

vectorised! {
    fn nn_narrow<A>(size: Size, a: Rows<'_>, b: Rows<'_>, c: RowsMut<'_>) {
        nn_blocks::<A, 4, 1>(size, a, b, c);
    }
}

#[inline(always)]
fn nn_blocks<A: Arch, const R: usize, const W: usize>(
    Size { m, n, k }: Size,
    (a, a_stride): Rows<'_>,
    b: Rows<'_>,
    (c, c_stride): RowsMut<'_>,
) {
    let mut j = 0;
    while j < n {
        let mut i = 0;
        while i < m {
            let (a, c) = ((&a[i * a_stride..], a_stride), (&mut c[i * c_stride..], c_stride));
            // The rest in parts as large as they go: a row alone waits for its own sums.
            i += match m - i {
                left if left >= R => tile::<A, R, W>(a, b, c, j, n, k),
                4.. if R > 4 => tile::<A, 4, W>(a, b, c, j, n, k),
                2.. => tile::<A, 2, W>(a, b, c, j, n, k),
                _ => tile::<A, 1, W>(a, b, c, j, n, k),
            };
        }
        j += if j + W * LANES <= n { W * LANES } else { LANES };
    }
}

/// `R` rows, the columns from `j` on: as many as there are in a block, or in what is left of them. Returns `R`.
#[inline(always)]
fn tile<A: Arch, const R: usize, const W: usize>(
    (a, a_stride): Rows<'_>,
    b: Rows<'_>,
    (c, c_stride): RowsMut<'_>,
    j: usize,
    n: usize,
    k: usize,
) -> usize {
    let rows: [&[f32]; R] = std::array::from_fn(|r| &a[r * a_stride..][..k]);
    if j + W * LANES <= n {
        columns::<A, R, W>(rows, b, (&mut c[j..], c_stride), j);
    } else if j + LANES <= n {
        columns::<A, R, 1>(rows, b, (&mut c[j..], c_stride), j);
    } else {
        for (r, row) in rows.iter().enumerate() {
            last_columns::<A>(row, b, &mut c[r * c_stride + j..], j, n - j);
        }
    }
    R
}

/// `R` rows of a product, `W` times [`LANES`] columns from `j` on.
#[inline(always)]
fn columns<A: Arch, const R: usize, const W: usize>(
    a: [&[f32]; R],
    (b, b_stride): Rows<'_>,
    (c, c_stride): RowsMut<'_>,
    j: usize,
) {
    let mut sums = [[[0.0f32; LANES]; W]; R];
    for (r, sums) in sums.iter_mut().enumerate() {
        sums.as_flattened_mut().copy_from_slice(&c[r * c_stride..][..W * LANES]);
    }
    let k = a[0].len();
    let a = a.map(|a| &a[..k]);
    for l in 0..k {
        let b: [Lanes; W] = {
            let (chunks, _) = b[l * b_stride + j..][..W * LANES].as_chunks::<LANES>();
            std::array::from_fn(|w| chunks[w])
        };
        for r in 0..R {
            let factor = a[r][l];
            for w in 0..W {
                for i in 0..LANES {
                    sums[r][w][i] = A::fma(factor, b[w][i], sums[r][w][i]);
                }
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let c = &mut c[r * c_stride..][..W * LANES];
        c.copy_from_slice(sums.as_flattened());
    }
}

/// One row of a product, the last columns, fewer than [`LANES`].
#[inline(always)]
fn last_columns<A: Arch>(a: &[f32], (b, b_stride): Rows<'_>, c: &mut [f32], j: usize, width: usize) {
    let mut sums: Lanes = [0.0; LANES];
    sums[..width].copy_from_slice(&c[..width]);
    for (l, factor) in a.iter().enumerate() {
        let row = &b[l * b_stride + j..][..width];
        for (sum, b) in sums.iter_mut().zip(row) {
            *sum = A::fma(*factor, *b, *sum);
        }
    }
    c[..width].copy_from_slice(&sums[..width]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 1013) as f32 / 500.0 - 1.0).collect()
    }

    /// Every size around the blocks, with strides wider than the rows.
    fn sizes() -> impl Iterator<Item = Size> {
        [1, 3, 4, 9, 17].into_iter().flat_map(|m| {
            [1, 3, 16, 21, 35, 64]
                .into_iter()
                .flat_map(move |n| [0, 1, 15, 40, 64, 300].into_iter().map(move |k| Size { m, n, k }))
        })
    }

    fn close(name: &str, set: Set, size: Size, got: f32, expected: f64) {
        let error = (f64::from(got) - expected).abs();
        assert!(
            error < 1e-6 * (1.0 + size.k as f64),
            "{name} {set:?} {}x{}x{}: {got}, not {expected}",
            size.m,
            size.n,
            size.k
        );
    }

    #[test]
    fn products_are_right_and_rows_do_not_matter() {
        for set in Set::available() {
            for size @ Size { m, n, k } in sizes() {
                let (a, b, bt) = (values(m * (k + 3), 1), values(n * (k + 5), 2), values(k * (n + 2), 3));
                let stride = n + 1;
                let mut c = vec![7.0; m * stride];
                nt(set, size, (&a, k + 3), (&b, k + 5), (&mut c, stride));
                let mut d = vec![0.5; m * stride];
                nn(set, size, (&a, k + 3), (&bt, n + 2), (&mut d, stride), true);
                for i in 0..m {
                    let mut row = vec![0.0; n];
                    nt(set, Size { m: 1, ..size }, (&a[i * (k + 3)..], k + 3), (&b, k + 5), (&mut row, n));
                    assert_eq!(row, c[i * stride..][..n], "{set:?}: row {i} of {m}x{n}x{k}");
                    row.fill(0.5);
                    nn(
                        set,
                        Size { m: 1, ..size },
                        (&a[i * (k + 3)..], k + 3),
                        (&bt, n + 2),
                        (&mut row, n),
                        true,
                    );
                    assert_eq!(row, d[i * stride..][..n], "{set:?}: row {i} of {m}x{n}x{k}");
                    for j in 0..n {
                        let a = |l: usize| f64::from(a[i * (k + 3) + l]);
                        let sum =
                            |b: &dyn Fn(usize) -> f32| (0..k).map(|l| a(l) * f64::from(b(l))).sum::<f64>();
                        close("nt", set, size, c[i * stride + j], sum(&|l| b[j * (k + 5) + l]));
                        close("nn", set, size, d[i * stride + j], 0.5 + sum(&|l| bt[l * (n + 2) + j]));
                    }
                    assert_eq!((c[i * stride + n], d[i * stride + n]), (7.0, 0.5), "written beyond a row");
                }
            }
        }
    }
}
