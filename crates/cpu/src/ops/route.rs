//! Routing: which experts a token goes to.

use ::backend::{GroupedSigmoid, Handle, RoutedShape};

use super::elementwise::sigmoid_lane;
use crate::Machine;
use crate::kernels::Set;
use crate::pool::Parts;
use crate::vector::{exp, vectorised};

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

impl Handle for Routes {
    type Shape = RoutedShape;

    fn shape(&self) -> RoutedShape {
        RoutedShape { tokens: self.tokens(), experts: self.experts }
    }
}

/// Tokens that a task should have at least.
const TOKENS: usize = 32;

/// Routes of every token by `choose(token, memory, ids, weights)`; the memory has room for `experts` values.
fn route(
    machine: &Machine,
    tokens: usize,
    experts: usize,
    top_k: usize,
    choose: impl Fn(usize, &mut [f32], &mut [u32], &mut [f32]) + Sync,
) -> Routes {
    let mut routes =
        Routes { experts, top_k, ids: vec![0; tokens * top_k], weights: vec![0.0; tokens * top_k] };
    let weights = Parts::new(&mut routes.weights);
    machine.pool.pieces(&mut routes.ids, TOKENS * top_k, |piece, ids| {
        let mut memory = machine.arena.take(experts);
        for (i, ids) in ids.chunks_exact_mut(top_k).enumerate() {
            let t = piece * TOKENS + i;
            // SAFETY: this token's weights; its ids are this task's own too.
            let weights = unsafe { weights.range(t * top_k, top_k) };
            choose(t, &mut memory, ids, weights);
        }
    });
    routes
}

/// The best of `scores`, best first, ties to the lower index; as many as `ids` has room for. What is taken becomes
/// `NaN`, which also stands for what may not be taken; only when nothing else is left are such taken, in their order.
fn best(set: Set, scores: &mut [f32], ids: &mut [u32]) {
    for n in 0..ids.len() {
        ids[n] = match largest(set, scores) {
            Some(i) => i as u32,
            None => (0..scores.len() as u32).find(|i| !ids[..n].contains(i)).unwrap_or_default(),
        };
        scores[ids[n] as usize] = f32::NAN;
    }
}

vectorised! {
    /// Where the largest value is, the first of several; NaN does not count.
    fn largest<A>(values: &[f32]) -> Option<usize> {
        // First the value, lane by lane, then where it is.
        let mut top = [f32::NEG_INFINITY; 16];
        let mut any = [false; 16];
        let (blocks, rest) = values.as_chunks::<16>();
        for block in blocks {
            for i in 0..16 {
                top[i] = if block[i] > top[i] { block[i] } else { top[i] };
                any[i] |= !block[i].is_nan();
            }
        }
        let mut max = top.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
        let mut some = any.iter().any(|a| *a);
        for v in rest {
            max = if *v > max { *v } else { max };
            some |= !v.is_nan();
        }
        if some { values.iter().position(|v| *v == max) } else { None }
    }
}

vectorised! {
    /// `exp(v - max)` in place, `max` their largest; returns the sum.
    fn exponentials<A>(values: &mut [f32], max: f32) -> f32 {
        let mut sums = [0.0f32; 16];
        let (blocks, rest) = values.as_chunks_mut::<16>();
        for block in blocks {
            for i in 0..16 {
                block[i] = exp::<A>(block[i] - max);
                sums[i] += block[i];
            }
        }
        let mut sum: f32 = sums.iter().sum();
        for v in rest {
            *v = exp::<A>(*v - max);
            sum += *v;
        }
        sum
    }
}

vectorised! {
    fn sigmoids<A>(values: &[f32], out: &mut [f32]) {
        out.iter_mut().zip(values).for_each(|(out, v)| *out = sigmoid_lane::<A>(*v));
    }
}

/// Makes weights sum 1. The crumb keeps sigmoids that have all underflowed at zero instead of NaN, and is lost in any
/// other sum.
fn normalise(weights: &mut [f32]) {
    let sum: f32 = weights.iter().sum::<f32>() + 1e-20;
    weights.iter_mut().for_each(|w| *w /= sum);
}

/// `route_softmax` and, with scales, `route_softmax_scaled`.
pub(crate) fn softmax(
    machine: &Machine,
    logits: &[f32],
    experts: usize,
    top_k: usize,
    renormalise: bool,
    scales: Option<&[f32]>,
) -> Routes {
    route(machine, logits.len() / experts, experts, top_k, |t, memory, ids, weights| {
        let logits = &logits[t * experts..][..experts];
        memory.copy_from_slice(logits);
        // Chosen by logit: equal probabilities of unequal logits must not tie.
        best(machine.set, memory, ids);
        weights.iter_mut().zip(&*ids).for_each(|(w, e)| *w = logits[*e as usize]);
        let max = weights[0];
        // Renormalised, the same ratio comes from the chosen logits alone.
        let mut sum = exponentials(machine.set, weights, max);
        if !renormalise {
            memory.copy_from_slice(logits);
            sum = exponentials(machine.set, memory, max);
        }
        weights.iter_mut().for_each(|w| *w /= sum);
        if let Some(scales) = scales {
            weights.iter_mut().zip(&*ids).for_each(|(w, e)| *w *= scales[*e as usize]);
        }
    })
}

/// `route_sigmoid_grouped`, with `size` experts in a group.
pub(crate) fn grouped(
    machine: &Machine,
    logits: &[f32],
    bias: &[f32],
    size: usize,
    spec: &GroupedSigmoid,
) -> Routes {
    let experts = bias.len();
    route(machine, logits.len() / experts, experts, spec.top_k, |t, memory, ids, weights| {
        let logits = &logits[t * experts..][..experts];
        sigmoids(machine.set, logits, memory);
        memory.iter_mut().zip(bias).for_each(|(p, b)| *p += b);
        if spec.groups > 1 {
            keep_groups(machine, memory, size, spec);
        }
        best(machine.set, memory, ids);
        weights.iter_mut().zip(&*ids).for_each(|(w, e)| *w = logits[*e as usize]);
        let chosen: &mut [f32] = weights;
        sigmoids_in_place(machine.set, chosen);
        if spec.renormalise {
            normalise(chosen);
        }
        chosen.iter_mut().for_each(|w| *w *= spec.scaling);
    })
}

vectorised! {
    fn sigmoids_in_place<A>(values: &mut [f32]) {
        values.iter_mut().for_each(|v| *v = sigmoid_lane::<A>(*v));
    }
}

/// Leaves the groups with the largest sum of their two best in the choice.
fn keep_groups(machine: &Machine, choice: &mut [f32], size: usize, spec: &GroupedSigmoid) {
    let mut memory = machine.arena.take(2 * spec.groups);
    let (strength, kept) = memory.split_at_mut(spec.groups);
    for (strength, group) in strength.iter_mut().zip(choice.chunks_exact_mut(size)) {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for v in group.iter() {
            if *v > first {
                (first, second) = (*v, first);
            } else if *v > second {
                second = *v;
            }
        }
        *strength = if size > 1 { first + second } else { first };
    }
    kept.fill(0.0);
    for _ in 0..spec.kept_groups {
        let Some(g) = largest(machine.set, strength) else { break };
        (strength[g], kept[g]) = (f32::NAN, 1.0);
    }
    for (group, kept) in choice.chunks_exact_mut(size).zip(kept) {
        if *kept == 0.0 {
            group.fill(f32::NAN);
        }
    }
}
