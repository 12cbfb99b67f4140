//! Sliding windows, over rings and over whole caches.

use std::ops::Range;

use backend::{Backend, Checked};

use super::attention::{BOUND, Setup};
use super::{chunks, in_chunks, y};
use crate::{Bound, Case, Output};

/// Window, tokens, and the sizes of the steps, the last one repeated.
const RINGS: [(usize, usize, &[usize]); 9] = [
    // Overwritten many times, token by token.
    (13, 200, &[1]),
    (1, 20, &[1]),
    (2, 30, &[1]),
    // Steps longer than the window.
    (13, 200, &[64]),
    (5, 100, &[33, 1]),
    // The ring has turned before a longer step comes.
    (16, 150, &[3, 50, 1, 1, 40, 1]),
    (8, 90, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 30, 7]),
    // Never full.
    (1000, 40, &[7]),
    (40, 40, &[1]),
];

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let setup = Setup::new(6, 2, 16, 24);
    let mut cases = Vec::new();
    for (window, n, sizes) in RINGS {
        let setup = setup.ring(window);
        for (setup, name) in [(setup, "f32"), (setup.f16(), "f16"), (setup.q8(), "q8")] {
            let detail = format!("ring of {window}, {name}, {n} tokens in steps of {sizes:?}");
            cases.push(Case::new("sdpa", detail, BOUND, move |b: &Checked<'_, B>, rng| {
                let s = setup.sequence(rng, n);
                let mut cache = b.kv_cache(&setup.cache)?;
                y(setup.steps(b, &mut cache, &s, steps(n, sizes))?, &setup.expected(&s, 0))
            }));
        }
    }
    for (window, n) in [(1, 150), (20, 150), (63, 150), (500, 150), (300, 900)] {
        let windowed = setup.window(Some(window));
        for (setup, name) in [(windowed, "whole cache"), (setup.ring(window), "ring")] {
            let detail = format!("window of {window} over a {name}, {n} tokens in chunks");
            cases.push(Case::new("sdpa", detail, BOUND, move |b: &Checked<'_, B>, rng| {
                let s = setup.sequence(rng, n);
                in_chunks(n, &setup.expected(&s, 0), |chunk| {
                    setup.steps(b, &mut b.kv_cache(&setup.cache)?, &s, chunks(n, chunk))
                })
            }));
        }
    }
    cases.push(Case::new(
        "sdpa",
        "a window of 7 over a ring of 20",
        BOUND,
        move |b: &Checked<'_, B>, rng| {
            let setup = setup.ring(20).window(Some(7));
            let s = setup.sequence(rng, 90);
            y(setup.steps(b, &mut b.kv_cache(&setup.cache)?, &s, chunks(90, 11))?, &setup.expected(&s, 0))
        },
    ));
    cases.push(Case::new(
        "sdpa",
        "causal over a ring that is not full",
        BOUND,
        move |b: &Checked<'_, B>, rng| {
            let setup = setup.ring(20).window(None);
            let s = setup.sequence(rng, 20);
            y(setup.steps(b, &mut b.kv_cache(&setup.cache)?, &s, chunks(20, 6))?, &setup.expected(&s, 0))
        },
    ));
    cases.push(Case::new(
        "kv_append",
        "a long prompt beyond the window, then decoding",
        Bound::l2(5e-6),
        move |b: &Checked<'_, B>, rng| {
            // What prefill leaves behind is what decoding finds, however the prompt was cut.
            let setup = setup.ring(32);
            let s = setup.sequence(rng, 260);
            let expected = setup.expected(&s, 250);
            let mut outputs = Vec::new();
            for chunk in [250, 100, 31] {
                let mut cache = b.kv_cache(&setup.cache)?;
                for range in chunks(250, chunk) {
                    setup.append(b, &mut cache, &s, range)?;
                }
                let out = setup.steps(b, &mut cache, &s, (250..260).map(|t| t..t + 1))?;
                outputs.push(Output::close(format!("prompt in chunks of {chunk}"), out, &expected));
            }
            Ok(outputs)
        },
    ));
    cases
}

/// Steps of the given sizes, the last one repeated until there are `n` tokens.
fn steps(n: usize, sizes: &[usize]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut start = 0;
    while start < n {
        let size = sizes[ranges.len().min(sizes.len() - 1)];
        ranges.push(start..n.min(start + size));
        start += size;
    }
    ranges
}
