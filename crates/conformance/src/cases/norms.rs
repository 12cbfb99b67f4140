//! Norms, residuals and gates.

use backend::{Backend, Factor};

use super::y;
use crate::formulas::{norms, sigmoid};
use crate::host::Rows;
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

/// The factors of `add_norm` and `norm_add`.
#[derive(Clone, Copy, Debug)]
enum Kind {
    One,
    Scalar,
    Channels,
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (rows, cols, size) in SHAPES {
        for with_w in [true, false] {
            let name = if with_w { "with w" } else { "without w" };
            let detail = format!("{name}, values of {size:e}, [{rows}, {cols}]");
            cases.push(Case::new("rms_norm", detail, BOUND, move |b: &B, rng| {
                let (x, w) = (rng.values(rows, cols).scaled(size), rng.gain(cols));
                let on = w.on(b)?;
                let out = b.read(&b.rms_norm(&x.on(b)?, with_w.then_some(&on), 1e-6)?)?;
                let w = if with_w { w.wide().concat() } else { vec![1.0; cols] };
                let output = Output::close("y", out, &norms::rms_heads(&x.wide(), &w, 1e-6));
                Ok(vec![if rows * cols == 1 { output.flat() } else { output }])
            }));
        }
    }
    cases.push(Case::new("rms_norm", "a row of zeros between others, [3, 50]", BOUND, |b: &B, rng| {
        let (mut x, w) = (rng.values(3, 50), rng.gain(50));
        x.values[50..100].fill(0.0);
        let out = b.read(&b.rms_norm(&x.on(b)?, Some(&w.on(b)?), 1e-6)?)?;
        y(out, &norms::rms_heads(&x.wide(), &w.wide().concat(), 1e-6))
    }));
    for (rows, heads, width) in HEADS {
        let shape = format!("{heads} heads of {width}, n={rows}");
        cases.push(Case::new("rms_norm_heads", &shape, BOUND, move |b: &B, rng| {
            let (x, w) = (rng.values(rows, heads * width), rng.gain(width));
            let with = b.rms_norm_heads(x.on(b)?, Some(&w.on(b)?), heads, 1e-5)?;
            let without = b.rms_norm_heads(x.on(b)?, None, heads, 1e-5)?;
            let expected = |w: &[f64]| norms::rms_heads(&x.wide(), w, 1e-5);
            Ok(vec![
                Output::close("with w", b.read(&with)?, &expected(&w.wide().concat())),
                Output::close("without w", b.read(&without)?, &expected(&vec![1.0; width])),
            ])
        }));
        cases.push(Case::new("gated_norm", &shape, BOUND, move |b: &B, rng| {
            let (v, mut z, w) =
                (rng.values(rows, heads * width), rng.calm(rows, heads * width), rng.gain(width));
            (z.values[0], z.values[1]) = (-1e4, 90.0);
            let out = b.read(&b.gated_norm(&v.on(b)?, &z.on(b)?, &w.on(b)?, heads, 1e-6)?)?;
            y(out, &norms::gated(&v.wide(), &z.wide(), &w.wide().concat(), 1e-6))
        }));
    }
    for kind in [Kind::One, Kind::Scalar, Kind::Channels] {
        for (rows, cols) in [(1, 33), (7, 512)] {
            cases.push(add_norm(kind, rows, cols));
            cases.push(norm_add(kind, rows, cols));
        }
    }
    cases.push(Case::new("combine_norm", "[5, 77]", BOUND, |b: &B, rng| {
        let (a, wa, z, wz) = (rng.values(5, 77), rng.gain(77), rng.values(5, 77), rng.gain(77));
        let out = b.combine_norm(&a.on(b)?, &wa.on(b)?, &z.on(b)?, &wz.on(b)?, 1e-6)?;
        let left = norms::rms_heads(&a.wide(), &wa.wide().concat(), 1e-6);
        let right = norms::rms_heads(&z.wide(), &wz.wide().concat(), 1e-6);
        y(b.read(&out)?, &norms::add(&left, &right))
    }));
    cases.push(Case::new("sigmoid_gate", "gates to 1e4, [3, 41]", BOUND, |b: &B, rng| {
        let (x, mut g) = (rng.values(3, 41), rng.values(3, 41));
        for (i, v) in [1e4, -1e4, 90.0, -90.0, 0.0].into_iter().enumerate() {
            g.values[i] = v;
        }
        let out = b.read(&b.sigmoid_gate(x.on(b)?, &g.on(b)?)?)?;
        y(out, &norms::multiply(&x.wide(), &norms::map(&g.wide(), sigmoid)))
    }));
    cases
}

fn add_norm<B: Backend>(kind: Kind, rows: usize, cols: usize) -> Case<B> {
    Case::new("add_norm", format!("factor {kind:?}, [{rows}, {cols}]"), BOUND, move |b: &B, rng| {
        let (r, x, w, f) = (rng.values(rows, cols), rng.values(rows, cols), rng.gain(cols), rng.gain(cols));
        let on = f.on(b)?;
        let (s, y) = b.add_norm(&r.on(b)?, &x.on(b)?, &w.on(b)?, 1e-6, factor(kind, &on))?;
        let sum = norms::add(&r.wide(), &x.wide());
        let normed = norms::rms_heads(&sum, &w.wide().concat(), 1e-6);
        let expected = scaled(kind, &normed, &f.wide().concat());
        Ok(vec![Output::close("s", b.read(&s)?, &sum), Output::close("y", b.read(&y)?, &expected)])
    })
}

fn norm_add<B: Backend>(kind: Kind, rows: usize, cols: usize) -> Case<B> {
    Case::new("norm_add", format!("factor {kind:?}, [{rows}, {cols}]"), BOUND, move |b: &B, rng| {
        let (r, x, w, f) = (rng.calm(rows, cols), rng.values(rows, cols), rng.gain(cols), rng.gain(cols));
        let on = f.on(b)?;
        let out = b.norm_add(&r.on(b)?, &x.on(b)?, &w.on(b)?, 1e-6, factor(kind, &on))?;
        let sum = norms::add(&r.wide(), &norms::rms_heads(&x.wide(), &w.wide().concat(), 1e-6));
        y(b.read(&out)?, &scaled(kind, &sum, &f.wide().concat()))
    })
}

fn factor<T>(kind: Kind, channels: &T) -> Factor<'_, T> {
    match kind {
        Kind::One => Factor::One,
        Kind::Scalar => Factor::Scalar(-1.75),
        Kind::Channels => Factor::Channels(channels),
    }
}

fn scaled(kind: Kind, x: &Rows, channels: &[f64]) -> Rows {
    match kind {
        Kind::One => x.clone(),
        Kind::Scalar => norms::map(x, |v| -1.75 * v),
        Kind::Channels => norms::channels(x, channels),
    }
}
