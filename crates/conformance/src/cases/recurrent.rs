//! Recurrent states of sequences in a pool: fresh, forked, saved and loaded.

use std::ops::Range;

use backend::pool::{LayerImage, LayerShape, Slot};
use backend::{Backend, Checked, GdnShape, RecurrentImage, Result};

use super::caches::disbelieved;
use super::ensure;
use super::gdn::{Sequence, shape};
use super::test_pool::TestPool;
use crate::formulas::gdn as formula;
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::{Bound, Case, CaseResult, Fault, Output};

const BOUND: Bound = Bound::l2(2e-6);

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![
        Case::new("clear", "a fresh state is all zeros", Bound::EXACT, |b: &Checked<'_, B>, rng| {
            let shape = shape(2, 4, 5, 3);
            let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(shape))?;
            let slot = pool.create()?;
            fresh(&pool, slot, &shape)
        }),
        Case::new("clear", "a row that another had", BOUND, |b: &Checked<'_, B>, rng| {
            let layer = Layer::new(rng, shape(2, 4, 5, 3));
            let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(layer.shape))?;
            // Both halves of a window have held something.
            let mut first = Inputs::new(rng, &layer, 12);
            first.x.values.fill(f32::NAN);
            first.core.qkv.values.fill(f32::NAN);
            for (slot, n) in pool.create_all(4)?.into_iter().zip([5, 6, 11, 12]) {
                layer.steps(&mut pool, slot, &first, [0..3, 3..n])?;
                pool.pool.release(slot);
            }
            let second = Inputs::new(rng, &layer, 12);
            let expected = layer.expected(&second);
            let mut outputs = Vec::new();
            for slot in pool.create_all(4)? {
                outputs.extend(fresh(&pool, slot, &layer.shape)?);
                outputs.extend(layer.check(&mut pool, slot, &second, [0..7, 7..12], &expected)?);
            }
            Ok(outputs)
        }),
        Case::new(
            "copy",
            "a fork of a state: later steps of either change the other in nothing",
            BOUND,
            |b: &Checked<'_, B>, rng| {
                let layer = Layer::new(rng, shape(2, 4, 5, 3));
                let s = Inputs::new(rng, &layer, 30);
                let expected = layer.expected(&s);
                let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(layer.shape))?;
                let slot = pool.create()?;
                layer.steps(&mut pool, slot, &s, std::iter::once(0..20))?;
                let before = pool.save_state(slot)?;
                let fork = pool.fork(slot, 20)?;
                ensure(pool.save_state(fork)? == before, "the fork is not what was forked")?;
                let mut outputs = layer.check(&mut pool, slot, &s, std::iter::once(20..25), &expected)?;
                ensure(pool.save_state(fork)? == before, "the fork changed with the original")?;
                let after = pool.save_state(slot)?;
                let changed = after.window != before.window && after.state != before.state;
                ensure(changed, "the original did not change")?;
                outputs.extend(layer.check(&mut pool, fork, &s, [20..23, 23..30], &expected)?);
                ensure(pool.save_state(slot)? == after, "the original changed with the fork")?;
                outputs.extend(layer.check(&mut pool, slot, &s, [25..26, 26..30], &expected)?);
                Ok(outputs)
            },
        ),
        Case::new("save_state", "then load, then go on", BOUND, |b: &Checked<'_, B>, rng| {
            let layer = Layer::new(rng, shape(1, 2, 8, 12));
            let s = Inputs::new(rng, &layer, 40);
            let expected = layer.expected(&s);
            let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(layer.shape))?;
            let mut outputs = Vec::new();
            // After odd and even numbers of tokens.
            for n in [1, 2, 25, 30] {
                let slot = pool.create()?;
                layer.steps(&mut pool, slot, &s, std::iter::once(0..n))?;
                let image = pool.save_state(slot)?;
                let loaded = pool.load(&pool.save(slot)?)?;
                let same = pool.save_state(loaded)? == image;
                ensure(same, "what was loaded is not what was saved")?;
                outputs.extend(layer.check(&mut pool, loaded, &s, [n..n + 1, n + 1..40], &expected)?);
                ensure(pool.save_state(slot)? == image, "what was saved changed with what was loaded")?;
            }
            Ok(outputs)
        }),
        Case::new("grow", "states that are there stay", BOUND, |b: &Checked<'_, B>, rng| {
            let layer = Layer::new(rng, shape(2, 4, 5, 3));
            let s = Inputs::new(rng, &layer, 30);
            let expected = layer.expected(&s);
            let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(layer.shape))?;
            let slot = pool.create()?;
            layer.steps(&mut pool, slot, &s, std::iter::once(0..20))?;
            let before = pool.save_state(slot)?;
            for count in [1, 20, 100] {
                pool.create_all(count)?;
                ensure(pool.save_state(slot)? == before, "the state changed as the pool grew")?;
            }
            layer.check(&mut pool, slot, &s, [20..21, 21..30], &expected)
        }),
        Case::new("load_state", "images of the CPU, and images for it", BOUND, elsewhere),
        Case::new(
            "load_state",
            "images that lie about their size",
            Bound::EXACT,
            |b: &Checked<'_, B>, rng| {
                let mut pool = TestPool::new(b, rng, LayerShape::Recurrent(shape(2, 4, 5, 3)))?;
                let slot = pool.create()?;
                let (image, whole) = (pool.save_state(slot)?, pool.save(slot)?);
                let RecurrentImage { window, state } = &image;
                let lies = [
                    RecurrentImage { window: window[1..].to_vec(), state: state.clone() },
                    RecurrentImage { window: window.clone(), state: state[1..].to_vec() },
                    RecurrentImage { window: [window.as_slice(), &[0.0]].concat(), state: state.clone() },
                    RecurrentImage { window: state.clone(), state: window.clone() },
                    RecurrentImage { window: Vec::new(), state: Vec::new() },
                ];
                for (i, lie) in lies.into_iter().enumerate() {
                    let mut image = whole.clone();
                    image.layers[pool.layer] = LayerImage::Recurrent(lie);
                    disbelieved(&mut pool, &image, &format!("lie {i}"))?;
                }
                let mut other = whole.clone();
                let nothing = backend::KvImage { first: 0, len: 0, keys: Vec::new(), values: Vec::new() };
                other.layers[pool.layer] = LayerImage::Kv(nothing);
                disbelieved(&mut pool, &other, "a layer of another kind")?;
                Ok(Vec::new())
            },
        ),
    ]
}

/// That a sequence's state is one of a sequence that has seen nothing.
fn fresh<B: Backend>(pool: &TestPool<'_, B>, slot: Slot, shape: &GdnShape) -> CaseResult {
    let (image, zeros) = (pool.save_state(slot)?, |n| vec![0.0; n]);
    Ok(vec![
        Output::exact("window", image.window, zeros(shape.window_len())).flat(),
        Output::exact("state", image.state, zeros(shape.state_len())).flat(),
    ])
}

/// A convolution and a recurrence, on inputs of their own.
struct Layer {
    shape: GdnShape,
    taps: Host,
}

struct Inputs {
    x: Host,
    core: Sequence,
}

impl Inputs {
    fn new(rng: &mut Rng, layer: &Layer, n: usize) -> Inputs {
        Inputs { x: rng.values(n, layer.shape.channels()), core: Sequence::new(rng, &layer.shape, n) }
    }
}

impl Layer {
    fn new(rng: &mut Rng, shape: GdnShape) -> Layer {
        Layer { shape, taps: rng.calm(shape.channels(), shape.kernel) }
    }

    /// What the formulas give for a whole sequence.
    fn expected(&self, s: &Inputs) -> [Rows; 2] {
        [formula::conv(&s.x.wide(), &self.taps.wide()), s.core.expected(&self.shape).0]
    }

    /// Steps through both, as a layer's: first the convolution, then the recurrence.
    fn steps<B: Backend>(
        &self,
        pool: &mut TestPool<'_, B>,
        slot: Slot,
        s: &Inputs,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<[Vec<f32>; 2]> {
        let b = pool.b;
        let w = self.taps.on(&b)?;
        let mut out = [Vec::new(), Vec::new()];
        for range in ranges {
            let on = |x: &Host| x.slice(range.clone()).on(&b);
            let (x, qkv) = (on(&s.x)?, on(&s.core.qkv)?);
            let (g, beta) = (on(&s.core.g)?, on(&s.core.beta)?);
            let (conv, core) = pool.step(&[(slot, range.len())], |batch, slabs, layer| {
                let conv = b.conv_causal(&x, &w, batch, slabs, layer)?;
                let core = b.gdn(&qkv, &g, &beta, batch, slabs, layer)?;
                Ok((b.read(&conv)?, b.read(&core)?))
            })?;
            out[0].extend(conv);
            out[1].extend(core);
        }
        Ok(out)
    }

    /// The same against the rows expected.
    fn check<B: Backend>(
        &self,
        pool: &mut TestPool<'_, B>,
        slot: Slot,
        s: &Inputs,
        ranges: impl IntoIterator<Item = Range<usize>>,
        expected: &[Rows; 2],
    ) -> CaseResult {
        let first = pool.pool.len(slot);
        let [conv, core] = self.steps(pool, slot, s, ranges)?;
        let rows = |i: usize| expected[i][first..pool.pool.len(slot)].to_vec();
        Ok(vec![
            Output::close(format!("convolution from {first} on"), conv, &rows(0)),
            Output::close(format!("y from {first} on"), core, &rows(1)),
        ])
    }
}

/// Sequences that go on on another machine.
fn elsewhere<B: Backend>(b: &Checked<'_, B>, rng: &mut Rng) -> CaseResult {
    let cpu = cpu::Options { threads: Some(1), numerics: cpu::Numerics::Exact, ..Default::default() };
    let cpu = cpu::Cpu::new(cpu).map_err(|error| Fault::Wrong(error.to_string()))?;
    let layer = Layer::new(rng, shape(2, 4, 8, 12));
    let s = Inputs::new(rng, &layer, 40);
    let expected = layer.expected(&s);
    let shape = LayerShape::Recurrent(layer.shape);
    let seed = rng.bits().to_string();
    let mut here = TestPool::new(b, &mut Rng::named(&seed), shape)?;
    let mut there = TestPool::new(&Checked(&cpu), &mut Rng::named(&seed), shape)?;
    let mut outputs = Vec::new();
    for n in [7, 20] {
        let slot = there.create()?;
        layer.steps(&mut there, slot, &s, std::iter::once(0..n))?;
        let loaded = here.load(&there.save(slot)?)?;
        let same = here.save_state(loaded)? == there.save_state(slot)?;
        ensure(same, "what was loaded is not what the CPU saved")?;
        outputs.extend(layer.check(&mut here, loaded, &s, [n..n + 1, n + 1..30], &expected)?);
        let loaded = there.load(&here.save(loaded)?)?;
        outputs.extend(layer.check(&mut there, loaded, &s, [30..31, 31..40], &expected)?);
    }
    Ok(outputs)
}
