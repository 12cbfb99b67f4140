//! Experts, and what is done with their sum.

use backend::{Activation, Backend, Checked, Routing, Shared};
use checkpoint::{Float, Format};

use super::{chunks, ensure, in_chunks, y};
use crate::formulas::{moe, sigmoid};
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::weights::{BF16, F32, Q4, Recipe, Sample, affine, format_name, fp8};
use crate::{Bound, Case};

const BOUND: Bound = Bound::l2(2e-6);

/// Tokens, experts, chosen, hidden size, width of an expert, format of gate and up, format of down.
const SHAPES: [(usize, usize, usize, usize, usize, Format, Format); 12] = [
    (1, 1, 1, 5, 3, F32, F32),
    (1, 8, 2, 128, 64, Q4, Q4),
    (1, 16, 16, 64, 64, Q4, Q4),
    (7, 5, 1, 33, 17, BF16, BF16),
    (70, 12, 3, 64, 96, affine(3, 64, Float::F16), affine(5, 32, Float::Bf16)),
    (70, 4, 4, 96, 32, affine(2, 32, Float::F32), affine(8, 32, Float::F32)),
    (20, 200, 8, 64, 32, Q4, affine(6, 32, Float::Bf16)),
    (3, 6, 2, 2048, 128, Q4, Q4),
    (65, 3, 2, 7, 31, F32, BF16),
    (5, 6, 2, 64, 96, Format::Mxfp4, Format::Mxfp4),
    (70, 4, 2, 96, 48, Format::Mxfp8, Format::Nvfp4),
    (9, 5, 3, 50, 70, fp8(128, 128), fp8(32, 16)),
];

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (n, count, top_k, d, width, format, down) in SHAPES {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let formats = format!("{} and {}", format_name(format), format_name(down));
            let detail = format!("{activation:?}, {formats}, {top_k} of {count}, [{width}, {d}], n={n}");
            cases.push(Case::new("experts", detail, BOUND, move |b: &Checked<'_, B>, rng| {
                let stacks = stacks(rng, count, d, width, format, down);
                let logits = rng.calm(n, count);
                check(b, rng, &stacks, &logits, top_k, activation)
            }));
        }
    }
    cases.push(Case::new(
        "experts",
        "one expert for all tokens, the others for none, n=40",
        BOUND,
        |b: &Checked<'_, B>, rng| {
            let stacks = stacks(rng, 6, 64, 32, Q4, affine(4, 32, Float::Bf16));
            let logits = Host::from_fn(40, 6, |_, e| if e == 4 { 9.0 } else { rng.uniform(-1.0, 1.0) });
            check(b, rng, &stacks, &logits, 1, Activation::Silu)
        },
    ));
    cases.push(Case::new(
        "experts",
        "an expert that nobody chose, n=40",
        BOUND,
        |b: &Checked<'_, B>, rng| {
            let stacks = stacks(rng, 6, 64, 32, Q4, affine(4, 32, Float::Bf16));
            let logits = Host::from_fn(40, 6, |_, e| if e == 2 { -9.0 } else { rng.uniform(-1.0, 1.0) });
            check(b, rng, &stacks, &logits, 3, Activation::Silu)
        },
    ));
    cases.push(Case::new(
        "expert_weights",
        "halves of one fused gate_up, unaligned, n=9",
        BOUND,
        |b: &Checked<'_, B>, rng| {
            let fused = Recipe::new(Q4, 2 * 64, 128).stack(5).unaligned().build(rng);
            let down = Recipe::new(Q4, 128, 64).stack(5).unaligned().build(rng);
            let stacks = [fused.row_range(0..64), fused.row_range(64..128), down];
            let logits = rng.calm(9, 5);
            check(b, rng, &stacks, &logits, 2, Activation::Silu)
        },
    ));
    for form in ["absent", "plain", "gated"] {
        for (n, d) in [(1, 7), (5, 129)] {
            cases.push(combine(form, n, d));
        }
    }
    cases
}

fn stacks(rng: &mut Rng, count: usize, d: usize, width: usize, format: Format, down: Format) -> [Sample; 3] {
    let gate = Recipe::new(format, width, d).stack(count);
    [gate.build(rng), gate.build(rng), Recipe::new(down, d, width).stack(count).build(rng)]
}

/// All tokens at once and in chunks, against the formula over the routes the backend itself took.
fn check<B: Backend>(
    b: &Checked<'_, B>,
    rng: &mut Rng,
    stacks: &[Sample; 3],
    logits: &Host,
    top_k: usize,
    activation: Activation,
) -> crate::CaseResult {
    let [gate, up, down] = stacks;
    let (n, d) = (logits.rows, gate.weight.cols);
    let x = rng.values(n, d);
    let weights = b.expert_weights([&gate.weight, &up.weight, &down.weight], None)?;
    let (ids, w) =
        b.read_routes(&b.route(&logits.on(b)?, &Routing::Softmax { top_k, renormalise: true })?)?;
    ensure(ids.len() == n * top_k, "the number of routes is wrong")?;
    let one = |(t, x): (usize, &Vec<f64>)| {
        let range = t * top_k..(t + 1) * top_k;
        moe::experts(x, &ids[range.clone()], &w[range], [gate, up, down], activation)
    };
    let expected: Rows = x.wide().iter().enumerate().map(one).collect();
    in_chunks(n, &expected, |chunk| {
        let parts = chunks(n, chunk).map(|r| {
            let routes =
                b.route(&logits.slice(r.clone()).on(b)?, &Routing::Softmax { top_k, renormalise: true })?;
            b.read(&b.experts(&x.slice(r).on(b)?, &routes, &weights, activation)?)
        });
        Ok(parts.collect::<backend::Result<Vec<_>>>()?.concat())
    })
}

fn combine<B: Backend>(form: &'static str, n: usize, d: usize) -> Case<B> {
    Case::new(
        "combine",
        format!("shared expert {form}, [{n}, {d}]"),
        Bound::l2(5e-7),
        move |b: &Checked<'_, B>, rng| {
            let (h, m, s) = (rng.values(n, d), rng.values(n, d), rng.values(n, d));
            let mut gate = rng.calm(n, 1);
            if n > 2 {
                (gate.values[0], gate.values[1]) = (1e4, -1e4);
            }
            let (shared, logits) = (s.on(b)?, gate.on(b)?);
            let (argument, strength): (_, Vec<f64>) = match form {
                "absent" => (Shared::Absent, vec![0.0; n]),
                "plain" => (Shared::Plain(&shared), vec![1.0; n]),
                _ => {
                    let strength = gate.wide().concat().iter().map(|g| sigmoid(*g)).collect();
                    (Shared::Gated { x: &shared, gate: &logits }, strength)
                }
            };
            let out = b.combine(&h.on(b)?, &m.on(b)?, argument)?;
            y(b.read(&out)?, &moe::combine(&h.wide(), &m.wide(), Some(&s.wide()), &strength))
        },
    )
}
