//! Moving rows and columns.

use ::backend::GdnShape;

/// Some columns of a row.
pub(crate) struct Columns {
    pub start: usize,
    pub width: usize,
}

/// Column ranges of every row, one after the other.
pub(crate) fn gather(x: &[f32], cols: usize, ranges: &[Columns]) -> Vec<f32> {
    let width: usize = ranges.iter().map(|r| r.width).sum();
    let mut y = Vec::with_capacity(x.len() / cols * width);
    for row in x.chunks_exact(cols) {
        ranges.iter().for_each(|r| y.extend_from_slice(&row[r.start..r.start + r.width]));
    }
    y
}

/// The `(first, width)` part of every head, for `heads` slices of `head` columns.
pub(crate) fn part_of_heads(heads: usize, head: usize, first: usize, width: usize) -> Vec<Columns> {
    (0..heads).map(|h| Columns { start: h * head + first, width }).collect()
}

/// Where Qwen3-Next's fused projection keeps `[q | k | v]` and `z`.
pub(crate) fn qkvz_ranges(shape: &GdnShape) -> (Vec<Columns>, Vec<Columns>) {
    let dk = shape.key_dim;
    let values = shape.value_heads / shape.key_heads * shape.value_dim;
    let head = 2 * dk + 2 * values;
    let part = |first, width| part_of_heads(shape.key_heads, head, first, width);
    let qkv = [part(0, dk), part(dk, dk), part(2 * dk, values)].into_iter().flatten().collect();
    (qkv, part(2 * dk + values, values))
}
