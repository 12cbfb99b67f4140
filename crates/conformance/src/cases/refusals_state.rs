//! Wrong inputs of operations on caches and states: an error that names the operation, and nothing changed.

use backend::pool::{LayerShape, Pool};
use backend::{
    Backend, Batch, CacheFloat, Checked, Error, GdnShape, KvShape, LatentScores, Result, Scores, Tokens,
};

use super::refusals::{t, wrong};
use super::test_pool::{BUDGET, TestPool};
use super::{ensure, refused};
use crate::weights::{F32, Recipe};
use crate::{Bound, Case, Fault};

const KV: KvShape = KvShape { heads: 2, key_dim: 3, value_dim: 5, float: CacheFloat::F32, window: None };
const LATENT: KvShape = KvShape { heads: 1, key_dim: 7, value_dim: 0, float: CacheFloat::F32, window: None };
const SPEC: Scores = Scores { heads: 4, scale: 1.0, window: None, soft_cap: None };
const GDN: GdnShape = GdnShape { key_heads: 2, value_heads: 4, key_dim: 3, value_dim: 5, kernel: 4 };

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    [appends(), attention(), latent(), states(), layers(), room(), unchanged()]
        .into_iter()
        .flatten()
        .collect()
}

/// A pool of one layer.
pub(super) fn one_layer<'a, B: Backend>(b: &Checked<'a, B>, shape: LayerShape) -> Result<TestPool<'a, B>> {
    Ok(TestPool { b: *b, pool: Pool::new(b.0, &[shape], BUDGET)?, layer: 0 })
}

fn appends<B: Backend>() -> Vec<Case<B>> {
    // Shapes of k and v, for two tokens.
    let append = |what: &str, k: (usize, usize), v: (usize, usize)| {
        wrong("kv_append", what, move |b: &Checked<'_, B>, _| {
            let mut pool = one_layer(b, LayerShape::Kv(KV))?;
            let (slot, k, v) = (pool.create()?, t(b, k.0, k.1)?, t(b, v.0, v.1)?);
            pool.step(&[(slot, 2)], |batch, slabs, layer| b.kv_append(&k, &v, batch, slabs, layer))
        })
    };
    let latent = |what: &str, c: (usize, usize), pe: (usize, usize)| {
        wrong("mla_append", what, move |b: &Checked<'_, B>, _| {
            let mut pool = one_layer(b, LayerShape::Kv(LATENT))?;
            let (slot, c, pe) = (pool.create()?, t(b, c.0, c.1)?, t(b, pe.0, pe.1)?);
            pool.step(&[(slot, 2)], |batch, slabs, layer| b.mla_append(&c, &pe, batch, slabs, layer))
        })
    };
    vec![
        append("another width of k", (2, 7), (2, 10)),
        append("another width of v", (2, 6), (2, 9)),
        append("fewer rows of v", (2, 6), (1, 10)),
        append("more rows of both", (3, 6), (3, 10)),
        latent("another width", (2, 4), (2, 4)),
        latent("fewer rows of k_pe", (2, 4), (1, 3)),
    ]
}

/// A step of two parts: `held` tokens, which are appended, then `n` tokens, for which `call` is
/// made.
fn behind<B: Backend, T>(
    b: &Checked<'_, B>,
    kv: KvShape,
    held: usize,
    n: usize,
    call: impl FnOnce(&Batch<B>, &B::Slabs, usize) -> Result<T>,
) -> Result<T> {
    let mut pool = one_layer(b, LayerShape::Kv(kv))?;
    let slot = pool.create()?;
    let (keys, values) = (kv.heads * kv.key_dim, kv.heads * kv.value_dim);
    for (n, last) in [(held, false), (n, true)].into_iter().filter(|(n, _)| *n > 0) {
        let (k, v) = (t(b, n, keys)?, t(b, n, values)?);
        let append = |batch: &Batch<B>, slabs: &mut B::Slabs, layer| b.kv_append(&k, &v, batch, slabs, layer);
        if last {
            return pool.step(&[(slot, n)], |batch, slabs, layer| {
                append(batch, slabs, layer)?;
                call(batch, slabs, layer)
            });
        }
        pool.step(&[(slot, n)], append)?;
    }
    Err(Error::Unsupported("a case without tokens".into()))
}

fn attention<B: Backend>() -> Vec<Case<B>> {
    // Cache, specification, shape of q, tokens that came before, tokens of the step.
    let attend = |what: &str, kv: KvShape, spec: Scores, q: (usize, usize), held: usize, n: usize| {
        wrong("sdpa", what, move |b: &Checked<'_, B>, _| {
            let q = t(b, q.0, q.1)?;
            behind(b, kv, held, n, |batch, slabs, layer| b.sdpa(&q, batch, slabs, layer, &spec))
        })
    };
    let window = KvShape { window: Some(4), ..KV };
    vec![
        attend("another width of q", KV, SPEC, (2, 13), 0, 2),
        attend("heads not divisible", KV, Scores { heads: 3, ..SPEC }, (2, 9), 0, 2),
        attend("causal over a window that has been passed", window, SPEC, (1, 12), 5, 1),
        attend("a window larger than the cache's", window, Scores { window: Some(5), ..SPEC }, (1, 12), 5, 1),
        attend("a window of nothing", KV, Scores { window: Some(0), ..SPEC }, (2, 12), 0, 2),
        attend("values of no width", KvShape { value_dim: 0, ..KV }, SPEC, (2, 12), 0, 2),
        attend("fewer rows of q", KV, SPEC, (1, 12), 0, 2),
    ]
}

fn latent<B: Backend>() -> Vec<Case<B>> {
    let attend = |what: &str, kv: KvShape, held: usize, q: (usize, usize), pe: (usize, usize)| {
        wrong("mla_attention", what, move |b: &Checked<'_, B>, _| {
            let spec = LatentScores { heads: 3, scale: 1.0 };
            let (q, pe) = (t(b, q.0, q.1)?, t(b, pe.0, pe.1)?);
            behind(b, kv, held, 1, |batch, slabs, layer| b.mla_attention(&q, &pe, batch, slabs, layer, &spec))
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
        attend("width not divisible", LATENT, 0, (1, 13), (1, 9)),
        attend("widths that do not fill the cache", LATENT, 0, (1, 12), (1, 12)),
        attend("fewer rows of q_pe", LATENT, 0, (1, 12), (2, 9)),
        attend("other rows of both", LATENT, 0, (2, 12), (2, 9)),
        attend("a cache of several heads", KvShape { heads: 2, ..LATENT }, 0, (1, 12), (1, 9)),
        attend("a window that has been passed", KvShape { window: Some(4), ..LATENT }, 5, (1, 12), (1, 9)),
        Case::new("head_matrices", "refused: biases", Bound::EXACT, |b: &Checked<'_, B>, rng| {
            match b.head_matrices(&Recipe::new(F32, 4, 5).stack(3).bias().build(rng).weight, false) {
                Err(Error::Unsupported(_)) => Ok(Vec::new()),
                Err(error) => Err(Fault::Wrong(format!("refused, but with {error:?}"))),
                Ok(_) => Err(Fault::Wrong("biases were accepted, and there is no place for them".into())),
            }
        }),
        Case::new("slabs", "refused: empty shapes", Bound::EXACT, |b: &Checked<'_, B>, _| {
            for kv in
                [KvShape { heads: 0, ..KV }, KvShape { key_dim: 0, ..KV }, KvShape { window: Some(0), ..KV }]
            {
                let pool = Pool::new(b.0, &[LayerShape::Kv(KV), LayerShape::Kv(kv)], BUDGET);
                ensure(pool.is_err(), &format!("{kv:?} was accepted"))?;
            }
            Ok(Vec::new())
        }),
    ]
}

fn states<B: Backend>() -> Vec<Case<B>> {
    let channels = GDN.channels();
    let conv = |what: &str, x: (usize, usize), w: (usize, usize)| {
        wrong("conv_causal", what, move |b: &Checked<'_, B>, _| {
            let mut pool = one_layer(b, LayerShape::Recurrent(GDN))?;
            let (slot, x, w) = (pool.create()?, t(b, x.0, x.1)?, t(b, w.0, w.1)?);
            pool.step(&[(slot, 2)], |batch, slabs, layer| b.conv_causal(&x, &w, batch, slabs, layer))
        })
    };
    let gdn = |what: &str, qkv: (usize, usize), g: (usize, usize), beta: (usize, usize)| {
        wrong("gdn", what, move |b: &Checked<'_, B>, _| {
            let mut pool = one_layer(b, LayerShape::Recurrent(GDN))?;
            let slot = pool.create()?;
            let (qkv, g, beta) = (t(b, qkv.0, qkv.1)?, t(b, g.0, g.1)?, t(b, beta.0, beta.1)?);
            pool.step(&[(slot, 2)], |batch, slabs, layer| b.gdn(&qkv, &g, &beta, batch, slabs, layer))
        })
    };
    vec![
        conv("another width", (2, channels + 1), (channels, 4)),
        conv("another kernel", (2, channels), (channels, 3)),
        conv("other rows", (3, channels), (channels, 4)),
        gdn("another width", (2, channels - 1), (2, 4), (2, 4)),
        gdn("other rows", (1, channels), (1, 4), (1, 4)),
        gdn("another g", (2, channels), (2, 2), (2, 4)),
        gdn("another beta", (2, channels), (2, 4), (1, 4)),
    ]
}

/// An operation on a layer of another kind, or on one that is not there.
fn layers<B: Backend>() -> Vec<Case<B>> {
    fn on<B: Backend>(
        operation: &'static str,
        layer: usize,
        call: impl Fn(&Checked<'_, B>, &Batch<B>, &mut B::Slabs, usize) -> Result<()> + Send + Sync + 'static,
    ) -> Case<B> {
        let what = if layer == 2 { "no such layer" } else { "a layer of another kind" };
        let run = move |b: &Checked<'_, B>, _: &mut _| {
            let layers = [LayerShape::Kv(KV), LayerShape::Recurrent(GDN)];
            let mut pool = TestPool { b: *b, pool: Pool::new(b.0, &layers, BUDGET)?, layer };
            let slot = pool.create()?;
            let before = pool.save(slot)?;
            match pool.step(&[(slot, 2)], |batch, slabs, layer| call(b, batch, slabs, layer)) {
                Err(Error::Unsupported(text)) => {
                    ensure(text.contains(&format!("layer {layer}")), &format!("refused, but: {text}"))?;
                }
                Err(error) => return Err(Fault::Wrong(format!("refused, but with {error:?}"))),
                Ok(_) => return Err(Fault::Wrong("the wrong layer was accepted".into())),
            }
            ensure(pool.save(slot)? == before, "something changed")?;
            Ok(Vec::new())
        };
        Case::new(operation, format!("refused: {what}"), Bound::EXACT, run)
    }
    let mut cases = Vec::new();
    for layer in [1, 2] {
        cases.push(on("kv_append", layer, |b: &Checked<'_, B>, batch, slabs, layer| {
            b.kv_append(&t(b, 2, 6)?, &t(b, 2, 10)?, batch, slabs, layer)
        }));
        cases.push(on("sdpa", layer, |b: &Checked<'_, B>, batch, slabs, layer| {
            b.sdpa(&t(b, 2, 12)?, batch, slabs, layer, &SPEC).map(|_| ())
        }));
        cases.push(on("mla_append", layer, |b: &Checked<'_, B>, batch, slabs, layer| {
            b.mla_append(&t(b, 2, 4)?, &t(b, 2, 3)?, batch, slabs, layer)
        }));
        cases.push(on("mla_attention", layer, |b: &Checked<'_, B>, batch, slabs, layer| {
            let spec = LatentScores { heads: 3, scale: 1.0 };
            b.mla_attention(&t(b, 2, 12)?, &t(b, 2, 9)?, batch, slabs, layer, &spec).map(|_| ())
        }));
    }
    for layer in [0, 2] {
        cases.push(on("conv_causal", layer, |b: &Checked<'_, B>, batch, slabs, layer| {
            let (x, w) = (t(b, 2, GDN.channels())?, t(b, GDN.channels(), 4)?);
            b.conv_causal(&x, &w, batch, slabs, layer).map(|_| ())
        }));
        cases.push(on("gdn", layer, |b: &Checked<'_, B>, batch, slabs, layer| {
            let (qkv, gates) = (t(b, 2, GDN.channels())?, t(b, 2, 4)?);
            b.gdn(&qkv, &gates, &gates, batch, slabs, layer).map(|_| ())
        }));
    }
    cases
}

/// Batches for which there is no room: none was reserved, or memory is missing.
fn room<B: Backend>() -> Vec<Case<B>> {
    let unreserved = |what: &str, seen: usize, reserved: usize, tokens: usize| {
        wrong("batch", what, move |b: &Checked<'_, B>, _| {
            let mut pool = one_layer(b, LayerShape::Kv(KV))?;
            let slots = pool.create_all(2)?;
            for slot in &slots {
                pool.step(&[(*slot, seen)], |_, _, _| Ok(()))?;
            }
            ensure_room(&mut pool.pool, b.0, slots[0], 100)?;
            ensure_room(&mut pool.pool, b.0, slots[1], reserved)?;
            let tokens = vec![0; tokens];
            let spans = [(slots[0], Tokens::Ids(&tokens)), (slots[1], Tokens::Ids(&tokens))];
            Batch::new(b.0, &pool.pool, &spans)
        })
    };
    vec![
        unreserved("no room was reserved for one of two sequences", 64, 0, 1),
        unreserved("less room was reserved than there are tokens", 30, 34, 35),
        wrong("batch", "a sequence that was given up", |b: &Checked<'_, B>, _| {
            let mut pool = one_layer(b, LayerShape::Kv(KV))?;
            let slot = pool.create()?;
            ensure_room(&mut pool.pool, b.0, slot, 5)?;
            pool.pool.release(slot);
            Batch::new(b.0, &pool.pool, &[(slot, Tokens::Ids(&[1]))])
        }),
        Case::new("reserve", "a pool that is full", Bound::EXACT, |b: &Checked<'_, B>, _| {
            let layers = [LayerShape::Kv(KV), LayerShape::Recurrent(GDN)];
            let [block, state] = layers.map(|shape| b.place_bytes(&shape));
            ensure(block >= layers[0].place_bytes() && state >= layers[1].place_bytes(), "places too small")?;
            let mut pool = Pool::new(b.0, &layers, 2 * state + 3 * block)?;
            let create = |pool: &mut Pool<B>| {
                let slot = pool.create(b.0)?;
                slot.ok_or_else(|| Fault::Wrong("no room for two sequences".into()))
            };
            let [first, second] = [create(&mut pool)?, create(&mut pool)?];
            ensure(pool.reserve(b.0, first, 128)?, "two blocks of three were refused")?;
            let used = pool.tables().used();
            ensure(!pool.reserve(b.0, second, 65)?, "two blocks of the one left were given")?;
            ensure(pool.tables().used() == used, "a refusal took memory")?;
            ensure(pool.reserve(b.0, second, 64)?, "the last block was refused")?;
            ensure(pool.create(b.0)?.is_none(), "a sequence was made beyond the budget")?;
            ensure(pool.fork(b.0, second, 0)?.is_none(), "a fork was made beyond the budget")?;
            let image = pool.save(b.0, second)?;
            ensure(pool.load(b.0, &image)?.is_none(), "an image was loaded beyond the budget")?;
            pool.release(first);
            pool.release(second);
            ensure(pool.is_empty(), "memory is in use, but nobody has it")?;
            let [first, _] = [create(&mut pool)?, create(&mut pool)?];
            ensure(pool.reserve(b.0, first, 192)?, "what was given up cannot be had again")?;
            let mut endless = Pool::new(b.0, &layers[..1], u64::MAX)?;
            let (slot, most) = (create(&mut endless)?, b.most_places(&layers[0]) as usize);
            ensure(!endless.reserve(b.0, slot, 64 * most + 1)?, "blocks beyond reach were given")?;
            Ok(Vec::new())
        }),
    ]
}

fn ensure_room<B: Backend>(
    pool: &mut Pool<B>,
    b: &B,
    slot: backend::pool::Slot,
    tokens: usize,
) -> Result<()> {
    match pool.reserve(b, slot, tokens)? {
        true => Ok(()),
        false => Err(Error::OutOfMemory("a large pool is full".into())),
    }
}

/// A refusal changes nothing: the caller may mend its arguments and go on.
fn unchanged<B: Backend>() -> Vec<Case<B>> {
    vec![Case::new(
        "kv_append",
        "refused for two sequences: both stay as they were",
        Bound::EXACT,
        |b: &Checked<'_, B>, _| {
            let mut pool = one_layer(b, LayerShape::Kv(KV))?;
            let slots = pool.create_all(2)?;
            let spans = [(slots[0], 1), (slots[1], 3)];
            let (k, v) = (t(b, 4, 6)?, t(b, 4, 10)?);
            pool.step(&spans, |batch, slabs, layer| b.kv_append(&k, &v, batch, slabs, layer))?;
            let before = [pool.save(slots[0])?, pool.save(slots[1])?];
            let short = t(b, 3, 10)?;
            let append =
                |batch: &Batch<B>, slabs: &mut B::Slabs, layer| b.kv_append(&k, &short, batch, slabs, layer);
            refused("kv_append", pool.step(&spans, append))?;
            ensure([pool.save(slots[0])?, pool.save(slots[1])?] == before, "a cache took its tokens")?;
            pool.step(&spans, |batch, slabs, layer| b.kv_append(&k, &v, batch, slabs, layer))?;
            ensure(pool.pool.len(slots[1]) == 6, "the sequences cannot go on")?;
            Ok(Vec::new())
        },
    )]
}
