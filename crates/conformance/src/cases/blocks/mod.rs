//! Whole blocks, each against its formula in f64: a prompt at once, then token by token, as models run them.

mod attention;
mod feed_forward;
mod gated_delta;
mod latent_attention;
mod refusals;

use backend::pool::Slot;
use backend::{Backend, Batch, Blocks, CacheFloat, Checked, Norm, Ops, Residual, Result};
use checkpoint::Format;

use crate::cases::test_pool::{TestPool, in_turns};
use crate::formulas::{norms, products};
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::weights::{Recipe, Sample};
use crate::{Bound, Case, CaseResult, Output};

/// Width of the residual stream.
const HIDDEN: usize = 64;
const EPS: f32 = 1e-6;
/// Where caches keep f32.
const BOUND: Bound = Bound::l2(8e-6);
/// Where caches keep f16: a key's last bit may fall either way.
const F16: Bound = Bound::l2(3e-4);
/// Where caches keep 8-bit values: there a last bit is 1/127 of the largest of 32 values.
const Q8: Bound = Bound::l2(3e-3);

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    [
        attention::cases(),
        latent_attention::cases(),
        gated_delta::cases(),
        feed_forward::cases(),
        refusals::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// How near two ways to the same cache are to each other.
fn bound_of(float: CacheFloat) -> Bound {
    match float {
        CacheFloat::F32 => BOUND,
        CacheFloat::F16 => F16,
        CacheFloat::Q8 => Q8,
    }
}

/// What a cache keeps of rows, in slices of `width` values.
fn stored(rows: &Rows, float: CacheFloat, width: usize) -> Rows {
    let cols = rows.first().map_or(0, Vec::len);
    let host = Host::from_fn(rows.len(), cols, |t, c| rows[t][c] as f32);
    match float {
        CacheFloat::F32 => rows.clone(),
        CacheFloat::F16 => host.wide_f16(),
        CacheFloat::Q8 => host.wide_q8(width),
    }
}

/// A norm on the host.
struct Gain(Host);

impl Gain {
    fn new(rng: &mut Rng, width: usize) -> Gain {
        Gain(rng.gain(width))
    }

    fn on<B: Backend>(&self, b: &Checked<'_, B>) -> Result<Norm<B::Tensor>> {
        Ok(Norm { w: b.vector(1, self.0.cols, &self.0.values)?, eps: EPS })
    }

    /// `rms(x) * w` over slices as wide as `w`.
    fn apply(&self, x: &Rows) -> Rows {
        norms::rms_heads(x, &self.0.wide()[0], f64::from(EPS))
    }
}

/// How a block's result joins the stream, on the host.
enum Joins {
    Plain,
    PostNorm(Gain, f32),
}

impl Joins {
    fn new(rng: &mut Rng, width: usize, factor: Option<f32>) -> Joins {
        factor.map_or(Joins::Plain, |factor| Joins::PostNorm(Gain::new(rng, width), factor))
    }

    fn on<B: Backend>(&self, b: &Checked<'_, B>) -> Result<Residual<B::Tensor>> {
        Ok(match self {
            Joins::Plain => Residual::Plain,
            Joins::PostNorm(gain, factor) => Residual::PostNorm { norm: gain.on(b)?, factor: *factor },
        })
    }

    fn apply(&self, h: &Rows, y: &Rows) -> Rows {
        match self {
            Joins::Plain => norms::add(h, y),
            Joins::PostNorm(gain, factor) => {
                norms::map(&norms::add(h, &gain.apply(y)), |v| v * f64::from(*factor))
            }
        }
    }
}

/// A gated unit's matrices on the host.
struct Unit {
    gate: Sample,
    up: Sample,
    down: Sample,
    activation: backend::Activation,
}

impl Unit {
    fn apply(&self, x: &Rows) -> Rows {
        let [gate, up] = [&self.gate, &self.up].map(|sample| products::matmul(sample, x));
        products::matmul(&self.down, &products::glu(&gate, &up, self.activation))
    }
}

fn sample(rng: &mut Rng, format: Format, rows: usize, cols: usize) -> Sample {
    Recipe::new(format, rows, cols).build(rng)
}

fn linear<B: Backend>(b: &Checked<'_, B>, samples: &[&Sample]) -> Result<B::Linear> {
    b.linear(&samples.iter().map(|sample| &sample.weight).collect::<Vec<_>>())
}

/// A block on a machine, on a layer of a pool's memory.
type Run<'a, B> = &'a dyn Fn(
    <B as Blocks>::Hidden,
    &Batch<B>,
    &mut <B as Ops>::Slabs,
    usize,
) -> Result<<B as Blocks>::Hidden>;

/// A step of some tokens of several sequences.
fn step<B: Backend>(pool: &mut TestPool<'_, B>, run: Run<'_, B>, parts: &[(Slot, Host)]) -> Result<Vec<f32>> {
    let b = pool.b;
    let rows: Vec<_> = parts.iter().map(|(_, h)| h.clone()).collect();
    let h = b.hidden(Host::stack(&rows).on(&b)?);
    let spans: Vec<_> = parts.iter().map(|(slot, h)| (*slot, h.rows)).collect();
    pool.step(&spans, |batch, slabs, layer| b.read(&b.tensor(run(h, batch, slabs, layer)?)?))
}

/// One sequence, some tokens at once, then some one by one.
fn alone<B: Backend>(
    pool: &mut TestPool<'_, B>,
    run: Run<'_, B>,
    h: &Host,
    at_once: usize,
    expected: &Rows,
) -> Result<(Slot, Vec<Output>)> {
    let slot = pool.create()?;
    let mut outputs = Vec::new();
    for range in std::iter::once(0..at_once).chain((at_once..h.rows).map(|t| t..t + 1)) {
        let values = step(pool, run, &[(slot, h.slice(range.clone()))])?;
        outputs.push(output(range, values, expected));
    }
    Ok((slot, outputs))
}

/// Several sequences in one step: tokens that each has seen, and its tokens of the step.
fn together<B: Backend>(
    pool: &mut TestPool<'_, B>,
    rng: &mut Rng,
    run: Run<'_, B>,
    spans: &[(usize, usize)],
    expected: impl Fn(&Rows) -> Rows,
) -> CaseResult {
    let slots = pool.create_all(spans.len())?;
    let sequences: Vec<_> = spans.iter().map(|(past, new)| rng.calm(past + new, HIDDEN)).collect();
    for turn in in_turns(spans) {
        let part = |(i, range): (usize, _)| (slots[i], sequences[i].slice(range));
        step(pool, run, &turn.into_iter().map(part).collect::<Vec<_>>())?;
    }
    let (mut parts, mut rows) = (Vec::new(), Vec::new());
    for ((slot, h), (past, new)) in slots.into_iter().zip(&sequences).zip(spans) {
        parts.push((slot, h.slice(*past..past + new)));
        rows.extend_from_slice(&expected(&h.wide())[*past..]);
    }
    Ok(vec![Output::close("y", step(pool, run, &parts)?, &rows)])
}

/// One step's output against those rows of a whole sequence's.
fn output(range: std::ops::Range<usize>, values: Vec<f32>, expected: &Rows) -> Output {
    Output::close(format!("tokens {range:?}"), values, &expected[range].to_vec())
}
