//! Attention over caches.

use ::backend::{Attention, CacheFloat, Handle, Mask, Result, Span};

use super::{TILES_BUSY, by_item, each};
use crate::cache::KvCache;
use crate::pool::Buffer;
use crate::shader::{Variant, kernels};
use crate::{Gpu, Tensor};

/// Threads of a workgroup: positions it takes at a time.
const THREADS: usize = 128;

/// Quads of queries that fit the shared memory of a workgroup.
const QUERY_QUADS: usize = 512;

/// Workgroups that keep a large device busy; long caches are split until there are as many.
const BUSY: usize = 512;

/// Fewest positions of a split.
const SHORTEST_SPLIT: usize = THREADS;

/// Channels of a workgroup that puts splits together.
const MERGED_CHANNELS: usize = 32;

/// The same on matrix units: query rows of a workgroup, which takes as many positions and channels at a time, and the most channels of a
/// value.
const TILE: usize = 64;
const WIDEST_VALUE: usize = 512;

/// What attention over one cache takes besides it.
pub(crate) struct Queries<'a> {
    /// `[n, heads * width]`
    pub q: &'a Tensor,
    /// What follows each head's query, `[n, heads * width]`: the rotated part of a latent's.
    pub more: Option<&'a Tensor>,
    pub spec: Attention,
    /// Channels of a value.
    pub value_width: usize,
    /// What the results of a single token are multiplied with the sigmoid of.
    pub gate: Option<HeadGate<'a>>,
}

/// A gate for each channel of each head's result.
#[derive(Clone, Copy)]
pub(crate) struct HeadGate<'a> {
    pub x: &'a Tensor,
    /// Columns from one head's to the next, and before the first.
    pub stride: usize,
    pub offset: usize,
}

/// The first position that a token at `position` sees.
pub(super) fn first_seen(mask: Mask, position: usize) -> usize {
    match mask {
        Mask::Window(window) => (position + 1).saturating_sub(window),
        Mask::None | Mask::Causal => 0,
    }
}

/// A mask as kernels know it, over `len` positions.
fn mask_number(mask: Mask, len: usize) -> u32 {
    match mask {
        Mask::None => 0,
        Mask::Causal => 1,
        // A window beyond all there is shows all there is.
        Mask::Window(window) => window.min(len) as u32 + 1,
    }
}

/// How a cache stores values, as kernels know it.
pub(super) fn way(float: CacheFloat) -> u32 {
    match float {
        CacheFloat::F32 => 0,
        CacheFloat::F16 => 1,
        CacheFloat::Q8 => 2,
    }
}

impl Gpu {
    /// Writes rows of `[a | b]` behind what one plane of a cache holds.
    pub(crate) fn append(
        &self,
        (a, b): (&Tensor, Option<&Tensor>),
        plane: &Buffer,
        width: usize,
        cache: &KvCache,
        span: &Span,
    ) {
        let heads = cache.shape.heads;
        let width_b = b.map_or(0, |b| b.shape().cols / heads);
        let words = cache.words(width);
        let numbers =
            [span.len, span.row, heads, a.shape().cols / heads, width_b, words, span.position, cache.slots()]
                .map(|n| n as u32);
        let variant = each(&kernels::APPEND).with("CACHE", way(cache.shape.float));
        let buffers = [a.buffer(), b.unwrap_or(a).buffer(), plane];
        self.run_each(&variant, &buffers, &numbers, span.len * heads * words);
    }

    /// Attention of the rows of one span over its cache, into the same rows of `y`.
    pub(crate) fn attend(
        &self,
        queries: &Queries<'_>,
        span: &Span,
        cache: &KvCache,
        y: &Tensor,
    ) -> Result<()> {
        let Queries { q, more, spec, value_width, gate } = queries;
        let one = span.len == 1;
        if one
            && (self.attend_group(queries, span, cache, y)? || self.attend_step(queries, span, cache, y)?)
        {
            return Ok(());
        }
        if gate.is_some() {
            return Err(::backend::Error::Unsupported("gates of several tokens".into()));
        }
        if self.attend_tiles(queries, span, cache, y)? {
            return Ok(());
        }
        let key_heads = cache.shape.heads;
        let width = q.shape().cols / spec.heads;
        let width_more = more.map_or(0, |more| more.shape().cols / spec.heads);
        let quads = (width + width_more).div_ceil(4);
        let group = spec.heads / key_heads;
        let count = span.len * group;
        // No more rows than there are, nor than their queries have room.
        let rows = [8, 4, 2].into_iter().find(|r| r * quads <= QUERY_QUADS && *r < 2 * count).unwrap_or(1);
        if rows * quads > QUERY_QUADS {
            return Err(::backend::Error::Unsupported(format!(
                "attention with heads of {} channels: the GPU backend takes at most {}",
                width + width_more,
                4 * QUERY_QUADS
            )));
        }
        // Of codes, half a word is taken at a time.
        let values_in_word = cache.values_in_four() / 4;
        let value_words = value_width.div_ceil(values_in_word);
        let words = [1, 2].into_iter().find(|w| value_words <= w * THREADS).unwrap_or(4);
        let chunks = value_words.div_ceil(words * THREADS);
        let blocks = count.div_ceil(rows);
        let (seen_from, len) = (first_seen(spec.mask, span.position), span.position + span.len);
        let wanted = BUSY.div_ceil(blocks * key_heads * chunks);
        let split_len = (len - seen_from).div_ceil(wanted).max(SHORTEST_SPLIT).next_multiple_of(THREADS);
        // Splits are counted from position 0; those before the first that is seen find nothing to do.
        let splits = len.div_ceil(split_len);
        let (value_plane, value_row) = cache.value_plane();
        let value_stride = cache.words(value_row);
        let mask = mask_number(spec.mask, len);
        let number = |n: usize| n as u32;
        let numbers = [
            number(span.len),
            number(span.row),
            number(span.position),
            number(spec.heads),
            number(key_heads),
            number(width),
            number(width_more),
            number(cache.words(cache.shape.key_dim)),
            number(value_stride),
            number(value_words),
            number(*value_width),
            number(cache.slots()),
            number(len),
            mask,
            spec.scale.to_bits(),
            spec.soft_cap.unwrap_or(0.0).to_bits(),
            number(splits),
            number(split_len),
            number(chunks),
        ];
        let variant = Variant::new(&kernels::ATTENTION, THREADS as u32)
            .with("CACHE", way(cache.shape.float))
            .with("ROWS", rows as u32)
            .with("WORDS", words as u32)
            .with("QUERY_QUADS", QUERY_QUADS as u32);
        let grid = [blocks as u32, key_heads as u32, (splits * chunks) as u32];
        let inputs = [q.buffer(), more.unwrap_or(q).buffer(), cache.keys(), value_plane];
        self.run_splits((&variant, &inputs, &numbers, grid), queries, span, splits, y)
    }

    /// The same on matrix units, where there are any, caches hold halves and heads are whole eights; returns whether that is so.
    fn attend_tiles(&self, queries: &Queries<'_>, span: &Span, cache: &KvCache, y: &Tensor) -> Result<bool> {
        let Queries { q, more, spec, value_width, .. } = queries;
        let key_words = cache.words(cache.shape.key_dim);
        let (value_plane, value_row) = cache.value_plane();
        let value_words = cache.words(value_row);
        let whole = key_words.is_multiple_of(4) && value_words.is_multiple_of(4);
        let fits = cache.shape.float == CacheFloat::F16 && whole && *value_width <= WIDEST_VALUE;
        if !self.device.matrices || !fits {
            return Ok(false);
        }
        let key_heads = cache.shape.heads;
        let group = spec.heads / key_heads;
        let halves = self.halves((*q, *more), span.row..span.row + span.len, (spec.heads, group))?;
        let slices = [1, 2, 4].into_iter().find(|s| *value_width <= s * TILE).unwrap_or(8);
        let (count, len) = (span.len * group, span.position + span.len);
        let blocks = count.div_ceil(TILE);
        let wanted = TILES_BUSY.div_ceil(blocks * key_heads);
        let seen = len - first_seen(spec.mask, span.position);
        let split_len = seen.div_ceil(wanted).max(4 * TILE).next_multiple_of(TILE);
        // Splits are counted from position 0; those before the first that is seen find nothing to do.
        let splits = len.div_ceil(split_len);
        let number = |n: usize| n as u32;
        let numbers = [
            number(count),
            number(group),
            number(span.row),
            number(span.position),
            number(spec.heads),
            number(key_heads),
            number(halves.eights),
            number(key_words / 4),
            number(value_words / 4),
            number(*value_width),
            number(cache.slots()),
            number(len),
            mask_number(spec.mask, len),
            spec.scale.to_bits(),
            spec.soft_cap.unwrap_or(0.0).to_bits(),
            number(splits),
            number(split_len),
        ];
        let variant =
            Variant::new(&kernels::ATTENTION_TILES, 256).with("SLICES", slices as u32).with("MATRICES", 1);
        let grid = [blocks as u32, key_heads as u32, splits as u32];
        let inputs = [&halves.words, &halves.factors, cache.keys(), value_plane];
        self.run_splits((&variant, &inputs, &numbers, grid), queries, span, splits, y)?;
        Ok(true)
    }

    /// Runs a kernel whose workgroups share positions in `splits` parts: one writes results, several write what is then put together.
    pub(super) fn run_splits(
        &self,
        (variant, inputs, numbers, grid): (&Variant, &[&Buffer], &[u32], [u32; 3]),
        queries: &Queries<'_>,
        span: &Span,
        splits: usize,
        y: &Tensor,
    ) -> Result<()> {
        let run = |out: &Buffer| self.run(variant, &[inputs, &[out]].concat(), numbers, grid);
        if splits == 1 {
            run(y.buffer());
            return Ok(());
        }
        let rows = splits * span.len * queries.spec.heads;
        let partial = self.pool.take(4 * (rows * (queries.value_width + 2)) as u64)?;
        run(&partial);
        self.merge(queries, &partial, span, splits, y);
        Ok(())
    }

    /// Puts the results of several splits together.
    fn merge(&self, queries: &Queries<'_>, partial: &Buffer, span: &Span, splits: usize, y: &Tensor) {
        let Queries { spec, value_width, gate, .. } = queries;
        let rows = span.len * spec.heads;
        let (stride, offset) = gate.map_or((0, 0), |gate| (gate.stride, gate.offset));
        let numbers = [rows, span.row * spec.heads, *value_width, splits, stride, offset].map(|n| n as u32);
        let buffers = [partial, gate.map_or(partial, |gate| gate.x.buffer()), y.buffer()];
        let grid = by_item(value_width.div_ceil(MERGED_CHANNELS), rows);
        self.run(&Variant::new(&kernels::ATTENTION_MERGE, 256), &buffers, &numbers, grid);
    }
}
