//! Attention over caches.

use ::backend::{Attention, Mask, Span};
use rayon::prelude::*;

use super::product::dot;
use crate::cache::KvCache;

/// Keys read at a time: scores and the running maximum are updated once per block.
const BLOCK: usize = 64;

/// Softmax-weighted sum of values over positions `from..to`, in blocks with a running maximum and sum.
/// `score(position)` is the scaled score, `value(position, out)` reads a value.
pub(super) fn weighted_sum(
    from: usize,
    to: usize,
    out: &mut [f32],
    mut score: impl FnMut(usize) -> f32,
    mut value: impl FnMut(usize, &mut [f32]),
) {
    let mut v = vec![0.0; out.len()];
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0f32);
    out.fill(0.0);
    for start in (from..to).step_by(BLOCK) {
        let scores: Vec<f32> = (start..to.min(start + BLOCK)).map(&mut score).collect();
        let block_max = scores.iter().fold(max, |m, s| m.max(*s));
        let keep = (max - block_max).exp();
        out.iter_mut().for_each(|o| *o *= keep);
        sum *= keep;
        max = block_max;
        for (i, s) in scores.iter().enumerate() {
            let p = (s - max).exp();
            sum += p;
            value(start + i, &mut v);
            out.iter_mut().zip(&v).for_each(|(o, v)| *o += p * v);
        }
    }
    out.iter_mut().for_each(|o| *o /= sum);
}

/// Grouped-query attention of one span; `q` and `y` hold its rows.
pub(crate) fn attention(
    q: &[f32],
    y: &mut [f32],
    span: &Span,
    cache: &KvCache,
    spec: &Attention,
    group: usize,
) {
    let (dk, dv) = (cache.shape.key_dim, cache.shape.value_dim);
    y.par_chunks_exact_mut(dv).zip(q.par_chunks_exact(dk)).enumerate().for_each(|(i, (out, q))| {
        let position = span.position + i / spec.heads;
        let kv_head = i % spec.heads / group;
        let (from, to) = match spec.mask {
            Mask::None => (0, cache.len()),
            Mask::Causal => (0, position + 1),
            Mask::Window(n) => ((position + 1).saturating_sub(n), position + 1),
        };
        let mut k = vec![0.0; dk];
        let score = |at| {
            cache.key(at, kv_head, &mut k);
            let s = dot(q, &k) * spec.scale;
            spec.soft_cap.map_or(s, |cap| cap * (s / cap).tanh())
        };
        weighted_sum(from, to, out, score, |at, v| cache.value(at, kv_head, v));
    });
}
