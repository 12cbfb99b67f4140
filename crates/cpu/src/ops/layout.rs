//! Moving rows and columns.

use ::backend::GdnShape;

/// Column ranges of every row, one after the other: each `(start, width)` of `ranges`.
pub(crate) fn gather(x: &[f32], cols: usize, ranges: &[(usize, usize)]) -> Vec<f32> {
    let width: usize = ranges.iter().map(|r| r.1).sum();
    let mut y = Vec::with_capacity(x.len() / cols * width);
    for row in x.chunks_exact(cols) {
        ranges.iter().for_each(|(start, width)| y.extend_from_slice(&row[*start..start + width]));
    }
    y
}

/// The `(first, width)` part of every head, for `heads` slices of `head` columns.
pub(crate) fn part_of_heads(heads: usize, head: usize, first: usize, width: usize) -> Vec<(usize, usize)> {
    (0..heads).map(|h| (h * head + first, width)).collect()
}

/// Where Qwen3-Next's fused projection keeps `[q | k | v]` and `z`.
pub(crate) fn qkvz_ranges(shape: &GdnShape) -> (Vec<(usize, usize)>, Vec<(usize, usize)>) {
    let dk = shape.key_dim;
    let values = shape.value_heads / shape.key_heads * shape.value_dim;
    let head = 2 * dk + 2 * values;
    let part = |first, width| part_of_heads(shape.key_heads, head, first, width);
    ([part(0, dk), part(dk, dk), part(2 * dk, values)].concat(), part(2 * dk + values, values))
}
