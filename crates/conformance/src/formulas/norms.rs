//! Norms and residuals.

use super::silu;
use crate::host::Rows;

/// `v * rsqrt(mean(v^2) + eps) * w`
pub fn rms(v: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let mean = v.iter().map(|v| v * v).sum::<f64>() / v.len() as f64;
    v.iter().zip(w).map(|(v, w)| v / (mean + eps).sqrt() * w).collect()
}

/// `rms` over each head's slice of every row.
pub fn rms_heads(x: &Rows, w: &[f64], eps: f64) -> Rows {
    x.iter().map(|row| row.chunks_exact(w.len()).flat_map(|head| rms(head, w, eps)).collect()).collect()
}

/// Per head `rms(v) * w * silu(z)`
pub fn gated(v: &Rows, z: &Rows, w: &[f64], eps: f64) -> Rows {
    multiply(&rms_heads(v, w, eps), &map(z, silu))
}

/// Element by element.
pub fn map(x: &Rows, f: impl Fn(f64) -> f64) -> Rows {
    x.iter().map(|row| row.iter().map(|v| f(*v)).collect()).collect()
}

/// Element by element.
pub fn zip(a: &Rows, b: &Rows, f: impl Fn(f64, f64) -> f64) -> Rows {
    assert_eq!((a.len(), a[0].len()), (b.len(), b[0].len()));
    let row = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect();
    a.iter().zip(b).map(row).collect()
}

/// `a + b`
pub fn add(a: &Rows, b: &Rows) -> Rows {
    zip(a, b, |a, b| a + b)
}

/// `a * b`
pub fn multiply(a: &Rows, b: &Rows) -> Rows {
    zip(a, b, |a, b| a * b)
}

/// Every row times `w`.
pub fn channels(x: &Rows, w: &[f64]) -> Rows {
    x.iter().map(|row| row.iter().zip(w).map(|(x, w)| x * w).collect()).collect()
}
