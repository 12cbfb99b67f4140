//! Multi-head latent attention.

use std::ops::Range;

use backend::pool::{LayerShape, Slot};
use backend::{Backend, CacheFloat, Checked, KvShape, LatentScores, Result};
use checkpoint::{Float, Format};

use super::test_pool::{TestPool, crowd, in_turns};
use super::{chunks, ensure, in_chunks, y};
use crate::formulas::attention::latent;
use crate::formulas::products::head_product;
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::weights::{BF16, F16, F32, Q4, Recipe, affine, format_name};
use crate::{Bound, Case, CaseResult, Output};

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

    fn layer(&self) -> LayerShape {
        let (key_dim, float) = (self.rank + self.pe, self.float);
        LayerShape::Kv(KvShape { heads: 1, key_dim, value_dim: 0, float, window: None })
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

    /// A step of some tokens of several sequences: appends and, unless `quiet`, attends.
    fn together<B: Backend>(
        &self,
        pool: &mut TestPool<'_, B>,
        parts: &[(Slot, &Sequence, Range<usize>)],
        quiet: bool,
    ) -> Result<Vec<f32>> {
        let b = pool.b;
        let on = |of: fn(&Sequence) -> &Host| {
            let parts = parts.iter().map(|(_, s, range)| of(s).slice(range.clone()));
            Host::stack(&parts.collect::<Vec<_>>()).on(&b)
        };
        let (q, q_pe, c, k_pe) = (on(|s| &s.q)?, on(|s| &s.q_pe)?, on(|s| &s.c)?, on(|s| &s.k_pe)?);
        let spans: Vec<_> = parts.iter().map(|(slot, _, range)| (*slot, range.len())).collect();
        pool.step(&spans, |batch, slabs, layer| {
            b.mla_append(&c, &k_pe, batch, slabs, layer)?;
            if quiet {
                return Ok(Vec::new());
            }
            b.read(&b.mla_attention(&q, &q_pe, batch, slabs, layer, &self.scores)?)
        })
    }

    fn steps<B: Backend>(
        &self,
        pool: &mut TestPool<'_, B>,
        slot: Slot,
        s: &Sequence,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        for range in ranges {
            out.extend(self.together(pool, &[(slot, s, range)], false)?);
        }
        Ok(out)
    }

    /// Several sequences in one step, each behind tokens of its own.
    fn batch<B: Backend>(&self, b: &Checked<'_, B>, rng: &mut Rng, spans: &[(usize, usize)]) -> CaseResult {
        let sequences: Vec<_> = spans.iter().map(|(past, new)| self.sequence(rng, past + new)).collect();
        let mut pool = TestPool::new(b, rng, self.layer())?;
        let slots = pool.create_all(spans.len())?;
        for turn in in_turns(spans) {
            let parts: Vec<_> = turn.into_iter().map(|(i, range)| (slots[i], &sequences[i], range)).collect();
            self.together(&mut pool, &parts, true)?;
        }
        let parts = slots.iter().zip(&sequences).zip(spans);
        let parts: Vec<_> = parts.map(|((slot, s), (past, new))| (*slot, s, *past..past + new)).collect();
        let out = self.together(&mut pool, &parts, false)?;
        let expected = sequences.iter().zip(spans).flat_map(|(s, (past, _))| self.expected(s, *past));
        y(out, &expected.collect())
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
                    let mut pool = TestPool::new(b, rng, setup.layer())?;
                    let slot = pool.create()?;
                    setup.steps(&mut pool, slot, &s, chunks(n, chunk))
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
                let mut pool = TestPool::new(b, rng, setup.layer())?;
                let slot = pool.create()?;
                let past = n - 4;
                setup.together(&mut pool, &[(slot, &s, 0..past)], true)?;
                let out = setup.steps(&mut pool, slot, &s, [past..past + 1, past + 1..n])?;
                y(out, &setup.expected(&s, past))
            },
        ));
    }
    cases.push(batched());
    for (count, mixed) in [(1, false), (2, false), (5, true), (70, false), (70, true)] {
        for (setup, name) in [
            (Setup::new(3, 20, 6, CacheFloat::F32), "f32"),
            (Setup::new(5, 64, 8, CacheFloat::F16), "f16"),
            (Setup::new(3, 33, 7, CacheFloat::Q8), "q8, odd widths"),
        ] {
            let tokens = if mixed { "one or more tokens" } else { "one token" };
            let detail = format!("{name}, {count} sequences, {tokens} each");
            cases.push(Case::new("mla_attention", detail, BOUND, move |b: &Checked<'_, B>, rng| {
                setup.batch(b, rng, &crowd(count, mixed))
            }));
        }
    }
    for (name, float) in [("f32", CacheFloat::F32), ("f16", CacheFloat::F16), ("q8", CacheFloat::Q8)] {
        cases.push(saved(name, float));
        cases.push(forked(name, float));
    }
    cases
}

/// A cache whose values have no width, saved and loaded: its image stays, and it goes on alike.
fn saved<B: Backend>(name: &str, float: CacheFloat) -> Case<B> {
    let detail = format!("latents in {name}, then load and go on");
    Case::new("save_kv", detail, Bound::EXACT, move |b: &Checked<'_, B>, rng| {
        let setup = Setup::new(3, 24, 8, float);
        let s = setup.sequence(rng, 80);
        let mut pool = TestPool::new(b, rng, setup.layer())?;
        let slot = pool.create()?;
        setup.steps(&mut pool, slot, &s, std::iter::once(0..70))?;
        let image = pool.kv_image(slot)?;
        ensure(image.values.is_empty(), "there are values in the image of latents")?;
        let loaded = pool.load(&pool.save(slot)?)?;
        ensure(pool.kv_image(loaded)? == image, "the image of the loaded cache is another one")?;
        let rest = || [70..71, 71..80];
        let expected = setup.steps(&mut pool, slot, &s, rest())?;
        let found = setup.steps(&mut pool, loaded, &s, rest())?;
        Ok(vec![Output::exact("y", found, expected)])
    })
}

/// A fork inside of a block, and the sequence that was forked, in one step.
fn forked<B: Backend>(name: &str, float: CacheFloat) -> Case<B> {
    let detail = format!("a fork of latents in {name}");
    Case::new("copy", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let setup = Setup::new(3, 24, 8, float);
        let (s, other) = (setup.sequence(rng, 90), setup.sequence(rng, 20));
        let join = |of: fn(&Sequence) -> &Host| Host::stack(&[of(&s).slice(0..70), of(&other).clone()]);
        let other = Sequence {
            q: join(|s| &s.q),
            q_pe: join(|s| &s.q_pe),
            c: join(|s| &s.c),
            k_pe: join(|s| &s.k_pe),
        };
        let mut pool = TestPool::reversible(b, rng, setup.layer())?;
        let slot = pool.create()?;
        setup.steps(&mut pool, slot, &s, std::iter::once(0..80))?;
        let fork = pool.fork(slot, 70)?;
        let out = setup.together(&mut pool, &[(fork, &other, 70..79), (slot, &s, 80..90)], false)?;
        let mut expected = setup.expected(&other, 70)[..9].to_vec();
        expected.extend(setup.expected(&s, 80));
        let mut outputs = vec![Output::close("both", out, &expected)];
        let out = setup.steps(&mut pool, fork, &other, [79..80, 80..90])?;
        outputs.push(Output::close("fork", out, &setup.expected(&other, 79)));
        Ok(outputs)
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
        Setup::new(3, 20, 6, CacheFloat::F32).batch(b, rng, &SPANS)
    })
}
