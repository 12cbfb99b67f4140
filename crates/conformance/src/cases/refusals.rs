//! Wrong inputs of operations without state: an error that names the operation, never a panic.

use backend::pool::{LayerShape, Pool};
use backend::{
    Activation, Backend, Checked, Error, GdnShape, GdnVectors, GroupedSigmoid, Pairing, Result, RopeSpec,
    Routing, Shared,
};

use super::{batch_at, one_span, refused};
use crate::random::Rng;
use crate::weights::{F32, Recipe};
use crate::{Bound, Case, Fault};

const GDN: GdnShape = GdnShape { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 5, kernel: 4 };

/// A call that must be refused with a shape error that names the operation.
pub(super) fn wrong<B: Backend, T>(
    operation: &'static str,
    what: &str,
    call: impl Fn(&Checked<'_, B>, &mut Rng) -> Result<T> + Send + Sync + 'static,
) -> Case<B> {
    // Products with several matrices are refused under the name of the product.
    let named = if operation == "matmuls" { "matmul" } else { operation };
    let run = move |b: &Checked<'_, B>, rng: &mut Rng| refused(named, call(b, rng));
    Case::new(operation, format!("refused: {what}"), Bound::EXACT, run)
}

/// A tensor of any values.
pub(super) fn t<B: Backend>(b: &Checked<'_, B>, rows: usize, cols: usize) -> Result<B::Tensor> {
    b.upload(rows, cols, &vec![0.5; rows * cols])
}

/// Matrices of any values: their rows, and the columns.
fn m<const N: usize, B: Backend>(
    b: &Checked<'_, B>,
    rng: &mut Rng,
    rows: [usize; N],
    cols: usize,
) -> Result<B::Linear> {
    let samples = rows.map(|rows| Recipe::new(F32, rows, cols).build(rng));
    b.linear(&samples.each_ref().map(|sample| &sample.weight))
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    [rows_and_columns(), products(), norms(), routing(), experts(), gdn()].into_iter().flatten().collect()
}

fn rows_and_columns<B: Backend>() -> Vec<Case<B>> {
    vec![
        wrong("upload", "one value too few", |b: &Checked<'_, B>, _| b.upload(2, 3, &[0.0; 5])),
        wrong("reshape", "another number of values", |b: &Checked<'_, B>, _| b.reshape(t(b, 2, 3)?, 2, 4)),
        wrong("select_rows", "a row past the end", |b: &Checked<'_, B>, _| {
            b.select_rows(&t(b, 2, 3)?, &[0, 2])
        }),
        wrong("columns", "past the end", |b: &Checked<'_, B>, _| b.columns(&t(b, 2, 3)?, 1, 3)),
        wrong("columns", "a start that overflows", |b: &Checked<'_, B>, _| {
            b.columns(&t(b, 2, 3)?, usize::MAX, 2)
        }),
        wrong("join_rows", "another number of columns", |b: &Checked<'_, B>, _| {
            b.join_rows(&[&t(b, 2, 3)?, &t(b, 2, 4)?])
        }),
        wrong("join_rows", "no parts", |b: &Checked<'_, B>, _| b.join_rows(&[])),
        wrong("join_columns", "another number of rows", |b: &Checked<'_, B>, _| {
            b.join_columns(&t(b, 2, 3)?, &t(b, 3, 3)?)
        }),
        wrong("split_heads", "width not divisible", |b: &Checked<'_, B>, _| {
            b.split_heads(&t(b, 2, 7)?, 3, 1)
        }),
        wrong("split_heads", "first part too wide", |b: &Checked<'_, B>, _| {
            b.split_heads(&t(b, 2, 6)?, 3, 3)
        }),
        wrong("split_heads", "no heads", |b: &Checked<'_, B>, _| b.split_heads(&t(b, 2, 6)?, 0, 3)),
        wrong("split_qkvz", "another width", |b: &Checked<'_, B>, _| b.split_qkvz(&t(b, 2, 51)?, &GDN)),
        wrong("split_qkvz", "heads not divisible", |b: &Checked<'_, B>, _| {
            b.split_qkvz(&t(b, 2, 52)?, &GdnShape { key_heads: 3, ..GDN })
        }),
        wrong("rope", "a row too many", |b: &Checked<'_, B>, _| {
            let rope = b.rope_table(&RopeSpec::plain(4, 1e4, Pairing::Halves))?;
            b.rope(t(b, 3, 8)?, &one_span(b, 2, 0)?, &rope, 2)
        }),
        wrong("rope", "width not divisible", |b: &Checked<'_, B>, _| {
            let rope = b.rope_table(&RopeSpec::plain(2, 1e4, Pairing::Halves))?;
            b.rope(t(b, 2, 8)?, &one_span(b, 2, 0)?, &rope, 3)
        }),
        wrong("rope", "head narrower than the rotation", |b: &Checked<'_, B>, _| {
            let rope = b.rope_table(&RopeSpec::plain(6, 1e4, Pairing::Halves))?;
            b.rope(t(b, 2, 8)?, &one_span(b, 2, 0)?, &rope, 2)
        }),
        wrong("batch", "no sequences", |b: &Checked<'_, B>, _| batch_at(b, &[])),
        wrong("batch", "a sequence without tokens", |b: &Checked<'_, B>, _| {
            batch_at(b, &[(&[1], 0), (&[], 3)])
        }),
    ]
}

fn products<B: Backend>() -> Vec<Case<B>> {
    vec![
        wrong("linear", "a stack", |b: &Checked<'_, B>, rng| {
            b.linear(&[&Recipe::new(F32, 2, 3).stack(2).build(rng).weight])
        }),
        wrong("linear", "no matrix", |b: &Checked<'_, B>, _| b.linear(&[])),
        wrong("linear", "more matrices than four", |b: &Checked<'_, B>, rng| m(b, rng, [1; 5], 3)),
        wrong("linear", "inputs of two widths", |b: &Checked<'_, B>, rng| {
            let [wide, narrow] = [3, 4].map(|cols| Recipe::new(F32, 2, cols).build(rng).weight);
            b.linear(&[&wide, &narrow])
        }),
        Case::new("embed", "refused: a token past the table", Bound::EXACT, |b: &Checked<'_, B>, rng| {
            let batch = batch_at(b, &[(&[0, 5], 0)])?;
            match b.embed(&m(b, rng, [5], 3)?, &batch, 1.0) {
                Err(Error::TokenOutOfRange { id: 5, vocabulary: 5 }) => Ok(Vec::new()),
                Err(error) => Err(Fault::Wrong(format!("refused, but with {error:?}"))),
                Ok(_) => Err(Fault::Wrong("token 5 of a table of 5 was accepted".into())),
            }
        }),
        wrong("matmul", "another width", |b: &Checked<'_, B>, rng| {
            b.matmul(&t(b, 2, 4)?, &m(b, rng, [5], 3)?)
        }),
        wrong("matmul", "two matrices for one", |b: &Checked<'_, B>, rng| {
            b.matmul(&t(b, 2, 4)?, &m(b, rng, [5, 5], 4)?)
        }),
        wrong("matmuls", "another width", |b: &Checked<'_, B>, rng| {
            b.matmuls(&t(b, 2, 4)?, &m(b, rng, [5, 6], 3)?)
        }),
        wrong("matmul_add", "another width", |b: &Checked<'_, B>, rng| {
            b.matmul_add(&t(b, 2, 4)?, &m(b, rng, [5], 3)?, t(b, 2, 5)?)
        }),
        wrong("matmul_add", "another residual", |b: &Checked<'_, B>, rng| {
            b.matmul_add(&t(b, 2, 4)?, &m(b, rng, [5], 4)?, t(b, 1, 5)?)
        }),
        wrong("gate_up", "another width", |b: &Checked<'_, B>, rng| {
            b.gate_up(&t(b, 2, 4)?, &m(b, rng, [5, 5], 3)?, Activation::Silu)
        }),
        wrong("gate_up", "unequal halves", |b: &Checked<'_, B>, rng| {
            b.gate_up(&t(b, 2, 4)?, &m(b, rng, [5, 6], 4)?, Activation::Silu)
        }),
        wrong("glu", "unequal shapes", |b: &Checked<'_, B>, _| {
            b.glu(t(b, 2, 4)?, &t(b, 2, 5)?, Activation::Silu)
        }),
    ]
}

fn norms<B: Backend>() -> Vec<Case<B>> {
    vec![
        wrong("rms_norm", "another w", |b: &Checked<'_, B>, _| {
            b.rms_norm(&t(b, 2, 4)?, Some(&t(b, 1, 5)?), 1e-6)
        }),
        wrong("rms_norm_heads", "width not divisible", |b: &Checked<'_, B>, _| {
            b.rms_norm_heads(t(b, 2, 4)?, None, 3, 1e-6)
        }),
        wrong("rms_norm_heads", "another w", |b: &Checked<'_, B>, _| {
            b.rms_norm_heads(t(b, 2, 4)?, Some(&t(b, 1, 4)?), 2, 1e-6)
        }),
        wrong("norm_add", "another r", |b: &Checked<'_, B>, _| {
            b.norm_add(&t(b, 1, 4)?, &t(b, 2, 4)?, &t(b, 1, 4)?, 1e-6, 1.0)
        }),
        wrong("norm_add", "another w", |b: &Checked<'_, B>, _| {
            b.norm_add(&t(b, 2, 4)?, &t(b, 2, 4)?, &t(b, 1, 3)?, 1e-6, 1.0)
        }),
        wrong("gated_norm", "another z", |b: &Checked<'_, B>, _| {
            b.gated_norm(&t(b, 2, 4)?, &t(b, 2, 2)?, &t(b, 1, 2)?, 2, 1e-6)
        }),
        wrong("gated_norm", "another w", |b: &Checked<'_, B>, _| {
            b.gated_norm(&t(b, 2, 4)?, &t(b, 2, 4)?, &t(b, 1, 4)?, 2, 1e-6)
        }),
        wrong("sigmoid_gate", "another g", |b: &Checked<'_, B>, _| b.sigmoid_gate(t(b, 2, 4)?, &t(b, 4, 2)?)),
        wrong("combine", "another moe", |b: &Checked<'_, B>, _| {
            b.combine(&t(b, 2, 4)?, &t(b, 2, 5)?, Shared::Absent)
        }),
        wrong("combine", "another shared", |b: &Checked<'_, B>, _| {
            b.combine(&t(b, 2, 4)?, &t(b, 2, 4)?, Shared::Plain(&t(b, 1, 4)?))
        }),
        wrong("combine", "another gate", |b: &Checked<'_, B>, _| {
            let (x, gate) = (t(b, 2, 4)?, t(b, 2, 4)?);
            b.combine(&t(b, 2, 4)?, &t(b, 2, 4)?, Shared::Gated { x: &x, gate: &gate })
        }),
        wrong("combine_norm", "another b", |b: &Checked<'_, B>, _| {
            b.combine_norm(&t(b, 2, 4)?, &t(b, 1, 4)?, &t(b, 3, 4)?, &t(b, 1, 4)?, 1e-6)
        }),
        wrong("combine_norm", "another wb", |b: &Checked<'_, B>, _| {
            b.combine_norm(&t(b, 2, 4)?, &t(b, 1, 4)?, &t(b, 2, 4)?, &t(b, 1, 3)?, 1e-6)
        }),
    ]
}

fn routing<B: Backend>() -> Vec<Case<B>> {
    let good = GroupedSigmoid { top_k: 2, groups: 2, kept_groups: 1, renormalise: true, scaling: 1.0 };
    let grouped = |what: &str, spec: GroupedSigmoid, experts: usize, bias: usize| {
        wrong("route", what, move |b: &Checked<'_, B>, _| {
            let routing = Routing::GroupedSigmoid { spec, bias: t(b, 1, bias)? };
            b.route(&t(b, 2, experts)?, &routing)
        })
    };
    let softmax = |what: &str, top_k: usize| {
        wrong("route", what, move |b: &Checked<'_, B>, _| {
            b.route(&t(b, 2, 4)?, &Routing::Softmax { top_k, renormalise: true })
        })
    };
    let scaled = |what: &str, top_k: usize, scales: usize| {
        wrong("route", what, move |b: &Checked<'_, B>, _| {
            b.route(&t(b, 2, 4)?, &Routing::SoftmaxScaled { top_k, scale: t(b, 1, scales)? })
        })
    };
    vec![
        softmax("none of them", 0),
        softmax("more than there are", 5),
        scaled("scaled, more than there are", 5, 4),
        scaled("other scales", 2, 5),
        grouped("another bias", good, 4, 5),
        grouped("groups that do not divide", GroupedSigmoid { groups: 3, ..good }, 4, 4),
        grouped("no groups", GroupedSigmoid { groups: 0, ..good }, 4, 4),
        grouped("no kept groups", GroupedSigmoid { kept_groups: 0, ..good }, 4, 4),
        grouped("more kept groups than groups", GroupedSigmoid { kept_groups: 3, ..good }, 4, 4),
        grouped("more than the kept groups have", GroupedSigmoid { top_k: 3, ..good }, 4, 4),
        grouped("groups of one expert", GroupedSigmoid { groups: 4, kept_groups: 2, ..good }, 4, 4),
    ]
}

fn experts<B: Backend>() -> Vec<Case<B>> {
    let stacks = |gate: [usize; 3], up: [usize; 3], down: [usize; 3]| {
        move |b: &Checked<'_, B>, rng: &mut Rng| {
            let [g, u, d] =
                [gate, up, down].map(|[e, r, c]| Recipe::new(F32, r, c).stack(e).build(rng).weight);
            b.expert_weights([&g, &u, &d], None)
        }
    };
    let run = |tokens: usize, experts: usize, d: usize| {
        move |b: &Checked<'_, B>, rng: &mut Rng| {
            let weights = stacks([3, 5, 4], [3, 5, 4], [3, 4, 5])(b, rng)?;
            let routes =
                b.route(&t(b, tokens, experts)?, &Routing::Softmax { top_k: 2, renormalise: true })?;
            b.experts(&t(b, 2, d)?, &routes, &weights, Activation::Silu)
        }
    };
    vec![
        wrong("expert_weights", "another up", stacks([3, 5, 4], [3, 6, 4], [3, 4, 5])),
        wrong("expert_weights", "down not turned round", stacks([3, 5, 4], [3, 5, 4], [3, 5, 4])),
        wrong("expert_weights", "fewer of one", stacks([3, 5, 4], [3, 5, 4], [2, 4, 5])),
        wrong("shared_expert", "another width", |b: &Checked<'_, B>, rng: &mut Rng| {
            let [gate, down] =
                [[3, 5, 4], [3, 4, 5]].map(|[e, r, c]| Recipe::new(F32, r, c).stack(e).build(rng).weight);
            let [own_gate, own_down] =
                [[6, 4], [4, 6]].map(|[r, c]| Recipe::new(F32, r, c).build(rng).weight);
            let shared = Some([&own_gate, &own_gate, &own_down]);
            b.shared_expert(&t(b, 2, 5)?, &b.expert_weights([&gate, &gate, &down], shared)?, Activation::Silu)
        }),
        wrong("experts", "another width", run(2, 3, 5)),
        wrong("experts", "routes of other tokens", run(1, 3, 4)),
        wrong("experts", "routes over other experts", run(2, 4, 4)),
    ]
}

fn gdn<B: Backend>() -> Vec<Case<B>> {
    let gates = |what: &str, beta: (usize, usize), a_log: (usize, usize), dt_bias: (usize, usize)| {
        wrong("gdn_gates", what, move |b: &Checked<'_, B>, _| {
            let (a_log, dt_bias) = (t(b, a_log.0, a_log.1)?, t(b, dt_bias.0, dt_bias.1)?);
            let vectors = GdnVectors { conv: t(b, 4, 4)?, a_log, dt_bias };
            b.gdn_gates(&t(b, 2, 4)?, &t(b, beta.0, beta.1)?, &vectors)
        })
    };
    vec![
        wrong("gdn_qk_norm", "another width", |b: &Checked<'_, B>, _| b.gdn_qk_norm(t(b, 2, 31)?, &GDN)),
        wrong("gdn_qk_norm", "no keys", |b: &Checked<'_, B>, _| {
            b.gdn_qk_norm(t(b, 2, 20)?, &GdnShape { key_dim: 0, ..GDN })
        }),
        gates("another b", (2, 3), (1, 4), (1, 4)),
        gates("another a_log", (2, 4), (1, 3), (1, 4)),
        gates("another dt_bias", (2, 4), (1, 4), (2, 4)),
        wrong("recurrent", "no taps", |b: &Checked<'_, B>, _| {
            Pool::new(b.0, &[LayerShape::Recurrent(GdnShape { kernel: 0, ..GDN })], 0)
        }),
        wrong("recurrent", "heads not divisible", |b: &Checked<'_, B>, _| {
            Pool::new(b.0, &[LayerShape::Recurrent(GdnShape { key_heads: 3, ..GDN })], 0)
        }),
    ]
}
