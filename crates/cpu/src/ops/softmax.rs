//! Softmax-weighted sums over long rows of keys, a block at a time.
//!
//! Positions come in pieces, and pieces in blocks, both counted from position 0. A row of queries keeps the largest score so
//! far, the sum of its weights and the weighted sum of values, first within a piece, then over the pieces in their order.
//! Since that order is the same for one query and for many, and masked positions add exact zeros, results do not depend
//! on how queries are put together or on which thread takes which piece.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::dense::{PANEL, Size, nn, nt};
use super::pairs::{self, Pair, Whole};
use super::q8::{Codes, Layout};
use crate::kernels::Set;
use crate::prefetch::prefetch;
use crate::vector::{LANES, Lanes, exp, max_lanes, sum_lanes, vectorised};

/// Positions of a block: their keys and values stay in the nearest caches.
pub(crate) const BLOCK: usize = ::backend::pool::BLOCK;

/// Positions of a piece: what one task takes of a long cache.
pub(crate) const PIECE: usize = 256;

/// Query rows that share the blocks read for them.
pub(crate) const ROWS: usize = 64;

/// Floats as a cache stores them.
#[derive(Clone, Copy)]
pub(crate) enum Stored<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    /// Rows of codes, so wide.
    Codes(Codes<'a>, usize),
}

impl<'a> Stored<'a> {
    /// Writes them to the front of `out`.
    pub fn write(self, out: &mut [f32]) {
        match self {
            Stored::F32(values) => out[..values.len()].copy_from_slice(values),
            Stored::F16(halves) => halves.convert_to_f32_slice(&mut out[..halves.len()]),
            Stored::Codes(codes, width) => codes.write(width, out),
        }
    }

    /// As they are, or widened in `memory`, which has room for them.
    fn widened(self, memory: &'a mut [f32]) -> &'a [f32] {
        let len = match self {
            Stored::F32(values) => return values,
            Stored::F16(halves) => halves.len(),
            Stored::Codes(codes, _) => codes.codes.len(),
        };
        self.write(memory);
        &memory[..len]
    }
}

/// Whole numbers as a cache stores them.
#[derive(Clone, Copy)]
pub(crate) enum Numbers<'a> {
    Whole(Whole<'a>),
    Codes(Codes<'a>),
}

impl<'a> Numbers<'a> {
    /// The scale of each position.
    fn scales(self) -> &'a [f32] {
        match self {
            Numbers::Whole(whole) => whole.scales,
            Numbers::Codes(codes) => codes.units,
        }
    }

    /// What there is to read, to ask for it ahead of time.
    pub fn words(self) -> &'a [i16] {
        match self {
            Numbers::Whole(whole) => whole.numbers,
            Numbers::Codes(codes) => codes.words(),
        }
    }

    /// Asks for what lies apart from the numbers.
    fn prefetch_scales(self) {
        prefetch(self.scales());
        if let Numbers::Codes(codes) = self {
            prefetch(codes.scales);
        }
    }

    /// As they are, or widened in `memory`, which has room for them; rows have `width` channels.
    fn widened(self, set: Set, layout: Layout, width: usize, memory: &'a mut [f32]) -> &'a [i16] {
        match self {
            Numbers::Whole(whole) => whole.numbers,
            Numbers::Codes(codes) => codes.widened(set, layout, width, memory),
        }
    }
}

/// Keys and values of a block, as wide as the source says.
pub(crate) enum Block<'a> {
    /// Floats; of keys `[channel][position]` for every [`PANEL`] positions.
    Panels { keys: Stored<'a>, values: Stored<'a> },
    /// Rows of floats.
    Rows { keys: Stored<'a>, values: Values<'a> },
    /// Whole numbers: `[pair of channels][position]` for every [`PANEL`] positions, and `[pair of positions][channel]`.
    WholePanels { keys: Numbers<'a>, values: Numbers<'a> },
    /// Rows of whole numbers; values are the first channels of keys.
    WholeRows(Numbers<'a>),
}

/// Values of a block of rows.
pub(crate) enum Values<'a> {
    Rows(Stored<'a>),
    /// The first channels of the keys.
    OfKeys,
}

/// Where keys and values come from.
pub(crate) trait Source {
    /// Width of a key and of a value.
    fn widths(&self) -> (usize, usize);

    /// Keys and values of the `n` first positions of the block at `start`.
    fn read(&self, start: usize, n: usize) -> Block<'_>;

    /// The keys from position `start` on, as far as they lie in one place, to ask the memory for them ahead of time.
    fn ahead(&self, _start: usize) -> &[i16] {
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
pub(crate) const fn scratch_len(key_width: usize, value_width: usize) -> usize {
    BLOCK * (key_width + 1 + value_width) + ROWS * (BLOCK + Rounded::len(key_width))
}

/// Adds positions `start..end` of one piece, as far as they are seen, to `partial`. `then` is what this thread will probably read
/// afterwards, `scratch` is [`scratch_len`] long.
pub(crate) fn attend(
    set: Set,
    queries: &Queries<'_>,
    source: &impl Source,
    positions: Range<usize>,
    then: &[i16],
    partial: &mut Partial<'_>,
    scratch: &mut [f32],
) {
    let (key_width, value_width) = source.widths();
    let m = queries.seen.len();
    // For keys that are widened and then turned, of an odd width, a little more than keys of floats take.
    let (key_memory, rest) = scratch.split_at_mut(BLOCK * (key_width + 1));
    let (value_memory, rest) = rest.split_at_mut(BLOCK * value_width);
    let (scores, rest) = rest.split_at_mut(ROWS * BLOCK);
    let scores = &mut scores[..m * BLOCK];
    let (q, mut rounded) = ((queries.q, key_width), Rounded::of(rest, m, key_width));
    let mut fresh = true;
    let mut start = positions.start / BLOCK * BLOCK;
    while start < positions.end {
        let n = BLOCK.min(positions.end - start);
        let next = if start + BLOCK < positions.end { source.ahead(start + BLOCK) } else { then };
        let block = source.read(start, n);
        if matches!(block, Block::WholePanels { .. } | Block::WholeRows(_)) && fresh {
            pairs::round_queries(set, &queries.q[..m * key_width], key_width, rounded.q, rounded.q_factors);
            fresh = false;
        }
        let mut weigh = |scores: &mut [f32], values: &mut [f32]| {
            weigh(set, scores, queries.seen, start, queries.soft_cap, [partial.max, partial.sum, values]);
        };
        let (size, out) = (Size { m, n: value_width, k: n }, &mut *partial.values);
        match block {
            Block::Panels { keys, values } => {
                let panels = keys.widened(key_memory).chunks_exact(PANEL * key_width);
                let size_of_panel = Size { m, n: PANEL, k: key_width };
                for (i, panel) in panels.enumerate() {
                    nn(set, size_of_panel, q, (panel, PANEL), (&mut scores[i * PANEL..], BLOCK), false);
                }
                weigh(scores, out);
                let values = values.widened(value_memory);
                nn(set, size, (scores, BLOCK), (values, value_width), (out, value_width), true);
            }
            Block::Rows { keys, values } => {
                let keys = keys.widened(key_memory);
                nt(set, Size { m, n, k: key_width }, q, (keys, key_width), (scores, BLOCK));
                weigh(scores, out);
                let values = match values {
                    Values::Rows(values) => (values.widened(value_memory), value_width),
                    Values::OfKeys => (keys, key_width),
                };
                nn(set, size, (scores, BLOCK), values, (out, value_width), true);
            }
            Block::WholePanels { keys, values } => {
                keys.prefetch_scales();
                values.prefetch_scales();
                let width = key_width.next_multiple_of(2);
                let panels = keys.widened(set, Layout::Panels, width, key_memory).as_chunks().0;
                rounded.scores(set, panels, key_width, scores, values.words());
                pairs::scale_scores(set, scores, array(keys.scales()));
                weigh(scores, out);
                let pairs = values.widened(set, Layout::Pairs, value_width, value_memory).as_chunks().0;
                rounded.add_values(set, scores, array(values.scales()), size, pairs, out, next);
            }
            Block::WholeRows(rows) => {
                rows.prefetch_scales();
                let panel = PANEL * key_width.div_ceil(2);
                let (panels, memory) = key_memory.split_at_mut(n.div_ceil(PANEL) * panel);
                let (panels, scales) = (pairs::pairs(panels), array(rows.scales()));
                let numbers = rows.widened(set, Layout::Rows, key_width, memory);
                for (panel, rows) in panels.chunks_exact_mut(panel).zip(numbers.chunks(PANEL * key_width)) {
                    pairs::turn(set, rows, key_width, panel, PANEL);
                }
                rounded.scores(set, panels, key_width, scores, next);
                pairs::scale_scores(set, scores, scales);
                weigh(scores, out);
                let values = pairs::pairs(&mut value_memory[..n.div_ceil(2) * value_width]);
                pairs::interleave(set, numbers, key_width, n.div_ceil(2), values);
                // What comes next has been asked for.
                rounded.add_values(set, scores, scales, size, values, out, &[]);
            }
        }
        start += BLOCK;
    }
}

/// The scales of a block.
fn array(scales: &[f32]) -> &[f32; BLOCK] {
    scales.first_chunk().expect("a scale for every position of a block")
}

/// Queries and weights as whole numbers.
struct Rounded<'a> {
    q: &'a mut [Pair],
    q_factors: &'a mut [f32],
    weights: &'a mut [Pair],
    weight_factors: &'a mut [f32],
}

impl<'a> Rounded<'a> {
    /// Memory for a row.
    const fn len(key_width: usize) -> usize {
        key_width.div_ceil(2) + BLOCK / 2 + 2
    }

    /// For `m` rows in `memory`, as it is.
    fn of(memory: &'a mut [f32], m: usize, key_width: usize) -> Self {
        let (q, rest) = memory.split_at_mut(m * key_width.div_ceil(2));
        let (q_factors, rest) = rest.split_at_mut(m);
        let (weights, rest) = rest.split_at_mut(m * BLOCK / 2);
        let (q, weights) = (pairs::pairs(q), pairs::pairs(weights));
        Self { q, q_factors, weights, weight_factors: &mut rest[..m] }
    }

    /// Scores of the positions of panels, without the scales of these; `ahead` is wanted next.
    fn scores(&self, set: Set, panels: &[Pair], key_width: usize, scores: &mut [f32], ahead: &[i16]) {
        let size = Size { m: self.q_factors.len(), n: PANEL, k: key_width.div_ceil(2) };
        let panels = panels.chunks_exact(size.k * PANEL);
        let parts = panels.len();
        for (i, panel) in panels.enumerate() {
            let ahead = &ahead[i * ahead.len() / parts..(i + 1) * ahead.len() / parts];
            let out = (&mut scores[i * PANEL..], BLOCK);
            pairs::nn(set, size, (self.q, size.k), self.q_factors, (panel, PANEL), out, false, ahead);
        }
    }

    /// Adds `size.k` values with their weights to `out`; `ahead` is wanted next.
    #[expect(clippy::too_many_arguments, reason = "a product and its surroundings")]
    fn add_values(
        &mut self,
        set: Set,
        weights: &mut [f32],
        scales: &[f32; BLOCK],
        size: Size,
        values: &[Pair],
        out: &mut [f32],
        ahead: &[i16],
    ) {
        pairs::round_weights(set, weights, scales, self.weights, self.weight_factors);
        let (size, width) = (Size { k: size.k.div_ceil(2), ..size }, size.n);
        let (a, b) = ((&*self.weights, BLOCK / 2), (values, width));
        pairs::nn(set, size, a, self.weight_factors, b, (out, width), true, ahead);
    }
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
            let max = max_lanes(top);
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
