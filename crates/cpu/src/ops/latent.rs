//! Latent attention, in its two forms.

use ::backend::{LatentAttention, MlaWeights, Span};
use rayon::prelude::*;

use super::attention::weighted_sum;
use super::product::{dot, head_product, head_products, interleave};
use crate::cache::KvCache;
use crate::weights::HeadMatrices;

/// Widths of a latent layer.
#[derive(Clone, Copy)]
pub(crate) struct Widths {
    pub rank: usize,
    pub pe: usize,
    /// Of the plain part of a query head.
    pub nope: usize,
    /// Of a value head.
    pub value: usize,
}

impl Widths {
    /// Whether it takes less work to make all keys and values of a sequence of `len` tokens than to bring `n` queries
    /// into latent space, where every score and every output is wider. A single token never pays for the former.
    pub fn expanding_pays(&self, n: usize, len: usize) -> bool {
        let Self { rank, pe, nope, value } = *self;
        let matrices = rank * (nope + value);
        let absorbed = n * len * (2 * rank + pe) + n * matrices;
        let expanded = n * len * (nope + pe + value) + len * matrices;
        expanded < absorbed
    }
}

/// Attention of one span in latent space: keys are `[c | k_pe]`, values the `c` of them.
pub(crate) fn absorbed(
    q: &[f32],
    q_pe: &[f32],
    y: &mut [f32],
    span: &Span,
    cache: &KvCache,
    spec: &LatentAttention,
    (rank, pe): (usize, usize),
) {
    let heads = y.par_chunks_exact_mut(rank).zip(q.par_chunks_exact(rank)).zip(q_pe.par_chunks_exact(pe));
    heads.enumerate().for_each(|(i, ((out, q), q_pe))| {
        let to = span.position + i / spec.heads + 1;
        let mut k = vec![0.0; rank + pe];
        let score = |at| {
            cache.key(at, 0, &mut k);
            (dot(q, &k[..rank]) + dot(q_pe, &k[rank..])) * spec.scale
        };
        weighted_sum(0, to, out, score, |at, v| cache.key(at, 0, v));
    });
}

/// Latent attention of one span from queries to values `[n, heads * value]`, in whichever form takes less work.
pub(crate) fn attention(
    q: &[f32],
    q_pe: &[f32],
    span: &Span,
    cache: &KvCache,
    weights: &MlaWeights<HeadMatrices>,
    spec: &LatentAttention,
    widths: Widths,
) -> Vec<f32> {
    if widths.expanding_pays(span.len, cache.len()) {
        return expanded(q, q_pe, span, cache, weights, spec, widths);
    }
    let MlaWeights { embed_q, unembed_out } = weights;
    let q = head_products(&embed_q.weight, embed_q.transposed, q, span.len);
    let mut o = vec![0.0; q.len()];
    absorbed(&q, q_pe, &mut o, span, cache, spec, (widths.rank, widths.pe));
    head_products(&unembed_out.weight, unembed_out.transposed, &o, span.len)
}

/// Attention of one span over the keys and values of every head, made from the latents.
fn expanded(
    q: &[f32],
    q_pe: &[f32],
    span: &Span,
    cache: &KvCache,
    weights: &MlaWeights<HeadMatrices>,
    spec: &LatentAttention,
    widths: Widths,
) -> Vec<f32> {
    let Widths { rank, pe, nope, value } = widths;
    let len = cache.len();
    let (mut latents, mut k_pe) = (vec![0.0; len * rank], vec![0.0; len * pe]);
    let mut key = vec![0.0; rank + pe];
    for (at, (c, k)) in latents.chunks_exact_mut(rank).zip(k_pe.chunks_exact_mut(pe)).enumerate() {
        cache.key(at, 0, &mut key);
        c.copy_from_slice(&key[..rank]);
        k.copy_from_slice(&key[rank..]);
    }
    let MlaWeights { embed_q, unembed_out } = weights;
    let by_head: Vec<Vec<f32>> = (0..spec.heads)
        .into_par_iter()
        .map(|h| {
            // What brings queries to latents brings latents to keys, the other way round.
            let keys = head_product(&embed_q.weight, h, !embed_q.transposed, &latents, len);
            let values = head_product(&unembed_out.weight, h, unembed_out.transposed, &latents, len);
            let mut y = vec![0.0; span.len * value];
            for (t, out) in y.chunks_exact_mut(value).enumerate() {
                let q = &q[(t * spec.heads + h) * nope..][..nope];
                let q_pe = &q_pe[(t * spec.heads + h) * pe..][..pe];
                let score = |at: usize| {
                    (dot(q, &keys[at * nope..][..nope]) + dot(q_pe, &k_pe[at * pe..][..pe])) * spec.scale
                };
                let read = |at: usize, v: &mut [f32]| v.copy_from_slice(&values[at * value..][..value]);
                weighted_sum(0, span.position + t + 1, out, score, read);
            }
            y
        })
        .collect();
    interleave(&by_head, value, span.len)
}
