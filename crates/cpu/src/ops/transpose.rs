//! Turning matrices round.

use super::dense::{Rows, RowsMut};
use crate::kernels::Set;
#[cfg(target_arch = "x86_64")]
use crate::vector::LANES;

/// Writes `y[c][r] = x[r][c]` for `rows` rows and `cols` columns of `x`.
pub(crate) fn transpose(set: Set, rows: usize, cols: usize, x: Rows<'_>, y: RowsMut<'_>) {
    let (full_rows, full_cols) = match set {
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => {
            let (full_rows, full_cols) = (rows - rows % LANES, cols - cols % LANES);
            // SAFETY: a set is only made where the machine has its instructions.
            unsafe { avx512::blocks(full_rows, full_cols, x, (&mut *y.0, y.1)) };
            (full_rows, full_cols)
        }
        _ => (0, 0),
    };
    for r in 0..rows {
        let from = if r < full_rows { full_cols } else { 0 };
        let row = &x.0[r * x.1..][..cols];
        for (c, v) in row.iter().enumerate().skip(from) {
            y.0[c * y.1 + r] = *v;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;

    use super::{LANES, Rows, RowsMut};

    /// Turns all blocks of 16 x 16.
    #[target_feature(enable = "avx512f")]
    pub fn blocks(rows: usize, cols: usize, (x, x_stride): Rows<'_>, (y, y_stride): RowsMut<'_>) {
        for r in (0..rows).step_by(LANES) {
            for c in (0..cols).step_by(LANES) {
                block((&x[r * x_stride + c..], x_stride), (&mut y[c * y_stride + r..], y_stride));
            }
        }
    }

    /// Turns 16 x 16 values: pairs of values, pairs of pairs, then quarters of registers change places.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn block((x, x_stride): Rows<'_>, (y, y_stride): RowsMut<'_>) {
        let mut v = [_mm512_setzero_ps(); LANES];
        for (i, v) in v.iter_mut().enumerate() {
            let row = &x[i * x_stride..][..LANES];
            // SAFETY: the slice holds 16 values.
            *v = unsafe { _mm512_loadu_ps(row.as_ptr()) };
        }
        let mut w = v;
        for i in 0..8 {
            w[2 * i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]);
            w[2 * i + 1] = _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
        }
        let pd = |v| _mm512_castps_pd(v);
        for i in 0..4 {
            let [a, b, c, d] = [w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]];
            v[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(a), pd(c)));
            v[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(a), pd(c)));
            v[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pd(b), pd(d)));
            v[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pd(b), pd(d)));
        }
        // Now register 4i + j holds, in its quarters q, the values of column 4q + j in rows 4i..4i + 4.
        for j in 0..4 {
            let [a, b, c, d] = [v[j], v[4 + j], v[8 + j], v[12 + j]];
            let (even_low, odd_low) =
                (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
            let (even_high, odd_high) =
                (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
            w[j] = _mm512_shuffle_f32x4::<0x88>(even_low, even_high);
            w[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even_low, even_high);
            w[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high);
            w[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high);
        }
        for (i, w) in w.iter().enumerate() {
            let row = &mut y[i * y_stride..][..LANES];
            // SAFETY: the slice holds 16 values.
            unsafe { _mm512_storeu_ps(row.as_mut_ptr(), *w) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_finds_its_place() {
        for set in Set::available() {
            for (rows, cols) in [(16, 16), (1, 1), (32, 256), (33, 50), (5, 40), (48, 3)] {
                let x: Vec<f32> = (0..rows * (cols + 2)).map(|i| i as f32).collect();
                let mut y = vec![-1.0; cols * (rows + 3)];
                transpose(set, rows, cols, (&x, cols + 2), (&mut y, rows + 3));
                for (c, y) in y.chunks(rows + 3).enumerate() {
                    for (r, y) in y.iter().enumerate() {
                        let expected = if r < rows { x[r * (cols + 2) + c] } else { -1.0 };
                        assert_eq!(*y, expected, "{set:?}: {rows} x {cols}, row {r}, column {c}");
                    }
                }
            }
        }
    }
}
