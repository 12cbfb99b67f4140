//! Gated DeltaNet.

use ::backend::GdnShape;
use rayon::prelude::*;

use super::{product::dot, sigmoid, silu};
use crate::cache::Recurrent;

/// Causal convolution and SiLU over the rows `x` of one span; the window moves on.
pub(crate) fn conv_causal(x: &[f32], taps: &[f32], state: &mut Recurrent, y: &mut [f32]) {
    let GdnShape { kernel, .. } = state.shape;
    let channels = state.shape.channels();
    let inputs = [state.window.as_slice(), x].concat();
    y.par_chunks_exact_mut(channels).enumerate().for_each(|(t, y)| {
        let past = &inputs[t * channels..(t + kernel) * channels];
        for (c, (y, taps)) in y.iter_mut().zip(taps.chunks_exact(kernel)).enumerate() {
            let sum = taps.iter().enumerate().map(|(j, w)| w * past[j * channels + c]).sum();
            *y = silu(sum);
        }
    });
    let kept = inputs.len() - state.window.len();
    state.window.copy_from_slice(&inputs[kept..]);
}

/// Normalises the query and key heads of every row of `[q | k | v]` in place.
pub(crate) fn qk_norm(qkv: &mut [f32], shape: &GdnShape) {
    let dk = shape.key_dim;
    qkv.par_chunks_exact_mut(shape.channels()).for_each(|row| {
        let heads = row[..2 * shape.key_total()].chunks_exact_mut(dk);
        for (i, head) in heads.enumerate() {
            let sum: f64 = head.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            let scale = if i < shape.key_heads { 1.0 / (dk as f64).sqrt() } else { 1.0 };
            let factor = (scale / (sum + 1e-6).sqrt()) as f32;
            head.iter_mut().for_each(|v| *v *= factor);
        }
    });
}

/// `ln(1 + exp(x))` without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Decay and write strength of every value head.
pub(crate) fn gates(a: &[f32], b: &[f32], a_log: &[f32], dt_bias: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let heads = a_log.len();
    let g =
        a.iter().enumerate().map(|(i, a)| (-a_log[i % heads].exp() * softplus(a + dt_bias[i % heads])).exp());
    (g.collect(), b.iter().map(|b| sigmoid(*b)).collect())
}

/// The recurrence over the rows of one span. Value heads are independent, and so are the rows of a head's matrix.
pub(crate) fn recurrence(qkv: &[f32], g: &[f32], beta: &[f32], state: &mut Recurrent, y: &mut [f32]) {
    let shape = state.shape;
    let (heads, dk, dv) = (shape.value_heads, shape.key_dim, shape.value_dim);
    let (keys, channels) = (shape.key_total(), shape.channels());
    let n = g.len() / heads;
    let by_head: Vec<Vec<f32>> = state
        .state
        .par_chunks_exact_mut(dv * dk)
        .enumerate()
        .map(|(h, s)| {
            let key_head = h / (heads / shape.key_heads);
            let mut y = Vec::with_capacity(n * dv);
            for t in 0..n {
                let row = &qkv[t * channels..(t + 1) * channels];
                let q = &row[key_head * dk..][..dk];
                let k = &row[keys + key_head * dk..][..dk];
                let v = &row[2 * keys + h * dv..][..dv];
                let (g, beta) = (g[t * heads + h], beta[t * heads + h]);
                for (s, v) in s.chunks_exact_mut(dk).zip(v) {
                    s.iter_mut().for_each(|s| *s *= g);
                    let u = (v - dot(s, k)) * beta;
                    s.iter_mut().zip(k).for_each(|(s, k)| *s += u * k);
                    y.push(dot(s, q));
                }
            }
            y
        })
        .collect();
    for (h, head) in by_head.iter().enumerate() {
        for (t, row) in head.chunks_exact(dv).enumerate() {
            y[(t * heads + h) * dv..][..dv].copy_from_slice(row);
        }
    }
}
