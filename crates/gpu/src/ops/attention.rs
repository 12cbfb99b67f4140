//! Attention over caches.

use ::backend::{Attention, CacheFloat, Handle, Mask, Result, Span};

use super::{each, folded};
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

/// What attention over one cache takes besides it.
pub(crate) struct Queries<'a> {
    /// `[n, heads * width]`
    pub q: &'a Tensor,
    /// What follows each head's query, `[n, heads * width]`: the rotated part of a latent's.
    pub more: Option<&'a Tensor>,
    pub spec: Attention,
    /// Channels of a value.
    pub value_width: usize,
}

fn half(float: CacheFloat) -> u32 {
    u32::from(float == CacheFloat::F16)
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
        let variant = each(&kernels::APPEND).with("HALF", half(cache.shape.float));
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
        let Queries { q, more, spec, value_width } = queries;
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
        let values_in_word = 4 / cache.shape.float.bytes();
        let value_words = value_width.div_ceil(values_in_word);
        let words = [1, 2].into_iter().find(|w| value_words <= w * THREADS).unwrap_or(4);
        let chunks = value_words.div_ceil(words * THREADS);
        let blocks = count.div_ceil(rows);
        // Positions from the first that any of the tokens sees.
        let seen_from = match spec.mask {
            Mask::Window(window) => (span.position + 1).saturating_sub(window),
            Mask::None | Mask::Causal => 0,
        };
        let len = span.position + span.len;
        let wanted = BUSY.div_ceil(blocks * key_heads * chunks);
        let split_len = (len - seen_from).div_ceil(wanted).max(SHORTEST_SPLIT).next_multiple_of(THREADS);
        // Splits are counted from position 0; those before the first that is seen find nothing to do.
        let splits = len.div_ceil(split_len);
        let (value_plane, value_stride) = match cache.values() {
            Some(values) => (values, cache.words(cache.shape.value_dim)),
            None => (cache.keys(), cache.words(cache.shape.key_dim)),
        };
        let mask = match spec.mask {
            Mask::None => 0,
            Mask::Causal => 1,
            // A window beyond all there is shows all there is.
            Mask::Window(window) => window.min(len) as u32 + 1,
        };
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
            .with("HALF", half(cache.shape.float))
            .with("ROWS", rows as u32)
            .with("WORDS", words as u32)
            .with("QUERY_QUADS", QUERY_QUADS as u32);
        let grid = [blocks as u32, key_heads as u32, (splits * chunks) as u32];
        let inputs = [q.buffer(), more.unwrap_or(q).buffer(), cache.keys(), value_plane];
        let [q, more, keys, values] = inputs;
        if splits == 1 {
            self.run(&variant, &[q, more, keys, values, y.buffer()], &numbers, grid);
            return Ok(());
        }
        let rows = span.len * spec.heads;
        let partial = self.pool.take(4 * (splits * rows * (value_width + 2)) as u64)?;
        self.run(&variant, &[q, more, keys, values, &partial], &numbers, grid);
        let numbers = [rows, span.row * spec.heads, *value_width, splits].map(|n| n as u32);
        let variant = each(&kernels::ATTENTION_MERGE);
        self.run(&variant, &[&partial, y.buffer()], &numbers, folded(rows));
        Ok(())
    }
}
