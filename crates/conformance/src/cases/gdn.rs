//! Gated DeltaNet.

use std::ops::Range;

use backend::pool::{LayerShape, Slot};
use backend::{Backend, Checked, GdnShape, GdnVectors, Result};

use super::test_pool::{TestPool, crowd, in_turns};
use super::{chunks, in_chunks, y};
use crate::formulas::gdn as formula;
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::{Bound, Case, CaseResult, Output};

const BOUND: Bound = Bound::l2(2e-6);

/// Key heads, value heads, key width, value width.
const HEADS: [(usize, usize, usize, usize); 8] = [
    (1, 1, 1, 1),
    (1, 1, 16, 16),
    (2, 4, 16, 8),
    (2, 8, 7, 13),
    (3, 3, 33, 5),
    (1, 4, 64, 64),
    (2, 2, 128, 128),
    (1, 2, 130, 20),
];

pub(super) fn shape(key_heads: usize, value_heads: usize, key_dim: usize, value_dim: usize) -> GdnShape {
    GdnShape { key_heads, value_heads, key_dim, value_dim, kernel: 4 }
}

/// Inputs of the recurrence for one sequence, as a layer would have them.
pub(super) struct Sequence {
    pub qkv: Host,
    pub g: Host,
    pub beta: Host,
}

impl Sequence {
    /// Keys of about unit length, decays between 0.6 and 1.
    pub fn new(rng: &mut Rng, shape: &GdnShape, n: usize) -> Sequence {
        let keys = 2 * shape.key_total();
        let unit = 1.0 / (shape.key_dim as f32).sqrt();
        let qkv = rng.calm(n, shape.channels());
        let qkv =
            Host::from_fn(n, shape.channels(), |t, c| qkv.row(t)[c] * if c < keys { unit } else { 1.0 });
        let g = Host::from_fn(n, shape.value_heads, |_, _| rng.uniform(0.6, 1.0));
        Sequence { qkv, g, beta: Host::from_fn(n, shape.value_heads, |_, _| rng.uniform(0.0, 1.0)) }
    }

    /// What the formula gives: outputs, and the state after them.
    pub fn expected(&self, shape: &GdnShape) -> (Rows, Rows) {
        let mut state = Vec::new();
        let y = formula::recurrence(&self.qkv.wide(), &self.g.wide(), &self.beta.wide(), shape, &mut state);
        (y, state.concat())
    }

    /// The tokens of `range` on a backend.
    pub fn step<B: Backend>(
        &self,
        pool: &mut TestPool<'_, B>,
        slot: Slot,
        range: Range<usize>,
    ) -> Result<Vec<f32>> {
        together(pool, &[(slot, self, range)])
    }
}

/// A step of some tokens of several sequences.
fn together<B: Backend>(
    pool: &mut TestPool<'_, B>,
    parts: &[(Slot, &Sequence, Range<usize>)],
) -> Result<Vec<f32>> {
    let b = pool.b;
    let on = |of: fn(&Sequence) -> &Host| {
        let parts = parts.iter().map(|(_, s, range)| of(s).slice(range.clone()));
        Host::stack(&parts.collect::<Vec<_>>()).on(&b)
    };
    let (qkv, g, beta) = (on(|s| &s.qkv)?, on(|s| &s.g)?, on(|s| &s.beta)?);
    let spans: Vec<_> = parts.iter().map(|(slot, _, range)| (*slot, range.len())).collect();
    pool.step(&spans, |batch, slabs, layer| b.read(&b.gdn(&qkv, &g, &beta, batch, slabs, layer)?))
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (kh, vh, dk, dv) in HEADS {
        let shape = shape(kh, vh, dk, dv);
        let name = format!("{kh}x{dk} keys, {vh}x{dv} values");
        cases.push(recurrence(format!("{name}, 70 tokens in chunks"), shape, 70, |_| {}));
        cases.push(Case::new("gdn_qk_norm", name, Bound::l2(5e-7), move |b: &Checked<'_, B>, rng| {
            let qkv = rng.values(5, shape.channels());
            y(b.read(&b.gdn_qk_norm(qkv.on(b)?, &shape)?)?, &formula::qk_norm(&qkv.wide(), &shape))
        }));
    }
    let small = shape(2, 4, 16, 8);
    cases.push(recurrence("600 tokens in chunks".into(), small, 600, |_| {}));
    cases.push(recurrence("129 tokens, no decay at all".into(), small, 129, |s| s.g.values.fill(1.0)));
    cases.push(recurrence("130 tokens, g exactly 0 at times".into(), small, 130, |s| {
        // The first token, the last before a chunk ends, the first of one, two in a row, and one head alone.
        for t in [0, 6, 7, 8, 63, 64, 100] {
            s.g.values[t * 4..(t + 1) * 4].fill(0.0);
        }
        s.g.values[50 * 4 + 2] = 0.0;
    }));
    cases.push(recurrence("70 tokens, g nearly 0".into(), small, 70, |s| {
        s.g.values.iter_mut().step_by(3).for_each(|g| *g = 1e-38);
    }));
    cases.push(recurrence("70 tokens, beta 0 and 1".into(), small, 70, |s| {
        s.beta.values.iter_mut().enumerate().for_each(|(i, beta)| *beta = (i / 3 % 2) as f32);
    }));
    cases.push(batched());
    for (count, mixed) in [(1, false), (2, true), (5, false), (70, false), (70, true)] {
        let tokens = if mixed { "one or more tokens" } else { "one token" };
        let detail = format!("{count} sequences, {tokens} each");
        cases.push(Case::new("gdn", &detail, BOUND, move |b: &Checked<'_, B>, rng| {
            batch(b, rng, &shape(2, 4, 9, 6), &crowd(count, mixed))
        }));
        cases.push(Case::new("conv_causal", detail, BOUND, move |b: &Checked<'_, B>, rng| {
            conv_crowd(b, rng, &crowd(count, mixed))
        }));
    }
    for kernel in 1..=5 {
        for n in [1, 2, 3, 70] {
            cases.push(conv(kernel, n));
        }
    }
    cases.push(conv_batched());
    cases.push(Case::new(
        "gdn_qk_norm",
        "zero and tiny heads",
        Bound::l2(5e-7),
        move |b: &Checked<'_, B>, rng| {
            let mut qkv = rng.values(6, small.channels());
            for (t, size) in [(0, 0.0), (1, 1e-3), (2, 1e-10), (3, 1e-30), (4, 1e18)] {
                let head = &mut qkv.values[t * small.channels()..][..2 * small.key_total()];
                head.iter_mut().for_each(|v| *v *= size);
            }
            y(b.read(&b.gdn_qk_norm(qkv.on(b)?, &small)?)?, &formula::qk_norm(&qkv.wide(), &small))
        },
    ));
    cases.push(gates());
    cases
}

fn recurrence<B: Backend>(detail: String, shape: GdnShape, n: usize, change: fn(&mut Sequence)) -> Case<B> {
    Case::new("gdn", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let mut s = Sequence::new(rng, &shape, n);
        change(&mut s);
        let (expected, expected_state) = s.expected(&shape);
        let mut states = Vec::new();
        let mut outputs = in_chunks(n, &expected, |chunk| {
            let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(shape))?;
            let slot = pool.create()?;
            let parts = chunks(n, chunk).map(|r| s.step(&mut pool, slot, r)).collect::<Result<Vec<_>>>()?;
            states.push(pool.save_state(slot)?.state);
            Ok(parts.concat())
        })?;
        let judged = |(i, s): (usize, Vec<f32>)| Output::close(format!("state {i}"), s, &expected_state);
        outputs.extend(states.into_iter().enumerate().map(judged));
        outputs.iter_mut().for_each(|o| o.flat = shape.channels() < 8);
        Ok(outputs)
    })
}

fn batched<B: Backend>() -> Case<B> {
    // Tokens already seen, tokens of this step.
    const SPANS: [(usize, usize); 4] = [(0, 5), (30, 1), (3, 66), (0, 1)];
    Case::new("gdn", "four sequences in one batch", BOUND, |b: &Checked<'_, B>, rng| {
        batch(b, rng, &shape(2, 4, 9, 6), &SPANS)
    })
}

/// Several sequences in one step, each behind tokens of its own.
fn batch<B: Backend>(
    b: &Checked<'_, B>,
    rng: &mut Rng,
    shape: &GdnShape,
    spans: &[(usize, usize)],
) -> CaseResult {
    let sequences: Vec<_> = spans.iter().map(|(past, new)| Sequence::new(rng, shape, past + new)).collect();
    let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(*shape))?;
    let slots = pool.create_all(spans.len())?;
    for turn in in_turns(spans) {
        let parts: Vec<_> = turn.into_iter().map(|(i, range)| (slots[i], &sequences[i], range)).collect();
        together(&mut pool, &parts)?;
    }
    let parts = slots.iter().zip(&sequences).zip(spans);
    let parts: Vec<_> = parts.map(|((slot, s), (past, new))| (*slot, s, *past..past + new)).collect();
    let out = together(&mut pool, &parts)?;
    let (expected, states): (Vec<_>, Vec<_>) = sequences.iter().map(|s| s.expected(shape)).unzip();
    let expected = expected.into_iter().zip(spans).flat_map(|(y, (past, _))| y[*past..].to_vec()).collect();
    let mut outputs = vec![Output::close("y", out, &expected)];
    let found = slots.iter().map(|slot| Ok(pool.save_state(*slot)?.state));
    let found = found.collect::<Result<Vec<_>>>()?.concat();
    outputs.push(Output::close("states", found, &states.concat()));
    Ok(outputs)
}

fn conv<B: Backend>(kernel: usize, n: usize) -> Case<B> {
    Case::new(
        "conv_causal",
        format!("kernel {kernel}, {n} tokens at once and in chunks"),
        BOUND,
        move |b: &Checked<'_, B>, rng| {
            let shape = GdnShape { kernel, ..shape(2, 2, 3, 5) };
            let (x, taps) = (rng.values(n, shape.channels()), rng.calm(shape.channels(), kernel));
            let expected = formula::conv(&x.wide(), &taps.wide());
            let w = taps.on(b)?;
            let mut windows = Vec::new();
            let mut outputs = in_chunks(n, &expected, |chunk| {
                let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(shape))?;
                let slot = pool.create()?;
                let parts = chunks(n, chunk).map(|r| convolve(&mut pool, &w, &[(slot, &x, r)]));
                let out = parts.collect::<Result<Vec<_>>>()?.concat();
                windows.push(pool.save_state(slot)?.window);
                Ok(out)
            })?;
            // The last kernel - 1 inputs; before the sequence there are zeros.
            let all = Host::stack(&[Host::from_fn(kernel, shape.channels(), |_, _| 0.0), x]);
            let last = all.slice(n + 1..n + kernel).values;
            outputs.extend(windows.into_iter().map(|w| Output::exact("window", w, last.clone()).flat()));
            Ok(outputs)
        },
    )
}

/// A convolution of some tokens of several sequences.
fn convolve<B: Backend>(
    pool: &mut TestPool<'_, B>,
    w: &B::Tensor,
    parts: &[(Slot, &Host, Range<usize>)],
) -> Result<Vec<f32>> {
    let b = pool.b;
    let x: Vec<_> = parts.iter().map(|(_, x, range)| x.slice(range.clone())).collect();
    let x = Host::stack(&x).on(&b)?;
    let spans: Vec<_> = parts.iter().map(|(slot, _, range)| (*slot, range.len())).collect();
    pool.step(&spans, |batch, slabs, layer| b.read(&b.conv_causal(&x, w, batch, slabs, layer)?))
}

fn conv_batched<B: Backend>() -> Case<B> {
    Case::new("conv_causal", "three sequences, two steps", BOUND, |b: &Checked<'_, B>, rng| {
        let shape = shape(1, 2, 5, 3);
        let taps = rng.calm(shape.channels(), 4);
        let steps = [[(1, 0), (5, 0), (2, 0)], [(4, 1), (1, 5), (2, 2)]];
        let sequences = [5, 6, 4].map(|n| rng.values(n, shape.channels()));
        let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(shape))?;
        let slots = pool.create_all(3)?;
        let w = taps.on(b)?;
        let mut outputs = Vec::new();
        for step in steps {
            let parts = slots.iter().zip(&sequences).zip(step);
            let parts: Vec<_> = parts.map(|((slot, x), (n, at))| (*slot, x, at..at + n)).collect();
            let out = convolve(&mut pool, &w, &parts)?;
            let full = sequences.iter().map(|s| formula::conv(&s.wide(), &taps.wide()));
            let expected = full.zip(step).flat_map(|(y, (n, at))| y[at..at + n].to_vec()).collect();
            outputs.push(Output::close("y", out, &expected));
        }
        Ok(outputs)
    })
}

/// Several sequences in one step, each behind tokens of its own; then two tokens more of each.
fn conv_crowd<B: Backend>(b: &Checked<'_, B>, rng: &mut Rng, spans: &[(usize, usize)]) -> CaseResult {
    let shape = shape(1, 2, 5, 3);
    let (taps, seen) = (rng.calm(shape.channels(), 4), spans.iter().map(|(past, new)| past + new));
    let sequences: Vec<_> = seen.map(|n| rng.values(n + 2, shape.channels())).collect();
    let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(shape))?;
    let slots = pool.create_all(spans.len())?;
    let w = taps.on(b)?;
    for turn in in_turns(spans) {
        let parts: Vec<_> = turn.into_iter().map(|(i, range)| (slots[i], &sequences[i], range)).collect();
        convolve(&mut pool, &w, &parts)?;
    }
    let expected: Vec<_> = sequences.iter().map(|s| formula::conv(&s.wide(), &taps.wide())).collect();
    let mut outputs = Vec::new();
    for (label, more) in [("y", 0), ("y of two more", 2)] {
        let range = |(past, new): &(usize, usize)| match more {
            0 => *past..past + new,
            more => past + new..past + new + more,
        };
        let parts = slots.iter().zip(&sequences).zip(spans);
        let parts: Vec<_> = parts.map(|((slot, x), span)| (*slot, x, range(span))).collect();
        let out = convolve(&mut pool, &w, &parts)?;
        let rows = expected.iter().zip(spans).flat_map(|(y, span)| y[range(span)].to_vec()).collect();
        outputs.push(Output::close(label, out, &rows));
    }
    Ok(outputs)
}

fn gates<B: Backend>() -> Case<B> {
    Case::new("gdn_gates", "a and b to 1e4 and -1e4, 7 heads, n=6", BOUND, |b: &Checked<'_, B>, rng| {
        let (mut a, mut beta) = (rng.values(6, 7), rng.values(6, 7));
        for (i, v) in [1e4, -1e4, 100.0, -100.0, 20.0, -20.0, 0.0].into_iter().enumerate() {
            (a.values[i], beta.values[i]) = (v, v);
        }
        // Heads that decay so slowly that the softplus of 1e4 is not yet the end: an overflow in it would show.
        let a_log = Host::vector(vec![-9.2, 0.0, -4.5, 1.0, -3.0, 1.0, 0.5]);
        // And one that decays so fast that g is exactly 0.
        a.values[13] = 1e4;
        let dt_bias = rng.calm(1, 7);
        let vectors = GdnVectors { conv: a.on(b)?, a_log: a_log.on(b)?, dt_bias: dt_bias.on(b)? };
        let (g, strength) = b.gdn_gates(&a.on(b)?, &beta.on(b)?, &vectors)?;
        let expected = formula::decay(&a.wide(), &a_log.wide().concat(), &dt_bias.wide().concat());
        Ok(vec![
            Output::close("g", b.read(&g)?, &expected),
            Output::close("beta", b.read(&strength)?, &formula::beta(&beta.wide())),
        ])
    })
}
