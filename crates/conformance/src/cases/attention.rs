//! Grouped-query attention over caches.

use std::ops::Range;

use backend::{Backend, CacheFloat, Checked, KvShape, Result, Scores};

use super::{chunks, in_chunks, one_span, spans, y};
use crate::formulas::attention::{Spec, attention};
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::{Bound, Case, Output};

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
    pub fn ring(mut self, window: usize) -> Setup {
        self.cache.window = Some(window);
        self.window(Some(window))
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

    /// Appends the tokens of `range`.
    pub fn append<B: Backend>(
        &self,
        b: &Checked<'_, B>,
        cache: &mut B::KvCache,
        s: &Sequence,
        range: Range<usize>,
    ) -> Result<()> {
        let batch = one_span(b, range.len(), range.start)?;
        b.kv_append(&s.k.slice(range.clone()).on(b)?, &s.v.slice(range).on(b)?, &batch, &mut [cache])
    }

    /// Queries of `range`, whose keys have been appended.
    pub fn attend<B: Backend>(
        &self,
        b: &Checked<'_, B>,
        cache: &B::KvCache,
        s: &Sequence,
        range: Range<usize>,
    ) -> Result<Vec<f32>> {
        let batch = one_span(b, range.len(), range.start)?;
        b.read(&b.sdpa(&s.q.slice(range).on(b)?, &batch, &[cache], &self.scores)?)
    }

    /// Appends and attends, chunk after chunk.
    pub fn steps<B: Backend>(
        &self,
        b: &Checked<'_, B>,
        cache: &mut B::KvCache,
        s: &Sequence,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        for range in ranges {
            self.append(b, cache, s, range.clone())?;
            out.extend(self.attend(b, cache, s, range)?);
        }
        Ok(out)
    }
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
                in_chunks(n, &setup.expected(&s, 0), |chunk| {
                    setup.steps(b, &mut b.kv_cache(&setup.cache)?, &s, chunks(n, chunk))
                })
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
        (4300, Setup::new(16, 1, 512, 512).f16().ring(777), "f16, window of 777, 16 heads over 1, 512 wide"),
        (5000, Setup::new(6, 2, 65, 33).q8(), "q8, odd widths"),
        (4111, Setup::new(16, 2, 256, 256).q8(), "q8, 16 heads over 2, 256 wide"),
        (4200, Setup::new(12, 2, 72, 200).q8().cap(30.0), "q8, soft cap, 12 heads over 2, 72 and 200 wide"),
        (4300, Setup::new(16, 1, 512, 512).q8().ring(777), "q8, window of 777, 16 heads over 1, 512 wide"),
    ] {
        cases.push(long(name, n, setup));
    }
    cases.push(sharp());
    cases.push(batched("f32", Setup::new(6, 2, 20, 12)));
    cases.push(batched("f16", Setup::new(3, 1, 33, 33).f16()));
    cases.push(batched("q8", Setup::new(3, 1, 33, 33).q8()));
    cases
}

fn prefill<B: Backend>(detail: String, setup: Setup, n: usize) -> Case<B> {
    Case::new("sdpa", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, n);
        let mut cache = b.kv_cache(&setup.cache)?;
        setup.append(b, &mut cache, &s, 0..n)?;
        y(setup.attend(b, &cache, &s, 0..n)?, &setup.expected(&s, 0))
    })
}

/// A long cache, written in uneven steps; one query, then three.
fn long<B: Backend>(name: &str, n: usize, setup: Setup) -> Case<B> {
    Case::new("sdpa", format!("{name}, {n} keys"), BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, n);
        let mut cache = b.kv_cache(&setup.cache)?;
        for range in [0..1, 1..4001, 4001..n - 4] {
            setup.append(b, &mut cache, &s, range)?;
        }
        y(setup.steps(b, &mut cache, &s, [n - 4..n - 3, n - 3..n])?, &setup.expected(&s, n - 4))
    })
}

/// Scores in the hundreds: one key takes all, and an exponential without the maximum taken off overflows.
fn sharp<B: Backend>() -> Case<B> {
    Case::new("sdpa", "scores of some hundreds, 300 keys", Bound::l2(1e-4), |b: &Checked<'_, B>, rng| {
        let mut setup = Setup::new(2, 1, 16, 16);
        setup.scores.scale = 8.0;
        let s = setup.sequence(rng, 300);
        let mut cache = b.kv_cache(&setup.cache)?;
        setup.append(b, &mut cache, &s, 0..300)?;
        y(setup.attend(b, &cache, &s, 0..300)?, &setup.expected(&s, 0))
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
        move |b: &Checked<'_, B>, rng| {
            let sequences = SPANS.map(|(past, new)| setup.sequence(rng, past + new));
            let mut caches = Vec::new();
            for (s, (past, _)) in sequences.iter().zip(SPANS) {
                let mut cache = b.kv_cache(&setup.cache)?;
                if past > 0 {
                    setup.append(b, &mut cache, s, 0..past)?;
                }
                caches.push(cache);
            }
            let part = |of: fn(&Sequence) -> &Host| {
                let parts = sequences.iter().zip(SPANS).map(|(s, (past, new))| of(s).slice(past..past + new));
                Host::stack(&parts.collect::<Vec<_>>()).on(b)
            };
            let batch = spans(b, &SPANS.map(|(past, new)| (new, past)))?;
            let mut writers: Vec<_> = caches.iter_mut().collect();
            b.kv_append(&part(|s| &s.k)?, &part(|s| &s.v)?, &batch, &mut writers)?;
            let readers: Vec<_> = caches.iter().collect();
            let out = b.read(&b.sdpa(&part(|s| &s.q)?, &batch, &readers, &setup.scores)?)?;
            let expected =
                sequences.iter().zip(SPANS).flat_map(|(s, (past, _))| setup.expected(s, past)).collect();
            Ok(vec![Output::close("y", out, &expected)])
        },
    )
}
