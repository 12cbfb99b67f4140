//! Norms, residuals and gates.

use backend::{Backend, Checked};

use super::y;
use crate::formulas::{norms, sigmoid};
use crate::{Bound, Case, Output};

/// What every norm here must meet.
const BOUND: Bound = Bound::l2(5e-7);

/// Rows, width, size of the values.
const SHAPES: [(usize, usize, f32); 8] = [
    (1, 1, 1.0),
    (3, 7, 1.0),
    (2, 4097, 1.0),
    (70, 64, 1.0),
    // The square of 1e18 summed over a row is beyond f32.
    (2, 4096, 1e18),
    (2, 129, 1e18),
    // Here the eps decides.
    (2, 100, 1e-4),
    (2, 100, 1e-20),
];

/// Rows, heads, width of a head.
const HEADS: [(usize, usize, usize); 4] = [(1, 1, 5), (3, 5, 7), (2, 32, 128), (9, 3, 257)];

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (rows, cols, size) in SHAPES {
        for with_w in [true, false] {
            let name = if with_w { "with w" } else { "without w" };
            let detail = format!("{name}, values of {size:e}, [{rows}, {cols}]");
            cases.push(Case::new("rms_norm", detail, BOUND, move |b: &Checked<'_, B>, rng| {
                let (x, w) = (rng.values(rows, cols).scaled(size), rng.gain(cols));
                let on = w.on(b)?;
                let out = b.read(&b.rms_norm(&x.on(b)?, with_w.then_some(&on), 1e-6)?)?;
                let w = if with_w { w.wide().concat() } else { vec![1.0; cols] };
                let output = Output::close("y", out, &norms::rms_heads(&x.wide(), &w, 1e-6));
                Ok(vec![if rows * cols == 1 { output.flat() } else { output }])
            }));
        }
    }
    cases.push(Case::new(
        "rms_norm",
        "a row of zeros between others, [3, 50]",
        BOUND,
        |b: &Checked<'_, B>, rng| {
            let (mut x, w) = (rng.values(3, 50), rng.gain(50));
            x.values[50..100].fill(0.0);
            let out = b.read(&b.rms_norm(&x.on(b)?, Some(&w.on(b)?), 1e-6)?)?;
            y(out, &norms::rms_heads(&x.wide(), &w.wide().concat(), 1e-6))
        },
    ));
    for (rows, heads, width) in HEADS {
        let shape = format!("{heads} heads of {width}, n={rows}");
        cases.push(Case::new("rms_norm_heads", &shape, BOUND, move |b: &Checked<'_, B>, rng| {
            let (x, w) = (rng.values(rows, heads * width), rng.gain(width));
            let with = b.rms_norm_heads(x.on(b)?, Some(&w.on(b)?), heads, 1e-5)?;
            let without = b.rms_norm_heads(x.on(b)?, None, heads, 1e-5)?;
            let expected = |w: &[f64]| norms::rms_heads(&x.wide(), w, 1e-5);
            Ok(vec![
                Output::close("with w", b.read(&with)?, &expected(&w.wide().concat())),
                Output::close("without w", b.read(&without)?, &expected(&vec![1.0; width])),
            ])
        }));
        cases.push(Case::new("gated_norm", &shape, BOUND, move |b: &Checked<'_, B>, rng| {
            let (v, mut z, w) =
                (rng.values(rows, heads * width), rng.calm(rows, heads * width), rng.gain(width));
            (z.values[0], z.values[1]) = (-1e4, 90.0);
            let out = b.read(&b.gated_norm(&v.on(b)?, &z.on(b)?, &w.on(b)?, heads, 1e-6)?)?;
            y(out, &norms::gated(&v.wide(), &z.wide(), &w.wide().concat(), 1e-6))
        }));
    }
    for factor in [1.0, -1.75] {
        for (rows, cols) in [(1, 33), (7, 512)] {
            cases.push(norm_add(factor, rows, cols));
        }
    }
    cases.push(Case::new("combine_norm", "[5, 77]", BOUND, |b: &Checked<'_, B>, rng| {
        let (a, wa, z, wz) = (rng.values(5, 77), rng.gain(77), rng.values(5, 77), rng.gain(77));
        let out = b.combine_norm(&a.on(b)?, &wa.on(b)?, &z.on(b)?, &wz.on(b)?, 1e-6)?;
        let left = norms::rms_heads(&a.wide(), &wa.wide().concat(), 1e-6);
        let right = norms::rms_heads(&z.wide(), &wz.wide().concat(), 1e-6);
        y(b.read(&out)?, &norms::add(&left, &right))
    }));
    cases.push(Case::new("sigmoid_gate", "gates to 1e4, [3, 41]", BOUND, |b: &Checked<'_, B>, rng| {
        let (x, mut g) = (rng.values(3, 41), rng.values(3, 41));
        for (i, v) in [1e4, -1e4, 90.0, -90.0, 0.0].into_iter().enumerate() {
            g.values[i] = v;
        }
        let out = b.read(&b.sigmoid_gate(x.on(b)?, &g.on(b)?)?)?;
        y(out, &norms::multiply(&x.wide(), &norms::map(&g.wide(), sigmoid)))
    }));
    cases
}

fn norm_add<B: Backend>(factor: f32, rows: usize, cols: usize) -> Case<B> {
    let detail = format!("factor {factor}, [{rows}, {cols}]");
    Case::new("norm_add", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let (r, x, w) = (rng.calm(rows, cols), rng.values(rows, cols), rng.gain(cols));
        let out = b.norm_add(&r.on(b)?, &x.on(b)?, &w.on(b)?, 1e-6, factor)?;
        let sum = norms::add(&r.wide(), &norms::rms_heads(&x.wide(), &w.wide().concat(), 1e-6));
        y(b.read(&out)?, &norms::map(&sum, |v| f64::from(factor) * v))
    })
}
