//! Softmax-weighted sums over long rows of keys, a block at a time.
//!
//! Positions come in pieces, and pieces in blocks, both counted from position 0. A row of queries keeps the largest score so
//! far, the sum of its weights and the weighted sum of values, first within a piece, then over the pieces in their order.
//! Since that order is the same for one query and for many, and masked positions add exact zeros, results do not depend
//! on how queries are put together or on which thread takes which piece.

use std::ops::Range;

use super::dense::{PANEL, Rows, RowsMut, Size, nn, nt};
use super::halves::{self, widen_rows};
use crate::kernels::Set;
use crate::vector::{LANES, Lanes, exp, sum_lanes, vectorised};

/// Positions of a block: their keys and values stay in the nearest caches.
pub(crate) const BLOCK: usize = 64;

/// Positions of a piece: what one task takes of a long cache.
pub(crate) const PIECE: usize = 256;

/// Query rows that share the blocks read for them.
pub(crate) const ROWS: usize = 64;

/// Floats as a cache stores them.
#[derive(Clone, Copy)]
pub(crate) enum Stored<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
}

impl<'a> Stored<'a> {
    /// Writes them to the front of `out`.
    pub fn write(self, set: Set, out: &mut [f32]) {
        match self {
            Stored::F32(values) => out[..values.len()].copy_from_slice(values),
            Stored::F16(halves) => {
                widen_rows(set, halves, halves.len(), halves.len(), &mut out[..halves.len()])
            }
        }
    }

    /// As they are, or widened in `memory`, which has room for them.
    pub fn widened(self, set: Set, memory: &'a mut [f32]) -> &'a [f32] {
        match self {
            Stored::F32(values) => values,
            Stored::F16(halves) => {
                self.write(set, memory);
                &memory[..halves.len()]
            }
        }
    }
}

/// Keys of a block, as wide as the source says.
pub(crate) enum Keys<'a> {
    Rows(Stored<'a>),
    /// `[channel][position]` for every [`PANEL`] positions.
    Panels(Stored<'a>),
}

/// Values of a block.
pub(crate) enum Values<'a> {
    /// Rows, and the distance between them.
    Rows(Stored<'a>, usize),
    /// The first channels of the keys, which are rows.
    OfKeys,
}

impl<'a> Values<'a> {
    /// The halves that they are, if any.
    fn halves(&self) -> &'a [u16] {
        match self {
            Values::Rows(Stored::F16(halves), _) => halves,
            _ => &[],
        }
    }
}

/// Where keys and values come from.
pub(crate) trait Source {
    /// Width of a key and of a value.
    fn widths(&self) -> (usize, usize);

    /// Keys and values of the `n` first positions of the block at `start`.
    fn read(&self, start: usize, n: usize) -> (Keys<'_>, Values<'_>);

    /// The keys from position `start` on, as far as they lie in one place, to ask the memory for them ahead of time.
    fn ahead(&self, _start: usize) -> &[u16] {
        &[]
    }
}

/// Query rows, multiplied by the scale, one after the other, and which positions each of them sees.
pub(crate) struct Queries<'a> {
    pub q: &'a [f32],
    pub seen: &'a [Range<usize>],
    pub soft_cap: Option<f32>,
}

/// Running results of some query rows.
pub(crate) struct Partial<'a> {
    max: &'a mut [f32],
    sum: &'a mut [f32],
    /// `[row][value width]`
    values: &'a mut [f32],
}

impl<'a> Partial<'a> {
    /// Values of memory for `rows` rows.
    pub const fn len(rows: usize, width: usize) -> usize {
        rows * (2 + width)
    }

    /// Results kept in `memory`, as they are.
    pub fn of(memory: &'a mut [f32], rows: usize) -> Self {
        let (max, rest) = memory.split_at_mut(rows);
        let (sum, values) = rest.split_at_mut(rows);
        Self { max, sum, values }
    }

    /// Results of nothing.
    pub fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }

    /// Takes in the results of the positions that follow.
    pub fn merge(&mut self, set: Set, next: &Partial<'_>) {
        merge_rows(set, [self.max, self.sum, self.values], [next.max, next.sum, next.values]);
    }

    /// The weighted mean of row `i`.
    pub fn finish(&self, i: usize, out: &mut [f32]) {
        let (width, inverse) = (out.len(), 1.0 / self.sum[i]);
        out.iter_mut().zip(&self.values[i * width..]).for_each(|(y, v)| *y = v * inverse);
    }
}

/// Memory for the blocks of a task.
pub(crate) const fn scratch_len(key_width: usize) -> usize {
    BLOCK * key_width + ROWS * BLOCK + halves::SCRATCH
}

/// Adds positions `start..end` of one piece, as far as they are seen, to `partial`. `then` is what this thread will probably read
/// afterwards, `scratch` is [`scratch_len`] long.
pub(crate) fn attend(
    set: Set,
    queries: &Queries<'_>,
    source: &impl Source,
    positions: Range<usize>,
    then: &[u16],
    partial: &mut Partial<'_>,
    scratch: &mut [f32],
) {
    let (key_width, value_width) = source.widths();
    let m = queries.seen.len();
    let (memory, rest) = scratch.split_at_mut(BLOCK * key_width);
    let (scratch, rest) = rest.split_at_mut(halves::SCRATCH);
    let scores = &mut rest[..m * BLOCK];
    let q = (queries.q, key_width);
    let mut start = positions.start / BLOCK * BLOCK;
    while start < positions.end {
        let n = BLOCK.min(positions.end - start);
        let (keys, values) = source.read(start, n);
        let next = if start + BLOCK < positions.end { source.ahead(start + BLOCK) } else { then };
        // The keys, if they are rows.
        let rows = match keys {
            Keys::Panels(panels) => {
                panel_scores(set, q, panels, values.halves(), (scores, BLOCK), m, scratch);
                None
            }
            Keys::Rows(rows) => {
                Some(row_scores(set, Size { m, n, k: key_width }, q, rows, next, scores, memory))
            }
        };
        weigh(set, scores, queries.seen, start, queries.soft_cap, [partial.max, partial.sum, partial.values]);
        let (values, stride, next) = match (values, rows) {
            (Values::Rows(values, stride), _) => (values, stride, next),
            // What comes next has been asked for.
            (Values::OfKeys, Some(rows)) => (rows, key_width, &[][..]),
            (Values::OfKeys, None) => unreachable!("values in panels"),
        };
        let (size, weights) = (Size { m, n: value_width, k: n }, (&*scores, BLOCK));
        let out = (&mut *partial.values, value_width);
        match values {
            Stored::F32(values) => nn(set, size, weights, (values, stride), out, true),
            Stored::F16(values) => halves::nn(set, size, weights, (values, stride), out, true, next, scratch),
        }
        start += BLOCK;
    }
}

/// Scores of the positions of panels; `ahead` is wanted next.
fn panel_scores(
    set: Set,
    q: Rows<'_>,
    panels: Stored<'_>,
    ahead: &[u16],
    scores: RowsMut<'_>,
    m: usize,
    scratch: &mut [f32],
) {
    let size = Size { m, n: PANEL, k: q.1 };
    let len = size.k * PANEL;
    match panels {
        Stored::F32(panels) => {
            for (i, panel) in panels.chunks_exact(len).enumerate() {
                nn(set, size, q, (panel, PANEL), (&mut scores.0[i * PANEL..], scores.1), false);
            }
        }
        Stored::F16(panels) => {
            for (i, panel) in panels.chunks_exact(len).enumerate() {
                let ahead = halves::part(ahead, i, panels.len() / len);
                let out = (&mut scores.0[i * PANEL..], scores.1);
                halves::nn(set, size, q, (panel, PANEL), out, false, ahead, scratch);
            }
        }
    }
}

/// Scores of the positions of rows; `ahead` is wanted next. Returns the rows as they are best used again: as they are stored,
/// or widened in `memory`.
fn row_scores<'a>(
    set: Set,
    size: Size,
    q: Rows<'_>,
    rows: Stored<'a>,
    ahead: &[u16],
    scores: &mut [f32],
    memory: &'a mut [f32],
) -> Stored<'a> {
    if let Stored::F16(halves) = rows
        && halves::nt(set, size, q, (halves, size.k), (scores, BLOCK), ahead)
    {
        return rows;
    }
    let rows = rows.widened(set, memory);
    nt(set, size, q, (rows, size.k), (scores, BLOCK));
    Stored::F32(rows)
}

vectorised! {
    /// Turns scores `[row][BLOCK]` of the positions from `start` on into weights, and brings what is there already to
    /// the new maximum.
    fn weigh<A>(
        scores: &mut [f32],
        seen: &[Range<usize>],
        start: usize,
        soft_cap: Option<f32>,
        partial: [&mut [f32]; 3],
    ) {
        let [maxima, sums, values] = partial;
        let width = values.len() / maxima.len();
        for (i, seen) in seen.iter().enumerate() {
            let scores = &mut scores[i * BLOCK..][..BLOCK];
            let (from, to) = (seen.start.saturating_sub(start), seen.end.saturating_sub(start).min(BLOCK));
            if from >= to {
                scores.fill(0.0);
                continue;
            }
            scores[..from].fill(f32::NEG_INFINITY);
            scores[to..].fill(f32::NEG_INFINITY);
            let (scores, _) = scores.as_chunks_mut::<LANES>();
            if let Some(cap) = soft_cap {
                for lanes in scores.iter_mut() {
                    for s in lanes {
                        *s = if *s == f32::NEG_INFINITY { *s } else { cap * super::tanh::<A>(*s / cap) };
                    }
                }
            }
            let mut top: Lanes = [maxima[i]; LANES];
            for lanes in scores.iter() {
                for (top, s) in top.iter_mut().zip(lanes) {
                    *top = if *s > *top { *s } else { *top };
                }
            }
            let max = top.iter().fold(f32::NEG_INFINITY, |m, s| if *s > m { *s } else { m });
            let mut sum: Lanes = [0.0; LANES];
            for lanes in scores.iter_mut() {
                for (sum, s) in sum.iter_mut().zip(lanes) {
                    *s = exp::<A>(*s - max);
                    *sum += *s;
                }
            }
            if max > maxima[i] {
                let keep = exp::<A>(maxima[i] - max);
                sums[i] *= keep;
                values[i * width..][..width].iter_mut().for_each(|v| *v *= keep);
                maxima[i] = max;
            }
            sums[i] += sum_lanes(sum);
        }
    }
}

vectorised! {
    fn merge_rows<A>(into: [&mut [f32]; 3], from: [&[f32]; 3]) {
        let [maxima, sums, values] = into;
        let [from_maxima, from_sums, from_values] = from;
        let width = values.len() / maxima.len();
        for i in 0..maxima.len() {
            let max = if from_maxima[i] > maxima[i] { from_maxima[i] } else { maxima[i] };
            if max == f32::NEG_INFINITY {
                continue;
            }
            let (keep, take) = (exp::<A>(maxima[i] - max), exp::<A>(from_maxima[i] - max));
            maxima[i] = max;
            sums[i] = sums[i] * keep + from_sums[i] * take;
            let from = &from_values[i * width..][..width];
            for (v, from) in values[i * width..][..width].iter_mut().zip(from) {
                *v = A::fma(*v, keep, from * take);
            }
        }
    }
}
