//! The experts of a layer.
//!
//! Two jobs for all tokens and all their experts: gate, up and activation, then down with the weighted sum. The first is cut by
//! expert and rows; the second by rows alone, each task going through all experts, so that sums need no merging and run in
//! the order of the experts whatever the threads.

use ::backend::Activation;
use checkpoint::Weight;

use super::elementwise::glu_slice;
use super::product::{Group, Inputs, MANY, Rows, compute, products, with_scratch};
use super::route::Routes;
use crate::Machine;
use crate::kernels::PANEL;
use crate::pool::Parts;
use crate::weights::Experts;

/// Rows that a task of the second job takes of every expert when tokens are few, at least and at most: long streams, but work for
/// all threads.
const FEW_ROWS: (usize, usize) = (32, 256);

/// An expert that is used, with the slots (token * top_k + k) that use it.
struct Used {
    expert: usize,
    slots: Vec<u32>,
    /// The tokens of the slots.
    tokens: Vec<u32>,
}

fn used_experts(routes: &Routes) -> Vec<Used> {
    let mut slots_of: Vec<Vec<u32>> = vec![Vec::new(); routes.experts];
    for (slot, e) in routes.ids.iter().enumerate() {
        slots_of[*e as usize].push(slot as u32);
    }
    let used = slots_of.into_iter().enumerate().filter(|(_, slots)| !slots.is_empty());
    used.map(|(expert, slots)| {
        let tokens = slots.iter().map(|slot| slot / routes.top_k as u32).collect();
        Used { expert, slots, tokens }
    })
    .collect()
}

/// `y[t] = sum_k w_k Wdown_e (act(Wgate_e x[t]) * Wup_e x[t])` over the chosen experts.
pub(crate) fn experts(
    machine: &Machine,
    x: &[f32],
    routes: &Routes,
    weights: &Experts,
    activation: Activation,
    y: &mut [f32],
) {
    let used = used_experts(routes);
    let (d, width) = (weights.gate.cols, weights.gate.rows);

    let mut hidden = machine.arena.take(routes.ids.len() * width);
    {
        let pair = |e| [Rows::new(machine, &weights.gate, e), Rows::new(machine, &weights.up, e)];
        // Slots of one expert and one token are the same input: `emit` finds the slot by its token.
        let groups: Vec<_> =
            used.iter().map(|u| Group { matrices: pair(u.expert), tokens: &u.tokens }).collect();
        let inputs = Inputs::new(machine, x, d, &groups);
        let parts = Parts::new(&mut hidden);
        products(machine, &inputs, &groups, |g, t, first, [gate, up]| {
            // A token chooses an expert once, and tokens are in order.
            let Ok(i) = used[g].tokens.binary_search(&t) else { unreachable!("a token of another expert") };
            // SAFETY: every piece of an expert and a token comes once.
            let part = unsafe { parts.range(used[g].slots[i] as usize * width + first, gate.len()) };
            part.copy_from_slice(gate);
            glu_slice(machine.set, activation, part, up);
        });
    }
    down(machine, &hidden, d, routes, &used, &weights.down, y);
}

fn down(
    machine: &Machine,
    hidden: &[f32],
    d: usize,
    routes: &Routes,
    used: &[Used],
    weight: &Weight,
    y: &mut [f32],
) {
    let groups: Vec<_> = used
        .iter()
        .map(|u| Group { matrices: [Rows::new(machine, weight, u.expert)], tokens: &u.slots })
        .collect();
    let inputs = Inputs::new(machine, hidden, weight.cols, &groups);
    let parts = Parts::new(y);
    let tokens = routes.tokens();
    // Long pieces for few tokens, which wait for memory; panels for many.
    let few = || (d / (4 * machine.pool.threads())).next_multiple_of(4).clamp(FEW_ROWS.0, FEW_ROWS.1);
    let step = if groups.iter().any(|group| group.tokens.len() >= MANY) { PANEL } else { few() };
    let rows_of = |i: usize| (i * step, step.min(d - i * step));
    machine.pool.run(d.div_ceil(step), |i| {
        let (first, count) = rows_of(i);
        // SAFETY: these columns belong to this task.
        let column = |t: usize| unsafe { parts.range(t * d + first, count) };
        (0..tokens).for_each(|t| column(t).fill(0.0));
        let after = i + machine.pool.threads();
        with_scratch(|scratch| {
            let mut out = Vec::new();
            for (g, group) in groups.iter().enumerate() {
                let slots = group.tokens;
                out.resize(slots.len() * count, 0.0);
                let next = match groups.get(g + 1) {
                    Some(group) => group.block(0, rows_of(i), 0..0).stored(),
                    None if after * step < d => groups[0].block(0, rows_of(after), 0..0).stored(),
                    None => &[],
                };
                let block = group.block(0, (first, count), 0..slots.len());
                compute(machine, scratch, block, &inputs, next, &mut out);
                for (slot, values) in slots.iter().zip(out.chunks_exact(count)) {
                    let weight = routes.weights[*slot as usize];
                    let y = column(*slot as usize / routes.top_k);
                    y.iter_mut().zip(values).for_each(|(y, v)| *y += weight * v);
                }
            }
        });
    });
}
