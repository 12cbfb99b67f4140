//! Matrices over one input, and the shared expert.

use backend::{Activation, Backend, Checked};
use checkpoint::{Float, Format};

use super::{chunks, in_chunks};
use crate::formulas::{moe, products};
use crate::host::Rows;
use crate::random::Rng;
use crate::weights::{BF16, Q4, Recipe, Sample, affine, format_name};
use crate::{Bound, Case, CaseResult, Output};

/// Some outputs are a single value, whose terms may cancel.
const BOUND: Bound = Bound::l2(5e-6);
const Q8: Format = affine(8, 64, Float::Bf16);

/// Rows of three matrices, columns, format.
const JOINED: [([usize; 3], usize, Format); 12] = [
    ([33, 64, 5], 96, affine(4, 32, Float::F16)),
    ([64, 128, 1], 2048, Q4),
    ([70, 3, 200], 4096, Q8),
    ([9, 65, 64], 5120, affine(8, 128, Float::F32)),
    ([4100, 8, 70], 256, Q4),
    ([8200, 1, 1], 64, Q4),
    ([8500, 1, 1], 320, Q4),
    // As many rows as heads have.
    ([32_800, 7, 70], 192, Q4),
    ([33_000, 1, 1], 544, affine(4, 32, Float::F32)),
    ([40_000, 8, 5], 288, affine(8, 32, Float::F16)),
    // Wide rows, more than workgroups take at once.
    ([2200, 20, 3], 2112, Q4),
    ([17, 5, 3], 77, BF16),
];

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases: Vec<_> = JOINED.map(|(rows, cols, format)| joined(rows, cols, format)).into();
    cases.push(Case::new("linear", "odd rows, each by itself, n=3", BOUND, |b: &Checked<'_, B>, rng| {
        let x = rng.values(3, 128);
        let mut outputs = Vec::new();
        for sample in samples(rng, Q4, [33, 1, 70], 128) {
            let values = b.read(&b.matmul(&x.on(b)?, &b.linear(&[&sample.weight])?)?)?;
            let label = format!("{} rows", sample.weight.rows);
            let output = Output::close(label, values, &products::matmul(&sample, &x.wide()));
            outputs.push(if sample.weight.rows == 1 { output.flat() } else { output });
        }
        Ok(outputs)
    }));
    for (name, width) in [("like the others", 64), ("of another width", 128)] {
        let detail = format!("{name}, 11 tokens in chunks");
        let run = move |b: &Checked<'_, B>, rng: &mut Rng| shared_expert(b, rng, width);
        cases.push(Case::new("shared_expert", detail, BOUND, run));
    }
    cases
}

fn samples<const N: usize>(rng: &mut Rng, format: Format, rows: [usize; N], cols: usize) -> [Sample; N] {
    rows.map(|rows| Recipe::new(format, rows, cols).build(rng))
}

fn joined<B: Backend>(rows: [usize; 3], cols: usize, format: Format) -> Case<B> {
    let detail = format!("{}, {rows:?} rows, {cols} columns", format_name(format));
    Case::new("matmuls", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let weights = samples(rng, format, rows, cols);
        let linear = b.linear(&weights.each_ref().map(|sample| &sample.weight))?;
        let x = rng.values(11, cols);
        let mut outputs = Vec::new();
        for range in [0..1, 1..3, 0..11] {
            let part = x.slice(range.clone());
            for (i, (y, sample)) in b.matmuls(&part.on(b)?, &linear)?.iter().zip(&weights).enumerate() {
                let expected = products::matmul(sample, &part.wide());
                let output = Output::close(format!("y{i} of {range:?}"), b.read(y)?, &expected);
                outputs.push(if expected.concat().len() < 12 { output.flat() } else { output });
            }
        }
        Ok(outputs)
    })
}

fn shared_expert<B: Backend>(b: &Checked<'_, B>, rng: &mut Rng, width: usize) -> CaseResult {
    let mlp = |rng: &mut Rng, count: usize, width: usize| {
        let gate = Recipe::new(Q4, width, 64).stack(count);
        [gate.build(rng), gate.build(rng), Recipe::new(Q4, 64, width).stack(count).build(rng)]
    };
    let (stacks, shared) = (mlp(rng, 3, 64), mlp(rng, 1, width));
    let weights = b.expert_weights(
        stacks.each_ref().map(|sample| &sample.weight),
        Some(shared.each_ref().map(|sample| &sample.weight)),
    )?;
    let x = rng.values(11, 64);
    let one = |x: &Vec<f64>| moe::experts(x, &[0], &[1.0], shared.each_ref(), Activation::Silu);
    let expected: Rows = x.wide().iter().map(one).collect();
    in_chunks(11, &expected, |chunk| {
        let parts = chunks(11, chunk).map(|range| {
            let y = b.shared_expert(&x.slice(range).on(b)?, &weights, Activation::Silu)?;
            b.read(&y.expect("there is a shared expert"))
        });
        Ok(parts.collect::<backend::Result<Vec<_>>>()?.concat())
    })
}
