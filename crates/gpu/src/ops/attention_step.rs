//! Attention of a single token.

use ::backend::{Attention, Batch, CacheFloat, Handle, KvShape, LatentAttention, Result, Shape, Span};

use super::attention::{HeadGate, Queries, first_seen};
use super::rounded::Splits;
use super::word;
use crate::cache::KvCache;
use crate::kernels::attention::Cache;
use crate::kernels::attention_step::{
    CHUNK, GROUP_ROWS, GROUP_SPLIT, GroupRows, GroupSlices, HeadChannels, Heads, LANES, LatentHeads,
    MOST_SPLITS, MergedRows, WIDEST_PLAIN, attention_group, attention_heads, attention_step, heads_fit,
    heads_merged, heads_step, latent_heads, latent_step,
};
use crate::pool::Buffer;
use crate::{Gpu, HeadMatrices, Tensor};

/// Queries, keys and values of a token as they leave their projections, in one buffer.
#[derive(Clone, Copy)]
struct Projected<'a> {
    q: &'a Tensor,
    /// Where keys and values are behind the queries, and columns from one query to the next.
    k_at: usize,
    v_at: usize,
    stride: usize,
    angles: &'a Buffer,
    first_angle: usize,
}

/// Where keys and values lie behind the queries, in values.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub k_at: usize,
    pub v_at: usize,
}

/// What attention has.
pub(crate) enum Attended {
    Whole(Tensor),
    Splits(Splits),
}

impl Gpu {
    /// The same for a span of one token, where heads are whole fours of words; returns whether they are.
    pub(super) fn attend_step(
        &self,
        queries: &Queries<'_>,
        span: &Span,
        cache: &KvCache,
        y: &Tensor,
    ) -> Result<bool> {
        let Queries { q, more, scores, value_width, gate } = queries;
        let key_heads = cache.shape.heads;
        let width = q.shape().cols / scores.heads;
        let width_more = more.map_or(0, |more| more.shape().cols / scores.heads);
        let key_words = cache.words(cache.shape.key_dim);
        let (value_plane, value_row) = cache.value_plane();
        let group = scores.heads / key_heads;
        let (profile, dims) = (&self.device.profile, [cache.shape.key_dim, *value_width]);
        let whole =
            [key_words, cache.words(value_row), width, width_more].iter().all(|n| n.is_multiple_of(4));
        let consts = GroupRows::choose(profile, cache.shape.float, group, dims).filter(|_| whole);
        let Some(consts) = consts else { return Ok(false) };
        let blocks = group.div_ceil(consts.rows as usize);
        let end = span.position + 1;
        let begin = first_seen(scores.window, span.position);
        let wanted = profile.attention_step_workgroups.div_ceil(blocks * key_heads);
        let split_len = (end - begin).div_ceil(wanted).next_multiple_of(CHUNK);
        // Splits are counted from position 0; those before the first that is seen find nothing to do.
        let splits = end.div_ceil(split_len);
        let params = attention_step::Params {
            heads: word(scores.heads),
            key_heads: word(key_heads),
            width: word(width),
            width_more: word(width_more),
            key_fours: word(cache.fours(cache.shape.key_dim)),
            value_stride: word(cache.fours(value_row)),
            value_fours: word(value_width.div_ceil(cache.values_in_four())),
            value_width: word(*value_width),
            slots: word(cache.slots()),
            begin: word(begin),
            end: word(end),
            scale: scores.scale,
            soft_cap: scores.soft_cap.unwrap_or(0.0),
            splits: word(splits),
            split_len: word(split_len),
            token: word(span.row),
            gate_stride: gate.map_or(0, |gate| word(gate.stride)),
            gate_at: gate.map_or(0, |gate| word(gate.offset)),
        };
        let (q, q_more, gates) = (q.buffer(), more.map(Tensor::buffer), gate.map(|gate| gate.x.buffer()));
        let (keys, values) = (cache.keys(), value_plane);
        let partial = self.room_for_splits(queries, span, splits)?;
        let out = partial.as_ref().unwrap_or(y.buffer());
        let bindings = attention_step::Bindings { q, q_more, keys, values, gates, y: out };
        let grid = [word(blocks), word(key_heads), word(splits)];
        self.run(attention_step::call(consts, params, bindings), grid);
        self.merge(queries, partial.as_ref(), span, splits, y);
        Ok(true)
    }

    /// The same on matrix units, where there are any, caches hold halves and positions are many; returns whether that is so.
    pub(super) fn attend_group(
        &self,
        queries: &Queries<'_>,
        span: &Span,
        cache: &KvCache,
        y: &Tensor,
    ) -> Result<bool> {
        let Queries { q, more, scores, value_width, .. } = queries;
        let key_heads = cache.shape.heads;
        let width = q.shape().cols / scores.heads;
        let width_more = more.map_or(0, |more| more.shape().cols / scores.heads);
        let key_words = cache.words(cache.shape.key_dim);
        let (value_plane, value_row) = cache.value_plane();
        let value_stride = cache.words(value_row);
        let (begin, end) = (first_seen(scores.window, span.position), span.position + 1);
        let profile = &self.device.profile;
        let whole = [key_words, value_stride, width, width_more].iter().all(|n| n.is_multiple_of(4));
        let suits = cache.shape.float == CacheFloat::F16 && whole;
        let many = end - begin > profile.few_positions && GROUP_ROWS.contains(&(scores.heads / key_heads));
        let consts = GroupSlices::choose(profile, [cache.shape.key_dim, *value_width]);
        let Some(consts) = consts.filter(|_| suits && many) else { return Ok(false) };
        let splits = (end - begin).div_ceil(GROUP_SPLIT);
        let params = attention_group::Params {
            heads: word(scores.heads),
            key_heads: word(key_heads),
            quads: word(width / 4),
            quads_more: word(width_more / 4),
            key_eights: word(key_words / 4),
            value_eights: word(value_stride / 4),
            value_width: word(*value_width),
            slots: word(cache.slots()),
            begin: word(begin),
            end: word(end),
            scale: scores.scale,
            soft_cap: scores.soft_cap.unwrap_or(0.0),
            token: word(span.row),
        };
        let (q, q_more, keys, values) = (q.buffer(), more.map(Tensor::buffer), cache.keys(), value_plane);
        let partial = self.room_for_splits(queries, span, splits)?;
        let out = partial.as_ref().unwrap_or(y.buffer());
        let bindings = attention_group::Bindings { q, q_more, keys, values, y: out };
        self.run(attention_group::call(consts, params, bindings), [word(key_heads), word(splits), 1]);
        self.merge(queries, partial.as_ref(), span, splits, y);
        Ok(true)
    }

    /// The core of an attention layer for one token whose projections lie in one buffer: heads in one dispatch, then attention with its
    /// gate. `None` where heads do not fit. Its positions may be `split` among workgroups, if who asks can put them together.
    pub(crate) fn attention_step(
        &self,
        q: &Tensor,
        Places { k_at, v_at }: Places,
        w: &Attention<Gpu>,
        batch: &Batch<Gpu>,
        cache: &mut KvCache,
        split: bool,
    ) -> Result<Option<Attended>> {
        let (Attention { q_norm, key_values: Some(own), rope, gated, .. }, [span]) = (w, batch.spans())
        else {
            return Ok(None);
        };
        // One pass has one eps.
        let (eps, scores) = (&q_norm.eps, w.scores());
        if own.k_norm.eps != *eps {
            return Ok(None);
        }
        let KvShape { heads: key_heads, key_dim, value_dim, float, .. } = cache.shape;
        let words = cache.words(key_dim).is_multiple_of(4) && cache.words(value_dim).is_multiple_of(4);
        if q.shape().rows != 1 || !words || !heads_fit([key_dim, value_dim]) {
            return Ok(None);
        }
        self.reserve(cache, 1)?;
        let stride = q.shape().cols / scores.heads;
        let (angles, first_angle) = self.angles_of(rope, batch)?;
        let heads = Projected { q, k_at, v_at, stride, angles: &angles, first_angle };
        if let Some(attended) = self.attention_of_few(&heads, w, span, cache, split)? {
            return Ok(Some(attended));
        }
        let turned = self.tensor(1, scores.heads * key_dim)?;
        let params = heads_step::Params {
            heads: word(scores.heads),
            key_heads: word(key_heads),
            width: word(key_dim),
            stride: word(stride),
            value_width: word(value_dim),
            k_at: word(k_at),
            v_at: word(v_at),
            key_words: word(cache.words(key_dim)),
            value_words: word(cache.words(value_dim)),
            slot: word(span.position % cache.slots()),
            pairs: word(rope.rotary_dim() / 2),
            first_angle: word(first_angle),
            interleaved: rope.interleaved().into(),
            norm_values: own.norm_values.into(),
            eps: *eps,
        };
        let bindings = heads_step::Bindings {
            x: q.buffer(),
            q_norm: q_norm.w.buffer(),
            k_norm: own.k_norm.w.buffer(),
            angles: &angles,
            q: turned.buffer(),
            keys: cache.keys(),
            values: cache.values().expect("values have a width"),
        };
        let consts = HeadChannels::choose(float, [key_dim, value_dim]);
        let grid = [word(scores.heads + 2 * key_heads), 1, 1];
        self.run(heads_step::call(consts, params, bindings), grid);
        cache.advance(1);
        let y = self.tensor(1, scores.heads * value_dim)?;
        let gate = gated.then_some(HeadGate { x: q, stride, offset: key_dim });
        let queries = Queries { q: &turned, more: None, scores, value_width: value_dim, gate };
        self.attend(&queries, span, cache, &y)?;
        Ok(Some(Attended::Whole(y)))
    }

    /// Heads and their attention in one dispatch, where positions are few, or `None`.
    fn attention_of_few(
        &self,
        heads: &Projected<'_>,
        w: &Attention<Gpu>,
        span: &Span,
        cache: &mut KvCache,
        split: bool,
    ) -> Result<Option<Attended>> {
        let Attention { q_norm, key_values: Some(own), rope, gated, .. } = w else { return Ok(None) };
        let (eps, scores) = (&q_norm.eps, w.scores());
        let Projected { q, k_at, v_at, stride, angles, first_angle } = *heads;
        let KvShape { heads: key_heads, key_dim, value_dim, float, .. } = cache.shape;
        let begin = first_seen(scores.window, span.position);
        // They are put together eight values at a time, which must be of one head.
        let shared = split && value_dim.is_multiple_of(8);
        let profile = &self.device.profile;
        let consts = Heads::choose(profile, float, [key_dim, value_dim], shared);
        let few = span.position - begin < profile.few_positions;
        let quarters = |consts: &Heads| profile.limits.largest_subgroup <= consts.threads / 4;
        let Some(consts) = consts.filter(|consts| few && quarters(consts)) else { return Ok(None) };
        let positions = span.position + 1 - begin;
        let chunk = consts.threads as usize / LANES;
        let split_len = positions.div_ceil(if shared { MOST_SPLITS } else { 1 }).next_multiple_of(chunk);
        let splits = positions.div_ceil(split_len);
        let params = attention_heads::Params {
            heads: word(scores.heads),
            key_heads: word(key_heads),
            width: word(key_dim),
            stride: word(stride),
            value_width: word(value_dim),
            k_at: word(k_at),
            v_at: word(v_at),
            key_fours: word(cache.fours(key_dim)),
            value_stride: word(cache.fours(value_dim)),
            value_fours: word(cache.fours(value_dim)),
            slots: word(cache.slots()),
            begin: word(begin),
            position: word(span.position),
            pairs: word(rope.rotary_dim() / 2),
            first_angle: word(first_angle),
            interleaved: rope.interleaved().into(),
            norm_values: own.norm_values.into(),
            gated: (*gated).into(),
            eps: *eps,
            scale: scores.scale,
            soft_cap: scores.soft_cap.unwrap_or(0.0),
            split_len: word(split_len),
        };
        let cols = scores.heads * value_dim;
        let y = match shared {
            // A largest score and a sum for each.
            true => Tensor::new(
                Shape { rows: 1, cols },
                self.pool.take(4 * (MOST_SPLITS * (cols + 2 * scores.heads)) as u64)?,
            ),
            false => self.tensor(1, cols)?,
        };
        let bindings = attention_heads::Bindings {
            x: q.buffer(),
            q_norm: q_norm.w.buffer(),
            k_norm: own.k_norm.w.buffer(),
            angles,
            keys: cache.keys(),
            values: cache.values().expect("values have a width"),
            y: y.buffer(),
        };
        self.run(attention_heads::call(consts, params, bindings), [word(scores.heads), word(splits), 1]);
        cache.advance(1);
        Ok(Some(match shared {
            true => Attended::Splits(Splits { parts: y, count: splits, width: value_dim }),
            false => Attended::Whole(y),
        }))
    }

    /// Queries and latent of one token and their attention over few positions, up to values `[1, heads * value width]`. `None` where it does not fit.
    pub(crate) fn latent_heads(
        &self,
        [q, kv]: [&Tensor; 2],
        w: &LatentAttention<Gpu>,
        batch: &Batch<Gpu>,
        span: &Span,
        cache: &mut KvCache,
    ) -> Result<Option<Tensor>> {
        let (norm, scores) = (&w.latent_norm, w.scores());
        let (rank, pe, nope) = (norm.w.shape().cols, w.rope.rotary_dim(), w.nope);
        let (embed, unembed) = (&w.embed_q, &w.unembed_out);
        let [words, value_words] = [rank + pe, rank].map(|width| cache.words(width));
        let profile = &self.device.profile;
        let consts = LatentHeads::choose(profile, embed.stack.format, cache.shape.float, [rank, pe]);
        let merged = MergedRows::choose(profile, unembed.stack.format, unembed.stack.eights());
        let (Some(consts), Some(merged)) = (consts, merged) else { return Ok(None) };
        let rounds = self.rounds(1, &embed.stack);
        let simple = |m: &HeadMatrices| m.stack.parts.len() == 1 && !m.transposed && m.count == scores.heads;
        let whole = [words, value_words, nope / 8, pe].iter().all(|n| n.is_multiple_of(4));
        let len = span.position + 1;
        let fits = simple(embed) && simple(unembed) && (embed.rows, unembed.stack.cols) == (rank, rank);
        let few = scores.heads * len <= profile.few_latent_positions;
        if !rounds || !whole || nope > WIDEST_PLAIN || !fits || !few {
            return Ok(None);
        }
        self.reserve(cache, 1)?;
        let (angles, first_angle) = self.angles_of(&w.rope, batch)?;
        let split_len =
            len.div_ceil(profile.latent_workgroups.div_ceil(scores.heads)).next_multiple_of(CHUNK);
        let splits = len.div_ceil(split_len);
        let params = latent_heads::Params {
            weight: embed.stack.params(),
            nope: word(nope),
            pe: word(pe),
            rank: word(rank),
            key_heads: 1,
            key_fours: word(words / 4),
            value_stride: word(words / 4),
            value_fours: word(value_words / 4),
            slots: word(cache.slots()),
            position: word(span.position),
            first_angle: word(first_angle),
            interleaved: w.rope.interleaved().into(),
            eps: norm.eps,
            scale: scores.scale,
            soft_cap: 0.0,
            heads: word(scores.heads),
            split_len: word(split_len),
        };
        let partial = self.pool.take(4 * (splits * scores.heads * (rank + 2)) as u64)?;
        let part = &embed.stack.parts[0];
        let bindings = latent_heads::Bindings {
            codes: &part.codes,
            scales: &part.scales,
            q: q.buffer(),
            kv: kv.buffer(),
            norm: norm.w.buffer(),
            angles: &angles,
            keys: cache.keys(),
            partial: &partial,
        };
        self.run(latent_heads::call(consts, params, bindings), [word(scores.heads), word(splits), 1]);
        cache.advance(1);

        let (stack, y) = (&unembed.stack, self.tensor(1, scores.heads * unembed.rows)?);
        let part = &stack.parts[0];
        let params = heads_merged::Params {
            weight: stack.params(),
            head_rows: word(unembed.rows),
            heads: word(scores.heads),
            splits: word(splits),
        };
        let (codes, scales, partial) = (&part.codes, &part.scales, &partial);
        let bindings = heads_merged::Bindings { codes, scales, partial, y: y.buffer() };
        let grid = [word(unembed.rows).div_ceil(merged.rows), word(scores.heads), 1];
        self.run(heads_merged::call(merged, params, bindings), grid);
        Ok(Some(y))
    }

    /// Queries and latent of one token on their way to latent attention: the queries' parts without and with a position, the latent in its
    /// cache.
    pub(crate) fn latent_step(
        &self,
        [q, kv]: [&Tensor; 2],
        w: &LatentAttention<Gpu>,
        batch: &Batch<Gpu>,
        span: &Span,
        cache: &mut KvCache,
    ) -> Result<[Tensor; 2]> {
        let (norm, heads) = (&w.latent_norm, w.heads);
        let (rank, pe, nope) = (norm.w.shape().cols, w.rope.rotary_dim(), w.nope);
        self.reserve(cache, 1)?;
        let parts = [self.tensor(1, heads * nope)?, self.tensor(1, heads * pe)?];
        let (angles, first_angle) = self.angles_of(&w.rope, batch)?;
        let params = latent_step::Params {
            heads: word(heads),
            nope: word(nope),
            pe: word(pe),
            rank: word(rank),
            key_words: word(cache.words(rank + pe)),
            slot: word(span.position % cache.slots()),
            first_angle: word(first_angle),
            interleaved: w.rope.interleaved().into(),
            eps: norm.eps,
        };
        let bindings = latent_step::Bindings {
            q: q.buffer(),
            kv: kv.buffer(),
            norm: norm.w.buffer(),
            angles: &angles,
            q_plain: parts[0].buffer(),
            q_turned: parts[1].buffer(),
            keys: cache.keys(),
        };
        let consts = Cache { cache: cache.shape.float };
        self.run(latent_step::call(consts, params, bindings), [word(heads) + 1, 1, 1]);
        cache.advance(1);
        Ok(parts)
    }
}
