//! Gated units, experts, and a model's head.

use backend::{Activation, Backend, Checked, DenseBranch, GroupedSigmoid, Head, Mlp, Moe, Residual, Routing};
use checkpoint::{Float, Format};

use super::{Gain, Joins, Unit, linear, sample};
use crate::formulas::{moe, norms, products, sigmoid};
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::weights::{BF16, Q4, Recipe, Sample, affine};
use crate::{Bound, Case, CaseResult, Output};

const BOUND: Bound = Bound::l2(6e-6);
const Q8: Format = affine(8, 64, Float::Bf16);
/// A choice of experts nearer than this part of the logits' range to its alternative could turn out otherwise.
const MARGIN: f64 = 5e-3;

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (width, hidden, format, factor) in [
        (64, 96, affine(4, 32, Float::Bf16), None),
        (64, 96, affine(4, 32, Float::Bf16), Some(0.5)),
        (70, 2816, Q4, Some(1.0)),
        (40, 77, BF16, None),
        (2112, 64, Q8, None),
    ] {
        let detail =
            format!("{}, [{width}, {hidden}], factor {factor:?}", crate::weights::format_name(format));
        let run = move |b: &Checked<'_, B>, rng: &mut Rng| mlp(b, rng, [width, hidden], format, factor);
        cases.push(Case::new("mlp", detail, BOUND, run));
    }
    for (name, setup) in experts_cases() {
        let Experts { experts, width, d, .. } = setup;
        let detail = format!("{name}, {experts} of [{width}, {d}]");
        let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.check(b, rng);
        cases.push(Case::new("moe", detail, BOUND, run));
    }
    for (vocabulary, d, format, soft_cap) in [(501, 64, Q4, None), (300, 77, BF16, Some(30.0))] {
        let detail = format!("{vocabulary} of {d}, cap {soft_cap:?}");
        cases.push(Case::new("logits", detail, BOUND, move |b: &Checked<'_, B>, rng| {
            let (w, gain, h) = (sample(rng, format, vocabulary, d), Gain::new(rng, d), rng.values(11, d));
            let (norm, head) = (gain.on(b)?, linear(b, &[&w])?);
            let logits = products::matmul(&w, &gain.apply(&h.wide()));
            let cap = |v: f64| soft_cap.map_or(v, |cap| f64::from(cap) * (v / f64::from(cap)).tanh());
            let expected = norms::map(&logits, cap);
            let mut outputs = Vec::new();
            for range in [0..1, 0..11] {
                let w = Head { norm: &norm, linear: &head, soft_cap };
                let y = b.logits(&h.slice(range.clone()).on(b)?, &w)?;
                outputs.push(super::output(range, b.read(&y)?, &expected));
            }
            Ok(outputs)
        }));
    }
    cases
}

fn unit(rng: &mut Rng, [width, hidden]: [usize; 2], formats: [Format; 2], activation: Activation) -> Unit {
    let [gate, up] = [0; 2].map(|_| sample(rng, formats[0], width, hidden));
    Unit { gate, up, down: sample(rng, formats[1], hidden, width), activation }
}

fn mlp<B: Backend>(
    b: &Checked<'_, B>,
    rng: &mut Rng,
    shape: [usize; 2],
    format: Format,
    factor: Option<f32>,
) -> CaseResult {
    let unit = unit(rng, shape, [format, BF16], Activation::GeluTanh);
    let (gain, joins, h) =
        (Gain::new(rng, shape[1]), Joins::new(rng, shape[1], factor), rng.values(10, shape[1]));
    let w = Mlp {
        norm: gain.on(b)?,
        gate_up: linear(b, &[&unit.gate, &unit.up])?,
        down: linear(b, &[&unit.down])?,
        activation: unit.activation,
        residual: joins.on(b)?,
    };
    let wide = h.wide();
    let first = joins.apply(&wide, &unit.apply(&gain.apply(&wide)));
    let expected = joins.apply(&first, &unit.apply(&gain.apply(&first)));
    let mut outputs = Vec::new();
    // Twice, one behind the other: what the first leaves may be added by the second.
    for range in [0..1, 1..10] {
        let once = b.mlp(b.hidden(h.slice(range.clone()).on(b)?), &w)?;
        let y = b.tensor(b.mlp(once, &w)?)?;
        outputs.push(super::output(range, b.read(&y)?, &expected));
    }
    Ok(outputs)
}

/// How a case's experts are chosen.
#[derive(Clone, Copy)]
enum Choice {
    Softmax {
        top_k: usize,
        renormalise: bool,
    },
    /// With a norm of the router's own.
    Scaled(usize),
    Grouped(GroupedSigmoid),
}

/// A case's shared expert, of a width.
#[derive(Clone, Copy)]
enum Shared {
    Absent,
    Plain(usize),
    Gated(usize),
}

#[derive(Clone, Copy)]
struct Experts {
    experts: usize,
    d: usize,
    width: usize,
    /// Of the experts' gate and up, of their down, and of the router and the shared expert's gate.
    formats: [Format; 3],
    choice: Choice,
    shared: Shared,
    activation: Activation,
    /// Width of a dense unit beside them.
    dense: Option<usize>,
    factor: Option<f32>,
}

fn experts_cases() -> Vec<(&'static str, Experts)> {
    let softmax = |top_k, renormalise| Choice::Softmax { top_k, renormalise };
    let grouped = |top_k, groups: usize, renormalise| {
        let kept_groups = groups.div_ceil(2);
        Choice::Grouped(GroupedSigmoid { top_k, groups, kept_groups, renormalise, scaling: 2.5 })
    };
    let plain = |experts, [d, width]: [usize; 2], formats, choice, shared| Experts {
        experts,
        d,
        width,
        formats,
        choice,
        shared,
        activation: Activation::Silu,
        dense: None,
        factor: None,
    };
    let gemma = |experts, shape, unit, formats| Experts {
        activation: Activation::GeluTanh,
        dense: Some(unit),
        factor: Some(0.5),
        ..plain(experts, shape, formats, Choice::Scaled(3), Shared::Absent)
    };
    let q4_32 = affine(4, 32, Float::Bf16);
    vec![
        (
            "softmax, gated shared expert",
            plain(40, [128, 64], [Q4, Q4, Q8], softmax(4, true), Shared::Gated(64)),
        ),
        (
            "softmax over all, no shared expert",
            plain(9, [64, 128], [Q4, Q4, Q8], softmax(3, false), Shared::Absent),
        ),
        (
            "a sigmoid, plain shared expert",
            plain(20, [256, 128], [Q4; 3], grouped(8, 1, true), Shared::Plain(128)),
        ),
        (
            "a sigmoid, not renormalised",
            plain(3, [4160, 64], [Q8; 3], grouped(2, 1, false), Shared::Plain(64)),
        ),
        ("sigmoids in groups", plain(32, [128, 64], [Q4; 3], grouped(4, 4, true), Shared::Plain(64))),
        (
            "a shared expert of another width",
            plain(16, [64, 64], [Q4, Q4, Q8], softmax(2, true), Shared::Gated(128)),
        ),
        ("plain weights", plain(12, [40, 24], [BF16; 3], softmax(2, true), Shared::Gated(24))),
        ("all experts", plain(3, [2048, 512], [Q4, Q4, Q8], softmax(3, true), Shared::Gated(512))),
        ("down of more bits", plain(20, [128, 64], [Q4, Q8, Q8], softmax(4, true), Shared::Plain(64))),
        (
            "down of fewer bits, plain router",
            plain(9, [192, 64], [Q8, Q4, BF16], softmax(2, true), Shared::Absent),
        ),
        ("many experts", plain(300, [64, 64], [Q4, Q4, Q8], softmax(10, true), Shared::Absent)),
        ("256 experts", plain(256, [128, 64], [Q4, Q4, Q8], softmax(8, true), Shared::Gated(64))),
        ("130 experts", plain(130, [64, 64], [Q4; 3], grouped(8, 1, true), Shared::Absent)),
        ("70 experts", plain(70, [64, 64], [Q4; 3], softmax(8, true), Shared::Absent)),
        ("wide experts", plain(10, [64, 2112], [Q4, Q4, Q8], softmax(8, true), Shared::Absent)),
        (
            "wide experts of a wide model",
            plain(2, [2112, 2176], [Q4, Q4, Q8], softmax(2, true), Shared::Absent),
        ),
        (
            "a router of its own, GELU",
            Experts {
                activation: Activation::GeluTanh,
                ..plain(
                    20,
                    [96, 32],
                    [q4_32, q4_32, affine(8, 32, Float::F16)],
                    Choice::Scaled(3),
                    Shared::Absent,
                )
            },
        ),
        (
            "a norm behind, plain shared expert",
            Experts {
                factor: Some(2.0),
                ..plain(12, [64, 64], [Q4; 3], softmax(2, true), Shared::Plain(64))
            },
        ),
        ("beside a dense unit, a router of 4 bits", gemma(20, [128, 64], 70, [Q4; 3])),
        ("beside a dense unit of whole rows", gemma(20, [128, 64], 64, [Q4; 3])),
        ("beside a dense unit, rows in three steps", gemma(130, [2816, 64], 64, [Q4, Q4, Q8])),
        ("beside a dense unit, long rows", gemma(4, [4160, 64], 64, [Q4; 3])),
        ("beside a dense unit, plain weights", gemma(12, [40, 24], 33, [BF16; 3])),
    ]
}

/// A layer's weights on the host.
struct Layer {
    setup: Experts,
    norm: Gain,
    router: Sample,
    gate: Option<Sample>,
    router_norm: Option<Gain>,
    /// Factors or biases of the experts.
    each: Host,
    stacks: [Sample; 3],
    shared: Option<[Sample; 3]>,
    dense: Option<(Gain, Unit, [Gain; 2])>,
    joins: Joins,
}

impl Experts {
    fn layer(self, rng: &mut Rng) -> Layer {
        let Self { experts, d, width, formats: [format, down, router_format], choice, shared, .. } = self;
        let mlp = |rng: &mut Rng, count: usize, width: usize| {
            let gate = Recipe::new(format, width, d).stack(count);
            [gate.build(rng), gate.build(rng), Recipe::new(down, d, width).stack(count).build(rng)]
        };
        Layer {
            setup: self,
            norm: Gain::new(rng, d),
            router: sample(rng, router_format, experts, d),
            gate: matches!(shared, Shared::Gated(_)).then(|| sample(rng, router_format, 1, d)),
            router_norm: matches!(choice, Choice::Scaled(_)).then(|| Gain::new(rng, d)),
            each: match choice {
                Choice::Grouped(_) => rng.calm(1, experts).scaled(0.1),
                _ => rng.gain(experts),
            },
            stacks: mlp(rng, experts, width),
            shared: match shared {
                Shared::Absent => None,
                Shared::Plain(width) | Shared::Gated(width) => Some(mlp(rng, 1, width)),
            },
            dense: self.dense.map(|width| {
                let unit = unit(rng, [width, d], [format, BF16], self.activation);
                (Gain::new(rng, d), unit, [0; 2].map(|_| Gain::new(rng, d)))
            }),
            joins: Joins::new(rng, d, self.factor),
        }
    }

    fn check<B: Backend>(self, b: &Checked<'_, B>, rng: &mut Rng) -> CaseResult {
        let layer = self.layer(rng);
        let w = layer.on(b)?;
        let (h, expected) = layer.clear(rng, 20);
        let mut outputs = Vec::new();
        for range in [0..1, 1..2, 2..3, 3..6, 0..20] {
            let x = h.slice(range.clone()).on(b)?;
            let y = b.tensor(b.moe(b.hidden(x), &w)?)?;
            outputs.push(super::output(range, b.read(&y)?, &expected));
        }
        // Behind a block with a norm behind it, whose sum may be left to this one.
        if self.dense.is_some() {
            outputs.extend(layer.behind_mlp(b, rng, &w)?);
        }
        Ok(outputs)
    }
}

impl Layer {
    fn on<B: Backend>(&self, b: &Checked<'_, B>) -> backend::Result<Moe<B>> {
        let each = b.vector(1, self.each.cols, &self.each.values)?;
        let dense = |(gain, unit, behind): &(Gain, Unit, [Gain; 2])| {
            let mlp = Mlp {
                norm: gain.on(b)?,
                gate_up: linear(b, &[&unit.gate, &unit.up])?,
                down: linear(b, &[&unit.down])?,
                activation: unit.activation,
                residual: Residual::Plain,
            };
            let [mlp_norm, experts_norm] = behind.each_ref().map(|gain| gain.on(b));
            Ok::<_, backend::Error>(Box::new(DenseBranch {
                mlp,
                mlp_norm: mlp_norm?,
                experts_norm: experts_norm?,
            }))
        };
        Ok(Moe {
            norm: self.norm.on(b)?,
            router: linear(b, &std::iter::once(&self.router).chain(&self.gate).collect::<Vec<_>>())?,
            router_norm: self.router_norm.as_ref().map(|gain| gain.on(b)).transpose()?,
            routing: match self.setup.choice {
                Choice::Softmax { top_k, renormalise } => Routing::Softmax { top_k, renormalise },
                Choice::Scaled(top_k) => Routing::SoftmaxScaled { top_k, scale: each },
                Choice::Grouped(spec) => Routing::GroupedSigmoid { spec, bias: each },
            },
            experts: b.expert_weights(
                self.stacks.each_ref().map(|sample| &sample.weight),
                self.shared.as_ref().map(|shared| shared.each_ref().map(|sample| &sample.weight)),
            )?,
            activation: self.setup.activation,
            dense: self.dense.as_ref().map(dense).transpose()?,
            residual: self.joins.on(b)?,
        })
    }

    /// The block on one token, and how clear its choice of experts is, as a part of the logits' range.
    fn apply(&self, h: &[f64]) -> (Vec<f64>, f64) {
        let Experts { choice, activation, .. } = self.setup;
        let h: Rows = vec![h.to_vec()];
        let x = self.norm.apply(&h);
        let routed = self.router_norm.as_ref().map_or(x.clone(), |gain| gain.apply(&h));
        let logits = products::matmul(&self.router, &routed).concat();
        let route = match choice {
            Choice::Softmax { top_k, renormalise } => moe::route_softmax(&logits, top_k, renormalise, None),
            Choice::Scaled(top_k) => moe::route_softmax(&logits, top_k, true, Some(&self.each.wide()[0])),
            Choice::Grouped(spec) => moe::route_grouped(&logits, &self.each.wide()[0], &spec),
        };
        let range = match choice {
            Choice::Grouped(_) => 1.0,
            _ => logits.iter().fold(0.0f64, |most, v| most.max(v.abs())),
        };
        let ids: Vec<u32> = route.ids.iter().map(|id| *id as u32).collect();
        let weights: Vec<f32> = route.weights.iter().map(|w| *w as f32).collect();
        let y = vec![moe::experts(&x[0], &ids, &weights, self.stacks.each_ref(), activation)];
        let shared = self.shared.as_ref();
        let shared = shared.map(|s| vec![moe::experts(&x[0], &[0], &[1.0], s.each_ref(), activation)]);
        let strength = self.gate.as_ref().map_or(1.0, |gate| sigmoid(products::matmul(gate, &routed)[0][0]));
        let zero = norms::map(&h, |_| 0.0);
        let y = moe::combine(&zero, &y, shared.as_ref(), &[strength]);
        let y = match &self.dense {
            None => y,
            Some((gain, unit, [mlp_norm, experts_norm])) => {
                norms::add(&mlp_norm.apply(&unit.apply(&gain.apply(&h))), &experts_norm.apply(&y))
            }
        };
        (self.joins.apply(&h, &y).concat(), route.margin / range)
    }

    /// Tokens for which every choice is clear, and what becomes of them.
    fn clear(&self, rng: &mut Rng, n: usize) -> (Host, Rows) {
        let (mut tokens, mut expected) = (Vec::new(), Vec::new());
        while tokens.len() < n {
            let h = rng.values(1, self.setup.d);
            let (y, margin) = self.apply(&h.wide()[0]);
            if margin > MARGIN {
                tokens.push(h);
                expected.push(y);
            }
        }
        (Host::stack(&tokens), expected)
    }

    fn behind_mlp<B: Backend>(
        &self,
        b: &Checked<'_, B>,
        rng: &mut Rng,
        w: &Moe<B>,
    ) -> Result<Vec<Output>, crate::Fault> {
        let d = self.setup.d;
        let unit = unit(rng, [48, d], [BF16, BF16], Activation::GeluTanh);
        let (gain, joins) = (Gain::new(rng, d), Joins::new(rng, d, Some(1.0)));
        let first = Mlp {
            norm: gain.on(b)?,
            gate_up: linear(b, &[&unit.gate, &unit.up])?,
            down: linear(b, &[&unit.down])?,
            activation: unit.activation,
            residual: joins.on(b)?,
        };
        let (mut tokens, mut expected) = (Vec::new(), Vec::new());
        while tokens.len() < 4 {
            let h = rng.values(1, d);
            let wide = h.wide();
            let between = joins.apply(&wide, &unit.apply(&gain.apply(&wide)));
            let (y, margin) = self.apply(&between[0]);
            if margin > MARGIN {
                tokens.push(h);
                let y = vec![y];
                expected.push(joins.apply(&y, &unit.apply(&gain.apply(&y))).concat());
            }
        }
        let h = Host::stack(&tokens);
        let mut outputs = Vec::new();
        for range in [0..1, 1..2, 0..4] {
            let x = b.hidden(h.slice(range.clone()).on(b)?);
            // What the layer leaves may be added by the block behind it.
            let y = b.tensor(b.mlp(b.moe(b.mlp(x, &first)?, w)?, &first)?)?;
            let label = format!("between units, tokens {range:?}");
            outputs.push(Output::close(label, b.read(&y)?, &expected[range].to_vec()));
        }
        Ok(outputs)
    }
}
