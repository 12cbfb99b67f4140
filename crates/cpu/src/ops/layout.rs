//! Moving rows and columns.

use ::backend::GdnShape;

use crate::Machine;

/// Some columns of a row.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    pub start: usize,
    pub width: usize,
}

/// Column ranges of every row, one after the other.
pub(crate) fn gather(
    machine: &Machine,
    x: &[f32],
    cols: usize,
    ranges: impl Iterator<Item = Columns> + Clone + Sync,
    y: &mut [f32],
) {
    let width: usize = ranges.clone().map(|r| r.width).sum();
    if width == 0 {
        return;
    }
    machine.rows(y, width, |first, y| {
        for (y, row) in y.chunks_exact_mut(width).zip(x[first * cols..].chunks_exact(cols)) {
            let mut at = 0;
            for r in ranges.clone() {
                y[at..at + r.width].copy_from_slice(&row[r.start..r.start + r.width]);
                at += r.width;
            }
        }
    });
}

/// The `(first, width)` part of every head, for `heads` slices of `head` columns.
pub(crate) fn part_of_heads(
    heads: usize,
    head: usize,
    first: usize,
    width: usize,
) -> impl Iterator<Item = Columns> + Clone + Sync {
    (0..heads).map(move |h| Columns { start: h * head + first, width })
}

/// Where Qwen3-Next's fused projection keeps `[q | k | v]` and `z`.
pub(crate) fn qkvz_ranges(
    shape: &GdnShape,
) -> (impl Iterator<Item = Columns> + Clone + Sync, impl Iterator<Item = Columns> + Clone + Sync) {
    let dk = shape.key_dim;
    let values = shape.value_heads / shape.key_heads * shape.value_dim;
    let head = 2 * dk + 2 * values;
    let heads = shape.key_heads;
    let part = move |first, width| part_of_heads(heads, head, first, width);
    (part(0, dk).chain(part(dk, dk)).chain(part(2 * dk, values)), part(2 * dk + values, values))
}
