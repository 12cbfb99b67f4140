//! Blocks whose weights do not fit together, or do not fit their caches.

use backend::pool::LayerShape;
use backend::{
    Activation, Attention, Backend, CacheFloat, Checked, GatedDelta, GdnLayout, GdnShape, GdnVectors, Head,
    KeyValues, KvShape, LatentAttention, Mlp, Moe, Norm, Pairing, Residual, Result, RopeSpec, Routing,
};

use super::Run;
use crate::Case;
use crate::cases::refusals::wrong;
use crate::cases::refusals_state::one_layer;
use crate::random::Rng;
use crate::weights::{F32, Recipe};

const D: usize = 6;

fn norm<B: Backend>(b: &Checked<'_, B>, width: usize) -> Result<Norm<B::Tensor>> {
    Ok(Norm { w: b.vector(1, width, &vec![1.0; width])?, eps: 1e-6 })
}

fn linear<B: Backend>(b: &Checked<'_, B>, rng: &mut Rng, rows: &[usize], cols: usize) -> Result<B::Linear> {
    let samples: Vec<_> = rows.iter().map(|rows| Recipe::new(F32, *rows, cols).build(rng)).collect();
    b.linear(&samples.iter().map(|sample| &sample.weight).collect::<Vec<_>>())
}

/// A step of one token.
fn one_step<B: Backend>(b: &Checked<'_, B>, keeps: LayerShape, run: Run<'_, B>) -> Result<()> {
    let mut pool = one_layer(b, keeps)?;
    let (slot, h) = (pool.create()?, hidden(b, D)?);
    pool.step(&[(slot, 1)], |batch, slabs, layer| run(h, batch, slabs, layer)).map(|_| ())
}

fn hidden<B: Backend>(b: &Checked<'_, B>, width: usize) -> Result<B::Hidden> {
    Ok(b.hidden(b.upload(1, width, &vec![0.5; width])?))
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let attention = |what: &str, q: usize, kv_heads: usize, d: usize| {
        wrong("attention", what, move |b: &Checked<'_, B>, rng| {
            let shape = KvShape { heads: 2, key_dim: 4, value_dim: 4, float: CacheFloat::F32, window: None };
            let w = Attention {
                norm: norm(b, d)?,
                projections: linear(b, rng, &[q, 8, 8], D)?,
                q_norm: norm(b, 4)?,
                key_values: Some(KeyValues { heads: kv_heads, k_norm: norm(b, 4)?, norm_values: false }),
                rope: b.rope_table(&RopeSpec::plain(4, 1e4, Pairing::Halves))?,
                out: linear(b, rng, &[D], 16)?,
                residual: Residual::Plain,
                heads: 4,
                gated: false,
                scale: 0.5,
                window: None,
                soft_cap: None,
            };
            let run = |x, batch: &_, slabs: &mut _, layer| b.attention(x, &w, batch, slabs, layer);
            one_step(b, LayerShape::Kv(shape), &run)
        })
    };
    let latent = |what: &str, rank: usize, nope: usize| {
        wrong("latent_attention", what, move |b: &Checked<'_, B>, rng| {
            let shape = KvShape { heads: 1, key_dim: 7, value_dim: 0, float: CacheFloat::F32, window: None };
            let head = |rng: &mut Rng, rows, cols| {
                b.head_matrices(&Recipe::new(F32, rows, cols).stack(2).build(rng).weight, false)
            };
            let w = LatentAttention {
                norm: norm(b, D)?,
                projections: linear(b, rng, &[2 * (3 + 2), 7], D)?,
                query: None,
                latent_norm: norm(b, rank)?,
                rope: b.rope_table(&RopeSpec::plain(2, 1e4, Pairing::Interleaved))?,
                nope,
                embed_q: head(rng, 5, 3)?,
                unembed_out: head(rng, 4, 5)?,
                out: linear(b, rng, &[D], 8)?,
                heads: 2,
                scale: 0.5,
            };
            let run = |x, batch: &_, slabs: &mut _, layer| b.latent_attention(x, &w, batch, slabs, layer);
            one_step(b, LayerShape::Kv(shape), &run)
        })
    };
    let gdn = |what: &str, layout: GdnLayout, out: usize| {
        wrong("gated_delta", what, move |b: &Checked<'_, B>, rng| {
            let shape = GdnShape { key_heads: 1, value_heads: 2, key_dim: 3, value_dim: 4, kernel: 4 };
            let vectors = GdnVectors {
                conv: b.vector(shape.channels(), 4, &vec![0.1; 4 * shape.channels()])?,
                a_log: b.vector(1, 2, &[0.1, 0.2])?,
                dt_bias: b.vector(1, 2, &[0.1, 0.2])?,
            };
            let w = GatedDelta {
                norm: norm(b, D)?,
                projections: linear(b, rng, &[shape.channels(), 8, 2, 2], D)?,
                layout,
                shape,
                vectors,
                out_norm: norm(b, 4)?,
                out: linear(b, rng, &[D], out)?,
            };
            let run = |x, batch: &_, slabs: &mut _, layer| b.gated_delta(x, &w, batch, slabs, layer);
            one_step(b, LayerShape::Recurrent(shape), &run)
        })
    };
    let mlp = |what: &str, up: usize, down: usize| {
        wrong(if up == 8 { "mlp" } else { "gate_up" }, what, move |b: &Checked<'_, B>, rng| {
            let w = Mlp {
                norm: norm(b, D)?,
                gate_up: linear(b, rng, &[8, up], D)?,
                down: linear(b, rng, &[D], down)?,
                activation: Activation::Silu,
                residual: Residual::Plain,
            };
            b.mlp(hidden(b, D)?, &w).map(|_| ())
        })
    };
    let moe = |what: &str, router: usize, norm_width: usize| {
        wrong("moe", what, move |b: &Checked<'_, B>, rng| {
            let [gate, down] =
                [[3, 5, D], [3, D, 5]].map(|[e, r, c]| Recipe::new(F32, r, c).stack(e).build(rng).weight);
            let w = Moe {
                norm: norm(b, norm_width)?,
                router: linear(b, rng, &[router], D)?,
                router_norm: None,
                routing: Routing::Softmax { top_k: 2, renormalise: true },
                experts: b.expert_weights([&gate, &gate, &down], None)?,
                activation: Activation::Silu,
                dense: None,
                residual: Residual::Plain,
            };
            b.moe(hidden(b, D)?, &w).map(|_| ())
        })
    };
    vec![
        attention("queries of another width", 12, 2, D),
        attention("other heads than the cache has", 16, 1, D),
        attention("another norm", 16, 2, D + 1),
        latent("another latent", 4, 3),
        latent("a plain part of another width", 5, 2),
        gdn("projections of the other layout", GdnLayout::ByKeyHead, 8),
        gdn("another output projection", GdnLayout::Split, 7),
        mlp("unequal gate and up in a unit", 9, 8),
        mlp("another down", 8, 9),
        moe("a router for other experts", 4, D),
        moe("another norm", 3, D - 1),
        wrong("logits", "another norm", |b: &Checked<'_, B>, rng| {
            let (norm, linear) = (norm(b, D - 1)?, linear(b, rng, &[9], D)?);
            let h = b.upload(1, D, &[0.5; D])?;
            b.logits(&h, &Head { norm: &norm, linear: &linear, soft_cap: None })
        }),
    ]
}
