//! Products with weights.

use backend::Activation;

use super::{act, dot};
use crate::host::Rows;
use crate::weights::Sample;

/// `W x (+ bias)` of one token with matrix `m` of a stack.
pub fn product(w: &Sample, m: usize, x: &[f64]) -> Vec<f64> {
    let rows = w.matrices[m].len();
    let bias = |r: usize| w.bias.as_ref().map_or(0.0, |b| b[m * rows + r]);
    w.matrices[m].iter().enumerate().map(|(r, row)| dot(row, x) + bias(r)).collect()
}

/// `y[t] = W x[t]`
pub fn matmul(w: &Sample, x: &Rows) -> Rows {
    x.iter().map(|x| product(w, 0, x)).collect()
}

/// `y = act(g) * u`
pub fn glu(g: &Rows, u: &Rows, activation: Activation) -> Rows {
    let row =
        |(g, u): (&Vec<f64>, &Vec<f64>)| g.iter().zip(u).map(|(g, u)| act(activation, *g) * u).collect();
    g.iter().zip(u).map(row).collect()
}

/// `y[h] = W[h] x[h]`, or `W[h]^T x[h]` when the stored matrix is `[in, out]`.
pub fn head_product(w: &Sample, transposed: bool, x: &Rows) -> Rows {
    let one = |x: &Vec<f64>| {
        let mut y = Vec::new();
        for (h, m) in w.matrices.iter().enumerate() {
            let (stored_rows, stored_cols) = (m.len(), m[0].len());
            if transposed {
                let x = &x[h * stored_rows..(h + 1) * stored_rows];
                y.extend((0..stored_cols).map(|c| (0..stored_rows).map(|r| m[r][c] * x[r]).sum::<f64>()));
            } else {
                let x = &x[h * stored_cols..(h + 1) * stored_cols];
                y.extend(m.iter().map(|row| dot(row, x)));
            }
        }
        y
    };
    x.iter().map(one).collect()
}
