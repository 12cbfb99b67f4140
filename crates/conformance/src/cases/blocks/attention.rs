//! Grouped-query attention with its norms, rotation, gate, projections and residual.

use backend::pool::LayerShape;
use backend::{Attention, Backend, CacheFloat, Checked, KeyValues, KvShape, Pairing, RopeSpec};
use checkpoint::{Float, Format};

use super::{Gain, HIDDEN, Joins, alone, bound_of, linear, sample, stored, together};
use crate::cases::ensure;
use crate::cases::test_pool::{TestPool, crowd};
use crate::formulas::attention::{Spec, attention};
use crate::formulas::{norms, positions, products, sigmoid};
use crate::host::Rows;
use crate::random::Rng;
use crate::weights::{BF16, Q4, Recipe, Sample, affine};
use crate::{Case, CaseResult};

const Q8: Format = affine(8, 64, Float::Bf16);

/// Where keys and values come from.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Own,
    /// Keys are values too.
    Keys,
}

#[derive(Clone, Copy)]
struct Setup {
    /// Width of a head, how the cache keeps it, and the window.
    cache: (usize, CacheFloat, Option<usize>),
    kv_heads: usize,
    heads: usize,
    gated: bool,
    norm_values: bool,
    from: From,
    soft_cap: Option<f32>,
    out: Format,
    /// Of the norm behind, where there is one.
    factor: Option<f32>,
    /// Tokens at once, before single ones.
    at_once: usize,
}

const PLAIN: Setup = Setup {
    cache: (64, CacheFloat::F16, None),
    kv_heads: 2,
    heads: 16,
    gated: false,
    norm_values: false,
    from: From::Own,
    soft_cap: None,
    out: Q4,
    factor: None,
    at_once: 5,
};
/// As Gemma has it.
const GEMMA: Setup = Setup { norm_values: true, factor: Some(1.0), kv_heads: 1, heads: 4, ..PLAIN };

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    use CacheFloat::{F16, F32, Q8 as C8};
    let mut cases = Vec::new();
    for (name, setup) in [
        ("gated, f16", Setup { gated: true, ..PLAIN }),
        ("f32", Setup { cache: (32, F32, None), heads: 6, ..PLAIN }),
        ("norms of values and behind, window", Setup { cache: (256, F16, Some(9)), ..GEMMA }),
        ("keys are values", Setup { cache: (128, F16, None), from: From::Keys, kv_heads: 2, ..GEMMA }),
        ("a factor behind", Setup { cache: (64, F32, None), factor: Some(0.25), ..GEMMA }),
        (
            "odd heads, gated",
            Setup { cache: (10, F16, None), kv_heads: 3, heads: 3, gated: true, out: BF16, ..PLAIN },
        ),
        ("soft cap", Setup { cache: (64, F32, None), soft_cap: Some(5.0), ..PLAIN }),
        ("wide heads", Setup { cache: (512, F16, None), heads: 3, ..GEMMA }),
        ("many positions, gated", Setup { cache: (256, F16, None), gated: true, at_once: 508, ..PLAIN }),
        (
            "many positions, f32",
            Setup { cache: (128, F32, None), kv_heads: 1, heads: 2, at_once: 508, ..PLAIN },
        ),
        ("gated, q8", Setup { cache: (64, C8, None), gated: true, ..PLAIN }),
        ("window, q8", Setup { cache: (256, C8, Some(9)), ..GEMMA }),
        ("odd heads, q8", Setup { cache: (10, C8, None), kv_heads: 3, heads: 3, out: BF16, ..PLAIN }),
        ("wide heads, q8", Setup { cache: (512, C8, None), heads: 3, ..GEMMA }),
        ("many positions, q8", Setup { cache: (256, C8, None), gated: true, at_once: 508, ..PLAIN }),
        ("split positions", Setup { gated: true, at_once: 100, ..PLAIN }),
        ("split positions, norm behind", Setup { cache: (512, F16, None), heads: 9, at_once: 180, ..GEMMA }),
        (
            "split positions, 8 bits",
            Setup { cache: (256, F16, None), kv_heads: 4, heads: 8, out: Q8, at_once: 300, ..PLAIN },
        ),
        ("plain output projection", Setup { heads: 3, kv_heads: 1, out: BF16, at_once: 30, ..PLAIN }),
        ("eights of two heads", Setup { cache: (12, F32, None), at_once: 100, ..PLAIN }),
    ] {
        let Setup { cache: (width, float, _), heads, kv_heads, .. } = setup;
        let detail = format!("{name}, {heads} over {kv_heads} heads of {width}");
        let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.check(b, rng);
        cases.push(Case::new("attention", detail, bound_of(float), run));
    }
    for (name, setup) in [
        ("f32", Setup { cache: (32, F32, None), heads: 6, ..PLAIN }),
        ("gated, f16", Setup { gated: true, ..PLAIN }),
        ("norms of values and behind, window", Setup { cache: (64, F16, Some(70)), ..GEMMA }),
        ("window, q8", Setup { cache: (64, C8, Some(9)), ..GEMMA }),
    ] {
        for (count, mixed) in [(2, true), (5, false), (70, false), (70, true)] {
            let tokens = if mixed { "one or more tokens" } else { "one token" };
            let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.mixed(b, rng, &crowd(count, mixed));
            let detail = format!("{name}, {count} sequences, {tokens} each");
            cases.push(Case::new("attention", detail, bound_of(setup.cache.1), run));
        }
    }
    cases
}

/// A layer's weights on the host.
struct Layer {
    setup: Setup,
    norm: Gain,
    q_norm: Gain,
    k_norm: Gain,
    projections: Vec<Sample>,
    out: Sample,
    joins: Joins,
    inv_freq: Vec<f64>,
}

impl Setup {
    fn layer(self, rng: &mut Rng) -> Layer {
        let Setup { cache: (width, ..), kv_heads, heads, gated, from, .. } = self;
        let q = heads * width * if gated { 2 } else { 1 };
        let rows: &[usize] = match from {
            From::Own => &[q, kv_heads * width, kv_heads * width],
            From::Keys => &[q, kv_heads * width],
        };
        Layer {
            setup: self,
            norm: Gain::new(rng, HIDDEN),
            q_norm: Gain::new(rng, width),
            k_norm: Gain::new(rng, width),
            projections: rows.iter().map(|rows| sample(rng, Q4, *rows, HIDDEN)).collect(),
            out: Recipe::new(self.out, HIDDEN, heads * width).bias().build(rng),
            joins: Joins::new(rng, HIDDEN, self.factor),
            inv_freq: (0..width / 4).map(|i| 0.5f64.powi(i as i32)).collect(),
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.cache.0 as f32).sqrt()
    }

    fn keeps(&self) -> LayerShape {
        let (width, float, window) = self.cache;
        LayerShape::Kv(KvShape { heads: self.kv_heads, key_dim: width, value_dim: width, float, window })
    }

    fn check<B: Backend>(self, b: &Checked<'_, B>, rng: &mut Rng) -> CaseResult {
        let layer = self.layer(rng);
        let h = rng.calm(self.at_once + 12, HIDDEN);
        let expected = layer.apply(&h.wide());
        let w = layer.on(b)?;
        let mut pool = TestPool::new(b, rng, self.keeps())?;
        let run = |x, batch: &_, slabs: &mut _, layer| b.attention(x, &w, batch, slabs, layer);
        let (slot, outputs) = alone(&mut pool, &run, &h, self.at_once, &expected)?;
        ensure(pool.kv_image(slot)?.len == h.rows, "the cache lost tokens")?;
        Ok(outputs)
    }

    /// Sequences at different places in one step.
    fn mixed<B: Backend>(self, b: &Checked<'_, B>, rng: &mut Rng, spans: &[(usize, usize)]) -> CaseResult {
        let layer = self.layer(rng);
        let w = layer.on(b)?;
        let mut pool = TestPool::new(b, rng, self.keeps())?;
        let run = |x, batch: &_, slabs: &mut _, layer| b.attention(x, &w, batch, slabs, layer);
        together(&mut pool, rng, &run, spans, |h| layer.apply(h))
    }
}

impl Layer {
    fn on<B: Backend>(&self, b: &Checked<'_, B>) -> backend::Result<Attention<B>> {
        let Setup { kv_heads, heads, gated, norm_values, soft_cap, cache: (.., window), .. } = self.setup;
        let rope = RopeSpec { inv_freq: self.inv_freq.clone(), factor: 1.0, pairing: Pairing::Halves };
        Ok(Attention {
            norm: self.norm.on(b)?,
            projections: linear(b, &self.projections.iter().collect::<Vec<_>>())?,
            q_norm: self.q_norm.on(b)?,
            key_values: Some(KeyValues { heads: kv_heads, k_norm: self.k_norm.on(b)?, norm_values }),
            rope: b.rope_table(&rope)?,
            out: linear(b, &[&self.out])?,
            residual: self.joins.on(b)?,
            heads,
            gated,
            scale: self.setup.scale(),
            window,
            soft_cap,
        })
    }

    /// The block over a whole sequence.
    fn apply(&self, h: &Rows) -> Rows {
        let Setup { cache: (width, float, window), kv_heads, heads, gated, norm_values, .. } = self.setup;
        let x = self.norm.apply(h);
        let parts: Vec<Rows> = self.projections.iter().map(|w| products::matmul(w, &x)).collect();
        let (mut q, mut gates) = (parts[0].clone(), None);
        if gated {
            let half = |first: usize| -> Rows {
                let slice = |row: &Vec<f64>| {
                    row.chunks_exact(2 * width).flat_map(|head| head[first..first + width].to_vec()).collect()
                };
                parts[0].iter().map(slice).collect()
            };
            (q, gates) = (half(0), Some(half(width)));
        }
        let at: Vec<usize> = (0..h.len()).collect();
        let rotate = |x: &Rows| positions::rope(x, &at, width, &self.inv_freq, Pairing::Halves, 1.0);
        let q = rotate(&self.q_norm.apply(&q));
        let k = rotate(&self.k_norm.apply(&parts[1]));
        let v = parts.last().expect("a projection");
        let ones = vec![1.0; width];
        let v = if norm_values { norms::rms_heads(v, &ones, f64::from(super::EPS)) } else { v.clone() };
        let spec = Spec {
            heads,
            kv_heads,
            scale: f64::from(self.setup.scale()),
            window,
            cap: self.setup.soft_cap.map(f64::from),
        };
        let y = attention(&q, 0, &stored(&k, float, width), &stored(&v, float, width), &spec);
        let y = gates.map_or(y.clone(), |gates| norms::multiply(&y, &norms::map(&gates, sigmoid)));
        self.joins.apply(h, &products::matmul(&self.out, &y))
    }
}
