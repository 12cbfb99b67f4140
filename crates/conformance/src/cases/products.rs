//! Products with weights of every stored format.

use backend::{Activation, Backend, Checked};
use checkpoint::{Float, Format};

use super::{batch_at, in_chunks, y};
use crate::formulas::{norms, products};
use crate::weights::{BF16, F16, F32, Q4, Recipe, affine, format_name, formats, fp8, in_pairs};
use crate::{Bound, Case, Output};

/// Tokens, outputs, inputs, format, bound. Odd sizes where the format allows them.
const SHAPES: &[(usize, usize, usize, Format, f64)] = &[
    (1, 1, 1, F32, 1e-6),
    (1, 1, 7, BF16, 1e-6),
    (7, 3, 1, F16, 1e-6),
    (5, 17, 33, F32, 1e-6),
    (65, 129, 255, BF16, 1e-6),
    (1, 96, 4096, Q4, 2e-6),
    (5, 33, 4096, affine(8, 64, Float::Bf16), 2e-6),
    (130, 31, 192, Q4, 2e-6),
    (3, 15, 5120, affine(3, 128, Float::F16), 2e-6),
    (2, 1000, 64, affine(6, 32, Float::F32), 1e-6),
    (9, 1, 128, affine(5, 64, Float::Bf16), 1e-6),
    (300, 5, 96, affine(2, 32, Float::Bf16), 1e-6),
    (4, 65, 2880, Format::Mxfp4, 2e-6),
    (1, 33, 4096, Format::Mxfp8, 2e-6),
    (70, 129, 48, Format::Nvfp4, 1e-6),
    (2, 300, 577, fp8(128, 128), 1e-6),
    (40, 17, 33, fp8(16, 8), 1e-6),
];

/// For shapes in which only the format is of interest.
const SMALL: Bound = Bound::l2(1e-6);

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for format in formats() {
        let name = format_name(format);
        let recipe = Recipe::new(format, 19, 256);
        let mut these = vec![
            matmul(format!("{name}, n=3, [19, 256]"), 3, recipe, SMALL),
            matmul(
                format!("{name} unaligned with bias, n=1, [19, 256]"),
                1,
                recipe.unaligned().bias(),
                SMALL,
            ),
            embed(format!("{name}, n=6, [19, 256]"), recipe),
        ];
        if recipe.quantisable() {
            these.push(quantised(format!("{name} as a converter writes it, n=4, [19, 256]"), recipe));
        }
        cases.extend(these.into_iter().map(|case| case.combination(!in_pairs(format))));
    }
    for (n, rows, cols, format, bound) in SHAPES.iter().copied() {
        let detail = format!("{}, n={n}, [{rows}, {cols}]", format_name(format));
        cases.push(matmul(detail, n, Recipe::new(format, rows, cols), Bound::l2(bound)));
    }
    for (recipe, name) in [
        (Recipe::new(Q4, 50, 128).bias(), "q4 with bias"),
        (Recipe::new(BF16, 50, 77), "bf16"),
        (Recipe::new(affine(3, 32, Float::F16), 50, 96), "q3"),
        (Recipe::new(Format::Mxfp4, 50, 96), "mxfp4"),
        (Recipe::new(fp8(32, 64), 50, 99).bias(), "fp8"),
    ] {
        cases.push(split(name, recipe));
        cases.push(matmul_add(name, recipe));
    }
    for activation in [Activation::Silu, Activation::GeluTanh] {
        cases.push(gate_up(activation));
        cases.push(glu(activation));
    }
    cases.push(shared_input());
    cases.push(row_ranges());
    cases.push(embed_scale());
    cases.push(Case::new("soft_cap", "30, inputs to 1e4, [3, 77]", SMALL, |b: &Checked<'_, B>, rng| {
        let mut x = rng.values(3, 77).scaled(10.0);
        (x.values[0], x.values[1]) = (1e4, -1e4);
        let expected = norms::map(&x.wide(), |v| 30.0 * (v / 30.0).tanh());
        y(b.read(&b.soft_cap(x.on(b)?, 30.0)?)?, &expected)
    }));
    cases
}

fn matmul<B: Backend>(detail: String, n: usize, recipe: Recipe, bound: Bound) -> Case<B> {
    Case::new("matmul", detail, bound, move |b: &Checked<'_, B>, rng| {
        let w = recipe.build(rng);
        let x = rng.values(n, w.weight.cols);
        let out = b.read(&b.matmul(&x.on(b)?, &b.linear(&[&w.weight])?)?)?;
        let output = Output::close("y", out, &products::matmul(&w, &x.wide()));
        Ok(vec![if n * w.weight.rows < 8 { output.flat() } else { output }])
    })
}

fn quantised<B: Backend>(detail: String, recipe: Recipe) -> Case<B> {
    Case::new("matmul", detail, SMALL, move |b: &Checked<'_, B>, rng| {
        let w = recipe.quantise(rng);
        let x = rng.values(4, w.weight.cols);
        y(b.read(&b.matmul(&x.on(b)?, &b.linear(&[&w.weight])?)?)?, &products::matmul(&w, &x.wide()))
    })
}

fn split<B: Backend>(name: &str, recipe: Recipe) -> Case<B> {
    Case::new("matmul", format!("{name}, 70 tokens in chunks"), SMALL, move |b: &Checked<'_, B>, rng| {
        let w = recipe.build(rng);
        let x = rng.values(70, w.weight.cols);
        let matrix = b.linear(&[&w.weight])?;
        in_chunks(70, &products::matmul(&w, &x.wide()), |chunk| {
            let parts = super::chunks(70, chunk).map(|r| b.read(&b.matmul(&x.slice(r).on(b)?, &matrix)?));
            Ok(parts.collect::<backend::Result<Vec<_>>>()?.concat())
        })
    })
}

fn matmul_add<B: Backend>(name: &str, recipe: Recipe) -> Case<B> {
    Case::new("matmul_add", format!("{name}, n=6"), SMALL, move |b: &Checked<'_, B>, rng| {
        let w = recipe.build(rng);
        let (x, r) = (rng.values(6, w.weight.cols), rng.values(6, w.weight.rows));
        let out = b.matmul_add(&x.on(b)?, &b.linear(&[&w.weight])?, r.on(b)?)?;
        y(b.read(&out)?, &norms::add(&r.wide(), &products::matmul(&w, &x.wide())))
    })
}

fn gate_up<B: Backend>(activation: Activation) -> Case<B> {
    let detail = format!("{activation:?}, halves of one weight, 70 tokens in chunks, 2 x [23, 192]");
    Case::new("gate_up", detail, SMALL, move |b: &Checked<'_, B>, rng| {
        let fused = Recipe::new(Q4, 46, 192).bias().build(rng);
        let (gate, up) = (fused.row_range(0..23), fused.row_range(23..46));
        let x = rng.values(70, 192);
        let gate_up = b.linear(&[&gate.weight, &up.weight])?;
        let wide = x.wide();
        let expected =
            products::glu(&products::matmul(&gate, &wide), &products::matmul(&up, &wide), activation);
        in_chunks(70, &expected, |chunk| {
            let parts = super::chunks(70, chunk)
                .map(|r| b.read(&b.gate_up(&x.slice(r).on(b)?, &gate_up, activation)?));
            Ok(parts.collect::<backend::Result<Vec<_>>>()?.concat())
        })
    })
}

fn glu<B: Backend>(activation: Activation) -> Case<B> {
    Case::new(
        "glu",
        format!("{activation:?}, gates to 1e4, [5, 39]"),
        SMALL,
        move |b: &Checked<'_, B>, rng| {
            let (mut gate, mut up) = (rng.values(5, 39), rng.calm(5, 39));
            for (i, v) in [1e4, -1e4, 1e3, -1e3, -5.0].into_iter().enumerate() {
                (gate.values[i], up.values[i]) = (v, 1e-3 * up.values[i]);
            }
            let out = b.read(&b.glu(gate.on(b)?, &up.on(b)?, activation)?)?;
            y(out, &products::glu(&gate.wide(), &up.wide(), activation))
        },
    )
}

fn shared_input<B: Backend>() -> Case<B> {
    Case::new("matmuls", "four formats and widths over one input, n=3", SMALL, |b: &Checked<'_, B>, rng| {
        let recipes = [
            Recipe::new(Q4, 33, 128),
            Recipe::new(BF16, 1, 128),
            Recipe::new(affine(8, 32, Float::F16), 64, 128).bias(),
            Recipe::new(affine(5, 128, Float::F32), 17, 128),
        ];
        let samples = recipes.map(|recipe| recipe.build(rng));
        let x = rng.values(3, 128);
        let linear = b.linear(&samples.each_ref().map(|sample| &sample.weight))?;
        let results = b.matmuls(&x.on(b)?, &linear)?;
        let mut outputs = Vec::new();
        for (i, (result, w)) in results.iter().zip(&samples).enumerate() {
            outputs.push(Output::close(format!("y{i}"), b.read(result)?, &products::matmul(w, &x.wide())));
        }
        Ok(outputs)
    })
}

fn row_ranges<B: Backend>() -> Case<B> {
    Case::new("matmul", "row ranges of an unaligned weight, n=2", SMALL, |b: &Checked<'_, B>, rng| {
        let mut outputs = Vec::new();
        for format in [Q4, affine(3, 64, Float::F32), F16, Format::Mxfp4, Format::Nvfp4, fp8(16, 48)] {
            let whole = Recipe::new(format, 40, 128).bias().unaligned().build(rng);
            let x = rng.values(2, 128);
            for range in [0..13, 13..40, 39..40] {
                let part = whole.row_range(range.clone());
                let out = b.read(&b.matmul(&x.on(b)?, &b.linear(&[&part.weight])?)?)?;
                let label = format!("{} rows {range:?}", format_name(format));
                let output = Output::close(label, out, &products::matmul(&part, &x.wide()));
                outputs.push(if range.len() == 1 { output.flat() } else { output });
            }
        }
        Ok(outputs)
    })
}

fn embed<B: Backend>(detail: String, recipe: Recipe) -> Case<B> {
    Case::new("embed", detail, Bound::l2(3e-7), move |b: &Checked<'_, B>, rng| {
        let table = recipe.build(rng);
        let ids = rng.tokens(6, table.weight.rows);
        let batch = batch_at(b, &[(&ids[..4], 7), (&ids[4..], 0)])?;
        let out = b.read(&b.embed(&b.linear(&[&table.weight])?, &batch, 1.0)?)?;
        y(out, &ids.iter().map(|id| table.matrices[0][*id as usize].clone()).collect())
    })
}

fn embed_scale<B: Backend>() -> Case<B> {
    Case::new(
        "embed",
        "with a scale, first and last row, n=3, [501, 64]",
        Bound::l2(3e-7),
        |b: &Checked<'_, B>, rng| {
            let table = Recipe::new(Q4, 501, 64).unaligned().build(rng);
            let batch = batch_at(b, &[(&[0, 500, 250], 0)])?;
            let out = b.read(&b.embed(&b.linear(&[&table.weight])?, &batch, 45.25)?)?;
            let rows = [0, 500, 250].map(|r: usize| table.matrices[0][r].clone()).to_vec();
            y(out, &norms::map(&rows, |v| v * 45.25))
        },
    )
}
