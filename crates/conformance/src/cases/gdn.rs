//! Gated DeltaNet.

use backend::{Backend, Checked, GdnShape, GdnVectors, Result};

use super::{chunks, in_chunks, one_span, spans, y};
use crate::formulas::gdn as formula;
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::{Bound, Case, Output};

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
        b: &Checked<'_, B>,
        state: &mut B::Recurrent,
        r: std::ops::Range<usize>,
    ) -> Result<Vec<f32>> {
        let batch = one_span(b, r.len(), r.start)?;
        let on = |x: &Host| x.slice(r.clone()).on(b);
        b.read(&b.gdn(&on(&self.qkv)?, &on(&self.g)?, &on(&self.beta)?, &batch, &mut [state])?)
    }
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
            let mut state = b.recurrent(&shape)?;
            let parts = chunks(n, chunk).map(|r| s.step(b, &mut state, r)).collect::<Result<Vec<_>>>()?;
            states.push(b.recurrent_save(&state)?.state);
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
        let shape = shape(2, 4, 9, 6);
        let sequences = SPANS.map(|(past, new)| Sequence::new(rng, &shape, past + new));
        let mut states = Vec::new();
        for (s, (past, _)) in sequences.iter().zip(SPANS) {
            let mut state = b.recurrent(&shape)?;
            if past > 0 {
                s.step(b, &mut state, 0..past)?;
            }
            states.push(state);
        }
        let part = |of: fn(&Sequence) -> &Host| {
            let parts = sequences.iter().zip(SPANS).map(|(s, (past, new))| of(s).slice(past..past + new));
            Host::stack(&parts.collect::<Vec<_>>()).on(b)
        };
        let batch = spans(b, &SPANS.map(|(past, new)| (new, past)))?;
        let mut handles: Vec<_> = states.iter_mut().collect();
        let out = b.gdn(&part(|s| &s.qkv)?, &part(|s| &s.g)?, &part(|s| &s.beta)?, &batch, &mut handles)?;
        let expected = sequences
            .iter()
            .zip(SPANS)
            .flat_map(|(s, (past, _))| s.expected(&shape).0[past..].to_vec())
            .collect();
        y(b.read(&out)?, &expected)
    })
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
                let mut state = b.recurrent(&shape)?;
                let mut out = Vec::new();
                for r in chunks(n, chunk) {
                    let batch = one_span(b, r.len(), r.start)?;
                    out.extend(b.read(&b.conv_causal(
                        &x.slice(r).on(b)?,
                        &w,
                        &batch,
                        &mut [&mut state],
                    )?)?);
                }
                windows.push(b.recurrent_save(&state)?.window);
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

fn conv_batched<B: Backend>() -> Case<B> {
    Case::new("conv_causal", "three sequences, two steps", BOUND, |b: &Checked<'_, B>, rng| {
        let shape = shape(1, 2, 5, 3);
        let taps = rng.calm(shape.channels(), 4);
        let steps = [[(1, 0), (5, 0), (2, 0)], [(4, 1), (1, 5), (2, 2)]];
        let sequences = [5, 6, 4].map(|n| rng.values(n, shape.channels()));
        let mut states = [b.recurrent(&shape)?, b.recurrent(&shape)?, b.recurrent(&shape)?];
        let mut outputs = Vec::new();
        for step in steps {
            let parts: Vec<Host> =
                sequences.iter().zip(step).map(|(s, (n, at))| s.slice(at..at + n)).collect();
            let mut handles: Vec<_> = states.iter_mut().collect();
            let out =
                b.conv_causal(&Host::stack(&parts).on(b)?, &taps.on(b)?, &spans(b, &step)?, &mut handles)?;
            let full = sequences.iter().map(|s| formula::conv(&s.wide(), &taps.wide()));
            let expected = full.zip(step).flat_map(|(y, (n, at))| y[at..at + n].to_vec()).collect();
            outputs.push(Output::close("y", b.read(&out)?, &expected));
        }
        Ok(outputs)
    })
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
