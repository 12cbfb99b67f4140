//! Attention over caches.

use ::backend::{CacheFloat, Handle, Result, Scores, Span};

use super::{by_item, word};
use crate::cache::KvCache;
use crate::kernels::attention::{
    Cache, MERGED_CHANNELS, QUERY_QUADS, QueryRows, Slices, THREADS, TILE, WIDEST_VALUE, append, attention,
    attention_merge, attention_tiles,
};
use crate::pool::Buffer;
use crate::{Gpu, Tensor};

/// Fewest positions of a split.
const SHORTEST_SPLIT: usize = THREADS;

/// What attention over one cache takes besides it.
pub(crate) struct Queries<'a> {
    /// `[n, heads * width]`
    pub q: &'a Tensor,
    /// What follows each head's query, `[n, heads * width]`: the rotated part of a latent's.
    pub more: Option<&'a Tensor>,
    pub scores: Scores,
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
pub(super) fn first_seen(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// A window as kernels know it, over `len` positions: 0 is none.
fn window_number(window: Option<usize>, len: usize) -> u32 {
    // A window beyond all there is shows all there is.
    window.map_or(0, |window| window.min(len) as u32)
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
        let words = cache.words(width);
        let params = append::Params {
            tokens: word(span.len),
            first_row: word(span.row),
            heads: word(heads),
            width_a: word(a.shape().cols / heads),
            width_b: word(b.map_or(0, |b| b.shape().cols / heads)),
            words: word(words),
            position: word(span.position),
            slots: word(cache.slots()),
        };
        let bindings = append::Bindings { a: a.buffer(), b: b.map(Tensor::buffer), cache: plane };
        let consts = Cache { cache: cache.shape.float };
        self.run_each(append::call(consts, params, bindings), span.len * heads * words);
    }

    /// Attention of the rows of one span over its cache, into the same rows of `y`.
    pub(crate) fn attend(
        &self,
        queries: &Queries<'_>,
        span: &Span,
        cache: &KvCache,
        y: &Tensor,
    ) -> Result<()> {
        let Queries { q, more, scores, value_width, gate } = queries;
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
        let width = q.shape().cols / scores.heads;
        let width_more = more.map_or(0, |more| more.shape().cols / scores.heads);
        let quads = (width + width_more).div_ceil(4);
        let group = scores.heads / key_heads;
        let count = span.len * group;
        // Of codes, half a word is taken at a time.
        let value_words = value_width.div_ceil(cache.values_in_four() / 4);
        let Some(consts) = QueryRows::choose(cache.shape.float, count, quads, value_words) else {
            return Err(::backend::Error::Unsupported(format!(
                "attention with heads of {} channels: the GPU backend takes at most {}",
                width + width_more,
                4 * QUERY_QUADS
            )));
        };
        let chunks = value_words.div_ceil(consts.words as usize * THREADS);
        let blocks = count.div_ceil(consts.rows as usize);
        let (seen_from, len) = (first_seen(scores.window, span.position), span.position + span.len);
        let wanted = self.device.profile.attention_workgroups.div_ceil(blocks * key_heads * chunks);
        let split_len = (len - seen_from).div_ceil(wanted).max(SHORTEST_SPLIT).next_multiple_of(THREADS);
        // Splits are counted from position 0; those before the first that is seen find nothing to do.
        let splits = len.div_ceil(split_len);
        let (value_plane, value_row) = cache.value_plane();
        let params = attention::Params {
            tokens: word(span.len),
            first_row: word(span.row),
            position: word(span.position),
            heads: word(scores.heads),
            key_heads: word(key_heads),
            width: word(width),
            width_more: word(width_more),
            key_words: word(cache.words(cache.shape.key_dim)),
            value_stride: word(cache.words(value_row)),
            value_words: word(value_words),
            value_width: word(*value_width),
            slots: word(cache.slots()),
            len: word(len),
            window: window_number(scores.window, len),
            scale: scores.scale,
            soft_cap: scores.soft_cap.unwrap_or(0.0),
            splits: word(splits),
            split_len: word(split_len),
            chunks: word(chunks),
        };
        let (q, q_more, keys, values) = (q.buffer(), more.map(Tensor::buffer), cache.keys(), value_plane);
        let partial = self.room_for_splits(queries, span, splits)?;
        let out = partial.as_ref().unwrap_or(y.buffer());
        let bindings = attention::Bindings { q, q_more, keys, values, y: out };
        let grid = [word(blocks), word(key_heads), word(splits * chunks)];
        self.run(attention::call(consts, params, bindings), grid);
        self.merge(queries, partial.as_ref(), span, splits, y);
        Ok(())
    }

    /// The same on matrix units, where there are any, caches hold halves and heads are whole eights; returns whether that is so.
    fn attend_tiles(&self, queries: &Queries<'_>, span: &Span, cache: &KvCache, y: &Tensor) -> Result<bool> {
        let Queries { q, more, scores, value_width, .. } = queries;
        let key_words = cache.words(cache.shape.key_dim);
        let (value_plane, value_row) = cache.value_plane();
        let value_words = cache.words(value_row);
        let whole = key_words.is_multiple_of(4) && value_words.is_multiple_of(4);
        let fits = cache.shape.float == CacheFloat::F16 && whole && *value_width <= WIDEST_VALUE;
        if !self.device.profile.limits.matrices || !fits {
            return Ok(false);
        }
        let key_heads = cache.shape.heads;
        let group = scores.heads / key_heads;
        let halves = self.halves((*q, *more), span.row..span.row + span.len, (scores.heads, group))?;
        let (count, len) = (span.len * group, span.position + span.len);
        let blocks = count.div_ceil(TILE);
        let wanted = self.device.profile.tile_workgroups.div_ceil(blocks * key_heads);
        let seen = len - first_seen(scores.window, span.position);
        let split_len = seen.div_ceil(wanted).max(4 * TILE).next_multiple_of(TILE);
        // Splits are counted from position 0; those before the first that is seen find nothing to do.
        let splits = len.div_ceil(split_len);
        let params = attention_tiles::Params {
            count: word(count),
            group: word(group),
            first_row: word(span.row),
            position: word(span.position),
            heads: word(scores.heads),
            key_heads: word(key_heads),
            query_eights: word(halves.eights),
            key_eights: word(key_words / 4),
            value_eights: word(value_words / 4),
            value_width: word(*value_width),
            slots: word(cache.slots()),
            len: word(len),
            window: window_number(scores.window, len),
            scale: scores.scale,
            soft_cap: scores.soft_cap.unwrap_or(0.0),
            splits: word(splits),
            split_len: word(split_len),
        };
        let partial = self.room_for_splits(queries, span, splits)?;
        let bindings = attention_tiles::Bindings {
            queries: &halves.words,
            factors: &halves.factors,
            keys: cache.keys(),
            values: value_plane,
            y: partial.as_ref().unwrap_or(y.buffer()),
        };
        let call = attention_tiles::call(Slices::choose(*value_width), params, bindings);
        self.run(call, [word(blocks), word(key_heads), word(splits)]);
        self.merge(queries, partial.as_ref(), span, splits, y);
        Ok(true)
    }

    /// Where workgroups that share positions in `splits` parts leave what is then [put together](Self::merge); one alone writes results.
    pub(super) fn room_for_splits(
        &self,
        queries: &Queries<'_>,
        span: &Span,
        splits: usize,
    ) -> Result<Option<Buffer>> {
        let rows = splits * span.len * queries.scores.heads;
        let take = || self.pool.take(4 * (rows * (queries.value_width + 2)) as u64);
        (splits > 1).then(take).transpose()
    }

    /// Puts the results of several splits together.
    pub(super) fn merge(
        &self,
        queries: &Queries<'_>,
        partial: Option<&Buffer>,
        span: &Span,
        splits: usize,
        y: &Tensor,
    ) {
        let Some(partial) = partial else { return };
        let Queries { scores, value_width, gate, .. } = queries;
        let rows = span.len * scores.heads;
        let params = attention_merge::Params {
            rows: word(rows),
            first: word(span.row * scores.heads),
            width: word(*value_width),
            splits: word(splits),
            gate_stride: gate.map_or(0, |gate| word(gate.stride)),
            gate_at: gate.map_or(0, |gate| word(gate.offset)),
        };
        let gates = gate.map(|gate| gate.x.buffer());
        let bindings = attention_merge::Bindings { partial, gates, y: y.buffer() };
        let grid = by_item(value_width.div_ceil(MERGED_CHANNELS), rows);
        self.run(attention_merge::call(params, bindings), grid);
    }
}
