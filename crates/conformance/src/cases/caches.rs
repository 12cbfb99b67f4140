//! Keys and values of sequences in a pool: saved, loaded, forked, cut back, given up.

use std::ops::Range;

use backend::pool::{LayerImage, LayerShape, Pool, Slot, StateImage};
use backend::{Backend, CacheFloat, Checked, Error, KvImage, KvShape, Result};

use super::attention::{BOUND, Sequence, Setup};
use super::test_pool::{BUDGET, TestPool};
use super::{chunks, ensure};
use crate::host::Host;
use crate::random::Rng;
use crate::{Bound, Case, Fault, Output};

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let plain = Setup::new(4, 2, 6, 10);
    let setups = [
        ("f32", plain),
        ("f16", plain.f16()),
        ("q8", Setup::new(4, 2, 70, 37).q8()),
        ("f32, window of 16", plain.windowed(16)),
        ("f16, window of 16", plain.f16().windowed(16)),
        ("q8, window of 16", plain.q8().windowed(16)),
        ("f32, window of 65", plain.windowed(65)),
    ];
    let mut cases = Vec::new();
    for (name, setup) in setups {
        // Before a window is full, just full, and long past; around blocks; in long and short steps.
        for (n, chunk) in
            [(1, 1), (16, 5), (17, 1), (63, 30), (64, 64), (65, 64), (100, 1), (100, 40), (200, 70)]
        {
            let detail = format!("{name}, {n} tokens in steps of {chunk}");
            cases.push(save_load(&detail, setup, n, chunk));
            cases.push(fork(&detail, setup, n, chunk));
        }
        for (n, keep, chunk) in
            [(12, 5, 1), (12, 0, 4), (15, 15, 1), (60, 59, 30), (64, 63, 64), (66, 64, 33), (127, 65, 50)]
        {
            cases.push(truncate(name, setup, n, keep, chunk));
        }
        cases.push(leftovers(name, setup));
        cases.push(growth(name, setup));
        cases.push(elsewhere(name, setup));
    }
    for (name, setup) in [("f32", plain), ("f16", plain.f16()), ("q8", plain.q8())] {
        cases.push(family(name, setup));
    }
    cases.push(overwritten(plain.windowed(16)));
    cases.push(empty(plain));
    cases.push(lies("whole cache", plain));
    cases.push(lies("window of 16", plain.windowed(16)));
    cases.push(lies("whole cache of codes", plain.q8()));
    cases.push(too_late(plain.windowed(16)));
    cases
}

/// What an image should hold: the tokens from `first` on of `x`, in rows of `width`.
pub(super) fn stored(float: CacheFloat, x: &Host, first: usize, width: usize) -> Vec<f32> {
    let rest = &x.values[first * x.cols..];
    match float {
        CacheFloat::F32 => rest.to_vec(),
        CacheFloat::F16 => rest.iter().map(|v| half::f16::from_f32(*v).to_f32()).collect(),
        CacheFloat::Q8 => x.wide_q8(width)[first..].concat().iter().map(|v| *v as f32).collect(),
    }
}

/// What it holds.
pub(super) fn held(float: CacheFloat, image: &[u8], width: usize) -> Vec<f32> {
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
pub(super) fn are_near(float: CacheFloat, found: &[f32], expected: &[f32], width: usize) -> bool {
    if float != CacheFloat::F16 || found.len() != expected.len() {
        return found == expected;
    }
    let near = |(found, row): (&[f32], &[f32])| {
        let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        found.iter().zip(row).all(|(a, v)| (a - v).abs() <= norm / 16384.0)
    };
    found.chunks_exact(width).zip(expected.chunks_exact(width)).all(near)
}

/// Whether two machines hold [the same](are_near).
fn images_are_near(setup: &Setup, found: &KvImage, expected: &KvImage) -> bool {
    let KvShape { float, key_dim, value_dim, .. } = setup.cache;
    let near = |found: &[u8], expected: &[u8], width: usize| {
        width == 0 || are_near(float, &held(float, found, width), &held(float, expected, width), width)
    };
    (found.first, found.len) == (expected.first, expected.len)
        && near(&found.keys, &expected.keys, key_dim)
        && near(&found.values, &expected.values, value_dim)
}

/// A sequence of a pool after its first `n` tokens, in steps of `chunk`.
fn filled<B: Backend>(
    pool: &mut TestPool<'_, B>,
    setup: &Setup,
    s: &Sequence,
    n: usize,
    chunk: usize,
) -> Result<Slot> {
    let slot = pool.create()?;
    chunks(n, chunk).try_for_each(|range| setup.append(pool, &[(slot, s, range)]))?;
    Ok(slot)
}

/// Steps from token `n` on: a single one, a long step, then again single ones.
fn further(n: usize, long: usize, single: usize) -> impl Iterator<Item = Range<usize>> {
    let last = n + 1 + long;
    [n..n + 1, n + 1..last].into_iter().chain((last..last + single).map(|t| t..t + 1))
}

/// The first `keep` tokens of one sequence, then those of another.
fn join(old: &Sequence, keep: usize, new: &Sequence) -> Sequence {
    let join = |a: &Host, z: &Host| Host::stack(&[a.slice(0..keep), z.clone()]);
    Sequence { q: join(&old.q, &new.q), k: join(&old.k, &new.k), v: join(&old.v, &new.v) }
}

fn save_load<B: Backend>(detail: &str, setup: Setup, n: usize, chunk: usize) -> Case<B> {
    Case::new("save_kv", format!("{detail}, then load and go on"), BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, n + 40);
        let mut pool = TestPool::new(b, rng, setup.layer())?;
        let slot = filled(&mut pool, &setup, &s, n, chunk)?;
        let whole = pool.save(slot)?;
        let image = pool.kv_image(slot)?;
        ensure(image.len == n && whole.len == n, "the image has the wrong length")?;
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
        let loaded = pool.load(&whole)?;
        ensure(pool.kv_image(loaded)? == image, "what was loaded is not what was saved")?;
        let out = setup.steps(&mut pool, loaded, &s, further(n, 29, 10))?;
        outputs.push(Output::close("y", out, &setup.expected(&s, n)));
        ensure(pool.kv_image(slot)? == image, "what was saved changed with what was loaded")?;
        let out = setup.steps(&mut pool, slot, &s, further(n, 29, 10))?;
        outputs.push(Output::close("y of what was saved", out, &setup.expected(&s, n)));
        Ok(outputs)
    })
}

/// A fork goes its own way, and neither notices the other.
fn fork<B: Backend>(detail: &str, setup: Setup, n: usize, chunk: usize) -> Case<B> {
    Case::new("copy", format!("a fork of {detail}"), BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, n + 20);
        let other = join(&s, n, &setup.sequence(rng, 20));
        let mut pool = TestPool::new(b, rng, setup.layer())?;
        let slot = filled(&mut pool, &setup, &s, n, chunk)?;
        let before = pool.kv_image(slot)?;
        let fork = pool.fork(slot, n)?;
        ensure(pool.kv_image(fork)? == before, "the fork is not what was forked")?;
        let out = setup.steps(&mut pool, fork, &other, further(n, 10, 0))?;
        ensure(pool.kv_image(slot)? == before, "the original has changed")?;
        let mut outputs = vec![Output::close("fork", out, &setup.expected(&other, n)[..11].to_vec())];
        // Now both in the same steps, the original first and last.
        let between = pool.kv_image(fork)?;
        let out = setup.steps(&mut pool, slot, &s, std::iter::once(n..n + 11))?;
        outputs.push(Output::close("original", out, &setup.expected(&s, n)[..11].to_vec()));
        ensure(pool.kv_image(fork)? == between, "the fork changed with the original")?;
        let mut expected = setup.expected(&other, n + 11);
        expected.extend(setup.expected(&s, n + 11));
        let parts = [(fork, &other, n + 11..n + 20), (slot, &s, n + 11..n + 20)];
        outputs.push(Output::close("both", setup.together(&mut pool, &parts)?, &expected));
        Ok(outputs)
    })
}

/// Many forks of one sequence, at the edges of blocks and between them, go on in one step; the
/// tails that they share are copied.
fn family<B: Backend>(name: &str, setup: Setup) -> Case<B> {
    const AT: [usize; 8] = [130, 130, 129, 128, 127, 64, 1, 0];
    const NEW: [usize; 8] = [1, 3, 1, 1, 66, 2, 1, 5];
    let detail = format!("{name}, eight forks of one sequence in one step");
    Case::new("copy", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let old = setup.sequence(rng, 130);
        let mut pool = TestPool::reversible(b, rng, setup.layer())?;
        let slot = filled(&mut pool, &setup, &old, 130, 50)?;
        let before = pool.kv_image(slot)?;
        let mut forks = Vec::new();
        for (at, new) in AT.into_iter().zip(NEW) {
            let s = join(&old, at, &setup.sequence(rng, 2 * new));
            forks.push((pool.fork(slot, at)?, s, at, new));
        }
        let mut outputs = Vec::new();
        for step in 0..2 {
            let part = |(fork, s, at, new): &'_ (Slot, Sequence, usize, usize)| {
                let first = at + step * new;
                (*fork, first..first + new, setup.expected(s, first)[..*new].to_vec())
            };
            let mut expected = Vec::new();
            let mut parts = Vec::new();
            for fork in &forks {
                let (slot, range, rows) = part(fork);
                parts.push((slot, &fork.1, range));
                expected.extend(rows);
            }
            let out = setup.together(&mut pool, &parts)?;
            outputs.push(Output::close(format!("step {step}"), out, &expected));
        }
        ensure(pool.kv_image(slot)? == before, "the original has changed")?;
        Ok(outputs)
    })
}

/// Truncated and continued with other tokens, a sequence is as if the dropped ones had never been there.
fn truncate<B: Backend>(name: &str, setup: Setup, n: usize, keep: usize, chunk: usize) -> Case<B> {
    let detail = format!("{name}, {n} tokens to {keep}, steps of {chunk}");
    Case::new("truncate", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let old = setup.sequence(rng, n);
        let s = join(&old, keep, &setup.sequence(rng, 50));
        let mut pool = TestPool::reversible(b, rng, setup.layer())?;
        let slot = filled(&mut pool, &setup, &old, n, chunk)?;
        if !pool.pool.truncate(slot, keep) {
            // Blocks are given back only when nothing in them is seen.
            let (seen, gone) = match setup.cache.window {
                None => (0, 0),
                Some(w) => ((keep + 1).saturating_sub(w), (n + 1).saturating_sub(w) / 64 * 64),
            };
            ensure(seen < gone, "nothing needed was given back, but the answer is no")?;
            let image = pool.kv_image(slot)?;
            return ensure(image.len == n, "the answer was no, but the length changed").map(|()| Vec::new());
        }
        ensure(pool.kv_image(slot)?.len == keep, "the sequence has the wrong length")?;
        let out = setup.steps(&mut pool, slot, &s, further(keep, 34, 15))?;
        Ok(vec![Output::close("y", out, &setup.expected(&s, keep))])
    })
}

/// A window that has passed what a shorter sequence would see says no, and the sequence stays as it is.
fn overwritten<B: Backend>(setup: Setup) -> Case<B> {
    Case::new("truncate", "a window that has passed what is needed", BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, 110);
        let mut pool = TestPool::reversible(b, rng, setup.layer())?;
        let slot = filled(&mut pool, &setup, &s, 100, 1)?;
        let before = pool.kv_image(slot)?;
        ensure(before.first == 64, "the window's first block has not been given back")?;
        for len in [0, 1, 50, before.first, 78] {
            let text = format!("truncated to {len}, which was given back");
            ensure(!pool.pool.truncate(slot, len), &text)?;
            ensure(pool.pool.fork(b.0, slot, len)?.is_none(), &format!("forked at {len}"))?;
            ensure(pool.kv_image(slot)? == before, "the sequence changed though the answer was no")?;
        }
        let out = setup.steps(&mut pool, slot, &s, [100..101, 101..110])?;
        let mut outputs = vec![Output::close("y", out, &setup.expected(&s, 100))];
        // The earliest that can be reached.
        ensure(pool.pool.truncate(slot, 79), "nothing needed was given back, but the answer is no")?;
        let out = setup.steps(&mut pool, slot, &s, [79..80, 80..110])?;
        outputs.push(Output::close("y from 79 on", out, &setup.expected(&s, 79)));
        Ok(outputs)
    })
}

/// Places that others have given up hold nothing of them: neither large numbers nor what is no number.
fn leftovers<B: Backend>(name: &str, setup: Setup) -> Case<B> {
    let detail = format!("{name}, places of others that were no numbers");
    Case::new("release", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, 150);
        let expected = setup.expected(&s, 0);
        let mut pool = TestPool::new(b, rng, setup.layer())?;
        let mut outputs = Vec::new();
        for value in [3e4, f32::NAN] {
            let mut other = setup.sequence(rng, 192);
            other.k.values.fill(value);
            other.v.values.fill(value);
            let others = pool.create_all(3)?;
            let parts: Vec<_> = others.iter().map(|slot| (*slot, &other, 0..192)).collect();
            setup.append(&mut pool, &parts)?;
            others.into_iter().for_each(|slot| pool.pool.release(slot));
            let slot = pool.create()?;
            let out = setup.steps(&mut pool, slot, &s, [0..1, 1..66, 66..67, 67..150])?;
            outputs.push(Output::close(format!("y after {value}"), out, &expected));
            pool.pool.release(slot);
        }
        Ok(outputs)
    })
}

/// What a sequence has stays where it is when the pool grows.
fn growth<B: Backend>(name: &str, setup: Setup) -> Case<B> {
    Case::new("grow", format!("{name}, what is there stays"), BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, 130);
        let mut pool = TestPool::new(b, rng, setup.layer())?;
        let slot = filled(&mut pool, &setup, &s, 100, 33)?;
        let before = pool.kv_image(slot)?;
        for blocks in [1, 40, 100] {
            let (other, blocks) = (pool.create()?, blocks * 64);
            ensure(pool.pool.reserve(b.0, other, blocks)?, "no room in a large pool")?;
            ensure(pool.kv_image(slot)? == before, "the sequence changed as the pool grew")?;
        }
        let out = setup.steps(&mut pool, slot, &s, [100..101, 101..130])?;
        Ok(vec![Output::close("y", out, &setup.expected(&s, 100))])
    })
}

/// Sequences that go on on another machine: images have the same form everywhere.
fn elsewhere<B: Backend>(name: &str, setup: Setup) -> Case<B> {
    let detail = format!("{name}, images of the CPU, and images for it");
    Case::new("load_kv", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let cpu = cpu::Options { threads: Some(1), numerics: cpu::Numerics::Exact, ..Default::default() };
        let cpu = cpu::Cpu::new(cpu).map_err(|error| Fault::Wrong(error.to_string()))?;
        let s = setup.sequence(rng, 170);
        let expected = setup.expected(&s, 140);
        // Two pools of the same layers.
        let seed = rng.bits().to_string();
        let mut here = TestPool::new(b, &mut Rng::named(&seed), setup.layer())?;
        let mut there = TestPool::new(&Checked(&cpu), &mut Rng::named(&seed), setup.layer())?;
        let slot = filled(&mut there, &setup, &s, 140, 50)?;
        let image = there.save(slot)?;
        let kept = there.kv_image(slot)?;
        let loaded = here.load(&image)?;
        let same = images_are_near(&setup, &here.kv_image(loaded)?, &kept);
        ensure(same, "what was loaded is not what the CPU saved")?;
        let out = setup.steps(&mut here, loaded, &s, further(140, 20, 9))?;
        let mut outputs = vec![Output::close("y here", out, &expected)];
        let slot = filled(&mut here, &setup, &s, 140, 50)?;
        let loaded = there.load(&here.save(slot)?)?;
        let same = images_are_near(&setup, &there.kv_image(loaded)?, &here.kv_image(slot)?);
        ensure(same, "the CPU holds something else")?;
        let out = setup.steps(&mut there, loaded, &s, further(140, 20, 9))?;
        outputs.push(Output::close("y there", out, &expected));
        Ok(outputs)
    })
}

fn empty<B: Backend>(setup: Setup) -> Case<B> {
    Case::new("slabs", "empty: saved, loaded, filled", BOUND, move |b: &Checked<'_, B>, rng| {
        let mut pool = Pool::new(b.0, &[setup.layer()], BUDGET)?;
        ensure(pool.is_empty(), "a pool without sequences is not empty")?;
        let slot = pool.create(b.0)?.ok_or_else(|| Fault::Wrong("no room for nothing".into()))?;
        let image = pool.save(b.0, slot)?;
        let nothing = KvImage { first: 0, len: 0, keys: Vec::new(), values: Vec::new() };
        let nothing = StateImage { len: 0, layers: vec![LayerImage::Kv(nothing)] };
        ensure(image == nothing, "a sequence without tokens is not empty")?;
        let loaded = pool.load(b.0, &image)?.ok_or_else(|| Fault::Wrong("no room for nothing".into()))?;
        ensure(pool.is_empty(), "sequences without tokens take memory")?;
        let s = setup.sequence(rng, 9);
        let mut pool = TestPool { b: *b, pool, layer: 0 };
        let out = setup.steps(&mut pool, loaded, &s, [0..4, 4..9])?;
        pool.pool.release(slot);
        pool.pool.release(loaded);
        ensure(pool.pool.is_empty(), "sequences that were given up take memory")?;
        Ok(vec![Output::close("y", out, &setup.expected(&s, 0))])
    })
}

/// An image that must be refused with an error of its own, and nothing kept of it.
pub(super) fn disbelieved<B: Backend>(
    pool: &mut TestPool<'_, B>,
    image: &StateImage,
    what: &str,
) -> std::result::Result<(), Fault> {
    let used = pool.pool.tables().used();
    match pool.load(image) {
        Err(Error::Image(_)) => {}
        Err(error) => return Err(Fault::Wrong(format!("{what} gave {error:?}"))),
        Ok(_) => return Err(Fault::Wrong(format!("{what} was believed"))),
    }
    ensure(pool.pool.tables().used() == used, "memory was taken for an image that was refused")
}

fn lies<B: Backend>(name: &str, setup: Setup) -> Case<B> {
    Case::new(
        "load_kv",
        format!("images that lie about their size, {name}"),
        Bound::EXACT,
        move |b: &Checked<'_, B>, rng| {
            let s = setup.sequence(rng, 12);
            let mut pool = TestPool::new(b, rng, setup.layer())?;
            let slot = filled(&mut pool, &setup, &s, 12, 12)?;
            let (layer, good, whole) = (pool.layer, pool.kv_image(slot)?, pool.save(slot)?);
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
            for (i, lie) in lies.into_iter().enumerate() {
                // Whether or not the whole image says the same.
                for len in [12, lie.len] {
                    let mut image = StateImage { len, ..whole.clone() };
                    image.layers[layer] = LayerImage::Kv(lie.clone());
                    disbelieved(&mut pool, &image, &format!("lie {i} of {len} tokens"))?;
                }
            }
            let mut other = whole.clone();
            other.layers.push(LayerImage::Kv(good.clone()));
            disbelieved(&mut pool, &other, "a layer too many")?;
            other.layers.clear();
            disbelieved(&mut pool, &other, "no layer")?;
            let loaded = pool.load(&whole)?;
            ensure(pool.kv_image(loaded)? == good, "what was loaded is not what was saved")?;
            Ok(Vec::new())
        },
    )
}

/// An image of a window that begins behind what the next token sees; and one that begins there.
fn too_late<B: Backend>(setup: Setup) -> Case<B> {
    let name = "images that lie about their window";
    Case::new("load_kv", name, BOUND, move |b: &Checked<'_, B>, rng| {
        let s = setup.sequence(rng, 120);
        let shape = setup.layer();
        let LayerShape::Kv(kv) = shape else { return Ok(Vec::new()) };
        let mut pool = TestPool { b: *b, pool: Pool::new(b.0, &[shape], BUDGET)?, layer: 0 };
        let slot = filled(&mut pool, &setup, &s, 100, 9)?;
        let good = pool.kv_image(slot)?;
        let from = |first: usize| {
            let mut image = good.clone();
            let bytes = |width: usize| (first - good.first) * kv.heads * kv.float.row_bytes(width);
            image.keys.drain(..bytes(kv.key_dim));
            image.values.drain(..bytes(kv.value_dim));
            StateImage { len: 100, layers: vec![LayerImage::Kv(KvImage { first, ..image })] }
        };
        disbelieved(&mut pool, &from(86), "a window without its first token")?;
        let loaded = pool.load(&from(85))?;
        ensure(!pool.pool.truncate(loaded, 99), "went back to what was not in the image")?;
        let out = setup.steps(&mut pool, loaded, &s, [100..101, 101..120])?;
        Ok(vec![Output::close("y", out, &setup.expected(&s, 100))])
    })
}
