//! The experts of a layer.
//!
//! Two jobs for all tokens and all their experts: gate, up and activation, then down with the weighted sum. The first is cut by
//! expert and rows; the second by rows alone, each task going through all experts, so that sums need no merging and run in
//! the order of the experts whatever the threads. Where experts are read from disk, they come some at a time, in the same order.

use ::backend::{Activation, Error, Result};
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

/// Slots (token * top_k + k) in the order of the experts that use them, and the tokens of the slots.
struct Slots {
    slots: Vec<u32>,
    tokens: Vec<u32>,
    /// Where those of each expert begin, and of the last end.
    bounds: Vec<usize>,
}

/// An expert that is used.
struct Used<'a> {
    expert: usize,
    /// The place of its first slot among those of all.
    first: usize,
    slots: &'a [u32],
    tokens: &'a [u32],
}

impl Slots {
    fn of(routes: &Routes) -> Self {
        // Counted, then put in their places: a list for each expert would take longer than many a product.
        let mut bounds = vec![0; routes.experts + 1];
        routes.ids.iter().for_each(|e| bounds[*e as usize + 1] += 1);
        (0..routes.experts).for_each(|e| bounds[e + 1] += bounds[e]);
        let (mut next, mut slots) = (bounds.clone(), vec![0; routes.ids.len()]);
        for (slot, e) in routes.ids.iter().enumerate() {
            slots[next[*e as usize]] = slot as u32;
            next[*e as usize] += 1;
        }
        let tokens = slots.iter().map(|slot| slot / routes.top_k as u32).collect();
        Self { slots, tokens, bounds }
    }

    /// The experts that have slots.
    fn used(&self) -> Vec<Used<'_>> {
        let all = self.bounds.windows(2).enumerate().map(|(expert, ends)| {
            let (slots, tokens) = (&self.slots[ends[0]..ends[1]], &self.tokens[ends[0]..ends[1]]);
            Used { expert, first: ends[0], slots, tokens }
        });
        all.filter(|used| !used.slots.is_empty()).collect()
    }
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
    let slots = Slots::of(routes);
    let used = slots.used();
    // Gate, up and down of each. Where experts are read from disk, these say what form they are in, and are not read.
    let Experts { gate, up, down, .. } = weights;
    let mapped: Vec<_> =
        used.iter().map(|u| [gate, up, down].map(|w| Rows::new(machine, w, u.expert))).collect();
    let inputs = Inputs::new(machine, x, gate.cols, &up_groups(&used, &mapped));
    y.fill(0.0);
    let mut step = Step { machine, inputs, routes, activation, width: gate.rows, d: down.rows, y };
    let (Some(store), Some(layer)) = (store, weights.layer) else {
        step.add(&used, &mapped);
        return Ok(());
    };
    let uses: Vec<_> = used.iter().map(|u| (u.expert, u.slots.len())).collect();
    let mut pass = store.pass(layer, routes.tokens(), &uses);
    let mut rest = &used[..];
    while !rest.is_empty() {
        let here = pass.wait().map_err(|error| Error::Read(error.to_string()))?;
        let (now, later) = rest.split_at(here.len());
        let read: Vec<_> =
            here.iter().map(|expert| expert.parts.each_ref().map(|w| Rows::new(machine, w, 0))).collect();
        step.add(now, &read);
        rest = later;
    }
    Ok(())
}

/// Gates and ups with the tokens that they meet.
fn up_groups<'a>(used: &[Used<'a>], matrices: &[[Rows<'a>; 3]]) -> Vec<Group<'a, 2>> {
    let both = used.iter().zip(matrices);
    both.map(|(u, [gate, up, _])| Group { matrices: [*gate, *up], tokens: u.tokens }).collect()
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
    /// Adds what some experts contribute, neighbours among those that are used; each with its gate, up and down.
    fn add(&mut self, used: &[Used<'_>], matrices: &[[Rows<'_>; 3]]) {
        let slots: usize = used.iter().map(|u| u.slots.len()).sum();
        let mut hidden = self.machine.arena.take(slots * self.width);
        self.hide(used, matrices, &mut hidden);
        self.add_down(used, matrices, &hidden);
    }

    /// `act(Wgate_e x[t]) * Wup_e x[t]` for all slots.
    fn hide(&self, used: &[Used<'_>], matrices: &[[Rows<'_>; 3]], hidden: &mut [f32]) {
        let Self { machine, activation, width, .. } = *self;
        let parts = Parts::new(hidden);
        products(machine, &self.inputs, &up_groups(used, matrices), |g, t, first, [gate, up]| {
            // A token chooses an expert once, and tokens are in order.
            let Ok(i) = used[g].tokens.binary_search(&t) else { unreachable!("a token of another expert") };
            let slot = used[g].first - used[0].first + i;
            // SAFETY: every piece of an expert and a token comes once.
            let part = unsafe { parts.range(slot * width + first, gate.len()) };
            part.copy_from_slice(gate);
            glu_slice(machine.set, activation, part, up);
        });
    }

    /// `y[t] += w Wdown_e hidden` for all slots.
    fn add_down(&mut self, used: &[Used<'_>], matrices: &[[Rows<'_>; 3]], hidden: &[f32]) {
        let Self { machine, routes, width, d, .. } = *self;
        let rows: Vec<u32> = (0..(hidden.len() / width) as u32).collect();
        let groups: Vec<_> = (used.iter().zip(matrices))
            .map(|(u, [.., down])| Group {
                matrices: [*down],
                tokens: &rows[u.first - used[0].first..][..u.slots.len()],
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
                    let slots = used[g].slots;
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
