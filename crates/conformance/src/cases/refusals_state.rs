//! Wrong inputs of operations on caches and states: an error that names the operation, and nothing changed.

use backend::{Backend, CacheFloat, Checked, Error, GdnShape, KvShape, LatentScores, Scores};

use super::refusals::{t, wrong};
use super::{ensure, one_span, refused, spans};
use crate::weights::{F32, Recipe};
use crate::{Bound, Case, Fault};

const KV: KvShape = KvShape { heads: 2, key_dim: 3, value_dim: 5, float: CacheFloat::F32, window: None };
const LATENT: KvShape = KvShape { heads: 1, key_dim: 7, value_dim: 0, float: CacheFloat::F32, window: None };
const SPEC: Scores = Scores { heads: 4, scale: 1.0, window: None, soft_cap: None };
const GDN: GdnShape = GdnShape { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 5, kernel: 4 };

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    [appends(), attention(), latent(), states(), unchanged()].into_iter().flatten().collect()
}

fn appends<B: Backend>() -> Vec<Case<B>> {
    // Shapes of k and v, and the position of two new tokens behind an empty cache.
    let append = |what: &str, k: (usize, usize), v: (usize, usize), position: usize| {
        wrong("kv_append", what, move |b: &Checked<'_, B>, _| {
            let mut cache = b.kv_cache(&KV)?;
            b.kv_append(&t(b, k.0, k.1)?, &t(b, v.0, v.1)?, &one_span(b, 2, position)?, &mut [&mut cache])
        })
    };
    let latent = |what: &str, c: (usize, usize), pe: (usize, usize), position: usize| {
        wrong("mla_append", what, move |b: &Checked<'_, B>, _| {
            let mut cache = b.kv_cache(&LATENT)?;
            b.mla_append(&t(b, c.0, c.1)?, &t(b, pe.0, pe.1)?, &one_span(b, 2, position)?, &mut [&mut cache])
        })
    };
    vec![
        append("another width of k", (2, 7), (2, 10), 0),
        append("another width of v", (2, 6), (2, 9), 0),
        append("fewer rows of v", (2, 6), (1, 10), 0),
        append("more rows of both", (3, 6), (3, 10), 0),
        append("a gap before the new tokens", (2, 6), (2, 10), 1),
        wrong("kv_append", "no cache", |b: &Checked<'_, B>, _| {
            b.kv_append(&t(b, 2, 6)?, &t(b, 2, 10)?, &one_span(b, 2, 0)?, &mut [])
        }),
        latent("another width", (2, 4), (2, 4), 0),
        latent("fewer rows of k_pe", (2, 4), (1, 3), 0),
        latent("a gap before the new tokens", (2, 4), (2, 3), 1),
    ]
}

fn attention<B: Backend>() -> Vec<Case<B>> {
    // Cache, specification, width of q, tokens appended, then a batch of tokens at a position.
    let attend =
        |what: &str, kv: KvShape, spec: Scores, width: usize, held: usize, (n, at): (usize, usize)| {
            wrong("sdpa", what, move |b: &Checked<'_, B>, _| {
                let mut cache = b.kv_cache(&kv)?;
                let (k, v) = (t(b, held, kv.heads * kv.key_dim)?, t(b, held, kv.heads * kv.value_dim)?);
                b.kv_append(&k, &v, &one_span(b, held, 0)?, &mut [&mut cache])?;
                b.sdpa(&t(b, n, width)?, &one_span(b, n, at)?, &[&cache], &spec)
            })
        };
    let ring = KvShape { window: Some(4), ..KV };
    vec![
        attend("another width of q", KV, SPEC, 13, 2, (2, 0)),
        attend("heads not divisible", KV, Scores { heads: 3, ..SPEC }, 9, 2, (2, 0)),
        attend("keys not appended yet", KV, SPEC, 12, 2, (2, 2)),
        attend("causal over a turned ring", ring, SPEC, 12, 6, (1, 5)),
        attend("a window larger than the ring", ring, Scores { window: Some(5), ..SPEC }, 12, 6, (1, 5)),
        attend("a window of nothing", KV, Scores { window: Some(0), ..SPEC }, 12, 2, (2, 0)),
        attend("values of no width", KvShape { value_dim: 0, ..KV }, SPEC, 12, 2, (2, 0)),
        wrong("sdpa", "no cache", |b: &Checked<'_, B>, _| {
            b.sdpa(&t(b, 2, 12)?, &one_span(b, 2, 0)?, &[], &SPEC)
        }),
        wrong("sdpa", "fewer rows of q", |b: &Checked<'_, B>, _| {
            let mut cache = b.kv_cache(&KV)?;
            let batch = one_span(b, 2, 0)?;
            b.kv_append(&t(b, 2, 6)?, &t(b, 2, 10)?, &batch, &mut [&mut cache])?;
            b.sdpa(&t(b, 1, 12)?, &batch, &[&cache], &SPEC)
        }),
    ]
}

fn latent<B: Backend>() -> Vec<Case<B>> {
    let attend = |what: &str, kv: KvShape, held: usize, q: (usize, usize), pe: (usize, usize), at: usize| {
        wrong("mla_attention", what, move |b: &Checked<'_, B>, _| {
            let mut cache = b.kv_cache(&kv)?;
            let (k, v) = (t(b, held, kv.heads * kv.key_dim)?, t(b, held, kv.heads * kv.value_dim)?);
            b.kv_append(&k, &v, &one_span(b, held, 0)?, &mut [&mut cache])?;
            let spec = LatentScores { heads: 3, scale: 1.0 };
            b.mla_attention(&t(b, q.0, q.1)?, &t(b, pe.0, pe.1)?, &one_span(b, 1, at)?, &[&cache], &spec)
        })
    };
    let product = |operation: &'static str| {
        wrong(operation, "another width", move |b: &Checked<'_, B>, rng| {
            let w = b.head_matrices(&Recipe::new(F32, 4, 5).stack(3).build(rng).weight, false)?;
            match operation {
                "mla_absorb_q" => b.mla_absorb_q(&t(b, 2, 12)?, &w),
                _ => b.mla_unabsorb(&t(b, 2, 12)?, &w),
            }
        })
    };
    vec![
        product("mla_absorb_q"),
        product("mla_unabsorb"),
        attend("width not divisible", LATENT, 1, (1, 13), (1, 9), 0),
        attend("widths that do not fill the cache", LATENT, 1, (1, 12), (1, 12), 0),
        attend("fewer rows of q_pe", LATENT, 1, (1, 12), (2, 9), 0),
        attend("keys not appended yet", LATENT, 1, (1, 12), (1, 9), 1),
        attend("a cache of several heads", KvShape { heads: 2, ..LATENT }, 1, (1, 12), (1, 9), 0),
        attend("a turned ring", KvShape { window: Some(4), ..LATENT }, 6, (1, 12), (1, 9), 5),
        Case::new("head_matrices", "refused: biases", Bound::EXACT, |b: &Checked<'_, B>, rng| {
            match b.head_matrices(&Recipe::new(F32, 4, 5).stack(3).bias().build(rng).weight, false) {
                Err(Error::Unsupported(_)) => Ok(Vec::new()),
                Err(error) => Err(Fault::Wrong(format!("refused, but with {error:?}"))),
                Ok(_) => Err(Fault::Wrong("biases were accepted, and there is no place for them".into())),
            }
        }),
        Case::new("kv_cache", "refused: empty shapes", Bound::EXACT, |b: &Checked<'_, B>, _| {
            for kv in
                [KvShape { heads: 0, ..KV }, KvShape { key_dim: 0, ..KV }, KvShape { window: Some(0), ..KV }]
            {
                ensure(b.kv_cache(&kv).is_err(), &format!("{kv:?} was accepted"))?;
                let image = backend::KvImage { first: 0, len: 0, keys: Vec::new(), values: Vec::new() };
                ensure(b.kv_load(&kv, &image).is_err(), &format!("{kv:?} was loaded"))?;
            }
            Ok(Vec::new())
        }),
    ]
}

fn states<B: Backend>() -> Vec<Case<B>> {
    let channels = GDN.channels();
    let conv = |what: &str, x: (usize, usize), w: (usize, usize), count: usize| {
        wrong("conv_causal", what, move |b: &Checked<'_, B>, _| {
            let mut states = [b.recurrent(&GDN)?, b.recurrent(&GDN)?];
            let mut handles: Vec<_> = states.iter_mut().take(count).collect();
            b.conv_causal(&t(b, x.0, x.1)?, &t(b, w.0, w.1)?, &one_span(b, 2, 0)?, &mut handles)
        })
    };
    let gdn = |what: &str, qkv: (usize, usize), g: (usize, usize), beta: (usize, usize), count: usize| {
        wrong("gdn", what, move |b: &Checked<'_, B>, _| {
            let mut states = [b.recurrent(&GDN)?, b.recurrent(&GDN)?];
            let mut handles: Vec<_> = states.iter_mut().take(count).collect();
            let (qkv, g, beta) = (t(b, qkv.0, qkv.1)?, t(b, g.0, g.1)?, t(b, beta.0, beta.1)?);
            b.gdn(&qkv, &g, &beta, &one_span(b, 2, 0)?, &mut handles)
        })
    };
    vec![
        conv("another width", (2, channels + 1), (channels, 4), 1),
        conv("another kernel", (2, channels), (channels, 3), 1),
        conv("other rows", (3, channels), (channels, 4), 1),
        conv("no state", (2, channels), (channels, 4), 0),
        conv("a state too many", (2, channels), (channels, 4), 2),
        gdn("another width", (2, channels - 1), (2, 4), (2, 4), 1),
        gdn("other rows", (1, channels), (1, 4), (1, 4), 1),
        gdn("another g", (2, channels), (2, 2), (2, 4), 1),
        gdn("another beta", (2, channels), (2, 4), (1, 4), 1),
        gdn("no state", (2, channels), (2, 4), (2, 4), 0),
    ]
}

/// A refusal changes nothing: the caller may mend its batch and go on.
fn unchanged<B: Backend>() -> Vec<Case<B>> {
    vec![Case::new(
        "kv_append",
        "refused for the second sequence: the first stays as it was",
        Bound::EXACT,
        |b: &Checked<'_, B>, _| {
            let (mut first, mut second) = (b.kv_cache(&KV)?, b.kv_cache(&KV)?);
            let before = b.kv_save(&first)?;
            let batch = spans(b, &[(1, 0), (1, 3)])?;
            let result = b.kv_append(&t(b, 2, 6)?, &t(b, 2, 10)?, &batch, &mut [&mut first, &mut second]);
            refused("kv_append", result)?;
            ensure(b.kv_save(&first)? == before, "the first cache took its token")?;
            Ok(Vec::new())
        },
    )]
}
