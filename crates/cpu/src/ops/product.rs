//! Products with weights.
//!
//! All products are made by [`products`]: groups of matrices that share tokens, cut into blocks of rows, each block one task.
//! Quantised matrices meet rounded activations in integer kernels; plain ones, and all of them with exact numerics, are
//! decoded to f32.

use std::cell::RefCell;
use std::ops::Range;

use ::backend::Activation;
use checkpoint::Weight;

use super::dense;
use super::elementwise::glu_slice;
use crate::kernels::{self, Codes, Form, PANEL, Panel, Rounded, Set};
use crate::pool::Parts;
use crate::prefetch::prefetch;
use crate::vector;
use crate::{Machine, Numerics};

/// From so many tokens on, unpacking 32 rows for all of them is faster than reading the codes once per token.
pub(crate) const MANY: usize = 6;

/// Tokens that one task works on: their activations stay in a core's own cache while rows go by.
const TILE: usize = 128;

/// Bytes of codes that one task reads for few tokens: at least some microseconds of memory time, at most so many that threads
/// end together.
const TASK_BYTES: (usize, usize) = (32 << 10, 256 << 10);

/// Tasks that every thread should get.
const TASKS: usize = 8;

/// One matrix of a stack, ready for products.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    weight: &'a Weight,
    m: usize,
    /// The view of formats that integer kernels know.
    codes: Option<Codes<'a>>,
    /// Whether integer kernels may be used.
    rounded: bool,
}

impl<'a> Rows<'a> {
    /// Matrix `m` of a stack.
    pub fn new(machine: &Machine, weight: &'a Weight, m: usize) -> Self {
        Self { weight, m, codes: Codes::of(weight, m), rounded: machine.numerics == Numerics::Fast }
    }

    /// The stored rows from `row` on, for asking for them in advance.
    fn stored_from(&self, row: usize) -> &'a [u8] {
        match &self.codes {
            Some(codes) => &codes.codes[row * codes.row_bytes()..],
            None => &[],
        }
    }

    fn bias(&self, row: usize) -> f32 {
        self.weight.bias.as_ref().map_or(0.0, |bias| bias[self.m * self.weight.rows + row])
    }

    /// The form in which it wants activations.
    fn form(&self, set: Set, tokens: usize) -> Option<Form> {
        let panel = tokens >= MANY;
        let codes = self.codes.as_ref().filter(|_| self.rounded && (!panel || kernels::has_panels(set)))?;
        Some(Form::of(codes, panel))
    }
}

/// Matrices of one shape with the tokens that they meet.
pub(crate) struct Group<'a, const M: usize> {
    pub matrices: [Rows<'a>; M],
    /// Rows of the inputs.
    pub tokens: &'a [u32],
}

impl<'a, const M: usize> Group<'a, M> {
    /// Rows `(first, count)` of matrix `m`, and some of the tokens.
    pub fn block(&self, m: usize, (first, count): (usize, usize), tokens: Range<usize>) -> Block<'a> {
        let of_tokens = self.tokens.len();
        Block { rows: self.matrices[m], first, count, tokens: &self.tokens[tokens], of_tokens }
    }
}

/// Activations `[n, cols]`, and their rounded forms.
pub(crate) struct Inputs<'a> {
    x: &'a [f32],
    cols: usize,
    rounded: Vec<Rounded>,
}

impl<'a> Inputs<'a> {
    /// Rounds the activations as the groups want them.
    pub fn new<'g, const M: usize>(
        machine: &Machine,
        x: &'a [f32],
        cols: usize,
        groups: impl IntoIterator<Item = &'g Group<'g, M>>,
    ) -> Self {
        let mut forms: Vec<Form> = Vec::new();
        for group in groups {
            for form in group.matrices.iter().filter_map(|rows| rows.form(machine.set, group.tokens.len())) {
                if !forms.contains(&form) {
                    forms.push(form);
                }
            }
        }
        let rounded = forms.into_iter().map(|form| round(machine, x, cols, form)).collect();
        Self { x, cols, rounded }
    }

    fn row(&self, t: u32) -> &[f32] {
        &self.x[t as usize * self.cols..][..self.cols]
    }

    fn in_form(&self, form: Form) -> &Rounded {
        let found = self.rounded.iter().find(|rounded| rounded.form == form);
        let Some(rounded) = found else { unreachable!("activations were not rounded to {form:?}") };
        rounded
    }
}

fn round(machine: &Machine, x: &[f32], cols: usize, form: Form) -> Rounded {
    /// Tokens per task.
    const TOKENS: usize = 8;
    let n = x.len() / cols;
    let mut rounded = Rounded::new(&machine.arena, form, cols, n);
    let mut parts: Vec<_> = rounded.parts(TOKENS).zip(x.chunks(TOKENS * cols)).map(Some).collect();
    machine.pool.pieces(&mut parts, 1, |_, part| {
        if let Some((part, x)) = part[0].take() {
            part.fill(machine.set, x);
        }
    });
    drop(parts);
    rounded
}

/// Memory that a thread keeps for its tasks.
#[derive(Default)]
pub(crate) struct Scratch {
    panel: Panel,
    tile: Vec<[f32; PANEL]>,
    decoded: Vec<f32>,
    gathered: Vec<f32>,
    results: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Lends the thread's memory to a task.
pub(crate) fn with_scratch<R>(task: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| task(&mut scratch.borrow_mut()))
}

/// Bytes of scales that are asked for before their rows come.
const SOON: usize = 512;

/// Some rows of a matrix, and the tokens that they meet.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a> {
    pub rows: Rows<'a>,
    pub first: usize,
    /// At most [`PANEL`] if the group has [`MANY`] tokens.
    pub count: usize,
    pub tokens: &'a [u32],
    /// Tokens of the whole group, of which these may be a tile.
    pub of_tokens: usize,
}

impl<'a> Block<'a> {
    /// What is read of its matrix; asks for the first scales and biases, which lie apart.
    fn announced(&self) -> &'a [u8] {
        if let Some(codes) = &self.rows.codes {
            let first = self.first * codes.scale_row_bytes();
            for more in [codes.scales, codes.biases] {
                let more = more.get(first..).unwrap_or_default();
                prefetch(&more[..more.len().min(SOON)]);
            }
        }
        self.rows.stored_from(self.first)
    }
}

/// `out[i, r] = W[first + r] x[tokens[i]]` (bias included); `out` is `[tokens, count]`. `next` is what will be read afterwards.
pub(crate) fn compute(
    machine: &Machine,
    scratch: &mut Scratch,
    block: Block<'_>,
    inputs: &Inputs<'_>,
    next: Option<Block<'_>>,
    out: &mut [f32],
) {
    let Block { rows, first, count, tokens, of_tokens } = block;
    match (&rows.codes, rows.form(machine.set, of_tokens)) {
        (Some(codes), Some(form)) if form.panel => {
            scratch.tile.resize(tokens.len(), [0.0; PANEL]);
            let x = inputs.in_form(form);
            kernels::panel(machine.set, codes, first, &mut scratch.panel, x, tokens, &mut scratch.tile);
            for (out, tile) in out.chunks_exact_mut(count).zip(&scratch.tile) {
                out.copy_from_slice(&tile[..count]);
            }
        }
        (Some(codes), Some(form)) => {
            let (x, next) = (inputs.in_form(form), next.map_or(&[][..], |next| next.announced()));
            for (i, (out, t)) in out.chunks_exact_mut(count).zip(tokens).enumerate() {
                let next = if i + 1 < tokens.len() { rows.stored_from(first) } else { next };
                kernels::rows(machine.set, codes, first, x, *t as usize, out, next);
            }
        }
        _ => {
            scratch.decoded.resize(count * inputs.cols, 0.0);
            for (r, row) in scratch.decoded.chunks_exact_mut(inputs.cols).enumerate() {
                kernels::decode_row(machine.set, rows.weight, rows.m, rows.codes.as_ref(), first + r, row);
            }
            let weights = (&scratch.decoded[..], inputs.cols);
            // Exact results must not depend on how many tokens come together.
            if tokens.len() < MANY && machine.numerics == Numerics::Fast {
                for (out, t) in out.chunks_exact_mut(count).zip(tokens) {
                    for (y, row) in out.iter_mut().zip(scratch.decoded.chunks_exact(inputs.cols)) {
                        *y = vector::dot(machine.set, row, inputs.row(*t));
                    }
                }
            } else {
                scratch.gathered.clear();
                tokens.iter().for_each(|t| scratch.gathered.extend_from_slice(inputs.row(*t)));
                let size = dense::Size { m: tokens.len(), n: count, k: inputs.cols };
                dense::nt(machine.set, size, (&scratch.gathered, inputs.cols), weights, (out, count));
            }
        }
    }
    if rows.weight.bias.is_some() {
        for out in out.chunks_exact_mut(count) {
            out.iter_mut().enumerate().for_each(|(r, y)| *y += rows.bias(first + r));
        }
    }
}

/// Rows of a block for few tokens, when all groups together have so many bytes of codes.
fn few_rows(machine: &Machine, bytes: usize, row_bytes: usize) -> usize {
    let (least, most) = TASK_BYTES;
    let task = (bytes / (machine.pool.threads() * TASKS)).clamp(least, most);
    (task / row_bytes.max(1)).next_multiple_of(4)
}

/// Computes all groups and hands the results to `emit(group, token, first row, values of each matrix)`, from any thread, every
/// piece once.
pub(crate) fn products<const M: usize>(
    machine: &Machine,
    inputs: &Inputs<'_>,
    groups: &[Group<'_, M>],
    emit: impl Fn(usize, u32, usize, [&[f32]; M]) + Sync,
) {
    struct Task {
        group: usize,
        /// The first and their number.
        rows: (usize, usize),
        tokens: Range<usize>,
    }
    let row_bytes = |rows: &Rows<'_>| rows.weight.data.row_bytes();
    let bytes = groups.iter().flat_map(|group| &group.matrices).map(|r| r.weight.rows * row_bytes(r)).sum();
    let mut tasks = Vec::new();
    for (g, group) in groups.iter().enumerate() {
        let [one, ..] = &group.matrices[..] else { continue };
        let many = group.tokens.len() >= MANY;
        let step = if many { PANEL } else { few_rows(machine, bytes, row_bytes(one)) };
        for start in (0..group.tokens.len()).step_by(TILE) {
            let tokens = start..group.tokens.len().min(start + TILE);
            for first in (0..one.weight.rows).step_by(step) {
                let rows = (first, step.min(one.weight.rows - first));
                tasks.push(Task { group: g, rows, tokens: tokens.clone() });
            }
        }
    }
    let block = |task: &Task, m: usize| groups[task.group].block(m, task.rows, task.tokens.clone());
    machine.pool.run(tasks.len(), |i| {
        let task = &tasks[i];
        let (first, count) = task.rows;
        // The other threads take the tasks in between.
        let then = tasks.get(i + machine.pool.threads()).map(|task| block(task, 0));
        with_scratch(|scratch| {
            let len = task.tokens.len() * count;
            let mut results = std::mem::take(&mut scratch.results);
            // What is left of earlier tasks is overwritten.
            results.resize(results.len().max(M * len), 0.0);
            for (m, out) in results.chunks_exact_mut(len).enumerate().take(M) {
                let next = if m + 1 < M { Some(block(task, m + 1)) } else { then };
                compute(machine, scratch, block(task, m), inputs, next, out);
            }
            for (i, t) in groups[task.group].tokens[task.tokens.clone()].iter().enumerate() {
                let values = std::array::from_fn(|m| &results[m * len + i * count..][..count]);
                emit(task.group, *t, first, values);
            }
            scratch.results = results;
        });
    });
}

/// All tokens of a batch.
fn all(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

/// `outputs[m][t] = W_m x[t]` for several matrices.
pub(crate) fn matmuls<'a>(
    machine: &Machine,
    weights: impl Iterator<Item = &'a Weight>,
    x: &[f32],
    outputs: impl Iterator<Item = &'a mut [f32]>,
) {
    let weights: Vec<&Weight> = weights.collect();
    let Some(cols) = weights.first().map(|w| w.cols) else { return };
    let tokens = all(x.len() / cols);
    let group = |w: &&'a Weight| Group { matrices: [Rows::new(machine, w, 0)], tokens: &tokens };
    let groups: Vec<_> = weights.iter().map(group).collect();
    let inputs = Inputs::new(machine, x, cols, &groups);
    let parts: Vec<_> = outputs.map(Parts::new).collect();
    products(machine, &inputs, &groups, |m, t, first, [values]| {
        // SAFETY: every piece of a matrix and a token comes once.
        let y = unsafe { parts[m].range(t as usize * weights[m].rows + first, values.len()) };
        y.copy_from_slice(values);
    });
}

/// `y[t] += W x[t]`
pub(crate) fn matmul_add(machine: &Machine, weight: &Weight, x: &[f32], y: &mut [f32]) {
    let tokens = all(x.len() / weight.cols);
    let groups = [Group { matrices: [Rows::new(machine, weight, 0)], tokens: &tokens }];
    let inputs = Inputs::new(machine, x, weight.cols, &groups);
    let parts = Parts::new(y);
    products(machine, &inputs, &groups, |_, t, first, [values]| {
        // SAFETY: every piece of a token comes once.
        let y = unsafe { parts.range(t as usize * weight.rows + first, values.len()) };
        y.iter_mut().zip(values).for_each(|(y, v)| *y += v);
    });
}

/// `y[t] = act(Wg x[t]) * (Wu x[t])`
pub(crate) fn gate_up(
    machine: &Machine,
    [gate, up]: [&Weight; 2],
    activation: Activation,
    x: &[f32],
    y: &mut [f32],
) {
    let tokens = all(x.len() / gate.cols);
    let matrices = [Rows::new(machine, gate, 0), Rows::new(machine, up, 0)];
    let groups = [Group { matrices, tokens: &tokens }];
    let inputs = Inputs::new(machine, x, gate.cols, &groups);
    let parts = Parts::new(y);
    products(machine, &inputs, &groups, |_, t, first, [g, u]| {
        // SAFETY: every piece of a token comes once.
        let y = unsafe { parts.range(t as usize * gate.rows + first, g.len()) };
        y.copy_from_slice(g);
        glu_slice(machine.set, activation, y, u);
    });
}

/// `y[t, h] = W[h] x[t, h]` for every head of `n` tokens, or `W[h]^T x[t, h]` when `transposed`.
pub(crate) fn head_products(
    machine: &Machine,
    weight: &Weight,
    transposed: bool,
    x: &[f32],
    n: usize,
    y: &mut [f32],
) {
    let (inner, outer) = if transposed { (weight.rows, weight.cols) } else { (weight.cols, weight.rows) };
    let heads = weight.count;
    let parts = Parts::new(y);
    if transposed {
        machine.pool.run(heads, |h| {
            let codes = Codes::of(weight, h);
            let mut decoded = vec![0.0; inner * outer];
            for (r, row) in decoded.chunks_exact_mut(outer).enumerate() {
                kernels::decode_row(machine.set, weight, h, codes.as_ref(), r, row);
            }
            let mut head = vec![0.0; n * outer];
            let (size, x) = (dense::Size { m: n, n: outer, k: inner }, (&x[h * inner..], heads * inner));
            dense::nn(machine.set, size, x, (&decoded, outer), (&mut head, outer), false);
            for (t, row) in head.chunks_exact(outer).enumerate() {
                // SAFETY: every head of a token comes once.
                unsafe { parts.range((t * heads + h) * outer, outer) }.copy_from_slice(row);
            }
        });
        return;
    }
    // Every head of a token is an input of its own.
    let tokens: Vec<Vec<u32>> =
        (0..heads).map(|h| (0..n).map(|t| (t * heads + h) as u32).collect()).collect();
    let groups: Vec<_> = (tokens.iter().enumerate())
        .map(|(h, tokens)| Group { matrices: [Rows::new(machine, weight, h)], tokens })
        .collect();
    let inputs = Inputs::new(machine, x, inner, &groups);
    products(machine, &inputs, &groups, |_, t, first, [values]| {
        // SAFETY: every piece of a head of a token comes once.
        unsafe { parts.range(t as usize * outer + first, values.len()) }.copy_from_slice(values);
    });
}

/// `y[t] = scale * table[tokens[t]]`
pub(crate) fn embed(machine: &Machine, table: &Weight, tokens: &[u32], scale: f32, y: &mut [f32]) {
    machine.pool.pieces(y, table.cols, |t, y| {
        table.decode_row(0, tokens[t] as usize, y);
        y.iter_mut().for_each(|v| *v *= scale);
    });
}
