//! Norms.

use rayon::prelude::*;

/// `rsqrt(mean(v^2) + eps)`, summed in f64: a square of an outlier must not swallow the rest.
pub(crate) fn inverse_rms(v: &[f32], eps: f32) -> f32 {
    let sum: f64 = v.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    (1.0 / (sum / v.len() as f64 + f64::from(eps)).sqrt()) as f32
}

/// `rms(v) * w` over every slice of `width` values, in place.
pub(crate) fn rms_slices(x: &mut [f32], w: Option<&[f32]>, width: usize, eps: f32) {
    x.par_chunks_exact_mut(width).for_each(|v| {
        let r = inverse_rms(v, eps);
        match w {
            Some(w) => v.iter_mut().zip(w).for_each(|(v, w)| *v = *v * r * w),
            None => v.iter_mut().for_each(|v| *v *= r),
        }
    });
}

/// `rms(v) * w * silu(z)` over every slice of `w.len()` values.
pub(crate) fn gated(v: &[f32], z: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let mut y = v.to_vec();
    y.par_chunks_exact_mut(w.len()).zip(z.par_chunks_exact(w.len())).for_each(|(y, z)| {
        let r = inverse_rms(y, eps);
        for ((y, z), w) in y.iter_mut().zip(z).zip(w) {
            *y = *y * r * w * super::silu(*z);
        }
    });
    y
}
