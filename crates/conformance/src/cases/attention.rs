//! Grouped-query attention over caches.

use std::ops::Range;

use backend::pool::{LayerShape, Slot};
use backend::{Backend, CacheFloat, Checked, KvShape, Result, Scores};

use super::test_pool::{TestPool, crowd, in_turns};
use super::{chunks, in_chunks, y};
use crate::formulas::attention::{Spec, attention};
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::{Bound, Case, CaseResult};

/// Scores reach some tens, where f32 leaves an error of a few 1e-6 in their exponentials.
pub(super) const BOUND: Bound = Bound::l2(5e-6);

/// What attends to what.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub cache: KvShape,
    pub scores: Scores,
}

/// Queries, keys and values of one sequence.
pub(super) struct Sequence {
    pub q: Host,
    pub k: Host,
    pub v: Host,
}

impl Setup {
    /// Causal attention of `heads` query heads over `kv_heads` heads.
    pub fn new(heads: usize, kv_heads: usize, key_dim: usize, value_dim: usize) -> Setup {
        let cache = KvShape { heads: kv_heads, key_dim, value_dim, float: CacheFloat::F32, window: None };
        let scale = 1.0 / (key_dim as f32).sqrt();
        Setup { cache, scores: Scores { heads, scale, window: None, soft_cap: None } }
    }

    pub fn f16(mut self) -> Setup {
        self.cache.float = CacheFloat::F16;
        self
    }

    pub fn q8(mut self) -> Setup {
        self.cache.float = CacheFloat::Q8;
        self
    }

    pub fn cap(mut self, cap: f32) -> Setup {
        self.scores.soft_cap = Some(cap);
        self
    }

    pub fn window(mut self, window: Option<usize>) -> Setup {
        self.scores.window = window;
        self
    }

    /// A window, and a cache that keeps no more.
    pub fn windowed(mut self, window: usize) -> Setup {
        self.cache.window = Some(window);
        self.window(Some(window))
    }

    pub fn layer(&self) -> LayerShape {
        LayerShape::Kv(self.cache)
    }

    /// Random tokens.
    pub fn sequence(&self, rng: &mut Rng, n: usize) -> Sequence {
        let KvShape { heads, key_dim, value_dim, .. } = self.cache;
        Sequence {
            q: rng.calm(n, self.scores.heads * key_dim),
            k: rng.values(n, heads * key_dim),
            v: rng.values(n, heads * value_dim),
        }
    }

    /// What queries from position `first` on should give.
    pub fn expected(&self, s: &Sequence, first: usize) -> Rows {
        let spec = Spec {
            heads: self.scores.heads,
            kv_heads: self.cache.heads,
            scale: f64::from(self.scores.scale),
            window: self.scores.window,
            cap: self.scores.soft_cap.map(f64::from),
        };
        let stored = |x: &Host| match self.cache.float {
            CacheFloat::F32 => x.wide(),
            CacheFloat::F16 => x.wide_f16(),
            CacheFloat::Q8 => x.wide_q8(x.cols / self.cache.heads),
        };
        attention(&s.q.wide()[first..].to_vec(), first, &stored(&s.k), &stored(&s.v), &spec)
    }

    /// A step of some tokens of several sequences: appends and attends. The outputs of all.
    pub fn together<B: Backend>(
        &self,
        pool: &mut TestPool<'_, B>,
        parts: &[(Slot, &Sequence, Range<usize>)],
    ) -> Result<Vec<f32>> {
        let b = pool.b;
        let on = |of: fn(&Sequence) -> &Host| {
            let parts = parts.iter().map(|(_, s, range)| of(s).slice(range.clone()));
            Host::stack(&parts.collect::<Vec<_>>()).on(&b)
        };
        let (q, k, v) = (on(|s| &s.q)?, on(|s| &s.k)?, on(|s| &s.v)?);
        pool.step(&spans(parts), |batch, slabs, layer| {
            b.kv_append(&k, &v, batch, slabs, layer)?;
            b.read(&b.sdpa(&q, batch, slabs, layer, &self.scores)?)
        })
    }

    /// The same without queries.
    pub fn append<B: Backend>(
        &self,
        pool: &mut TestPool<'_, B>,
        parts: &[(Slot, &Sequence, Range<usize>)],
    ) -> Result<()> {
        let b = pool.b;
        let on = |of: fn(&Sequence) -> &Host| {
            let parts = parts.iter().map(|(_, s, range)| of(s).slice(range.clone()));
            Host::stack(&parts.collect::<Vec<_>>()).on(&b)
        };
        let (k, v) = (on(|s| &s.k)?, on(|s| &s.v)?);
        pool.step(&spans(parts), |batch, slabs, layer| b.kv_append(&k, &v, batch, slabs, layer))
    }

    /// Appends and attends, chunk after chunk of one sequence.
    pub fn steps<B: Backend>(
        &self,
        pool: &mut TestPool<'_, B>,
        slot: Slot,
        s: &Sequence,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        for range in ranges {
            out.extend(self.together(pool, &[(slot, s, range)])?);
        }
        Ok(out)
    }

    /// The same of a sequence of its own.
    pub fn alone<B: Backend>(
        &self,
        b: &Checked<'_, B>,
        rng: &mut Rng,
        s: &Sequence,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<f32>> {
        let mut pool = TestPool::new(b, rng, self.layer())?;
        let slot = pool.create()?;
        self.steps(&mut pool, slot, s, ranges)
    }
}

/// The tokens of a step, each at the position where its sequence is.
fn spans(parts: &[(Slot, &Sequence, Range<usize>)]) -> Vec<(Slot, usize)> {
    parts.iter().map(|(slot, _, range)| (*slot, range.len())).collect()
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    // Heads, key-value heads, key width, value width.
    let shapes = [
        (1, 1, 1, 1),
        (3, 1, 7, 7),
        (4, 4, 64, 64),
        (6, 2, 33, 33),
        (8, 1, 128, 128),
        (16, 2, 256, 256),
        (2, 1, 512, 512),
        (6, 2, 24, 40),
        (3, 3, 19, 5),
    ];
    let mut cases = Vec::new();
    for (heads, kv, dk, dv) in shapes {
        let setup = Setup::new(heads, kv, dk, dv);
        for (setup, name) in [(setup, "f32"), (setup.f16(), "f16"), (setup.q8(), "q8")] {
            let detail = format!("{name}, {heads} heads over {kv}, {dk} and {dv} wide, 20 tokens at once");
            cases.push(prefill(detail, setup, 20));
        }
    }
    let setup = Setup::new(6, 2, 16, 24);
    for (n, setup, name) in [
        (150, setup, "f32"),
        (150, setup.f16(), "f16"),
        (150, setup.q8(), "q8"),
        (150, setup.cap(5.0), "soft cap 5"),
        // Long enough that a backend may divide the cache of one token, and the tokens of a prompt.
        (600, setup, "f32"),
        (600, Setup::new(10, 2, 70, 66).f16(), "f16, 10 heads over 2, 70 and 66 wide"),
        (600, Setup::new(10, 2, 70, 66).q8(), "q8, 10 heads over 2, 70 and 66 wide"),
        (330, Setup::new(140, 2, 8, 4), "140 heads over 2"),
        (330, Setup::new(140, 2, 8, 4).q8(), "q8, 140 heads over 2"),
    ] {
        let case = Case::new(
            "sdpa",
            format!("{name}, {n} tokens in chunks"),
            BOUND,
            move |b: &Checked<'_, B>, rng| {
                let s = setup.sequence(rng, n);
                in_chunks(n, &setup.expected(&s, 0), |chunk| setup.alone(b, rng, &s, chunks(n, chunk)))
            },
        );
        // So many heads meet floats, and codes meet other heads.
        cases.push(case.combination(name == "q8, 140 heads over 2"));
    }
    for (cap, scale) in [(50.0, 1.0), (20.0, 0.3), (1.0, 10.0)] {
        let mut setup = Setup::new(4, 2, 32, 32).cap(cap);
        setup.scores.scale = scale;
        cases.push(prefill(format!("soft cap {cap}, scale {scale}, 40 tokens at once"), setup, 40));
    }
    for (n, setup, name) in [
        (5000, Setup::new(4, 1, 64, 64), "f32"),
        (5000, Setup::new(6, 2, 65, 33).f16(), "f16, odd widths"),
        (4097, Setup::new(8, 8, 32, 32).cap(30.0), "soft cap"),
        (4111, Setup::new(16, 2, 256, 256).f16(), "f16, 16 heads over 2, 256 wide"),
        (4200, Setup::new(12, 2, 72, 200).f16().cap(30.0), "f16, soft cap, 12 heads over 2, 72 and 200 wide"),
        (
            4300,
            Setup::new(16, 1, 512, 512).f16().windowed(777),
            "f16, window of 777, 16 heads over 1, 512 wide",
        ),
        (5000, Setup::new(6, 2, 65, 33).q8(), "q8, odd widths"),
        (4111, Setup::new(16, 2, 256, 256).q8(), "q8, 16 heads over 2, 256 wide"),
        (4200, Setup::new(12, 2, 72, 200).q8().cap(30.0), "q8, soft cap, 12 heads over 2, 72 and 200 wide"),
        (
            4300,
            Setup::new(16, 1, 512, 512).q8().windowed(777),
            "q8, window of 777, 16 heads over 1, 512 wide",
        ),
    ] {
        cases.push(long(name, n, setup));
    }
    cases.push(sharp());
    cases.push(batched("f32", Setup::new(6, 2, 20, 12)));
    cases.push(batched("f16", Setup::new(3, 1, 33, 33).f16()));
    cases.push(batched("q8", Setup::new(3, 1, 33, 33).q8()));
    for (count, mixed) in [(1, false), (2, false), (2, true), (5, true), (70, false), (70, true)] {
        let setup = Setup::new(6, 2, 20, 12);
        for (setup, name) in [
            (setup, "f32"),
            (setup.f16(), "f16"),
            (setup.q8(), "q8"),
            (setup.f16().windowed(64), "f16, window of 64"),
            (setup.windowed(65), "window of 65"),
        ] {
            cases.push(crowded(name, setup, count, mixed));
        }
    }
    cases
}

fn prefill<B: Backend>(detail: String, setup: Setup, n: usize) -> Case<B> {
    Case::new("sdpa", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, n);
        y(setup.alone(b, rng, &s, std::iter::once(0..n))?, &setup.expected(&s, 0))
    })
}

/// A long cache, written in uneven steps; one query, then three.
fn long<B: Backend>(name: &str, n: usize, setup: Setup) -> Case<B> {
    Case::new("sdpa", format!("{name}, {n} keys"), BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, n);
        let mut pool = TestPool::new(b, rng, setup.layer())?;
        let slot = pool.create()?;
        for range in [0..1, 1..4001, 4001..n - 4] {
            setup.append(&mut pool, &[(slot, &s, range)])?;
        }
        let out = setup.steps(&mut pool, slot, &s, [n - 4..n - 3, n - 3..n])?;
        y(out, &setup.expected(&s, n - 4))
    })
}

/// Scores in the hundreds: one key takes all, and an exponential without the maximum taken off overflows.
fn sharp<B: Backend>() -> Case<B> {
    Case::new("sdpa", "scores of some hundreds, 300 keys", Bound::l2(1e-4), |b: &Checked<'_, B>, rng| {
        let mut setup = Setup::new(2, 1, 16, 16);
        setup.scores.scale = 8.0;
        let s = setup.sequence(rng, 300);
        y(setup.alone(b, rng, &s, std::iter::once(0..300))?, &setup.expected(&s, 0))
    })
}

/// Sequences of different lengths and positions in one batch.
fn batched<B: Backend>(name: &str, setup: Setup) -> Case<B> {
    // Tokens already in the cache, tokens of this step.
    const SPANS: [(usize, usize); 5] = [(0, 7), (300, 1), (13, 64), (0, 1), (1, 2)];
    Case::new(
        "sdpa",
        format!("{name}, five sequences in one batch"),
        BOUND,
        move |b: &Checked<'_, B>, rng| setup.batch(b, rng, &SPANS),
    )
}

/// Sequences at the edges of blocks, whose blocks lie between each other's.
fn crowded<B: Backend>(name: &str, setup: Setup, count: usize, mixed: bool) -> Case<B> {
    let tokens = if mixed { "one or more tokens" } else { "one token" };
    let detail = format!("{name}, {count} sequences, {tokens} each");
    Case::new("sdpa", detail, BOUND, move |b: &Checked<'_, B>, rng| setup.batch(b, rng, &crowd(count, mixed)))
}

impl Setup {
    /// Several sequences in one step, each behind tokens of its own.
    fn batch<B: Backend>(&self, b: &Checked<'_, B>, rng: &mut Rng, spans: &[(usize, usize)]) -> CaseResult {
        let sequences: Vec<_> = spans.iter().map(|(past, new)| self.sequence(rng, past + new)).collect();
        let mut pool = TestPool::new(b, rng, self.layer())?;
        let slots = pool.create_all(spans.len())?;
        for turn in in_turns(spans) {
            let parts: Vec<_> = turn.into_iter().map(|(i, range)| (slots[i], &sequences[i], range)).collect();
            self.append(&mut pool, &parts)?;
        }
        let parts = slots.iter().zip(&sequences).zip(spans);
        let parts: Vec<_> = parts.map(|((slot, s), (past, new))| (*slot, s, *past..past + new)).collect();
        let out = self.together(&mut pool, &parts)?;
        let expected = sequences.iter().zip(spans).flat_map(|(s, (past, _))| self.expected(s, *past));
        y(out, &expected.collect())
    }
}
