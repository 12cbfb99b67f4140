//! Whole parts of a layer: products with what comes before and after them against formulas, and what is made of many operations
//! against those operations on the same backend.

use backend::{
    Activation, Attention, AttentionWeights, Backend, CacheFloat, EndNorms, Factor, GdnShape, GdnWeights,
    GroupedSigmoid, Handle, KeyValueNorms, KvShape, LatentAttention, LatentWeights, LayerEnd, LayerStart,
    Mask, MlaWeights, MoeWeights, Norm, Pairing, RopeSpec, Routing, UnitWeights, compositions,
};
use checkpoint::{Float, Format};

use super::{chunks, in_chunks, one_span};
use crate::formulas::{moe, norms, products};
use crate::host::{Host, Rows};
use crate::random::Rng;
use crate::weights::{BF16, Q4, Recipe, Sample, affine};
use crate::{Bound, Case, CaseResult, Output};

const BOUND: Bound = Bound::l2(3e-6);
/// Behind three more norms and two more sums in f32.
const MANY_NORMS: Bound = Bound::l2(6e-6);
/// Where halves are kept: a key's last bit may fall either way.
const HALVES: Bound = Bound::l2(3e-4);
/// Where codes are kept: there a last bit is 1/127 of the largest of 32 values.
const CODES: Bound = Bound::l2(3e-3);
const EPS: f32 = 1e-6;
const Q8: Format = affine(8, 64, Float::Bf16);

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for (rows, cols, format) in [
        ([33, 64, 5], 96, affine(4, 32, Float::F16)),
        ([64, 128, 1], 2048, Q4),
        ([70, 3, 200], 4096, Q8),
        ([9, 65, 64], 5120, affine(8, 128, Float::F32)),
        ([4100, 8, 70], 256, Q4),
        ([8200, 1, 1], 64, Q4),
        ([8500, 1, 1], 320, Q4),
        // As many rows as heads have.
        ([32_800, 7, 70], 192, Q4),
        ([33_000, 1, 1], 544, affine(4, 32, Float::F32)),
        ([40_000, 8, 5], 288, affine(8, 32, Float::F16)),
        // Wide rows, more than workgroups take at once.
        ([2200, 20, 3], 2112, Q4),
        ([17, 5, 3], 77, BF16),
    ] {
        cases.push(norm_matmuls(rows, cols, format));
    }
    for (rows, cols, format) in [
        ([33, 64, 5], 96, affine(4, 32, Float::F16)),
        ([64, 128, 17], 2816, Q4),
        ([2200, 20, 3], 2112, Q8),
        ([40, 24, 7], 2048, Q8),
        ([16, 8, 8], 4160, Q4),
        ([7, 20, 3], 40, BF16),
    ] {
        cases.push(end_norm_matmuls(rows, cols, format));
    }
    for (heads, width, format) in [
        (32, 128, Q4),
        (5, 64, Q8),
        (3, 32, affine(4, 32, Float::F32)),
        (48, 128, Q4),
        (4, 48, affine(4, 64, Float::F16)),
        (3, 20, BF16),
    ] {
        cases.push(gated_norm_matmul_add(heads, width, format));
    }
    cases.push(Case::new("matrices", "odd rows, each by itself, n=3", BOUND, |b: &B, rng| {
        let weights = samples(rng, Q4, [33, 1, 70], 128);
        let matrices = b.matrices(weights.each_ref().map(|sample| &sample.weight))?;
        let x = rng.values(3, 128);
        let mut outputs = Vec::new();
        for (matrix, sample) in matrices.iter().zip(&weights) {
            let values = b.read(&b.matmul(&x.on(b)?, matrix)?)?;
            let label = format!("{} rows", sample.weight.rows);
            let output = Output::close(label, values, &products::matmul(sample, &x.wide()));
            outputs.push(if sample.weight.rows == 1 { output.flat() } else { output });
        }
        Ok(outputs)
    }));
    for (name, width) in [("like the others", 64), ("of another width", 128)] {
        cases.push(Case::new(
            "shared_expert",
            format!("{name}, 11 tokens in chunks"),
            BOUND,
            move |b: &B, rng| shared_expert(b, rng, width),
        ));
    }
    let softmax = |top_k, renormalise| Choice::Softmax { top_k, renormalise };
    let grouped = |top_k, groups, renormalise| {
        Choice::Grouped(GroupedSigmoid {
            top_k,
            groups,
            kept_groups: groups.div_ceil(2),
            renormalise,
            scaling: 2.5,
        })
    };
    for (name, experts, [d, width], formats, choice, shared) in [
        ("softmax, gated shared expert", 40, [128, 64], [Q4, Q4, Q8], softmax(4, true), Shared::Gated(64)),
        ("softmax over all, no shared expert", 9, [64, 128], [Q4, Q4, Q8], softmax(3, false), Shared::Absent),
        (
            "a sigmoid, plain shared expert",
            20,
            [256, 128],
            [Q4, Q4, Q4],
            grouped(8, 1, true),
            Shared::Plain(128),
        ),
        ("a sigmoid, not renormalised", 3, [4160, 64], [Q8, Q8, Q8], grouped(2, 1, false), Shared::Plain(64)),
        ("sigmoids in groups", 32, [128, 64], [Q4, Q4, Q4], grouped(4, 4, true), Shared::Plain(64)),
        (
            "a shared expert of another width",
            16,
            [64, 64],
            [Q4, Q4, Q8],
            softmax(2, true),
            Shared::Gated(128),
        ),
        ("plain weights", 12, [40, 24], [BF16, BF16, BF16], softmax(2, true), Shared::Gated(24)),
        (
            "a router of its own",
            20,
            [96, 32],
            [affine(4, 32, Float::Bf16), affine(4, 32, Float::Bf16), affine(8, 32, Float::F16)],
            Choice::Scaled(3),
            Shared::Absent,
        ),
        ("all experts", 3, [2048, 512], [Q4, Q4, Q8], softmax(3, true), Shared::Gated(512)),
        ("down of more bits", 20, [128, 64], [Q4, Q8, Q8], softmax(4, true), Shared::Plain(64)),
        ("down of fewer bits, plain router", 9, [192, 64], [Q8, Q4, BF16], softmax(2, true), Shared::Absent),
        ("many experts", 300, [64, 64], [Q4, Q4, Q8], softmax(10, true), Shared::Absent),
        ("256 experts", 256, [128, 64], [Q4, Q4, Q8], softmax(8, true), Shared::Gated(64)),
        ("130 experts", 130, [64, 64], [Q4, Q4, Q4], grouped(8, 1, true), Shared::Absent),
        ("70 experts", 70, [64, 64], [Q4, Q4, Q4], softmax(8, true), Shared::Absent),
        ("wide experts", 10, [64, 2112], [Q4, Q4, Q8], softmax(8, true), Shared::Absent),
        ("wide experts of a wide model", 2, [2112, 2176], [Q4, Q4, Q8], softmax(2, true), Shared::Absent),
    ] {
        let setup = Experts { experts, d, width, formats, choice, shared };
        cases.push(Case::new(
            "moe",
            format!("{name}, {experts} of [{width}, {d}]"),
            BOUND,
            move |b: &B, rng| setup.check(b, rng),
        ));
    }
    for (name, shape, kv_heads, heads, gated, norm_values, at_once) in [
        ("gated, f16", (64, CacheFloat::F16, None), 2, 16, true, false, 5),
        ("f32", (32, CacheFloat::F32, None), 2, 6, false, false, 5),
        ("normalised values in a ring", (256, CacheFloat::F16, Some(9)), 1, 4, false, true, 5),
        ("odd heads", (10, CacheFloat::F16, None), 3, 3, true, false, 5),
        ("wide heads, f16", (512, CacheFloat::F16, None), 1, 3, false, true, 5),
        ("many positions, gated", (256, CacheFloat::F16, None), 2, 16, true, false, 480),
        ("many positions, f32", (128, CacheFloat::F32, None), 1, 2, false, false, 480),
        ("gated, q8", (64, CacheFloat::Q8, None), 2, 16, true, false, 5),
        ("normalised values in a ring, q8", (256, CacheFloat::Q8, Some(9)), 1, 4, false, true, 5),
        ("odd heads, q8", (10, CacheFloat::Q8, None), 3, 3, true, false, 5),
        ("wide heads, q8", (512, CacheFloat::Q8, None), 1, 3, false, true, 5),
        ("many positions, gated, q8", (256, CacheFloat::Q8, None), 2, 16, true, false, 480),
    ] {
        let (width, float, window) = shape;
        let cache = KvShape { heads: kv_heads, key_dim: width, value_dim: width, float, window };
        let detail = format!("{name}, {heads} over {kv_heads} heads of {width}, token by token");
        let bound = bound_of(float);
        cases.push(Case::new("self_attention", detail, bound, move |b: &B, rng| {
            self_attention(b, rng, cache, heads, (gated, norm_values), at_once, None)
        }));
    }
    for (name, (width, float), kv_heads, heads, gated, at_once, format, residual) in [
        ("gated, residual", (64, CacheFloat::F16), 2, 16, true, 100, Q4, true),
        ("wide heads", (512, CacheFloat::F16), 1, 9, false, 180, Q4, false),
        ("heads of 256, 8 bits", (256, CacheFloat::F16), 4, 8, false, 300, Q8, true),
        ("plain projection", (64, CacheFloat::F16), 1, 3, true, 30, BF16, true),
        ("eights of two heads", (12, CacheFloat::F32), 2, 16, true, 100, Q4, false),
    ] {
        let cache = KvShape { heads: kv_heads, key_dim: width, value_dim: width, float, window: None };
        let detail = format!("{name}, {heads} over {kv_heads} heads of {width}, token by token");
        cases.push(Case::new("self_attention_out", detail, HALVES, move |b: &B, rng| {
            self_attention(b, rng, cache, heads, (gated, false), at_once, Some((format, residual)))
        }));
    }
    for (heads, rank, pe, [nope, values], float, format) in [
        (4, 64, 8, [12, 10], CacheFloat::F16, BF16),
        (3, 20, 4, [12, 10], CacheFloat::F32, BF16),
        (5, 64, 8, [16, 10], CacheFloat::F16, BF16),
        (16, 512, 64, [128, 128], CacheFloat::F16, Q4),
        (3, 64, 16, [64, 33], CacheFloat::F32, Q8),
        (4, 64, 8, [12, 10], CacheFloat::Q8, BF16),
        (16, 512, 64, [128, 128], CacheFloat::Q8, Q4),
    ] {
        let detail =
            format!("{heads} heads of {nope}, latents of {rank} + {pe} in {float:?}, token by token");
        let bound = bound_of(float);
        cases.push(Case::new("latent_attention", detail, bound, move |b: &B, rng| {
            latent_attention(b, rng, heads, [rank, pe, nope, values], (float, format))
        }));
    }
    cases.push(Case::new("norm_gate_up", "2 x [64, 96], n=1 and 9", BOUND, |b: &B, rng| {
        let [gate, up] = samples(rng, affine(4, 32, Float::Bf16), [64, 64], 96);
        let [g, u] = b.matrices([&gate.weight, &up.weight])?;
        let (x, w) = (rng.values(10, 96), rng.gain(96));
        let (gain, activation) = (w.on(b)?, Activation::GeluTanh);
        let normed = norms::rms_heads(&x.wide(), &w.wide()[0], f64::from(EPS));
        let halves = [products::matmul(&gate, &normed), products::matmul(&up, &normed)];
        let expected = products::glu(&halves[0], &halves[1], activation);
        let mut outputs = Vec::new();
        for range in [0..1, 1..10] {
            let norm = Norm { w: &gain, eps: EPS };
            let y = b.norm_gate_up(&x.slice(range.clone()).on(b)?, norm, [&g, &u], activation)?;
            let expected = expected[range.clone()].to_vec();
            outputs.push(Output::close(format!("tokens {range:?}"), b.read(&y)?, &expected));
        }
        Ok(outputs)
    }));
    for (width, cols, format) in [(64, 96, affine(4, 32, Float::Bf16)), (70, 2816, Q4), (40, 77, BF16)] {
        cases.push(norm_add_gate_up(width, cols, format));
    }
    for (name, experts, [d, width], unit, formats) in [
        ("a router of 4 bits", 20, [128, 64], 70, [Q4, Q4, Q4]),
        ("the same beside whole rows", 20, [128, 64], 64, [Q4, Q4, Q4]),
        ("one of 8, rows in three steps", 130, [2816, 64], 64, [Q4, Q4, Q8]),
        ("long rows", 4, [4160, 64], 64, [Q4, Q4, Q4]),
        ("plain weights", 12, [40, 24], 33, [BF16, BF16, BF16]),
    ] {
        let choice = Choice::Scaled(3);
        let setup = Experts { experts, d, width, formats, choice, shared: Shared::Absent };
        let detail = format!("{name}, {experts} of [{width}, {d}] beside [{unit}, {d}]");
        cases.push(Case::new("norm_add_unit_moe", detail, BOUND, move |b: &B, rng| {
            setup.check_beside(b, rng, unit)
        }));
    }
    for (rows, width) in [(3, 129), (20, 1300)] {
        let detail = format!("[{rows}, {width}]");
        cases.push(Case::new("combine_norm_add", detail, Bound::l2(2e-6), move |b: &B, rng| {
            let [r, a, c] = [0; 3].map(|_| rng.values(rows, width));
            let [wa, wc, w] = [0; 3].map(|_| rng.gain(width));
            let normed = |x: &Rows, w: &Host| norms::rms_heads(x, &w.wide()[0], f64::from(EPS));
            let both = norms::add(&normed(&a.wide(), &wa), &normed(&c.wide(), &wc));
            let expected = norms::map(&norms::add(&r.wide(), &normed(&both, &w)), |v| v * 0.5);
            let (r, a, c, wa, wc, w) = (r.on(b)?, a.on(b)?, c.on(b)?, wa.on(b)?, wc.on(b)?, w.on(b)?);
            let y = b.combine_norm_add(&r, [&a, &c], [&wa, &wc, &w], EPS, Factor::Scalar(0.5))?;
            super::y(b.read(&y)?, &expected)
        }));
    }
    for (key_heads, value_heads, key_dim, value_dim, kernel) in
        [(2, 4, 128, 128, 4), (1, 3, 64, 20, 4), (2, 2, 12, 8, 2), (1, 2, 16, 16, 1), (1, 1, 10, 6, 3)]
    {
        let shape = GdnShape { key_heads, value_heads, key_dim, value_dim, kernel };
        let detail =
            format!("{key_heads}x{key_dim} keys, {value_heads}x{value_dim} values, {kernel} taps, projected");
        cases.push(Case::new("gated_delta", detail, BOUND, move |b: &B, rng| gated_delta(b, rng, shape)));
    }
    cases
}

/// How near two ways to the same cache are to each other.
fn bound_of(float: CacheFloat) -> Bound {
    match float {
        CacheFloat::F32 => BOUND,
        CacheFloat::F16 => HALVES,
        CacheFloat::Q8 => CODES,
    }
}

fn samples<const N: usize>(rng: &mut Rng, format: Format, rows: [usize; N], cols: usize) -> [Sample; N] {
    rows.map(|rows| Recipe::new(format, rows, cols).build(rng))
}

fn norm_matmuls<B: Backend>(rows: [usize; 3], cols: usize, format: Format) -> Case<B> {
    let detail = format!("{}, {rows:?} rows, {cols} columns", crate::weights::format_name(format));
    Case::new("norm_matmuls", detail, BOUND, move |b: &B, rng| {
        let weights = samples(rng, format, rows, cols);
        let [l, m, n] = &weights;
        let matrices = b.matrices([&l.weight, &m.weight, &n.weight])?;
        let (x, w) = (rng.values(11, cols), rng.gain(cols));
        let gain = w.on(b)?;
        let normed = norms::rms_heads(&x.wide(), &w.wide()[0], f64::from(EPS));
        let mut outputs = Vec::new();
        for range in [0..1, 1..3, 0..11] {
            let part = x.slice(range.clone()).on(b)?;
            let results = b.norm_matmuls(&part, Norm { w: &gain, eps: EPS }, matrices.each_ref())?;
            for (i, (result, sample)) in results.iter().zip(&weights).enumerate() {
                let expected = products::matmul(sample, &normed[range.clone()].to_vec());
                let output = Output::close(format!("y{i} of {range:?}"), b.read(result)?, &expected);
                outputs.push(if expected.concat().len() < 12 { output.flat() } else { output });
            }
        }
        Ok(outputs)
    })
}

/// What a layer leaves to the next, and the first products there: together, where the backend has that, and one after the other.
fn end_norm_matmuls<B: Backend>(rows: [usize; 3], cols: usize, format: Format) -> Case<B> {
    let detail = format!("{}, {rows:?} rows, {cols} columns", crate::weights::format_name(format));
    Case::new("end_norm_matmuls", detail, MANY_NORMS, move |b: &B, rng| {
        let weights = samples(rng, format, rows, cols);
        let matrices = b.matrices(weights.each_ref().map(|sample| &sample.weight))?;
        let [r, dense, routed] = [0; 3].map(|_| rng.values(3, cols));
        let gains = [0; 4].map(|_| rng.gain(cols));
        let normed = |x: &Rows, w: &Host| norms::rms_heads(x, &w.wide()[0], f64::from(EPS));
        let both = norms::add(&normed(&dense.wide(), &gains[0]), &normed(&routed.wide(), &gains[1]));
        let h = norms::map(&norms::add(&r.wide(), &normed(&both, &gains[2])), |v| v * 0.25);
        let input = normed(&h, &gains[3]);
        let all: Vec<f32> = gains.iter().flat_map(|gain| gain.values.clone()).collect();
        let [wa, wb, w, next] = gains.each_ref().map(|gain| gain.on(b));
        let norms = EndNorms { each: [wa?, wb?, w?], with_next: Some(b.upload(1, 4 * cols, &all)?) };
        let next = next?;
        let mut outputs = Vec::new();
        for range in [0..1, 1..2, 0..3] {
            let [r, dense, routed] = [&r, &dense, &routed].map(|x| x.slice(range.clone()).on(b));
            let end = LayerEnd { r: r?, halves: [dense?, routed?], norms: &norms, eps: EPS, factor: 0.25 };
            let start = match b.end_norm_matmuls(&end, matrices.each_ref())? {
                Some(start) => start,
                None => {
                    let LayerEnd { r, halves, norms, factor, .. } = &end;
                    let (halves, each) = (halves.each_ref(), norms.each.each_ref());
                    let h = b.combine_norm_add(r, halves, each, EPS, Factor::Scalar(*factor))?;
                    let products = b.norm_matmuls(&h, Norm { w: &next, eps: EPS }, matrices.each_ref())?;
                    LayerStart { h, products }
                }
            };
            outputs.push(Output::close(
                format!("h of {range:?}"),
                b.read(&start.h)?,
                &h[range.clone()].to_vec(),
            ));
            for (i, (product, sample)) in start.products.iter().zip(&weights).enumerate() {
                let expected = products::matmul(sample, &input[range.clone()].to_vec());
                let output = Output::close(format!("y{i} of {range:?}"), b.read(product)?, &expected);
                outputs.push(if expected.concat().len() < 12 { output.flat() } else { output });
            }
        }
        Ok(outputs)
    })
}

fn norm_add_gate_up<B: Backend>(width: usize, cols: usize, format: Format) -> Case<B> {
    let detail = format!("{}, 2 x [{width}, {cols}], n=1 and 9", crate::weights::format_name(format));
    Case::new("norm_add_gate_up", detail, BOUND, move |b: &B, rng| {
        let [gate, up] = samples(rng, format, [width, width], cols);
        let [g, u] = b.matrices([&gate.weight, &up.weight])?;
        let (r, x, post, w) = (rng.values(10, cols), rng.values(10, cols), rng.gain(cols), rng.gain(cols));
        let normed = |x: &Rows, w: &Host| norms::rms_heads(x, &w.wide()[0], f64::from(EPS));
        let h = norms::add(&r.wide(), &normed(&x.wide(), &post));
        let input = normed(&h, &w);
        let halves = [products::matmul(&gate, &input), products::matmul(&up, &input)];
        let activation = Activation::GeluTanh;
        let y = products::glu(&halves[0], &halves[1], activation);
        let (post, gain) = (post.on(b)?, w.on(b)?);
        let mut outputs = Vec::new();
        for range in [0..1, 1..10] {
            let (r, x) = (r.slice(range.clone()).on(b)?, x.slice(range.clone()).on(b)?);
            let norm = Norm { w: &gain, eps: EPS };
            let (sum, result) = b.norm_add_gate_up(&r, [&x, &post], norm, [&g, &u], activation)?;
            for (name, found, expected) in [("h", sum, &h), ("y", result, &y)] {
                let expected = expected[range.clone()].to_vec();
                outputs.push(Output::close(format!("{name} of {range:?}"), b.read(&found)?, &expected));
            }
        }
        Ok(outputs)
    })
}

fn shared_expert<B: Backend>(b: &B, rng: &mut Rng, width: usize) -> CaseResult {
    let mlp = |rng: &mut Rng, count: usize, width: usize| {
        let gate = Recipe::new(Q4, width, 64).stack(count);
        [gate.build(rng), gate.build(rng), Recipe::new(Q4, 64, width).stack(count).build(rng)]
    };
    let (stacks, shared) = (mlp(rng, 3, 64), mlp(rng, 1, width));
    let weights = b.expert_weights(
        stacks.each_ref().map(|sample| &sample.weight),
        Some(shared.each_ref().map(|sample| &sample.weight)),
    )?;
    let x = rng.values(11, 64);
    let one = |x: &Vec<f64>| moe::experts(x, &[0], &[1.0], shared.each_ref(), Activation::Silu);
    let expected: Rows = x.wide().iter().map(one).collect();
    in_chunks(11, &expected, |chunk| {
        let parts = chunks(11, chunk).map(|range| {
            let y = b.shared_expert(&x.slice(range).on(b)?, &weights, Activation::Silu)?;
            b.read(&y.expect("there is a shared expert"))
        });
        Ok(parts.collect::<backend::Result<Vec<_>>>()?.concat())
    })
}

fn gated_norm_matmul_add<B: Backend>(heads: usize, width: usize, format: Format) -> Case<B> {
    let detail = format!("{}, {heads} heads of {width}", crate::weights::format_name(format));
    Case::new("gated_norm_matmul_add", detail, BOUND, move |b: &B, rng| {
        let cols = heads * width;
        let sample = Recipe::new(format, 41, cols).bias().build(rng);
        let matrix = b.matrix(&sample.weight)?;
        let (v, z, w, r) = (rng.values(11, cols), rng.calm(11, cols), rng.gain(width), rng.values(11, 41));
        let gain = w.on(b)?;
        let normed = norms::gated(&v.wide(), &z.wide(), &w.wide()[0], f64::from(EPS));
        let expected = norms::add(&r.wide(), &products::matmul(&sample, &normed));
        in_chunks(11, &expected, |chunk| {
            let parts = chunks(11, chunk).map(|range| {
                let on = |x: &Host| x.slice(range.clone()).on(b);
                let norm = Norm { w: &gain, eps: EPS };
                b.read(&b.gated_norm_matmul_add([&on(&v)?, &on(&z)?], norm, heads, &matrix, on(&r)?)?)
            });
            Ok(parts.collect::<backend::Result<Vec<_>>>()?.concat())
        })
    })
}

/// How a case's experts are chosen.
#[derive(Clone, Copy)]
enum Choice {
    Softmax {
        top_k: usize,
        renormalise: bool,
    },
    /// With a norm of the router's own.
    Scaled(usize),
    Grouped(GroupedSigmoid),
}

/// A case's shared expert, of a width.
#[derive(Clone, Copy)]
enum Shared {
    Absent,
    Plain(usize),
    Gated(usize),
}

struct Experts {
    experts: usize,
    d: usize,
    width: usize,
    /// Of the experts' gate and up, of their down, and of the router and the shared expert's gate.
    formats: [Format; 3],
    choice: Choice,
    shared: Shared,
}

impl Experts {
    fn weights<B: Backend>(&self, b: &B, rng: &mut Rng) -> backend::Result<MoeWeights<B>> {
        let Self { experts, d, width, formats: [format, down, router_format], choice, shared } = *self;
        let mlp = |rng: &mut Rng, count: usize, width: usize| {
            let gate = Recipe::new(format, width, d).stack(count);
            [gate.build(rng), gate.build(rng), Recipe::new(down, d, width).stack(count).build(rng)]
        };
        let stacks = mlp(rng, experts, width);
        let shared_mlp = match shared {
            Shared::Absent => None,
            Shared::Plain(width) | Shared::Gated(width) => Some(mlp(rng, 1, width)),
        };
        let [router, gate] = samples(rng, router_format, [experts, 1], d);
        let (router, shared_gate) = match shared {
            Shared::Gated(_) => {
                let [router, gate] = b.matrices([&router.weight, &gate.weight])?;
                (router, Some(gate))
            }
            Shared::Plain(_) | Shared::Absent => (b.matrix(&router.weight)?, None),
        };
        let shared_mlp = shared_mlp.as_ref().map(|mlp| mlp.each_ref().map(|sample| &sample.weight));
        Ok(MoeWeights {
            router,
            router_norm: match choice {
                Choice::Scaled(_) => Some(rng.gain(d).on(b)?),
                Choice::Softmax { .. } | Choice::Grouped(_) => None,
            },
            shared_gate,
            routing: match choice {
                Choice::Softmax { top_k, renormalise } => Routing::Softmax { top_k, renormalise },
                Choice::Scaled(top_k) => Routing::SoftmaxScaled { top_k, scale: rng.gain(experts).on(b)? },
                Choice::Grouped(spec) => {
                    let bias = rng.calm(1, experts).scaled(0.1);
                    Routing::GroupedSigmoid { spec, bias: bias.on(b)? }
                }
            },
            experts: b.expert_weights(stacks.each_ref().map(|sample| &sample.weight), shared_mlp)?,
            activation: Activation::Silu,
        })
    }

    fn check<B: Backend>(&self, b: &B, rng: &mut Rng) -> CaseResult {
        let weights = self.weights(b, rng)?;
        let (h, w) = (rng.values(20, self.d), rng.gain(self.d));
        let gain = w.on(b)?;
        let mut outputs = Vec::new();
        for range in [0..1, 1..2, 2..3, 3..6, 0..20] {
            let h = h.slice(range.clone()).on(b)?;
            let norm = Norm { w: &gain, eps: EPS };
            // Gemma's has a residual of its own.
            let add = weights.router_norm.is_none();
            let expected = b.read(&compositions::moe(b, &h, norm, &weights, add)?)?;
            let values = b.read(&b.moe(&h, norm, &weights, add)?)?;
            outputs.push(Output::close(format!("tokens {range:?}"), values, &rows(&expected, self.d)));
        }
        Ok(outputs)
    }

    /// Beside a gated unit of a width.
    fn check_beside<B: Backend>(&self, b: &B, rng: &mut Rng, width: usize) -> CaseResult {
        let weights = self.weights(b, rng)?;
        let [gate, up] = samples(rng, self.formats[0], [width, width], self.d);
        let [down] = samples(rng, BF16, [self.d], width);
        let unit = UnitWeights {
            gate_up: b.matrices([&gate.weight, &up.weight])?,
            down: b.matrix(&down.weight)?,
            activation: Activation::GeluTanh,
        };
        let (r, x) = (rng.values(4, self.d), rng.values(4, self.d));
        let [post, w, moe_w] = [0; 3].map(|_| rng.gain(self.d));
        let (post, w, moe_w) = (post.on(b)?, w.on(b)?, moe_w.on(b)?);
        let mut outputs = Vec::new();
        for range in [0..1, 1..2, 0..4] {
            let (r, x) = (r.slice(range.clone()).on(b)?, x.slice(range.clone()).on(b)?);
            let dense = || (Norm { w: &w, eps: EPS }, &unit);
            let moe = || (Norm { w: &moe_w, eps: EPS }, &weights);
            let expected = compositions::norm_add_unit_moe(b, &r, [&x, &post], dense(), moe())?;
            let found = b.norm_add_unit_moe(&r, [&x, &post], dense(), moe())?;
            for (name, (found, expected)) in ["h", "dense", "routed"].iter().zip(found.iter().zip(&expected))
            {
                let expected = rows(&b.read(expected)?, self.d);
                outputs.push(Output::close(format!("{name} of {range:?}"), b.read(found)?, &expected));
            }
        }
        Ok(outputs)
    }
}

fn rows(values: &[f32], cols: usize) -> Rows {
    values.chunks_exact(cols).map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect()
}

/// With `out`, the projection behind it, too: its format, and whether there is a residual.
fn self_attention<B: Backend>(
    b: &B,
    rng: &mut Rng,
    cache: KvShape,
    heads: usize,
    (gated, norm_values): (bool, bool),
    at_once: usize,
    out: Option<(Format, bool)>,
) -> CaseResult {
    let KvShape { heads: kv_heads, key_dim, .. } = cache;
    let q_rows = heads * key_dim * if gated { 2 } else { 1 };
    let projections = samples(rng, Q4, [q_rows, kv_heads * key_dim, kv_heads * key_dim], 64);
    let matrices = b.matrices(projections.each_ref().map(|sample| &sample.weight))?;
    let inv_freq = (0..key_dim / 4).map(|i| 0.5f64.powi(i as i32)).collect();
    let rope = RopeSpec { inv_freq, factor: 1.0, pairing: Pairing::Halves };
    let weights = AttentionWeights::<B> {
        q_norm: rng.gain(key_dim).on(b)?,
        key_value: Some(KeyValueNorms { heads: kv_heads, k_norm: rng.gain(key_dim).on(b)?, norm_values }),
        rope: b.rope_table(&rope)?,
        eps: EPS,
        gated,
    };
    let mask = cache.window.map_or(Mask::Causal, Mask::Window);
    let spec = Attention { heads, scale: 1.0 / (key_dim as f32).sqrt(), mask, soft_cap: None };
    let end = at_once + 70;
    let x = rng.calm(end, 64);
    let out = match out {
        Some((format, residual)) => {
            let sample = Recipe::new(format, 41, heads * key_dim).bias().build(rng);
            let residual = if residual { Some(rng.values(end, 41)) } else { None };
            Some((b.matrix(&sample.weight)?, residual))
        }
        None => None,
    };
    let (mut own, mut parts) = (b.kv_cache(&cache)?, b.kv_cache(&cache)?);
    let mut outputs = Vec::new();
    // Some tokens at once, then one by one.
    for range in std::iter::once(0..at_once).chain((at_once..end).map(|t| t..t + 1)) {
        let [q, k, v] = b.matmuls(&x.slice(range.clone()).on(b)?, matrices.each_ref())?;
        let batch = one_span(b, range.len(), range.start)?;
        let kv = || Some([k.clone(), v.clone()]);
        let expected =
            compositions::self_attention(b, q.clone(), kv(), &weights, &batch, &mut [&mut parts], &spec)?;
        let (y, expected) = match &out {
            Some((matrix, residual)) => {
                let residual = residual.as_ref().map(|r| r.slice(range.clone()).on(b)).transpose()?;
                let behind = (matrix, residual.clone());
                let (own, q) = (&mut [&mut own], (q.clone(), kv()));
                let y = b.self_attention_out(q, &weights, &batch, own, &spec, behind)?;
                (y, compositions::projected(b, &expected, (matrix, residual))?)
            }
            None => (b.self_attention(q.clone(), kv(), &weights, &batch, &mut [&mut own], &spec)?, expected),
        };
        let expected = rows(&b.read(&expected)?, y.shape().cols);
        outputs.push(Output::close(format!("tokens {range:?}"), b.read(&y)?, &expected));
    }
    let (own, parts) = (b.kv_save(&own)?, b.kv_save(&parts)?);
    super::ensure((own.first, own.len) == (parts.first, parts.len), "the caches hold different tokens")?;
    Ok(outputs)
}

fn latent_attention<B: Backend>(
    b: &B,
    rng: &mut Rng,
    heads: usize,
    [rank, pe, nope, values]: [usize; 4],
    (float, format): (CacheFloat, Format),
) -> CaseResult {
    let head = |rng: &mut Rng, rows, cols| {
        let sample = Recipe::new(format, rows, cols).stack(heads).build(rng);
        b.head_matrices(&sample.weight, false)
    };
    let rope = RopeSpec {
        inv_freq: (0..pe / 2).map(|i| 0.5f64.powi(i as i32)).collect(),
        factor: 1.0,
        pairing: Pairing::Interleaved,
    };
    let weights = LatentWeights::<B> {
        norm: rng.gain(rank).on(b)?,
        eps: EPS,
        rope: b.rope_table(&rope)?,
        nope,
        mla: MlaWeights { embed_q: head(rng, rank, nope)?, unembed_out: head(rng, values, rank)? },
    };
    let cache = KvShape { heads: 1, key_dim: rank + pe, value_dim: 0, float, window: None };
    let spec = LatentAttention { heads, scale: 0.2 };
    let (q, kv) = (rng.calm(75, heads * (nope + pe)), rng.values(75, rank + pe));
    let (mut own, mut parts) = (b.kv_cache(&cache)?, b.kv_cache(&cache)?);
    let mut outputs = Vec::new();
    for range in std::iter::once(0..5).chain((5..75).map(|t| t..t + 1)) {
        let (q, kv) = (q.slice(range.clone()).on(b)?, kv.slice(range.clone()).on(b)?);
        let batch = one_span(b, range.len(), range.start)?;
        let y = b.latent_attention(&q, &kv, &weights, &batch, &mut [&mut own], &spec)?;
        let expected =
            compositions::latent_attention(b, &q, &kv, &weights, &batch, &mut [&mut parts], &spec)?;
        let expected = rows(&b.read(&expected)?, heads * values);
        outputs.push(Output::close(format!("tokens {range:?}"), b.read(&y)?, &expected));
    }
    Ok(outputs)
}

fn gated_delta<B: Backend>(b: &B, rng: &mut Rng, shape: GdnShape) -> CaseResult {
    let heads = shape.value_heads;
    let projections = samples(rng, Q4, [shape.channels(), heads, heads], 64);
    let matrices = b.matrices(projections.each_ref().map(|sample| &sample.weight))?;
    let weights = GdnWeights {
        shape,
        conv: rng.calm(shape.channels(), shape.kernel).on(b)?,
        a_log: rng.calm(1, heads).on(b)?,
        dt_bias: rng.calm(1, heads).on(b)?,
    };
    let x = rng.calm(30, 64);
    let (mut own, mut parts) = (b.recurrent(&shape)?, b.recurrent(&shape)?);
    let mut outputs = Vec::new();
    for range in std::iter::once(0..20).chain((20..30).map(|t| t..t + 1)) {
        let [qkv, beta, a] = b.matmuls(&x.slice(range.clone()).on(b)?, matrices.each_ref())?;
        let batch = one_span(b, range.len(), range.start)?;
        let y = b.gated_delta(&qkv, &a, &beta, &weights, &batch, &mut [&mut own])?;
        let qkv = b.conv_causal(&qkv, &weights.conv, &batch, &mut [&mut parts])?;
        let qkv = b.gdn_qk_norm(qkv, &shape)?;
        let (g, beta) = b.gdn_gates(&a, &beta, &weights.a_log, &weights.dt_bias)?;
        let expected = b.read(&b.gdn(&qkv, &g, &beta, &batch, &mut [&mut parts])?)?;
        let expected = rows(&expected, shape.value_total());
        outputs.push(Output::close(format!("tokens {range:?}"), b.read(&y)?, &expected));
    }
    let (own, parts) = (b.recurrent_save(&own)?, b.recurrent_save(&parts)?);
    outputs.push(Output::close(
        "state",
        own.state,
        &vec![parts.state.iter().map(|v| f64::from(*v)).collect()],
    ));
    if shape.kernel > 1 {
        outputs.push(Output::exact("window", own.window, parts.window));
    }
    Ok(outputs)
}
