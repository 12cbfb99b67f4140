//! Routing and experts.

use ::backend::{Activation, GroupedSigmoid};
use rayon::prelude::*;

use super::{glu, product, sigmoid};
use crate::weights::Experts;

/// K experts and their weights for each token.
#[derive(Clone)]
pub struct Routes {
    /// Experts that were chosen from.
    pub(crate) experts: usize,
    /// Experts per token.
    pub(crate) top_k: usize,
    /// `[token][k]`, best first.
    pub(crate) ids: Vec<u32>,
    /// `[token][k]`
    pub(crate) weights: Vec<f32>,
}

impl Routes {
    pub(crate) fn tokens(&self) -> usize {
        self.ids.len() / self.top_k
    }
}

/// The `k` best of `scores`, best first, ties to the lower index. NaN counts as the worst.
fn best(scores: &[f32], k: usize) -> Vec<u32> {
    // Adding zero makes one zero of the two, which must tie.
    let key = |i: u32| match scores[i as usize] {
        s if s.is_nan() => f32::NEG_INFINITY,
        s => s + 0.0,
    };
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    let compare = |a: &u32, b: &u32| key(*b).total_cmp(&key(*a)).then(a.cmp(b));
    if k < order.len() {
        order.select_nth_unstable_by(k, compare);
        order.truncate(k);
    }
    order.sort_unstable_by(compare);
    order
}

/// Routes of every token by `choose(logits of a token) -> (ids, weights)`.
fn route(
    logits: &[f32],
    experts: usize,
    top_k: usize,
    choose: impl Fn(&[f32]) -> (Vec<u32>, Vec<f32>),
) -> Routes {
    let (ids, weights): (Vec<_>, Vec<_>) = logits.chunks_exact(experts).map(choose).unzip();
    Routes { experts, top_k, ids: ids.concat(), weights: weights.concat() }
}

/// `exp(v - max) / sum` in place.
fn softmax(values: &mut [f32]) {
    let max = values.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    values.iter_mut().for_each(|v| *v = (*v - max).exp());
    normalise(values);
}

/// Makes weights sum 1. The crumb keeps sigmoids that have all underflowed at zero instead of NaN, and is lost in any
/// other sum.
fn normalise(weights: &mut [f32]) {
    let sum: f32 = weights.iter().sum::<f32>() + 1e-20;
    weights.iter_mut().for_each(|w| *w /= sum);
}

/// `route_softmax` and, with scales, `route_softmax_scaled`.
pub(crate) fn route_softmax(
    logits: &[f32],
    experts: usize,
    top_k: usize,
    renormalise: bool,
    scales: Option<&[f32]>,
) -> Routes {
    route(logits, experts, top_k, |logits| {
        // Chosen by logit: equal probabilities of unequal logits must not tie.
        let ids = best(logits, top_k);
        let mut p = logits.to_vec();
        softmax(&mut p);
        let mut weights: Vec<f32> = ids.iter().map(|e| p[*e as usize]).collect();
        if renormalise {
            // The same ratio from the logits themselves: the probabilities may all have underflowed but for one.
            weights = ids.iter().map(|e| logits[*e as usize]).collect();
            softmax(&mut weights);
        }
        if let Some(scales) = scales {
            weights.iter_mut().zip(&ids).for_each(|(w, e)| *w *= scales[*e as usize]);
        }
        (ids, weights)
    })
}

/// `route_sigmoid_grouped`, with `size` experts in a group.
pub(crate) fn route_grouped(logits: &[f32], bias: &[f32], size: usize, spec: &GroupedSigmoid) -> Routes {
    route(logits, bias.len(), spec.top_k, |logits| {
        let p: Vec<f32> = logits.iter().map(|l| sigmoid(*l)).collect();
        let mut choice: Vec<f32> = p.iter().zip(bias).map(|(p, b)| p + b).collect();
        if spec.groups > 1 {
            let strength: Vec<f32> = choice
                .chunks_exact(size)
                .map(|group| best(group, 2).iter().map(|i| group[*i as usize]).sum())
                .collect();
            let kept = best(&strength, spec.kept_groups);
            for (g, group) in choice.chunks_exact_mut(size).enumerate() {
                if !kept.contains(&(g as u32)) {
                    group.fill(f32::NEG_INFINITY);
                }
            }
        }
        let ids = best(&choice, spec.top_k);
        let mut weights: Vec<f32> = ids.iter().map(|e| p[*e as usize]).collect();
        if spec.renormalise {
            normalise(&mut weights);
        }
        weights.iter_mut().for_each(|w| *w *= spec.scaling);
        (ids, weights)
    })
}

/// The weighted sum of the chosen experts for every token. Tokens of one expert are taken together, so that its
/// weights are read once; each token's sum runs in the order of its routes, whatever the batch.
pub(crate) fn experts(
    x: &[f32],
    d: usize,
    routes: &Routes,
    weights: &Experts,
    activation: Activation,
) -> Vec<f32> {
    let mut slots_of: Vec<Vec<usize>> = vec![Vec::new(); routes.experts];
    for (slot, e) in routes.ids.iter().enumerate() {
        slots_of[*e as usize].push(slot);
    }
    let outputs: Vec<(&[usize], Vec<f32>)> = slots_of
        .par_iter()
        .enumerate()
        .filter(|(_, slots)| !slots.is_empty())
        .map(|(e, slots)| {
            let x: Vec<f32> =
                slots.iter().flat_map(|slot| &x[slot / routes.top_k * d..][..d]).copied().collect();
            let mut hidden = product::matmul_one(&weights.gate, e, &x, slots.len());
            let up = product::matmul_one(&weights.up, e, &x, slots.len());
            hidden.iter_mut().zip(&up).for_each(|(g, u)| *g = glu(activation, *g, *u));
            (slots.as_slice(), product::matmul_one(&weights.down, e, &hidden, slots.len()))
        })
        .collect();
    let mut of_slot: Vec<&[f32]> = vec![&[]; routes.ids.len()];
    for (slots, rows) in &outputs {
        slots.iter().zip(rows.chunks_exact(d)).for_each(|(slot, row)| of_slot[*slot] = row);
    }
    let mut y = vec![0.0; routes.tokens() * d];
    y.par_chunks_exact_mut(d).enumerate().for_each(|(t, y)| {
        let slots = t * routes.top_k..(t + 1) * routes.top_k;
        for (w, row) in routes.weights[slots.clone()].iter().zip(&of_slot[slots]) {
            y.iter_mut().zip(*row).for_each(|(y, v)| *y += w * v);
        }
    });
    y
}
