//! Gated DeltaNet with its projections, gated norm and residual.

use backend::pool::LayerShape;
use backend::{Backend, Checked, GatedDelta, GdnLayout, GdnShape, GdnVectors};
use checkpoint::{Float, Format};

use super::{BOUND, Gain, HIDDEN, alone, linear, sample, together};
use crate::cases::test_pool::{TestPool, crowd};
use crate::formulas::{gdn, norms, products};
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::weights::{BF16, Q4, Sample, affine};
use crate::{Case, CaseResult, Output};

#[derive(Clone, Copy)]
struct Setup {
    shape: GdnShape,
    layout: GdnLayout,
    out: Format,
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    const Q8: Format = affine(8, 64, Float::Bf16);
    let mut cases = Vec::new();
    for (key_heads, value_heads, key_dim, value_dim, kernel, layout, out) in [
        (2, 4, 128, 128, 4, GdnLayout::Split, Q4),
        (1, 3, 64, 20, 4, GdnLayout::Split, BF16),
        (2, 4, 64, 32, 4, GdnLayout::ByKeyHead, Q8),
        (2, 2, 12, 8, 2, GdnLayout::Split, BF16),
        (1, 2, 16, 16, 1, GdnLayout::ByKeyHead, BF16),
        (1, 1, 10, 6, 3, GdnLayout::Split, BF16),
        // Keys wider than those that are kept in registers.
        (1, 2, 160, 64, 4, GdnLayout::Split, affine(4, 32, Float::F32)),
        (1, 1, 256, 64, 4, GdnLayout::Split, Q4),
    ] {
        let shape = GdnShape { key_heads, value_heads, key_dim, value_dim, kernel };
        let setup = Setup { shape, layout, out };
        let detail = format!(
            "{key_heads}x{key_dim} keys, {value_heads}x{value_dim} values, {kernel} taps, {layout:?}"
        );
        let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.check(b, rng, 20);
        cases.push(Case::new("gated_delta", &detail, BOUND, run));
        if kernel == 4 && value_heads == 4 {
            const SPANS: [(usize, usize); 4] = [(20, 1), (0, 40), (3, 2), (0, 1)];
            let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.mixed(b, rng, &SPANS);
            cases.push(Case::new("gated_delta", format!("{detail}, four sequences"), BOUND, run));
        }
        if kernel < 4 {
            let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.mixed(b, rng, &crowd(70, true));
            cases.push(Case::new("gated_delta", format!("{detail}, 70 sequences"), BOUND, run));
        }
    }
    cases
}

struct Layer {
    setup: Setup,
    norm: Gain,
    /// `[q | k | v]`, `z`, `b`, `a`, or the same interleaved by key head.
    projections: Vec<Sample>,
    conv: Host,
    a_log: Host,
    dt_bias: Host,
    out_norm: Gain,
    out: Sample,
}

impl Setup {
    fn layer(self, rng: &mut Rng) -> Layer {
        let Setup { shape, layout, out } = self;
        let (channels, values, heads) = (shape.channels(), shape.value_total(), shape.value_heads);
        let rows: &[usize] = match layout {
            GdnLayout::Split => &[channels, values, heads, heads],
            GdnLayout::ByKeyHead => &[channels + values, 2 * heads],
        };
        Layer {
            setup: self,
            norm: Gain::new(rng, HIDDEN),
            projections: rows.iter().map(|rows| sample(rng, Q4, *rows, HIDDEN)).collect(),
            conv: rng.calm(channels, shape.kernel),
            a_log: rng.calm(1, heads),
            dt_bias: rng.calm(1, heads),
            out_norm: Gain::new(rng, shape.value_dim),
            out: sample(rng, out, HIDDEN, values),
        }
    }

    fn check<B: Backend>(self, b: &Checked<'_, B>, rng: &mut Rng, at_once: usize) -> CaseResult {
        let layer = self.layer(rng);
        let h = rng.calm(at_once + 8, HIDDEN);
        let (expected, expected_state) = layer.apply(&h.wide());
        let w = layer.on(b)?;
        let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(self.shape))?;
        let run = |x, batch: &_, slabs: &mut _, layer| b.gated_delta(x, &w, batch, slabs, layer);
        let (slot, mut outputs) = alone(&mut pool, &run, &h, at_once, &expected)?;
        outputs.push(Output::close("state", pool.save_state(slot)?.state, &expected_state));
        Ok(outputs)
    }

    /// Sequences at different places in one step.
    fn mixed<B: Backend>(self, b: &Checked<'_, B>, rng: &mut Rng, spans: &[(usize, usize)]) -> CaseResult {
        let layer = self.layer(rng);
        let w = layer.on(b)?;
        let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(self.shape))?;
        let run = |x, batch: &_, slabs: &mut _, layer| b.gated_delta(x, &w, batch, slabs, layer);
        together(&mut pool, rng, &run, spans, |h| layer.apply(h).0)
    }
}

impl Layer {
    fn on<B: Backend>(&self, b: &Checked<'_, B>) -> backend::Result<GatedDelta<B>> {
        let vector = |host: &Host| b.vector(host.rows, host.cols, &host.values);
        Ok(GatedDelta {
            norm: self.norm.on(b)?,
            projections: linear(b, &self.projections.iter().collect::<Vec<_>>())?,
            layout: self.setup.layout,
            shape: self.setup.shape,
            vectors: GdnVectors {
                conv: vector(&self.conv)?,
                a_log: vector(&self.a_log)?,
                dt_bias: vector(&self.dt_bias)?,
            },
            out_norm: self.out_norm.on(b)?,
            out: linear(b, &[&self.out])?,
        })
    }

    /// `[q | k | v]`, `z`, `b`, `a` of every token.
    fn inputs(&self, x: &Rows) -> [Rows; 4] {
        let parts: Vec<Rows> = self.projections.iter().map(|w| products::matmul(w, x)).collect();
        let GdnShape { key_heads, value_heads, key_dim, value_dim, .. } = self.setup.shape;
        if self.setup.layout == GdnLayout::Split {
            return parts.try_into().unwrap_or_else(|_| unreachable!("four projections"));
        }
        let per = value_heads / key_heads;
        let of_heads = |rows: &Rows, whole: usize, first: usize, width: usize| -> Rows {
            let part = |row: &Vec<f64>| {
                (0..key_heads).flat_map(|h| row[h * whole + first..][..width].to_vec()).collect::<Vec<f64>>()
            };
            rows.iter().map(part).collect()
        };
        let whole = 2 * key_dim + 2 * per * value_dim;
        let [q, k] = [0, key_dim].map(|first| of_heads(&parts[0], whole, first, key_dim));
        let [v, z] =
            [0, 1].map(|i| of_heads(&parts[0], whole, 2 * key_dim + i * per * value_dim, per * value_dim));
        let join = |t: usize| [&q[t][..], &k[t], &v[t]].concat();
        let [b, a] = [0, 1].map(|i| of_heads(&parts[1], 2 * per, i * per, per));
        [(0..x.len()).map(join).collect(), z, b, a]
    }

    /// The block over a whole sequence, and the state behind it.
    fn apply(&self, h: &Rows) -> (Rows, Rows) {
        let shape = &self.setup.shape;
        let [qkv, z, b, a] = self.inputs(&self.norm.apply(h));
        let qkv = gdn::qk_norm(&gdn::conv(&qkv, &self.conv.wide()), shape);
        let g = gdn::decay(&a, &self.a_log.wide()[0], &self.dt_bias.wide()[0]);
        let mut state = Vec::new();
        let y = gdn::recurrence(&qkv, &g, &gdn::beta(&b), shape, &mut state);
        let y = norms::gated(&y, &z, &self.out_norm.0.wide()[0], f64::from(super::EPS));
        (norms::add(h, &products::matmul(&self.out, &y)), state.concat())
    }
}
