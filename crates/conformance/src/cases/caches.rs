//! Key-value caches: saved, loaded, truncated.

use backend::{Backend, CacheFloat, Checked, Error, KvImage};

use super::attention::{BOUND, Sequence, Setup};
use super::{chunks, ensure};
use crate::host::Host;
use crate::{Bound, Case, Fault, Output};

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let plain = Setup::new(4, 2, 6, 10);
    let setups = [
        ("f32", plain),
        ("f16", plain.f16()),
        ("f32 ring of 16", plain.ring(16)),
        ("f16 ring of 16", plain.f16().ring(16)),
        ("q8", Setup::new(4, 2, 70, 37).q8()),
        ("q8 ring of 16", plain.q8().ring(16)),
    ];
    let mut cases = Vec::new();
    for (name, setup) in setups {
        // Before a ring is full, just full, and turned over many times; in long and short steps.
        for (n, chunk) in [(1, 1), (16, 5), (17, 1), (100, 1), (100, 40)] {
            cases.push(save_load(format!("{name}, {n} tokens in steps of {chunk}"), setup, n, chunk));
            cases.push(clone(format!("{name}, {n} tokens in steps of {chunk}"), setup, n, chunk));
        }
        for (n, keep, chunk) in [(12, 5, 1), (12, 0, 4), (15, 15, 1), (60, 59, 30)] {
            cases.push(truncate(
                format!("{name}, {n} tokens to {keep}, steps of {chunk}"),
                setup,
                n,
                keep,
                chunk,
            ));
        }
    }
    cases.push(overwritten(plain.ring(16)));
    cases.push(save_truncated(plain.ring(16)));
    cases.push(empty(plain));
    cases.push(lies("whole cache", plain));
    cases.push(lies("ring of 16", plain.ring(16)));
    cases.push(lies("whole cache of codes", plain.q8()));
    cases
}

/// What an image should hold: the tokens from `first` on of `x`, in rows of `width`.
fn stored(float: CacheFloat, x: &Host, first: usize, width: usize) -> Vec<f32> {
    let rest = &x.values[first * x.cols..];
    match float {
        CacheFloat::F32 => rest.to_vec(),
        CacheFloat::F16 => rest.iter().map(|v| half::f16::from_f32(*v).to_f32()).collect(),
        CacheFloat::Q8 => x.wide_q8(width)[first..].concat().iter().map(|v| *v as f32).collect(),
    }
}

/// What it holds.
fn held(float: CacheFloat, image: &[u8], width: usize) -> Vec<f32> {
    let half = |bytes: &[u8; 2]| half::f16::from_le_bytes(*bytes).to_f32();
    match float {
        CacheFloat::F32 => image.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        CacheFloat::F16 => image.as_chunks().0.iter().map(half).collect(),
        CacheFloat::Q8 => {
            let row = |bytes: &[u8]| {
                let (codes, scales) = bytes.split_at(width);
                let scales: Vec<f32> = scales.as_chunks().0.iter().map(half).collect();
                let value =
                    |(i, code): (usize, &u8)| f32::from(code.cast_signed()) * scales[i / CacheFloat::GROUP];
                codes.iter().enumerate().map(value).collect::<Vec<f32>>()
            };
            image.chunks_exact(float.row_bytes(width)).flat_map(row).collect()
        }
    }
}

/// Whether rows of `width` are those expected. Fast numerics may round halves once more, by as much as a float with 14 bits for the norm
/// of a row would; that nobody else does, the bound of the case sees to. Floats and codes are kept as they are.
fn are_near(float: CacheFloat, found: &[f32], expected: &[f32], width: usize) -> bool {
    if float != CacheFloat::F16 || found.len() != expected.len() {
        return found == expected;
    }
    let near = |(found, row): (&[f32], &[f32])| {
        let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        found.iter().zip(row).all(|(a, v)| (a - v).abs() <= norm / 16384.0)
    };
    found.chunks_exact(width).zip(expected.chunks_exact(width)).all(near)
}

fn filled<B: Backend>(
    b: &Checked<'_, B>,
    setup: &Setup,
    s: &Sequence,
    n: usize,
    chunk: usize,
) -> backend::Result<B::KvCache> {
    let mut cache = b.kv_cache(&setup.cache)?;
    for range in chunks(n, chunk) {
        setup.append(b, &mut cache, s, range)?;
    }
    Ok(cache)
}

fn save_load<B: Backend>(detail: String, setup: Setup, n: usize, chunk: usize) -> Case<B> {
    Case::new("kv_save", format!("{detail}, then load and go on"), BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, n + 40);
        let cache = filled(b, &setup, &s, n, chunk)?;
        let image = b.kv_save(&cache)?;
        ensure(image.len == n, "the image has the wrong length")?;
        let needed = setup.cache.window.map_or(0, |w| (n + 1).saturating_sub(w));
        ensure(image.first <= needed, "the image lacks tokens that the next one sees")?;
        let (k, v) = (s.k.slice(0..n), s.v.slice(0..n));
        let (float, heads) = (setup.cache.float, setup.cache.heads);
        let mut outputs = Vec::new();
        for (label, bytes, x) in [("keys", &image.keys, &k), ("values", &image.values, &v)] {
            let width = x.cols / heads;
            let (found, expected) = (held(float, bytes, width), stored(float, x, image.first, width));
            ensure(are_near(float, &found, &expected, width), "the image is not what was appended")?;
            let rows: Vec<Vec<f64>> =
                expected.chunks(x.cols).map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect();
            outputs.push(Output::close(label, found, &rows));
        }
        let mut loaded = b.kv_load(&setup.cache, &image)?;
        ensure(b.kv_save(&loaded)? == image, "what was loaded is not what was saved")?;
        // One token, then a step longer than the window, then one by one.
        let ranges = [n..n + 1, n + 1..n + 30].into_iter().chain((n + 30..n + 40).map(|t| t..t + 1));
        let out = setup.steps(b, &mut loaded, &s, ranges)?;
        outputs.push(Output::close("y", out, &setup.expected(&s, n)));
        Ok(outputs)
    })
}

/// A copy goes its own way, and the original does not notice.
fn clone<B: Backend>(detail: String, setup: Setup, n: usize, chunk: usize) -> Case<B> {
    Case::new("kv_clone", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, n + 20);
        let cache = filled(b, &setup, &s, n, chunk)?;
        let before = b.kv_save(&cache)?;
        let mut copy = b.kv_clone(&setup.cache, &cache)?;
        ensure(b.kv_save(&copy)? == before, "the copy is not what was copied")?;
        let out = setup.steps(b, &mut copy, &s, [n..n + 1, n + 1..n + 20])?;
        ensure(b.kv_save(&cache)? == before, "the original has changed")?;
        Ok(vec![Output::close("y", out, &setup.expected(&s, n))])
    })
}

/// Truncated and continued with other tokens, a cache is as if the dropped ones had never been there.
fn truncate<B: Backend>(detail: String, setup: Setup, n: usize, keep: usize, chunk: usize) -> Case<B> {
    Case::new("kv_truncate", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let (old, new) = (setup.sequence(rng, n), setup.sequence(rng, keep + 50));
        let join = |a: &Host, z: &Host| Host::stack(&[a.slice(0..keep), z.slice(keep..keep + 50)]);
        let s = Sequence { q: join(&old.q, &new.q), k: join(&old.k, &new.k), v: join(&old.v, &new.v) };
        let mut cache = filled(b, &setup, &old, n, chunk)?;
        ensure(b.kv_truncate(&mut cache, keep)?, "nothing needed was overwritten, but the answer is no")?;
        ensure(b.kv_save(&cache)?.len == keep, "the cache has the wrong length")?;
        let ranges =
            [keep..keep + 1, keep + 1..keep + 35].into_iter().chain((keep + 35..keep + 50).map(|t| t..t + 1));
        let out = setup.steps(b, &mut cache, &s, ranges)?;
        Ok(vec![Output::close("y", out, &setup.expected(&s, keep))])
    })
}

/// A ring that has overwritten what a shorter cache would see says no and stays as it is.
fn overwritten<B: Backend>(setup: Setup) -> Case<B> {
    Case::new(
        "kv_truncate",
        "a ring that has overwritten what is needed",
        BOUND,
        move |b: &Checked<'_, B>, rng| {
            let s = setup.sequence(rng, 110);
            let mut cache = filled(b, &setup, &s, 100, 1)?;
            let before = b.kv_save(&cache)?;
            for len in [0, 1, 50, before.first] {
                ensure(
                    !b.kv_truncate(&mut cache, len)?,
                    &format!("truncated to {len}, which was overwritten"),
                )?;
                ensure(b.kv_save(&cache)? == before, "the cache changed though the answer was no")?;
            }
            let out = setup.steps(b, &mut cache, &s, [100..101, 101..110])?;
            Ok(vec![Output::close("y", out, &setup.expected(&s, 100))])
        },
    )
}

/// A turned ring of exactly the window's size, one token shorter: the image must load again.
fn save_truncated<B: Backend>(setup: Setup) -> Case<B> {
    Case::new(
        "kv_load",
        "a turned ring that was truncated by one token",
        BOUND,
        move |b: &Checked<'_, B>, rng| {
            let s = setup.sequence(rng, 120);
            let mut cache = filled(b, &setup, &s, 101, 1)?;
            let len = if b.kv_truncate(&mut cache, 100)? { 100 } else { 101 };
            let mut loaded = b.kv_load(&setup.cache, &b.kv_save(&cache)?)?;
            let out =
                setup.steps(b, &mut loaded, &s, chunks(120 - len, 3).map(|r| r.start + len..r.end + len))?;
            Ok(vec![Output::close("y", out, &setup.expected(&s, len))])
        },
    )
}

fn empty<B: Backend>(setup: Setup) -> Case<B> {
    Case::new("kv_cache", "empty: saved, loaded, filled", BOUND, move |b: &Checked<'_, B>, rng| {
        let image = b.kv_save(&b.kv_cache(&setup.cache)?)?;
        let nothing = KvImage { first: 0, len: 0, keys: Vec::new(), values: Vec::new() };
        ensure(image == nothing, "a fresh cache is not empty")?;
        let s = setup.sequence(rng, 9);
        let out = setup.steps(b, &mut b.kv_load(&setup.cache, &image)?, &s, [0..4, 4..9])?;
        Ok(vec![Output::close("y", out, &setup.expected(&s, 0))])
    })
}

fn lies<B: Backend>(name: &str, setup: Setup) -> Case<B> {
    Case::new(
        "kv_load",
        format!("images that lie about their size, {name}"),
        Bound::EXACT,
        move |b: &Checked<'_, B>, rng| {
            let s = setup.sequence(rng, 12);
            let good = b.kv_save(&filled(b, &setup, &s, 12, 12)?)?;
            let change = |change: fn(&mut KvImage)| {
                let mut image = good.clone();
                change(&mut image);
                image
            };
            let lies = [
                change(|i| i.len = 13),
                change(|i| i.len = 11),
                change(|i| i.len = usize::MAX),
                change(|i| i.first = 13),
                change(|i| (i.first, i.len) = (usize::MAX - 12, usize::MAX)),
                change(|i| (i.first, i.len) = (5, 17)),
                change(|i| i.keys.truncate(40)),
                change(|i| i.values.truncate(40)),
                change(|i| i.values.push(0)),
                change(|i| std::mem::swap(&mut i.keys, &mut i.values)),
                change(|i| (i.keys, i.values) = (Vec::new(), Vec::new())),
            ];
            for (i, lie) in lies.iter().enumerate() {
                match b.kv_load(&setup.cache, lie) {
                    Err(Error::Image(_)) => {}
                    Err(error) => return Err(Fault::Wrong(format!("lie {i} gave {error:?}"))),
                    Ok(_) => return Err(Fault::Wrong(format!("lie {i} was believed"))),
                }
            }
            Ok(Vec::new())
        },
    )
}
