//! Multi-head latent attention.

use std::ops::Range;

use backend::{Backend, CacheFloat, Checked, KvShape, LatentScores, Result};
use checkpoint::{Float, Format};

use super::{chunks, ensure, in_chunks, one_span, spans, y};
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
    scores: LatentScores,
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
        Setup { rank, pe, float, scores: LatentScores { heads, scale } }
    }

    fn cache<B: Backend>(&self, b: &Checked<'_, B>) -> Result<B::KvCache> {
        let (key_dim, float) = (self.rank + self.pe, self.float);
        b.kv_cache(&KvShape { heads: 1, key_dim, value_dim: 0, float, window: None })
    }

    fn sequence(&self, rng: &mut Rng, n: usize) -> Sequence {
        let heads = self.scores.heads;
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
        let scale = f64::from(self.scores.scale);
        latent(&q, &q_pe, first, &c, &k_pe, self.scores.heads, scale)
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
        b: &Checked<'_, B>,
        cache: &mut B::KvCache,
        s: &Sequence,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        for r in ranges {
            let batch = one_span(b, r.len(), r.start)?;
            let on = |x: &Host| x.slice(r.clone()).on(b);
            b.mla_append(&on(&s.c)?, &on(&s.k_pe)?, &batch, &mut [&mut *cache])?;
            let o = b.mla_attention(&on(&s.q)?, &on(&s.q_pe)?, &batch, &[cache], &self.scores)?;
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
            move |b: &Checked<'_, B>, rng| {
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
            move |b: &Checked<'_, B>, rng| {
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
    for float in [CacheFloat::F32, CacheFloat::F16, CacheFloat::Q8] {
        cases.push(saved(float));
    }
    cases
}

/// A cache whose values have no width, saved and loaded: its image stays, and it goes on alike.
fn saved<B: Backend>(float: CacheFloat) -> Case<B> {
    let detail = format!("latents in {float:?}, then load and go on");
    Case::new("kv_save", detail, Bound::EXACT, move |b: &Checked<'_, B>, rng| {
        let setup = Setup::new(3, 24, 8, float);
        let s = setup.sequence(rng, 80);
        let mut cache = setup.cache(b)?;
        setup.steps(b, &mut cache, &s, std::iter::once(0..70))?;
        let image = b.kv_save(&cache)?;
        let shape = KvShape { heads: 1, key_dim: 32, value_dim: 0, float, window: None };
        let mut loaded = b.kv_load(&shape, &image)?;
        ensure(b.kv_save(&loaded)? == image, "the image of the loaded cache is another one")?;
        let rest = || [70..71, 71..80];
        let expected = setup.steps(b, &mut cache, &s, rest())?;
        let found = setup.steps(b, &mut loaded, &s, rest())?;
        Ok(vec![Output::exact("y", found, expected)])
    })
}

fn product<B: Backend>(operation: &'static str, detail: &str, recipe: Recipe, transposed: bool) -> Case<B> {
    Case::new(operation, detail, Bound::l2(1e-6), move |b: &Checked<'_, B>, rng| {
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
        |b: &Checked<'_, B>, rng| {
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
    Case::new("mla_append", "four sequences in one batch", BOUND, |b: &Checked<'_, B>, rng| {
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
        let out = b.mla_attention(&part(|s| &s.q)?, &part(|s| &s.q_pe)?, &batch, &readers, &setup.scores)?;
        let expected =
            sequences.iter().zip(SPANS).flat_map(|(s, (past, _))| setup.expected(s, past)).collect();
        y(b.read(&out)?, &expected)
    })
}
