//! Attention over the caches of all sequences of a step.

use ::backend::{Batch, CacheFloat, Error, Handle, Result, Scores, Span, pool::BLOCK};

use super::layout::PartOfHeads;
use super::spans::Spans;
use super::{by_item, word};
use crate::kernels::attention::{
    Cache, MERGED_CHANNELS, QUERY_QUADS, QueryRows, Slices, THREADS, TILE, WIDEST_VALUE, append, attention,
    attention_merge, attention_tiles,
};
use crate::pool::Buffer;
use crate::slabs::{KvSlab, Slabs};
use crate::{Gpu, Tensor};

/// Fewest positions of a part.
const SHORTEST_PART: usize = THREADS;

/// The keys and values of a layer, as the sequences of a batch have them.
pub(crate) struct Cached<'a> {
    pub slab: &'a KvSlab,
    pub batch: &'a Batch<Gpu>,
    /// Where the spans' tables begin among what the batch brings, and words from one to the next.
    pub table: u32,
    pub table_stride: u32,
}

impl<'a> Cached<'a> {
    pub fn of(slabs: &'a Slabs, layer: usize, batch: &'a Batch<Gpu>) -> Result<Self> {
        let (table, stride) = batch.data().table(layer);
        Ok(Self { slab: slabs.kv(layer)?, batch, table: word(table), table_stride: word(stride) })
    }

    /// What kernels read of the batch.
    pub fn steps(&self) -> &'a Buffer {
        &self.batch.data().steps
    }
}

/// What attention over a layer's caches takes besides them.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    /// `[n, heads * width]`
    pub q: &'a Tensor,
    /// What follows each head's query, `[n, heads * width]`: the rotated part of a latent's.
    pub more: Option<&'a Tensor>,
    pub scores: Scores,
    /// Channels of a value.
    pub value_width: usize,
    /// What results are multiplied with the sigmoid of.
    pub gate: Option<HeadGate<'a>>,
}

impl Queries<'_> {
    /// Channels of a head in `q` and in `more`.
    pub fn widths(&self) -> [usize; 2] {
        [Some(self.q), self.more].map(|x| x.map_or(0, |x| x.shape().cols / self.scores.heads))
    }

    pub fn soft_cap(&self) -> f32 {
        self.scores.soft_cap.unwrap_or(0.0)
    }
}

/// A gate for each channel of each head's result.
#[derive(Clone, Copy)]
pub(crate) struct HeadGate<'a> {
    pub x: &'a Tensor,
    /// Columns from one head's to the next, and before the first.
    pub stride: usize,
    pub offset: usize,
}

/// A window as kernels know it: 0 is none.
pub(super) fn window_number(window: Option<usize>) -> u32 {
    window.map_or(0, |window| u32::try_from(window).unwrap_or(u32::MAX))
}

/// Positions that the tokens of a span see, from where the first part of them begins (`pieces/seen.wgsl`).
pub(super) fn seen(window: Option<usize>, span: &Span) -> usize {
    let first = window.map_or(0, |window| (span.position + 1).saturating_sub(window));
    let begin = if span.len > 1 { first / BLOCK * BLOCK } else { first };
    span.position + span.len - begin
}

/// How workgroups share the positions of spans.
pub(super) struct Parts<'a> {
    pub spans: &'a Spans<'a>,
    /// Positions of a part, and most parts of a span.
    pub len: usize,
    pub most: usize,
    /// Whether results of parts are counted by spans, not by rows of the batch.
    pub by_span: bool,
}

impl<'a> Parts<'a> {
    pub fn new(spans: &'a Spans<'a>, window: Option<usize>, len: usize, by_span: bool) -> Self {
        let most = spans.taken().map(|span| seen(window, span).div_ceil(len)).max().unwrap_or(1);
        Self { spans, len, most, by_span }
    }

    /// What there are results of, the first and how many.
    fn items(&self) -> (usize, usize) {
        if self.by_span {
            (self.spans.first, self.spans.count)
        } else {
            (self.spans.rows.start, self.spans.rows.len())
        }
    }

    /// Bytes of the results of all parts.
    pub fn bytes(&self, queries: &Queries<'_>) -> u64 {
        let results = self.most * self.items().1 * queries.scores.heads;
        4 * (results * (queries.value_width + 2)) as u64
    }
}

impl Gpu {
    /// Writes rows of `[a | b]` to a plane of the slab, where their tokens have their places.
    pub(crate) fn append(&self, (a, b): (&Tensor, Option<&Tensor>), plane: &Buffer, cached: &Cached<'_>) {
        let (heads, rows) = (cached.slab.shape.heads, cached.batch.rows());
        let [width_a, width_b] = [Some(a), b].map(|x| x.map_or(0, |x| x.shape().cols / heads));
        let words = cached.slab.words(width_a + width_b);
        let params = append::Params {
            rows: word(rows),
            spans: word(cached.batch.spans().len()),
            heads: word(heads),
            width_a: word(width_a),
            width_b: word(width_b),
            words: word(words),
            table: cached.table,
            table_stride: cached.table_stride,
        };
        let (a, b) = (a.buffer(), b.map(Tensor::buffer));
        let bindings = append::Bindings { a, b, steps: cached.steps(), slab: plane };
        let consts = Cache { cache: cached.slab.shape.float };
        self.run_each(append::call(consts, params, bindings), rows * heads * words);
    }

    /// Attention of all tokens of a batch over their caches, gates included: one dispatch for spans of one
    /// token, and one for longer ones.
    pub(crate) fn attend(&self, queries: &Queries<'_>, cached: &Cached<'_>) -> Result<Tensor> {
        let batch = cached.batch;
        let y = self.tensor(batch.rows(), queries.scores.heads * queries.value_width)?;
        let single = batch.rows() == batch.spans().len();
        let gate = queries.gate.filter(|_| single);
        let stepped = match Spans::of(batch, 1..=1) {
            Some(spans) => {
                let queries = Queries { gate, ..*queries };
                self.attend_group(&queries, &spans, cached, &y)?
                    || self.attend_step(&queries, &spans, cached, &y)?
            }
            None => true,
        };
        let plain = Queries { gate: None, ..*queries };
        let tiled = match Spans::of(batch, 2..=usize::MAX) {
            Some(spans) => self.attend_tiles(&plain, &spans, cached, &y)?,
            None => true,
        };
        let shortest = if stepped { 2 } else { 1 };
        let longest = if tiled { 1 } else { usize::MAX };
        if let Some(spans) = Spans::of(batch, shortest..=longest) {
            self.attend_rows(&plain, &spans, cached, &y)?;
        }
        match queries.gate {
            Some(HeadGate { x, stride, offset }) if !(single && stepped) => {
                let width = queries.value_width;
                let part = PartOfHeads { heads: queries.scores.heads, stride, offset, width };
                self.sigmoid_gate_of(&y, &self.part_of_heads(x, part)?)
            }
            _ => Ok(y),
        }
    }

    /// Attention of spans of any heads.
    fn attend_rows(
        &self,
        queries: &Queries<'_>,
        spans: &Spans<'_>,
        cached: &Cached<'_>,
        y: &Tensor,
    ) -> Result<()> {
        let Queries { q, more, scores, value_width, .. } = queries;
        let slab = cached.slab;
        let key_heads = slab.shape.heads;
        let [width, width_more] = queries.widths();
        let quads = (width + width_more).div_ceil(4);
        let group = scores.heads / key_heads;
        // Of codes, half a word is taken at a time.
        let value_words = value_width.div_ceil(slab.values_in_four() / 4);
        let Some(consts) = QueryRows::choose(slab.shape.float, spans.most() * group, quads, value_words)
        else {
            return Err(Error::Unsupported(format!(
                "attention with heads of {} channels: the GPU backend takes at most {}",
                width + width_more,
                4 * QUERY_QUADS
            )));
        };
        let chunks = value_words.div_ceil(consts.words as usize * THREADS);
        let blocks = |span: &Span| (span.len * group).div_ceil(consts.rows as usize);
        let work: usize = spans.taken().map(|span| blocks(span) * seen(scores.window, span)).sum();
        let wanted = self.device.profile.attention_workgroups.div_ceil(key_heads * chunks);
        let part_len = work.div_ceil(wanted).max(SHORTEST_PART).next_multiple_of(THREADS);
        let parts = Parts::new(spans, scores.window, part_len, false);
        let (values, value_row) = slab.value_plane();
        let params = attention::Params {
            first_span: word(spans.first),
            shortest: word(*spans.tokens.start()),
            longest: word(*spans.tokens.end()),
            first_row: word(spans.rows.start),
            rows: word(spans.rows.len()),
            heads: word(scores.heads),
            key_heads: word(key_heads),
            width: word(width),
            width_more: word(width_more),
            key_words: word(slab.words(slab.shape.key_dim)),
            value_stride: word(slab.words(value_row)),
            value_words: word(value_words),
            value_width: word(*value_width),
            table: cached.table,
            table_stride: cached.table_stride,
            window: window_number(scores.window),
            scale: scores.scale,
            soft_cap: queries.soft_cap(),
            parts: word(parts.most),
            part_len: word(part_len),
            chunks: word(chunks),
        };
        let partial = self.room_for_parts(queries, &parts)?;
        let bindings = attention::Bindings {
            q: q.buffer(),
            q_more: more.map(Tensor::buffer),
            keys: slab.keys(),
            values,
            y: partial.as_ref().unwrap_or(y.buffer()),
            steps: cached.steps(),
        };
        let across = spans.taken().map(blocks).max().unwrap_or_default();
        let grid = [across, key_heads, chunks * parts.most * spans.count].map(word);
        self.run(attention::call(consts, params, bindings), grid);
        self.merge(queries, partial.as_ref(), &parts, cached, y);
        Ok(())
    }

    /// The same of several tokens on matrix units, where there are any, caches hold halves and heads are
    /// whole eights; returns whether that is so.
    fn attend_tiles(
        &self,
        queries: &Queries<'_>,
        spans: &Spans<'_>,
        cached: &Cached<'_>,
        y: &Tensor,
    ) -> Result<bool> {
        let Queries { q, more, scores, value_width, .. } = queries;
        let slab = cached.slab;
        let key_words = slab.words(slab.shape.key_dim);
        let (values, value_row) = slab.value_plane();
        let value_words = slab.words(value_row);
        let whole = key_words.is_multiple_of(4) && value_words.is_multiple_of(4);
        let fits = slab.shape.float == CacheFloat::F16 && whole && *value_width <= WIDEST_VALUE;
        if !self.device.profile.limits.matrices || !fits {
            return Ok(false);
        }
        let key_heads = slab.shape.heads;
        let group = scores.heads / key_heads;
        let halves = self.halves((*q, *more), spans.rows.clone(), (scores.heads, group))?;
        let tiles = |span: &Span| (span.len * group).div_ceil(TILE);
        let work: usize = spans.taken().map(|span| tiles(span) * seen(scores.window, span)).sum();
        let wanted = self.device.profile.tile_workgroups.div_ceil(key_heads);
        let part_len = work.div_ceil(wanted).max(4 * TILE).next_multiple_of(TILE);
        let parts = Parts::new(spans, scores.window, part_len, false);
        let params = attention_tiles::Params {
            first_span: word(spans.first),
            first_row: word(spans.rows.start),
            rows: word(spans.rows.len()),
            group: word(group),
            heads: word(scores.heads),
            key_heads: word(key_heads),
            query_eights: word(halves.eights),
            key_eights: word(key_words / 4),
            value_eights: word(value_words / 4),
            value_width: word(*value_width),
            table: cached.table,
            table_stride: cached.table_stride,
            window: window_number(scores.window),
            scale: scores.scale,
            soft_cap: queries.soft_cap(),
            parts: word(parts.most),
            part_len: word(part_len),
        };
        let partial = self.room_for_parts(queries, &parts)?;
        let bindings = attention_tiles::Bindings {
            queries: &halves.words,
            factors: &halves.factors,
            keys: slab.keys(),
            values,
            y: partial.as_ref().unwrap_or(y.buffer()),
            steps: cached.steps(),
        };
        let call = attention_tiles::call(Slices::choose(*value_width), params, bindings);
        let across = spans.taken().map(tiles).max().unwrap_or_default();
        self.run(call, [across, key_heads, parts.most * spans.count].map(word));
        self.merge(queries, partial.as_ref(), &parts, cached, y);
        Ok(true)
    }

    /// Where workgroups that share positions leave what is then [put together](Self::merge); one alone writes
    /// results.
    pub(super) fn room_for_parts(&self, queries: &Queries<'_>, parts: &Parts<'_>) -> Result<Option<Buffer>> {
        (parts.most > 1).then(|| self.pool.take(parts.bytes(queries))).transpose()
    }

    /// Puts the results of several parts together.
    pub(super) fn merge(
        &self,
        queries: &Queries<'_>,
        partial: Option<&Buffer>,
        parts: &Parts<'_>,
        cached: &Cached<'_>,
        y: &Tensor,
    ) {
        let Some(partial) = partial else { return };
        let Queries { scores, value_width, gate, .. } = queries;
        let (first, items) = parts.items();
        let params = attention_merge::Params {
            spans: word(cached.batch.spans().len()),
            items: word(items),
            first: word(first),
            by_span: parts.by_span.into(),
            shortest: word(*parts.spans.tokens.start()),
            longest: word(*parts.spans.tokens.end()),
            heads: word(scores.heads),
            width: word(*value_width),
            window: window_number(scores.window),
            part_len: word(parts.len),
            gate_row: gate.map_or(0, |gate| word(gate.x.shape().cols)),
            gate_stride: gate.map_or(0, |gate| word(gate.stride)),
            gate_at: gate.map_or(0, |gate| word(gate.offset)),
        };
        let gates = gate.map(|gate| gate.x.buffer());
        let bindings = attention_merge::Bindings { partial, gates, y: y.buffer(), steps: cached.steps() };
        let grid = by_item(value_width.div_ceil(MERGED_CHANNELS), items * scores.heads);
        self.run(attention_merge::call(params, bindings), grid);
    }
}
