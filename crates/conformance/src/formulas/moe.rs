//! Routing and experts.

use backend::{Activation, GroupedSigmoid};

use super::{products::product, sigmoid, softmax};
use crate::host::Rows;
use crate::weights::Sample;

/// Experts and weights of one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Chosen experts, best first.
    pub ids: Vec<usize>,
    /// Their weights.
    pub weights: Vec<f64>,
    /// How far the last choice was from turning out otherwise. A test that compares ids needs this above rounding,
    /// or exactly 0: a tie.
    pub margin: f64,
}

/// Takes the largest `k` times, each time the first of equals.
fn largest(scores: &[f64], k: usize) -> (Vec<usize>, f64) {
    let mut left: Vec<usize> = (0..scores.len()).collect();
    let (mut taken, mut margin) = (Vec::new(), f64::INFINITY);
    for _ in 0..k {
        let mut best = 0;
        for i in 1..left.len() {
            if scores[left[i]] > scores[left[best]] {
                best = i;
            }
        }
        let chosen = left.remove(best);
        left.iter().for_each(|i| margin = margin.min(scores[chosen] - scores[*i]));
        taken.push(chosen);
    }
    (taken, margin)
}

/// Softmax over all experts, the largest, optionally to sum 1, optionally scaled by expert.
pub fn route_softmax(logits: &[f64], top_k: usize, renormalise: bool, scales: Option<&[f64]>) -> Route {
    let (ids, margin) = largest(logits, top_k);
    let p = softmax(logits);
    let sum: f64 = if renormalise { ids.iter().map(|e| p[*e]).sum() } else { 1.0 };
    let weights = ids.iter().map(|e| p[*e] / sum * scales.map_or(1.0, |s| s[*e])).collect();
    Route { ids, weights, margin }
}

/// DeepSeek-V3's router.
pub fn route_grouped(logits: &[f64], bias: &[f64], spec: &GroupedSigmoid) -> Route {
    let p: Vec<f64> = logits.iter().map(|l| sigmoid(*l)).collect();
    let choice: Vec<f64> = p.iter().zip(bias).map(|(p, b)| p + b).collect();
    let size = logits.len() / spec.groups;
    let (kept, group_margin) = if spec.groups > 1 {
        let two_best = |g: &[f64]| largest(g, 2).0.iter().map(|i| g[*i]).sum::<f64>();
        largest(&choice.chunks_exact(size).map(two_best).collect::<Vec<_>>(), spec.kept_groups)
    } else {
        (vec![0], f64::INFINITY)
    };
    let allowed: Vec<usize> = (0..logits.len()).filter(|e| kept.contains(&(e / size))).collect();
    let (picked, margin) = largest(&allowed.iter().map(|e| choice[*e]).collect::<Vec<_>>(), spec.top_k);
    let ids: Vec<usize> = picked.iter().map(|i| allowed[*i]).collect();
    let sum: f64 = if spec.renormalise { ids.iter().map(|e| p[*e]).sum() } else { 1.0 };
    let weights = ids.iter().map(|e| p[*e] / sum * f64::from(spec.scaling)).collect();
    Route { ids, weights, margin: margin.min(group_margin) }
}

/// `sum_k w_k Wdown_e (act(Wgate_e x) * Wup_e x)` of one token.
pub fn experts(
    x: &[f64],
    ids: &[u32],
    weights: &[f32],
    [gate, up, down]: [&Sample; 3],
    activation: Activation,
) -> Vec<f64> {
    let mut y = vec![0.0; x.len()];
    for (e, w) in ids.iter().zip(weights) {
        let e = *e as usize;
        let (g, u) = (product(gate, e, x), product(up, e, x));
        let hidden: Vec<f64> = g.iter().zip(&u).map(|(g, u)| super::act(activation, *g) * u).collect();
        let out = product(down, e, &hidden);
        y.iter_mut().zip(&out).for_each(|(y, o)| *y += f64::from(*w) * o);
    }
    y
}

/// `h + moe + strength[t] * shared`
pub fn combine(h: &Rows, moe: &Rows, shared: Option<&Rows>, strength: &[f64]) -> Rows {
    let mut y = h.clone();
    for t in 0..h.len() {
        for c in 0..h[t].len() {
            y[t][c] += moe[t][c] + shared.map_or(0.0, |s| strength[t] * s[t][c]);
        }
    }
    y
}
