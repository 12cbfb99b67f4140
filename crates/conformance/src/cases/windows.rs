//! Sliding windows, over caches that keep no more and over whole ones.

use std::ops::Range;

use backend::{Backend, Checked};

use super::attention::{BOUND, Setup};
use super::test_pool::TestPool;
use super::{chunks, in_chunks, y};
use crate::{Bound, Case, Output};

/// Window, tokens, and the sizes of the steps, the last one repeated.
const WINDOWS: [(usize, usize, &[usize]); 14] = [
    // Token by token.
    (13, 200, &[1]),
    (1, 20, &[1]),
    (2, 30, &[1]),
    // Steps longer than the window.
    (13, 200, &[64]),
    (5, 100, &[33, 1]),
    // Longer steps come after many short ones.
    (16, 150, &[3, 50, 1, 1, 40, 1]),
    (8, 90, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 30, 7]),
    // Never full.
    (1000, 40, &[7]),
    (40, 40, &[1]),
    // At the edges of blocks, which are given back as the window passes.
    (63, 200, &[62, 1, 1, 1, 64, 1]),
    (64, 330, &[64, 1, 63, 1, 130, 1, 1, 65]),
    (65, 330, &[63, 1, 1, 64, 128, 1, 2]),
    (128, 400, &[200, 1, 55, 1]),
    (1, 260, &[63, 1, 64, 65, 1, 1, 64]),
];

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let setup = Setup::new(6, 2, 16, 24);
    let mut cases = Vec::new();
    for (window, n, sizes) in WINDOWS {
        let setup = setup.windowed(window);
        for (setup, name) in [(setup, "f32"), (setup.f16(), "f16"), (setup.q8(), "q8")] {
            let detail = format!("window of {window}, {name}, {n} tokens in steps of {sizes:?}");
            cases.push(Case::new("sdpa", detail, BOUND, move |b: &Checked<'_, B>, rng| {
                let s = setup.sequence(rng, n);
                y(setup.alone(b, rng, &s, steps(n, sizes))?, &setup.expected(&s, 0))
            }));
        }
    }
    for (window, n) in [(1, 150), (20, 150), (63, 150), (64, 150), (65, 150), (500, 150), (300, 900)] {
        let over = setup.window(Some(window));
        for (setup, name) in [(over, "over a whole cache, "), (setup.windowed(window), "")] {
            let detail = format!("window of {window}, {name}{n} tokens in chunks");
            cases.push(Case::new("sdpa", detail, BOUND, move |b: &Checked<'_, B>, rng| {
                let s = setup.sequence(rng, n);
                in_chunks(n, &setup.expected(&s, 0), |chunk| setup.alone(b, rng, &s, chunks(n, chunk)))
            }));
        }
    }
    for (window, kept, n, chunk) in [(7, 20, 90, 11), (30, 64, 300, 50), (64, 100, 300, 65)] {
        let detail = format!("a window of {window} over a cache that keeps {kept}");
        cases.push(Case::new("sdpa", detail, BOUND, move |b: &Checked<'_, B>, rng| {
            let setup = setup.windowed(kept).window(Some(window));
            let s = setup.sequence(rng, n);
            y(setup.alone(b, rng, &s, chunks(n, chunk))?, &setup.expected(&s, 0))
        }));
    }
    cases.push(Case::new(
        "sdpa",
        "causal over a window that is not full",
        BOUND,
        move |b: &Checked<'_, B>, rng| {
            let setup = setup.windowed(20).window(None);
            let s = setup.sequence(rng, 20);
            y(setup.alone(b, rng, &s, chunks(20, 6))?, &setup.expected(&s, 0))
        },
    ));
    cases.push(Case::new(
        "kv_append",
        "a long prompt beyond the window, then decoding",
        Bound::l2(5e-6),
        move |b: &Checked<'_, B>, rng| {
            // What prefill leaves behind is what decoding finds, however the prompt was cut.
            let setup = setup.windowed(32);
            let s = setup.sequence(rng, 260);
            let expected = setup.expected(&s, 250);
            let mut outputs = Vec::new();
            for chunk in [250, 100, 31] {
                let mut pool = TestPool::new(b, rng, setup.layer())?;
                let slot = pool.create()?;
                for range in chunks(250, chunk) {
                    setup.append(&mut pool, &[(slot, &s, range)])?;
                }
                let out = setup.steps(&mut pool, slot, &s, (250..260).map(|t| t..t + 1))?;
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
