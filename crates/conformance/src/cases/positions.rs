//! Rotary positions.

use backend::{Backend, Checked, Pairing, RopeSpec, YarnSpec};

use super::{batch_at, ensure, in_chunks, one_span, y};
use crate::formulas::positions;
use crate::host::Host;
use crate::{Bound, Case};

/// What a rotation must meet, at any position: sin and cos are rounded once.
const BOUND: Bound = Bound::l2(2e-7);

/// Heads, width of a head, rotary width, pairing, first position.
const SHAPES: [(usize, usize, usize, Pairing, usize); 10] = [
    (1, 2, 2, Pairing::Halves, 1),
    (3, 7, 4, Pairing::Halves, 5),
    (3, 7, 6, Pairing::Interleaved, 5),
    (4, 64, 64, Pairing::Halves, 0),
    (4, 64, 64, Pairing::Interleaved, 1000),
    (2, 256, 64, Pairing::Halves, 8191),
    (2, 128, 128, Pairing::Halves, 100_003),
    (2, 64, 64, Pairing::Interleaved, 131_072),
    (1, 128, 32, Pairing::Interleaved, 1_000_000),
    (2, 9, 0, Pairing::Halves, 3),
];

const YARN: YarnSpec = YarnSpec {
    factor: 40.0,
    original_context: 4096.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
    mscale: 1.0,
    mscale_all_dim: 0.5,
};

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (heads, width, rotary, pairing, position) in SHAPES {
        let detail = format!("{pairing:?}, {rotary} of {width}, {heads} heads, n=5 from {position}");
        cases.push(Case::new("rope", detail, BOUND, move |b: &Checked<'_, B>, rng| {
            let x = rng.values(5, heads * width);
            let table = b.rope_table(&RopeSpec::plain(rotary, 1e4, pairing))?;
            let out = b.rope(x.on(b)?, &one_span(b, 5, position)?, &table, heads)?;
            let at: Vec<usize> = (position..position + 5).collect();
            let inv_freq = positions::plain(rotary, 1e4);
            y(b.read(&out)?, &positions::rope(&x.wide(), &at, width, &inv_freq, pairing, 1.0))
        }));
    }
    cases.push(Case::new(
        "rope",
        "several sequences at their own positions",
        BOUND,
        |b: &Checked<'_, B>, rng| {
            let x = rng.values(9, 3 * 10);
            let batch = batch_at(b, &[(&[0], 70_000), (&[0; 5], 0), (&[0; 3], 12)])?;
            let at = [70_000, 0, 1, 2, 3, 4, 12, 13, 14];
            let table = b.rope_table(&RopeSpec::plain(8, 5e5, Pairing::Halves))?;
            let out = b.rope(x.on(b)?, &batch, &table, 3)?;
            let inv_freq = positions::plain(8, 5e5);
            y(b.read(&out)?, &positions::rope(&x.wide(), &at, 10, &inv_freq, Pairing::Halves, 1.0))
        },
    ));
    cases.push(Case::new("rope", "70 tokens in chunks", BOUND, |b: &Checked<'_, B>, rng| {
        let x = rng.values(70, 2 * 16);
        let table = b.rope_table(&RopeSpec::plain(16, 1e6, Pairing::Halves))?;
        let at: Vec<usize> = (200..270).collect();
        let inv_freq = positions::plain(16, 1e6);
        let expected = positions::rope(&x.wide(), &at, 16, &inv_freq, Pairing::Halves, 1.0);
        in_chunks(70, &expected, |chunk| {
            let parts = super::chunks(70, chunk).map(|r| {
                let batch = one_span(b, r.len(), 200 + r.start)?;
                b.read(&b.rope(x.slice(r).on(b)?, &batch, &table, 2)?)
            });
            Ok(parts.collect::<backend::Result<Vec<_>>>()?.concat())
        })
    }));
    for position in [0, 5000, 160_000] {
        cases.push(spec(
            format!("yarn with its factor, from {position}"),
            position,
            RopeSpec::yarn(64, 1e4, Pairing::Interleaved, &YARN),
            positions::yarn(64, 1e4, &YARN),
            positions::yarn_factor(&YARN),
        ));
    }
    for (dim, theta, context, factor) in
        [(64, 1e4, 4096.0, 40.0), (128, 1e6, 32768.0, 4.0), (32, 5e5, 8192.0, 1.0)]
    {
        let yarn = YarnSpec { original_context: context, factor, ..YARN };
        cases.push(spec(
            format!("yarn of {dim}, theta {theta}, context {context}, factor {factor}"),
            77,
            RopeSpec::yarn(dim, theta, Pairing::Halves, &yarn),
            positions::yarn(dim, theta, &yarn),
            positions::yarn_factor(&yarn),
        ));
    }
    // Gemma: the frequencies of the whole head, of which a quarter turns.
    let quarter =
        positions::plain(64, 1e6).into_iter().enumerate().map(|(i, f)| if i < 8 { f / 8.0 } else { 0.0 });
    cases.push(spec(
        "proportional, 16 of 64, factor 8".into(),
        100_001,
        RopeSpec::proportional(64, 16, 1e6, Pairing::Halves, 8.0),
        quarter.collect(),
        1.0,
    ));
    cases.push(spec(
        "linear, factor 8".into(),
        4097,
        RopeSpec::linear(32, 1e6, Pairing::Halves, 8.0),
        positions::plain(32, 1e6).iter().map(|f| f / 8.0).collect(),
        1.0,
    ));
    cases
}

/// A specification against independently computed frequencies, and a rotation by it.
fn spec<B: Backend>(
    detail: String,
    position: usize,
    spec: RopeSpec,
    inv_freq: Vec<f64>,
    factor: f64,
) -> Case<B> {
    Case::new("rope_table", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        ensure(spec.inv_freq.len() == inv_freq.len(), "the number of frequencies is wrong")?;
        let same = |(a, e): (&f64, &f64)| (a - e).abs() <= 1e-12 * e.abs();
        ensure(spec.inv_freq.iter().zip(&inv_freq).all(same), "a frequency of the specification is wrong")?;
        ensure((spec.factor - factor).abs() < 1e-12, "the factor of the specification is wrong")?;
        let width = spec.rotary_dim() + 3;
        let x: Host = rng.values(4, 2 * width);
        let out = b.rope(x.on(b)?, &one_span(b, 4, position)?, &b.rope_table(&spec)?, 2)?;
        let at: Vec<usize> = (position..position + 4).collect();
        y(b.read(&out)?, &positions::rope(&x.wide(), &at, width, &inv_freq, spec.pairing, factor))
    })
}
