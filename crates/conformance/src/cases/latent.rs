//! Multi-head latent attention.

use backend::{Backend, CacheFloat, KvShape, LatentAttention, MlaWeights, Result};
use checkpoint::{Float, Format};

use super::{chunks, in_chunks, one_span, spans, y};
use crate::formulas::attention::latent;
use crate::formulas::products::head_product;
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::weights::{BF16, F16, F32, Q4, Recipe, affine, format_name};
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
        let stored = |x: &Host| match self.float {
            CacheFloat::F32 => x.wide(),
            CacheFloat::F16 => x.wide_f16(),
        };
        let (q, q_pe) = (s.q.wide()[first..].to_vec(), s.q_pe.wide()[first..].to_vec());
        let scale = f64::from(self.spec.scale);
        latent(&q, &q_pe, first, &stored(&s.c), &stored(&s.k_pe), self.spec.heads, scale)
    }

    fn steps<B: Backend>(
        &self,
        b: &B,
        cache: &mut B::KvCache,
        s: &Sequence,
        ranges: impl IntoIterator<Item = std::ops::Range<usize>>,
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
    for (setup, name) in [
        (Setup::new(3, 24, 8, CacheFloat::F32), "f32"),
        (Setup::new(4, 33, 7, CacheFloat::F16), "f16, odd widths"),
        (Setup::new(16, 512, 64, CacheFloat::F32), "16 heads of 512 + 64"),
    ] {
        cases.push(Case::new(
            "mla_attention",
            format!("{name}, 70 tokens in chunks"),
            BOUND,
            move |b: &B, rng| {
                let s = setup.sequence(rng, 70);
                in_chunks(70, &setup.expected(&s, 0), |chunk| {
                    setup.steps(b, &mut setup.cache(b)?, &s, chunks(70, chunk))
                })
            },
        ));
    }
    cases.push(Case::new("mla_attention", "5000 tokens", Bound::l2(1e-5), |b: &B, rng| {
        let setup = Setup::new(2, 48, 16, CacheFloat::F32);
        let s = setup.sequence(rng, 5000);
        let mut cache = setup.cache(b)?;
        let batch = one_span(b, 4996, 0)?;
        b.mla_append(&s.c.slice(0..4996).on(b)?, &s.k_pe.slice(0..4996).on(b)?, &batch, &mut [&mut cache])?;
        y(setup.steps(b, &mut cache, &s, [4996..4997, 4997..5000])?, &setup.expected(&s, 4996))
    }));
    cases.push(batched());
    for (transposed, name) in [(false, "as stored"), (true, "from rows of one matrix")] {
        cases.push(whole(transposed, name));
    }
    cases
}

/// From queries to values: a long prompt, where expanding keys and values pays, then single tokens, where it does not.
fn whole<B: Backend>(transposed: bool, name: &str) -> Case<B> {
    Case::new("mla", format!("96 tokens, then one by one, {name}"), BOUND, move |b: &B, rng| {
        let (nope, value, setup) = (16, 24, Setup::new(4, 64, 8, CacheFloat::F16));
        let heads = setup.spec.heads;
        let (rows, cols) = if transposed { (nope, setup.rank) } else { (setup.rank, nope) };
        let format = if transposed { Q4 } else { BF16 };
        let embed = Recipe::new(format, rows, cols).stack(heads).build(rng);
        let unembed = Recipe::new(Q4, value, setup.rank).stack(heads).build(rng);
        let weights = MlaWeights {
            embed_q: b.head_matrices(&embed.weight, transposed)?,
            unembed_out: b.head_matrices(&unembed.weight, false)?,
        };
        let plain = rng.calm(100, heads * nope);
        let mut s = setup.sequence(rng, 100);
        let absorbed = head_product(&embed, transposed, &plain.wide());
        let stored = |x: &Host| x.wide_f16();
        let scale = f64::from(setup.spec.scale);
        let o = latent(&absorbed, &s.q_pe.wide(), 0, &stored(&s.c), &stored(&s.k_pe), heads, scale);
        let expected = head_product(&unembed, false, &o);

        s.q = plain;
        let mut cache = setup.cache(b)?;
        let mut out = Vec::new();
        for r in [0..96, 96..97, 97..98, 98..100] {
            let batch = one_span(b, r.len(), r.start)?;
            let on = |x: &Host| x.slice(r.clone()).on(b);
            b.mla_append(&on(&s.c)?, &on(&s.k_pe)?, &batch, &mut [&mut cache])?;
            out.extend(b.read(&b.mla(
                &on(&s.q)?,
                &on(&s.q_pe)?,
                &weights,
                &batch,
                &[&cache],
                &setup.spec,
            )?)?);
        }
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
