//! Attention: all scores, then softmax, then the sum.

use super::{dot, softmax};
use crate::host::Rows;

/// What attention needs to know besides its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Factor on scores.
    pub scale: f64,
    /// How many of the last keys, its own included, a query sees.
    pub window: Option<usize>,
    /// Soft cap on scores.
    pub cap: Option<f64>,
}

/// Queries at positions `first..` over the keys and values of a whole sequence, from position 0.
pub fn attention(q: &Rows, first: usize, k: &Rows, v: &Rows, spec: &Spec) -> Rows {
    let (dk, dv) = (k[0].len() / spec.kv_heads, v[0].len() / spec.kv_heads);
    let one = |(i, q): (usize, &Vec<f64>)| {
        let position = first + i;
        let seen: Vec<usize> = (0..k.len()).filter(|j| sees(spec.window, position, *j)).collect();
        let mut y = Vec::new();
        for (h, q) in q.chunks_exact(dk).enumerate() {
            let kv = h / (spec.heads / spec.kv_heads);
            let scores: Vec<f64> = seen
                .iter()
                .map(|j| {
                    let s = spec.scale * dot(q, &k[*j][kv * dk..(kv + 1) * dk]);
                    spec.cap.map_or(s, |c| c * (s / c).tanh())
                })
                .collect();
            let p = softmax(&scores);
            y.extend(weighted(&p, seen.iter().map(|j| &v[*j][kv * dv..(kv + 1) * dv])));
        }
        y
    };
    q.iter().enumerate().map(one).collect()
}

fn sees(window: Option<usize>, query: usize, key: usize) -> bool {
    key <= query && window.is_none_or(|window| query - key < window)
}

/// `sum_j p_j v_j`
fn weighted<'a>(p: &[f64], v: impl Iterator<Item = &'a [f64]>) -> Vec<f64> {
    let mut sum = Vec::new();
    for (p, v) in p.iter().zip(v) {
        sum.resize(v.len(), 0.0);
        sum.iter_mut().zip(v).for_each(|(s, v)| *s += p * v);
    }
    sum
}

/// Latent attention: queries at positions `first..`, causal.
pub fn latent(q: &Rows, q_pe: &Rows, first: usize, c: &Rows, k_pe: &Rows, heads: usize, scale: f64) -> Rows {
    let (rank, pe) = (c[0].len(), k_pe[0].len());
    let one = |(i, (q, q_pe)): (usize, (&Vec<f64>, &Vec<f64>))| {
        let mut y = Vec::new();
        for h in 0..heads {
            let (q, q_pe) = (&q[h * rank..(h + 1) * rank], &q_pe[h * pe..(h + 1) * pe]);
            let scores: Vec<f64> =
                (0..=first + i).map(|j| scale * (dot(q, &c[j]) + dot(q_pe, &k_pe[j]))).collect();
            y.extend(weighted(&softmax(&scores), c.iter().map(Vec::as_slice)));
        }
        y
    };
    q.iter().zip(q_pe).enumerate().map(one).collect()
}
