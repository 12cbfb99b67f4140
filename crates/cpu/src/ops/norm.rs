//! Norms.

use super::silu_lane;
use crate::Machine;
use crate::vector::{LANES, vectorised};

/// `sum(v^2)` in f64: a square of an outlier must not swallow the rest.
#[inline(always)]
fn sum_squares(v: &[f32]) -> f64 {
    let (blocks, rest) = v.as_chunks::<LANES>();
    let mut sums = [0.0f64; LANES];
    for block in blocks {
        for i in 0..LANES {
            sums[i] += f64::from(block[i]) * f64::from(block[i]);
        }
    }
    let rest: f64 = rest.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    sums.iter().sum::<f64>() + rest
}

/// `rsqrt(mean(v^2) + eps)`
#[inline(always)]
fn inverse_rms(v: &[f32], eps: f32) -> f32 {
    (1.0 / (sum_squares(v) / v.len() as f64 + f64::from(eps)).sqrt()) as f32
}

vectorised! {
    /// `rsqrt(sum(v^2) / divisor + eps)`
    pub(crate) fn inverse_root<A>(v: &[f32], divisor: f64, eps: f64) -> f32 {
        (1.0 / (sum_squares(v) / divisor + eps).sqrt()) as f32
    }
}

/// `rms(v) * w` over every slice of `width` values of `x`.
pub(crate) fn rms(machine: &Machine, x: &[f32], w: Option<&[f32]>, width: usize, eps: f32, y: &mut [f32]) {
    machine.rows(y, width, |first, y| {
        y.copy_from_slice(&x[first * width..][..y.len()]);
        rms_rows(machine.set, y, w, width, eps);
    });
}

/// The same in place.
pub(crate) fn rms_in_place(machine: &Machine, x: &mut [f32], w: Option<&[f32]>, width: usize, eps: f32) {
    machine.rows(x, width, |_, x| rms_rows(machine.set, x, w, width, eps));
}

vectorised! {
    fn rms_rows<A>(x: &mut [f32], w: Option<&[f32]>, width: usize, eps: f32) {
        for v in x.chunks_exact_mut(width) {
            let r = inverse_rms(v, eps);
            match w {
                Some(w) => v.iter_mut().zip(w).for_each(|(v, w)| *v = *v * r * w),
                None => v.iter_mut().for_each(|v| *v *= r),
            }
        }
    }
}

/// `y = (r + rms(x) * w) * factor`
pub(crate) fn norm_add(machine: &Machine, [r, x, w]: [&[f32]; 3], eps: f32, factor: f32, y: &mut [f32]) {
    let width = w.len();
    machine.rows(y, width, |first, y| {
        let at = first * width;
        norm_add_rows(machine.set, [&r[at..], &x[at..], w], eps, factor, y);
    });
}

vectorised! {
    fn norm_add_rows<A>(rxw: [&[f32]; 3], eps: f32, factor: f32, y: &mut [f32]) {
        let [r, x, w] = rxw;
        let width = w.len();
        for ((y, r), x) in y.chunks_exact_mut(width).zip(r.chunks_exact(width)).zip(x.chunks_exact(width)) {
            let inverse = inverse_rms(x, eps);
            y.iter_mut().zip(r).zip(x.iter().zip(w)).for_each(|((y, r), (x, w))| *y = r + x * inverse * w);
            if factor != 1.0 {
                y.iter_mut().for_each(|y| *y *= factor);
            }
        }
    }
}

/// `rms(a) * wa + rms(b) * wb`
pub(crate) fn combine_norm(machine: &Machine, [a, wa, b, wb]: [&[f32]; 4], eps: f32, y: &mut [f32]) {
    let width = wa.len();
    machine.rows(y, width, |first, y| {
        let at = first * width;
        combine_rows(machine.set, [&a[at..], wa, &b[at..], wb], eps, y);
    });
}

vectorised! {
    fn combine_rows<A>(inputs: [&[f32]; 4], eps: f32, y: &mut [f32]) {
        let [a, wa, b, wb] = inputs;
        let width = wa.len();
        for ((y, a), b) in y.chunks_exact_mut(width).zip(a.chunks_exact(width)).zip(b.chunks_exact(width)) {
            let (ra, rb) = (inverse_rms(a, eps), inverse_rms(b, eps));
            for ((y, (a, wa)), (b, wb)) in y.iter_mut().zip(a.iter().zip(wa)).zip(b.iter().zip(wb)) {
                *y = A::fma(a * ra, *wa, b * rb * wb);
            }
        }
    }
}

/// `rms(v) * w * silu(z)` over every slice of `w.len()` values.
pub(crate) fn gated(machine: &Machine, [v, z, w]: [&[f32]; 3], eps: f32, y: &mut [f32]) {
    let width = w.len();
    machine.rows(y, width, |first, y| {
        let at = first * width;
        gated_rows(machine.set, [&v[at..], &z[at..], w], eps, y);
    });
}

vectorised! {
    fn gated_rows<A>(vzw: [&[f32]; 3], eps: f32, y: &mut [f32]) {
        let [v, z, w] = vzw;
        let width = w.len();
        for ((y, v), z) in y.chunks_exact_mut(width).zip(v.chunks_exact(width)).zip(z.chunks_exact(width)) {
            let inverse = inverse_rms(v, eps);
            for (((y, v), z), w) in y.iter_mut().zip(v).zip(z).zip(w) {
                *y = v * inverse * w * silu_lane::<A>(*z);
            }
        }
    }
}
