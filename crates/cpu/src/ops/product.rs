//! Products with weights.

use checkpoint::Weight;
use rayon::prelude::*;

/// Lanes of a dot product, summed separately so that the compiler may use vector registers.
const LANES: usize = 16;

/// Matrix rows that one task works on.
const ROWS: usize = 16;

/// `sum_i a[i] b[i]`, always in the same order.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    // Halving keeps the error of the final sum small.
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0] + rest
}

/// `y[t, r] = W x[t]` (bias included) for `n` tokens; returns `[n, rows]`.
pub(crate) fn matmul(weight: &Weight, x: &[f32], n: usize) -> Vec<f32> {
    if n == 0 {
        return Vec::new();
    }
    let mut by_row = vec![0.0; weight.rows * n];
    by_row.par_chunks_mut(ROWS * n).enumerate().for_each(|(chunk, out)| {
        let mut decoded = vec![0.0; weight.cols];
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            row_product(weight, 0, chunk * ROWS + i, x, &mut decoded, out);
        }
    });
    transpose(by_row, weight.rows, n)
}

/// The same on the calling thread, for matrix `m` of a stack.
pub(crate) fn matmul_one(weight: &Weight, m: usize, x: &[f32], n: usize) -> Vec<f32> {
    if n == 0 {
        return Vec::new();
    }
    let mut by_row = vec![0.0; weight.rows * n];
    let mut decoded = vec![0.0; weight.cols];
    for (r, out) in by_row.chunks_exact_mut(n).enumerate() {
        row_product(weight, m, r, x, &mut decoded, out);
    }
    transpose(by_row, weight.rows, n)
}

/// One row of a matrix times every token: the row is decoded once.
fn row_product(weight: &Weight, m: usize, r: usize, x: &[f32], decoded: &mut [f32], out: &mut [f32]) {
    weight.decode_row(m, r, decoded);
    let bias = weight.bias.as_ref().map_or(0.0, |b| b[m * weight.rows + r]);
    for (y, x) in out.iter_mut().zip(x.chunks_exact(weight.cols)) {
        *y = dot(decoded, x) + bias;
    }
}

/// `[rows, n]` to `[n, rows]`.
fn transpose(by_row: Vec<f32>, rows: usize, n: usize) -> Vec<f32> {
    if n == 1 {
        return by_row;
    }
    let mut y = vec![0.0; rows * n];
    y.par_chunks_exact_mut(rows).enumerate().for_each(|(t, y)| {
        for (r, y) in y.iter_mut().enumerate() {
            *y = by_row[r * n + t];
        }
    });
    y
}

/// `y[t, h] = W[h] x[t, h]` for every head of `n` tokens, or `W[h]^T x[t, h]` when `transposed`.
pub(crate) fn head_products(weight: &Weight, transposed: bool, x: &[f32], n: usize) -> Vec<f32> {
    let (inner, outer) = if transposed { (weight.rows, weight.cols) } else { (weight.cols, weight.rows) };
    let heads = weight.count;
    let by_head: Vec<Vec<f32>> = (0..heads)
        .into_par_iter()
        .map(|h| {
            let x: Vec<f32> = (0..n).flat_map(|t| &x[(t * heads + h) * inner..][..inner]).copied().collect();
            head_product(weight, h, transposed, &x, n)
        })
        .collect();
    interleave(&by_head, outer, n)
}

/// One head's matrix, or its transpose, times `n` vectors: `[n, out]`.
pub(crate) fn head_product(weight: &Weight, h: usize, transposed: bool, x: &[f32], n: usize) -> Vec<f32> {
    if !transposed {
        return matmul_one(weight, h, x, n);
    }
    // Turned round first, so that the same matrix gives the same bits whichever way it is stored.
    let (inner, outer) = (weight.rows, weight.cols);
    let mut turned = vec![0.0; inner * outer];
    let mut decoded = vec![0.0; outer];
    for r in 0..inner {
        weight.decode_row(h, r, &mut decoded);
        decoded.iter().enumerate().for_each(|(c, w)| turned[c * inner + r] = *w);
    }
    x.chunks_exact(inner).flat_map(|x| turned.chunks_exact(inner).map(|w| dot(w, x))).collect()
}

/// Heads `[n, width]` each, side by side in the rows of one `[n, heads * width]`.
pub(crate) fn interleave(by_head: &[Vec<f32>], width: usize, n: usize) -> Vec<f32> {
    (0..n)
        .flat_map(|t| by_head.iter().flat_map(move |head| &head[t * width..(t + 1) * width]))
        .copied()
        .collect()
}

/// `y[t] = scale * table[tokens[t]]`
pub(crate) fn embed(table: &Weight, tokens: &[u32], scale: f32) -> Vec<f32> {
    let mut y = vec![0.0; tokens.len() * table.cols];
    y.par_chunks_exact_mut(table.cols).zip(tokens).for_each(|(y, id)| {
        table.decode_row(0, *id as usize, y);
        y.iter_mut().for_each(|v| *v *= scale);
    });
    y
}
