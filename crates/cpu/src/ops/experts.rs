//! The experts of a layer.
//!
//! Two jobs for all tokens and all their experts: gate, up and activation, then down with the weighted sum. The first is cut by
//! expert and rows; the second by rows alone, each task going through all experts, so that sums need no merging and run in
//! the order of the experts whatever the threads. Where experts are read from disk, they come some at a time, in the same order.

use ::backend::{Activation, Error, Result};
use checkpoint::Weight;
use store::Store;

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
    store: Option<&Store>,
    activation: Activation,
    y: &mut [f32],
) -> Result<()> {
    let used = used_experts(routes);
    let inputs = {
        // Of the file, which is not read for this: only what form they are in.
        let pair = |u: &Used| [&weights.gate, &weights.up].map(|w| Rows::new(machine, w, u.expert));
        let groups: Vec<_> = used.iter().map(|u| Group { matrices: pair(u), tokens: &u.tokens }).collect();
        Inputs::new(machine, x, weights.gate.cols, &groups)
    };
    y.fill(0.0);
    let (width, d) = (weights.gate.rows, weights.down.rows);
    let mut step = Step { machine, inputs, routes, activation, width, d, y };
    let (Some(store), Some(layer)) = (store, weights.layer) else {
        let Experts { gate, up, down, .. } = weights;
        step.add(&used, |i| [gate, up, down].map(|w| (w, used[i].expert)));
        return Ok(());
    };
    let uses: Vec<_> = used.iter().map(|u| (u.expert, u.slots.len())).collect();
    let mut pass = store.pass(layer, routes.tokens(), &uses);
    let mut rest = &used[..];
    while !rest.is_empty() {
        let here = pass.wait().map_err(|error| Error::Read(error.to_string()))?;
        let (now, later) = rest.split_at(here.len());
        step.add(now, |i| here[i].parts.each_ref().map(|w| (w, 0)));
        rest = later;
    }
    Ok(())
}

/// What all experts of a step share.
struct Step<'a> {
    machine: &'a Machine,
    inputs: Inputs<'a>,
    routes: &'a Routes,
    activation: Activation,
    /// Of an expert.
    width: usize,
    /// Of a token.
    d: usize,
    y: &'a mut [f32],
}

impl Step<'_> {
    /// Adds what some experts contribute; `matrices(i)` are the gate, up and down of the i-th, each one of a stack.
    fn add<'w>(&mut self, used: &[Used], matrices: impl Fn(usize) -> [(&'w Weight, usize); 3]) {
        let matrices: Vec<_> =
            (0..used.len()).map(|i| matrices(i).map(|(w, m)| Rows::new(self.machine, w, m))).collect();
        // Slots of one expert lie side by side.
        let (mut starts, mut slots) = (Vec::with_capacity(used.len()), 0);
        for u in used {
            starts.push(slots);
            slots += u.slots.len();
        }
        let mut hidden = self.machine.arena.take(slots * self.width);
        self.hide(used, &matrices, &starts, &mut hidden);
        self.add_down(used, &matrices, &starts, &hidden);
    }

    /// `act(Wgate_e x[t]) * Wup_e x[t]` for all slots.
    fn hide(&self, used: &[Used], matrices: &[[Rows<'_>; 3]], starts: &[usize], hidden: &mut [f32]) {
        let Self { machine, activation, width, .. } = *self;
        let parts = Parts::new(hidden);
        let groups: Vec<_> = (used.iter().zip(matrices))
            .map(|(u, [gate, up, _])| Group { matrices: [*gate, *up], tokens: &u.tokens })
            .collect();
        products(machine, &self.inputs, &groups, |g, t, first, [gate, up]| {
            // A token chooses an expert once, and tokens are in order.
            let Ok(i) = used[g].tokens.binary_search(&t) else { unreachable!("a token of another expert") };
            // SAFETY: every piece of an expert and a token comes once.
            let part = unsafe { parts.range((starts[g] + i) * width + first, gate.len()) };
            part.copy_from_slice(gate);
            glu_slice(machine.set, activation, part, up);
        });
    }

    /// `y[t] += w Wdown_e hidden` for all slots.
    fn add_down(&mut self, used: &[Used], matrices: &[[Rows<'_>; 3]], starts: &[usize], hidden: &[f32]) {
        let Self { machine, routes, width, d, .. } = *self;
        let rows: Vec<u32> = (0..(hidden.len() / width) as u32).collect();
        let groups: Vec<_> = (used.iter().zip(matrices).zip(starts))
            .map(|((u, [.., down]), start)| Group {
                matrices: [*down],
                tokens: &rows[*start..][..u.slots.len()],
            })
            .collect();
        let inputs = Inputs::new(machine, hidden, width, &groups);
        let parts = Parts::new(self.y);
        // Long pieces for few tokens, which wait for memory; panels for many.
        let few = || (d / (4 * machine.pool.threads())).next_multiple_of(4).clamp(FEW_ROWS.0, FEW_ROWS.1);
        let step = if groups.iter().any(|group| group.tokens.len() >= MANY) { PANEL } else { few() };
        let rows_of = |i: usize| (i * step, step.min(d - i * step));
        machine.pool.run(d.div_ceil(step), |i| {
            let (first, count) = rows_of(i);
            // SAFETY: these columns belong to this task.
            let column = |t: usize| unsafe { parts.range(t * d + first, count) };
            let after = i + machine.pool.threads();
            with_scratch(|scratch| {
                let mut out = Vec::new();
                for (g, group) in groups.iter().enumerate() {
                    let slots = &used[g].slots;
                    out.resize(slots.len() * count, 0.0);
                    let next = match groups.get(g + 1) {
                        Some(group) => Some(group.block(0, rows_of(i), 0..0)),
                        None if after * step < d => Some(groups[0].block(0, rows_of(after), 0..0)),
                        None => None,
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
}
