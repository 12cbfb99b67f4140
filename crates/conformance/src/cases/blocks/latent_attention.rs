//! Multi-head latent attention with its projections, norms and residual.

use backend::pool::LayerShape;
use backend::{Backend, CacheFloat, Checked, KvShape, LatentAttention, Pairing, RopeSpec};
use checkpoint::{Float, Format};

use super::{Gain, HIDDEN, alone, bound_of, linear, sample, stored, together};
use crate::cases::test_pool::{TestPool, crowd};
use crate::formulas::attention::latent;
use crate::formulas::{norms, positions, products};
use crate::host::Rows;
use crate::random::Rng;
use crate::weights::{BF16, Q4, Recipe, Sample, affine};
use crate::{Case, CaseResult};

const SCALE: f32 = 0.2;

#[derive(Clone, Copy)]
struct Setup {
    heads: usize,
    /// Widths of the latent, of the rotated part, of the plain part of a query, of a value.
    widths: [usize; 4],
    float: CacheFloat,
    format: Format,
    /// Width of the queries' own latent.
    q_rank: Option<usize>,
    /// Whether `embed_q` is stored the other way round.
    transposed: bool,
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    const Q8: Format = affine(8, 64, Float::Bf16);
    use CacheFloat::{F16, F32, Q8 as C8};
    let mut cases = Vec::new();
    for (heads, widths, float, format, q_rank, transposed) in [
        (4, [64, 8, 12, 10], F16, BF16, None, false),
        (3, [20, 4, 12, 10], F32, BF16, Some(32), false),
        (5, [64, 8, 16, 10], F16, BF16, None, true),
        (16, [512, 64, 128, 128], F16, Q4, Some(96), false),
        (3, [64, 16, 64, 33], F32, Q8, None, false),
        (4, [64, 8, 12, 10], C8, BF16, None, false),
        (16, [512, 64, 128, 128], C8, Q4, None, false),
    ] {
        let setup = Setup { heads, widths, float, format, q_rank, transposed };
        let [rank, pe, nope, values] = widths;
        let way = if transposed { ", transposed" } else { "" };
        let own = q_rank.map_or(String::new(), |rank| format!(", queries of {rank}"));
        let detail =
            format!("{heads} heads of {nope} to {values}, latents of {rank} + {pe} in {float:?}{own}{way}");
        let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.check(b, rng, 5);
        cases.push(Case::new("latent_attention", &detail, bound_of(float), run));
    }
    let long =
        Setup { heads: 4, widths: [64, 8, 16, 24], float: F16, format: Q4, q_rank: None, transposed: true };
    for (name, setup) in [
        ("f16, transposed", long),
        ("f16", Setup { transposed: false, ..long }),
        ("q8", Setup { float: C8, ..long }),
    ] {
        // Where expanding keys and values pays, then single tokens, where it does not.
        let detail = format!("a prompt of 320 tokens, {name}");
        let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.check(b, rng, 320);
        cases.push(Case::new("latent_attention", detail, bound_of(setup.float), run));
        let detail = format!("prompts and single tokens in one batch, {name}");
        // Tokens already seen, tokens of this step.
        const SPANS: [(usize, usize); 4] = [(60, 1), (0, 90), (5, 2), (0, 70)];
        let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.mixed(b, rng, &SPANS);
        cases.push(Case::new("latent_attention", detail, bound_of(setup.float), run));
        for (count, mixed) in [(5, false), (70, true)] {
            let tokens = if mixed { "one or more tokens" } else { "one token" };
            let detail = format!("{name}, {count} sequences, {tokens} each");
            let run = move |b: &Checked<'_, B>, rng: &mut Rng| setup.mixed(b, rng, &crowd(count, mixed));
            cases.push(Case::new("latent_attention", detail, bound_of(setup.float), run));
        }
    }
    cases
}

struct Layer {
    setup: Setup,
    norm: Gain,
    /// Queries or their latents, and latents of keys.
    projections: [Sample; 2],
    query: Option<(Gain, Sample)>,
    latent_norm: Gain,
    embed: Sample,
    unembed: Sample,
    out: Sample,
    inv_freq: Vec<f64>,
}

impl Setup {
    fn layer(self, rng: &mut Rng) -> Layer {
        let Setup { heads, widths: [rank, pe, nope, values], format, q_rank, transposed, .. } = self;
        let q = heads * (nope + pe);
        let (rows, cols) = if transposed { (nope, rank) } else { (rank, nope) };
        // Groups do not fit a plain part of a query that is narrow.
        let embed_format = if cols.is_multiple_of(64) { format } else { BF16 };
        Layer {
            setup: self,
            norm: Gain::new(rng, HIDDEN),
            projections: [q_rank.unwrap_or(q), rank + pe].map(|rows| sample(rng, Q4, rows, HIDDEN)),
            query: q_rank
                .map(|q_rank| (Gain::new(rng, q_rank), sample(rng, affine(4, 32, Float::Bf16), q, q_rank))),
            latent_norm: Gain::new(rng, rank),
            embed: Recipe::new(embed_format, rows, cols).stack(heads).build(rng),
            unembed: Recipe::new(format, values, rank).stack(heads).build(rng),
            out: sample(rng, BF16, HIDDEN, heads * values),
            inv_freq: (0..pe / 2).map(|i| 0.5f64.powi(i as i32)).collect(),
        }
    }

    fn keeps(&self) -> LayerShape {
        let ([rank, pe, ..], float) = (self.widths, self.float);
        LayerShape::Kv(KvShape { heads: 1, key_dim: rank + pe, value_dim: 0, float, window: None })
    }

    fn check<B: Backend>(self, b: &Checked<'_, B>, rng: &mut Rng, at_once: usize) -> CaseResult {
        let layer = self.layer(rng);
        let h = rng.calm(at_once + 10, HIDDEN);
        let expected = layer.apply(&h.wide());
        let w = layer.on(b)?;
        let mut pool = TestPool::new(b, rng, self.keeps())?;
        let run = |x, batch: &_, slabs: &mut _, layer| b.latent_attention(x, &w, batch, slabs, layer);
        Ok(alone(&mut pool, &run, &h, at_once, &expected)?.1)
    }

    /// Sequences at different places in one step.
    fn mixed<B: Backend>(self, b: &Checked<'_, B>, rng: &mut Rng, spans: &[(usize, usize)]) -> CaseResult {
        let layer = self.layer(rng);
        let w = layer.on(b)?;
        let mut pool = TestPool::new(b, rng, self.keeps())?;
        let run = |x, batch: &_, slabs: &mut _, layer| b.latent_attention(x, &w, batch, slabs, layer);
        together(&mut pool, rng, &run, spans, |h| layer.apply(h))
    }
}

impl Layer {
    fn on<B: Backend>(&self, b: &Checked<'_, B>) -> backend::Result<LatentAttention<B>> {
        let Setup { heads, widths: [_, _, nope, _], transposed, .. } = self.setup;
        let inv_freq = self.inv_freq.clone();
        let rope = RopeSpec { inv_freq, factor: 1.0, pairing: Pairing::Interleaved };
        let query =
            self.query.as_ref().map(|(gain, up)| Ok::<_, backend::Error>((gain.on(b)?, linear(b, &[up])?)));
        Ok(LatentAttention {
            norm: self.norm.on(b)?,
            projections: linear(b, &self.projections.each_ref())?,
            query: query.transpose()?,
            latent_norm: self.latent_norm.on(b)?,
            rope: b.rope_table(&rope)?,
            nope,
            embed_q: b.head_matrices(&self.embed.weight, transposed)?,
            unembed_out: b.head_matrices(&self.unembed.weight, false)?,
            out: linear(b, &[&self.out])?,
            heads,
            scale: SCALE,
        })
    }

    fn apply(&self, h: &Rows) -> Rows {
        let Setup { heads, widths: [rank, pe, nope, _], float, transposed, .. } = self.setup;
        let x = self.norm.apply(h);
        let [q, kv] = self.projections.each_ref().map(|w| products::matmul(w, &x));
        let q = match &self.query {
            Some((gain, up)) => products::matmul(up, &gain.apply(&q)),
            None => q,
        };
        let at: Vec<usize> = (0..h.len()).collect();
        let rotate = |x: &Rows| positions::rope(x, &at, pe, &self.inv_freq, Pairing::Interleaved, 1.0);
        let split = |x: &Rows, heads: usize, first: usize, width: usize, whole: usize| -> Rows {
            let part = |row: &Vec<f64>| {
                (0..heads).flat_map(|h| row[h * whole + first..][..width].to_vec()).collect::<Vec<f64>>()
            };
            x.iter().map(part).collect()
        };
        let (plain, turned) =
            (split(&q, heads, 0, nope, nope + pe), rotate(&split(&q, heads, nope, pe, nope + pe)));
        let latents = self.latent_norm.apply(&split(&kv, 1, 0, rank, rank + pe));
        let k_pe = rotate(&split(&kv, 1, rank, pe, rank + pe));
        let joined: Rows = latents.iter().zip(&k_pe).map(|(c, k)| [&c[..], &k[..]].concat()).collect();
        let kept = stored(&joined, float, rank + pe);
        let (c, k_pe) = (split(&kept, 1, 0, rank, rank + pe), split(&kept, 1, rank, pe, rank + pe));
        let absorbed = products::head_product(&self.embed, transposed, &plain);
        let o = latent(&absorbed, &turned, 0, &c, &k_pe, heads, f64::from(SCALE));
        let y = products::head_product(&self.unembed, false, &o);
        norms::add(h, &products::matmul(&self.out, &y))
    }
}
