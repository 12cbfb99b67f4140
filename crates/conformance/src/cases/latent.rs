//! Multi-head latent attention.

use std::ops::Range;

use backend::{Backend, CacheFloat, KvShape, LatentAttention, MlaWeights, Result};
use checkpoint::{Float, Format};

use super::{chunks, in_chunks, one_span, spans, y};
use crate::formulas::attention::latent;
use crate::formulas::products::head_product;
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::weights::{BF16, F16, F32, Q4, Recipe, Sample, affine, format_name};
use crate::{Bound, Case, Output};

const BOUND: Bound = Bound::l2(5e-6);

/// Heads, rows and columns of the stored matrices, format.
const PRODUCTS: [(usize, usize, usize, Format); 8] = [
    (1, 3, 5, F32),
    (3, 33, 17, BF16),
    (5, 7, 40, F16),
    (4, 64, 128, Q4),
    (16, 128, 512, Q4),
    (3, 19, 96, affine(3, 32, Float::F16)),
    (2, 512, 128, affine(8, 64, Float::Bf16)),
    (2, 24, 256, affine(6, 128, Float::F32)),
];

/// A latent layer.
#[derive(Clone, Copy)]
struct Setup {
    rank: usize,
    pe: usize,
    float: CacheFloat,
    spec: LatentAttention,
}

/// What one sequence brings.
struct Sequence {
    q: Host,
    q_pe: Host,
    c: Host,
    k_pe: Host,
}

impl Setup {
    fn new(heads: usize, rank: usize, pe: usize, float: CacheFloat) -> Setup {
        let scale = 0.7 / ((rank + pe) as f32).sqrt();
        Setup { rank, pe, float, spec: LatentAttention { heads, scale } }
    }

    fn cache<B: Backend>(&self, b: &B) -> Result<B::KvCache> {
        let (key_dim, float) = (self.rank + self.pe, self.float);
        b.kv_cache(&KvShape { heads: 1, key_dim, value_dim: 0, float, window: None })
    }

    fn sequence(&self, rng: &mut Rng, n: usize) -> Sequence {
        let heads = self.spec.heads;
        Sequence {
            q: rng.calm(n, heads * self.rank),
            q_pe: rng.calm(n, heads * self.pe),
            c: rng.values(n, self.rank),
            k_pe: rng.values(n, self.pe),
        }
    }

    fn expected(&self, s: &Sequence, first: usize) -> Rows {
        let (c, k_pe) = self.stored(s);
        let (q, q_pe) = (s.q.wide()[first..].to_vec(), s.q_pe.wide()[first..].to_vec());
        let scale = f64::from(self.spec.scale);
        latent(&q, &q_pe, first, &c, &k_pe, self.spec.heads, scale)
    }

    /// What the cache keeps.
    fn stored(&self, s: &Sequence) -> (Rows, Rows) {
        let latents = s.c.beside(&s.k_pe);
        let rows = match self.float {
            CacheFloat::F32 => latents.wide(),
            CacheFloat::F16 => latents.wide_f16(),
            CacheFloat::Q8 => latents.wide_q8(latents.cols),
        };
        let split = |row: Vec<f64>| (row[..self.rank].to_vec(), row[self.rank..].to_vec());
        rows.into_iter().map(split).unzip()
    }

    fn steps<B: Backend>(
        &self,
        b: &B,
        cache: &mut B::KvCache,
        s: &Sequence,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        for r in ranges {
            let batch = one_span(b, r.len(), r.start)?;
            let on = |x: &Host| x.slice(r.clone()).on(b);
            b.mla_append(&on(&s.c)?, &on(&s.k_pe)?, &batch, &mut [&mut *cache])?;
            let o = b.mla_attention(&on(&s.q)?, &on(&s.q_pe)?, &batch, &[cache], &self.spec)?;
            out.extend(b.read(&o)?);
        }
        Ok(out)
    }
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (heads, rows, cols, format) in PRODUCTS {
        for transposed in [false, true] {
            let way = if transposed { "transposed" } else { "as stored" };
            let detail = format!("{} {way}, {heads} heads [{rows}, {cols}], n=3", format_name(format));
            let recipe = Recipe::new(format, rows, cols).stack(heads).unaligned();
            cases.push(product("mla_absorb_q", &detail, recipe, transposed));
            cases.push(product("mla_unabsorb", &detail, recipe, transposed));
        }
    }
    cases.push(fused());
    for (n, setup, name) in [
        (70, Setup::new(3, 24, 8, CacheFloat::F32), "f32"),
        (70, Setup::new(4, 33, 7, CacheFloat::F16), "f16, odd widths"),
        (70, Setup::new(16, 512, 64, CacheFloat::F32), "16 heads of 512 + 64"),
        (70, Setup::new(4, 33, 7, CacheFloat::Q8), "q8, odd widths"),
        (70, Setup::new(16, 512, 64, CacheFloat::Q8), "q8, 16 heads of 512 + 64"),
        // Long enough that a backend may divide the cache of one token, and the heads of one.
        (300, Setup::new(70, 20, 6, CacheFloat::F16), "f16, 70 heads"),
        (300, Setup::new(70, 20, 6, CacheFloat::Q8), "q8, 70 heads"),
    ] {
        cases.push(Case::new(
            "mla_attention",
            format!("{name}, {n} tokens in chunks"),
            BOUND,
            move |b: &B, rng| {
                let s = setup.sequence(rng, n);
                in_chunks(n, &setup.expected(&s, 0), |chunk| {
                    setup.steps(b, &mut setup.cache(b)?, &s, chunks(n, chunk))
                })
            },
        ));
    }
    for (n, setup, name) in [
        (5000, Setup::new(2, 48, 16, CacheFloat::F32), ""),
        (1037, Setup::new(16, 512, 64, CacheFloat::F16), ", f16, 16 heads of 512 + 64"),
        (1037, Setup::new(16, 512, 64, CacheFloat::Q8), ", q8, 16 heads of 512 + 64"),
    ] {
        cases.push(Case::new(
            "mla_attention",
            format!("{n} tokens{name}"),
            Bound::l2(1e-5),
            move |b: &B, rng| {
                let s = setup.sequence(rng, n);
                let mut cache = setup.cache(b)?;
                let past = n - 4;
                let batch = one_span(b, past, 0)?;
                b.mla_append(
                    &s.c.slice(0..past).on(b)?,
                    &s.k_pe.slice(0..past).on(b)?,
                    &batch,
                    &mut [&mut cache],
                )?;
                y(setup.steps(b, &mut cache, &s, [past..past + 1, past + 1..n])?, &setup.expected(&s, past))
            },
        ));
    }
    cases.push(batched());
    for (transposed, float, name) in [
        (false, CacheFloat::F16, "as stored"),
        (true, CacheFloat::F16, "from rows of one matrix"),
        (false, CacheFloat::Q8, "q8, as stored"),
    ] {
        cases.push(whole(transposed, float, name));
    }
    cases.push(mixed("", CacheFloat::F16));
    cases.push(mixed(", q8", CacheFloat::Q8));
    cases
}

/// The matrices of a whole layer, what goes in and what should come out.
struct Layer {
    embed: Sample,
    unembed: Sample,
    transposed: bool,
    setup: Setup,
}

impl Layer {
    const NOPE: usize = 16;

    fn new(rng: &mut Rng, transposed: bool, float: CacheFloat) -> Layer {
        let setup = Setup::new(4, 64, 8, float);
        let (rows, cols) = if transposed { (Self::NOPE, setup.rank) } else { (setup.rank, Self::NOPE) };
        let format = if transposed { Q4 } else { BF16 };
        let embed = Recipe::new(format, rows, cols).stack(setup.spec.heads).build(rng);
        let unembed = Recipe::new(Q4, 24, setup.rank).stack(setup.spec.heads).build(rng);
        Layer { embed, unembed, transposed, setup }
    }

    fn weights<B: Backend>(&self, b: &B) -> Result<MlaWeights<B::HeadMatrices>> {
        Ok(MlaWeights {
            embed_q: b.head_matrices(&self.embed.weight, self.transposed)?,
            unembed_out: b.head_matrices(&self.unembed.weight, false)?,
        })
    }

    /// A sequence whose queries are not in latent space, and what it should give.
    fn sequence(&self, rng: &mut Rng, n: usize) -> (Sequence, Rows) {
        let heads = self.setup.spec.heads;
        let q = rng.calm(n, heads * Self::NOPE);
        let s = self.setup.sequence(rng, n);
        let absorbed = head_product(&self.embed, self.transposed, &q.wide());
        let scale = f64::from(self.setup.spec.scale);
        let (c, k_pe) = self.setup.stored(&s);
        let o = latent(&absorbed, &s.q_pe.wide(), 0, &c, &k_pe, heads, scale);
        (Sequence { q, ..s }, head_product(&self.unembed, false, &o))
    }

    /// Appends and attends for one step of several sequences: which tokens of each.
    fn step<B: Backend>(
        &self,
        b: &B,
        sequences: &[(&Sequence, Range<usize>)],
        caches: &mut [&mut B::KvCache],
    ) -> Result<Vec<f32>> {
        let weights = self.weights(b)?;
        let shape: Vec<_> = sequences.iter().map(|(_, r)| (r.len(), r.start)).collect();
        let batch = spans(b, &shape)?;
        let on = |of: fn(&Sequence) -> &Host| {
            Host::stack(&sequences.iter().map(|(s, r)| of(s).slice(r.clone())).collect::<Vec<_>>()).on(b)
        };
        b.mla_append(&on(|s| &s.c)?, &on(|s| &s.k_pe)?, &batch, caches)?;
        let caches: Vec<_> = caches.iter().map(|c| &**c).collect();
        let spec = &self.setup.spec;
        b.read(&b.mla(&on(|s| &s.q)?, &on(|s| &s.q_pe)?, &weights, &batch, &caches, spec)?)
    }
}

/// From queries to values: a long prompt, where expanding keys and values pays, then single tokens, where it does not.
fn whole<B: Backend>(transposed: bool, float: CacheFloat, name: &str) -> Case<B> {
    Case::new("mla", format!("320 tokens, then one by one, {name}"), BOUND, move |b: &B, rng| {
        let layer = Layer::new(rng, transposed, float);
        let (s, expected) = layer.sequence(rng, 324);
        let mut cache = layer.setup.cache(b)?;
        let mut out = Vec::new();
        for r in [0..320, 320..321, 321..322, 322..324] {
            out.extend(layer.step(b, &[(&s, r)], &mut [&mut cache])?);
        }
        y(out, &expected)
    })
}

/// Prompts and single tokens in one step.
fn mixed<B: Backend>(name: &str, float: CacheFloat) -> Case<B> {
    // Tokens already seen, tokens of this step.
    const SPANS: [(usize, usize); 4] = [(60, 1), (0, 90), (5, 2), (0, 70)];
    let detail = format!("prompts and single tokens in one batch{name}");
    Case::new("mla", detail, BOUND, move |b: &B, rng| {
        let layer = Layer::new(rng, false, float);
        let sequences = SPANS.map(|(past, new)| layer.sequence(rng, past + new));
        let mut caches = Vec::new();
        for ((s, _), (past, _)) in sequences.iter().zip(SPANS) {
            let mut cache = layer.setup.cache(b)?;
            if past > 0 {
                layer.step(b, &[(s, 0..past)], &mut [&mut cache])?;
            }
            caches.push(cache);
        }
        let now: Vec<_> =
            sequences.iter().zip(SPANS).map(|((s, _), (past, new))| (s, past..past + new)).collect();
        let out = layer.step(b, &now, &mut caches.iter_mut().collect::<Vec<_>>())?;
        let expected =
            sequences.iter().zip(SPANS).flat_map(|((_, y), (past, _))| y[past..].to_vec()).collect();
        y(out, &expected)
    })
}

fn product<B: Backend>(operation: &'static str, detail: &str, recipe: Recipe, transposed: bool) -> Case<B> {
    Case::new(operation, detail, Bound::l2(1e-6), move |b: &B, rng| {
        let w = recipe.build(rng);
        let inner = if transposed { w.weight.rows } else { w.weight.cols };
        let x = rng.values(3, w.weight.count * inner);
        let matrices = b.head_matrices(&w.weight, transposed)?;
        let out = match operation {
            "mla_absorb_q" => b.mla_absorb_q(&x.on(b)?, &matrices)?,
            _ => b.mla_unabsorb(&x.on(b)?, &matrices)?,
        };
        y(b.read(&out)?, &head_product(&w, transposed, &x.wide()))
    })
}

/// Both from one `kv_b_proj`: per head, key rows and value rows lie behind each other.
fn fused<B: Backend>() -> Case<B> {
    Case::new(
        "head_matrices",
        "K and V rows of one weight, 3 heads of 24 + 40 over 128",
        Bound::l2(1e-6),
        |b: &B, rng| {
            let whole = Recipe::new(Q4, 64, 128).stack(3).unaligned().build(rng);
            let (keys, values) = (whole.row_range(0..24), whole.row_range(24..64));
            let (q, o) = (rng.values(70, 3 * 24), rng.values(2, 3 * 128));
            let absorb = b.head_matrices(&keys.weight, true)?;
            let mut outputs = in_chunks(70, &head_product(&keys, true, &q.wide()), |chunk| {
                let parts = chunks(70, chunk).map(|r| b.read(&b.mla_absorb_q(&q.slice(r).on(b)?, &absorb)?));
                Ok(parts.collect::<Result<Vec<_>>>()?.concat())
            })?;
            let out = b.mla_unabsorb(&o.on(b)?, &b.head_matrices(&values.weight, false)?)?;
            outputs.push(Output::close("values", b.read(&out)?, &head_product(&values, false, &o.wide())));
            Ok(outputs)
        },
    )
}

/// Sequences of different lengths and positions in one batch.
fn batched<B: Backend>() -> Case<B> {
    const SPANS: [(usize, usize); 4] = [(0, 5), (100, 1), (9, 20), (0, 1)];
    Case::new("mla_append", "four sequences in one batch", BOUND, |b: &B, rng| {
        let setup = Setup::new(3, 20, 6, CacheFloat::F32);
        let sequences = SPANS.map(|(past, new)| setup.sequence(rng, past + new));
        let mut caches = Vec::new();
        for (s, (past, _)) in sequences.iter().zip(SPANS) {
            let mut cache = setup.cache(b)?;
            if past > 0 {
                setup.steps(b, &mut cache, s, std::iter::once(0..past))?;
            }
            caches.push(cache);
        }
        let part = |of: fn(&Sequence) -> &Host| {
            let parts = sequences.iter().zip(SPANS).map(|(s, (past, new))| of(s).slice(past..past + new));
            Host::stack(&parts.collect::<Vec<_>>()).on(b)
        };
        let batch = spans(b, &SPANS.map(|(past, new)| (new, past)))?;
        let mut writers: Vec<_> = caches.iter_mut().collect();
        b.mla_append(&part(|s| &s.c)?, &part(|s| &s.k_pe)?, &batch, &mut writers)?;
        let readers: Vec<_> = caches.iter().collect();
        let out = b.mla_attention(&part(|s| &s.q)?, &part(|s| &s.q_pe)?, &batch, &readers, &setup.spec)?;
        let expected =
            sequences.iter().zip(SPANS).flat_map(|(s, (past, _))| setup.expected(s, past)).collect();
        y(b.read(&out)?, &expected)
    })
}
