//! Attention of spans of one token, and heads on their way to attention.

use ::backend::{Attention, CacheFloat, Handle, KvShape, Result, Shape};

use super::attention::{Cached, HeadGate, Parts, Queries, seen, window_number};
use super::rounded::Splits;
use super::spans::Spans;
use super::{by_item, word};
use crate::kernels::attention_step::{
    CHUNK, GROUP_ROWS, GROUP_SPLIT, GroupRows, GroupSlices, HeadChannels, Heads, LANES, MOST_SPLITS,
    attention_group, attention_heads, attention_step, heads_fit, heads_step,
};
use crate::slabs::KvSlab;
use crate::weights::Linear;
use crate::{Gpu, Tensor};

/// Most bytes of what the workgroups of [`Gpu::attend_group`] leave: more sequences take more dispatches.
const MOST_PARTIAL: u64 = 256 << 20;

/// Queries, keys and values as they leave their projections, all of a token in one row.
pub(crate) struct Projected {
    pub x: Tensor,
    /// Columns of the queries.
    pub q_cols: usize,
    /// Where keys and values are behind the queries.
    pub k_at: usize,
    pub v_at: usize,
}

impl Projected {
    /// What a product with all matrices of a layer leaves, where these are neighbours.
    pub fn of(x: Tensor, weights: &Linear) -> Option<Self> {
        let [q, k, rest @ ..] = weights.matrices() else { return None };
        let [k_at, v_at] = [k, rest.first().unwrap_or(k)].map(|w| w.first - q.first);
        Some(Self { x, q_cols: q.rows, k_at, v_at })
    }
}

/// What attention has.
pub(crate) enum Attended {
    Whole(Tensor),
    Splits(Splits),
}

impl Gpu {
    /// Attention of spans of one token where heads are whole fours of words; returns whether they are.
    pub(super) fn attend_step(
        &self,
        queries: &Queries<'_>,
        spans: &Spans<'_>,
        cached: &Cached<'_>,
        y: &Tensor,
    ) -> Result<bool> {
        let Queries { q, more, scores, value_width, gate } = queries;
        let slab = cached.slab;
        let KvShape { heads: key_heads, key_dim, float, .. } = slab.shape;
        let [width, width_more] = queries.widths();
        let (values, value_row) = slab.value_plane();
        let group = scores.heads / key_heads;
        let (profile, dims) = (&self.device.profile, [key_dim, *value_width]);
        let words = [slab.words(key_dim), slab.words(value_row), width, width_more];
        let whole = words.iter().all(|n| n.is_multiple_of(4));
        let consts = GroupRows::choose(profile, float, group, dims).filter(|_| whole);
        let Some(consts) = consts else { return Ok(false) };
        let blocks = group.div_ceil(consts.rows as usize);
        let positions: usize = spans.taken().map(|span| seen(scores.window, span)).sum();
        let wanted = profile.attention_step_workgroups.div_ceil(blocks * key_heads);
        let part_len = positions.div_ceil(wanted).next_multiple_of(CHUNK);
        let parts = Parts::new(spans, scores.window, part_len, true);
        let params = attention_step::Params {
            heads: word(scores.heads),
            key_heads: word(key_heads),
            width: word(width),
            width_more: word(width_more),
            key_fours: word(slab.fours(key_dim)),
            value_stride: word(slab.fours(value_row)),
            value_fours: word(value_width.div_ceil(slab.values_in_four())),
            value_width: word(*value_width),
            window: window_number(scores.window),
            scale: scores.scale,
            soft_cap: queries.soft_cap(),
            first_span: word(spans.first),
            spans: word(spans.count),
            table: cached.table,
            table_stride: cached.table_stride,
            parts: word(parts.most),
            part_len: word(part_len),
            gate_row: gate.map_or(0, |gate| word(gate.x.shape().cols)),
            gate_stride: gate.map_or(0, |gate| word(gate.stride)),
            gate_at: gate.map_or(0, |gate| word(gate.offset)),
        };
        let partial = self.room_for_parts(queries, &parts)?;
        let bindings = attention_step::Bindings {
            q: q.buffer(),
            q_more: more.map(Tensor::buffer),
            keys: slab.keys(),
            values,
            gates: gate.map(|gate| gate.x.buffer()),
            y: partial.as_ref().unwrap_or(y.buffer()),
            steps: cached.steps(),
        };
        let grid = [blocks, key_heads, parts.most * spans.count].map(word);
        self.run(attention_step::call(consts, params, bindings), grid);
        self.merge(queries, partial.as_ref(), &parts, cached, y);
        Ok(true)
    }

    /// The same on matrix units; returns whether these take it.
    ///
    /// They do where there are any, caches hold halves and positions are many.
    pub(super) fn attend_group(
        &self,
        queries: &Queries<'_>,
        spans: &Spans<'_>,
        cached: &Cached<'_>,
        y: &Tensor,
    ) -> Result<bool> {
        let Queries { scores, value_width, .. } = queries;
        let KvShape { heads: key_heads, key_dim, float, .. } = cached.slab.shape;
        let [width, width_more] = queries.widths();
        let planes = [key_dim, cached.slab.value_plane().1].map(|dim| cached.slab.words(dim));
        let profile = &self.device.profile;
        let whole = planes.into_iter().chain([width, width_more]).all(|n| n.is_multiple_of(4));
        let suits = float == CacheFloat::F16 && whole && GROUP_ROWS.contains(&(scores.heads / key_heads));
        let most = spans.taken().map(|span| seen(scores.window, span)).max().unwrap_or_default();
        let few = if spans.count > 1 { profile.few_positions_each } else { profile.few_positions };
        let consts = GroupSlices::choose(profile, [key_dim, *value_width]).filter(|_| suits && most > few);
        match consts {
            Some(consts) => self.attend_groups(consts, queries, spans, cached, y).map(|()| true),
            None => Ok(false),
        }
    }

    fn attend_groups(
        &self,
        consts: GroupSlices,
        queries: &Queries<'_>,
        spans: &Spans<'_>,
        cached: &Cached<'_>,
        y: &Tensor,
    ) -> Result<()> {
        let Queries { q, more, scores, value_width, .. } = queries;
        let slab = cached.slab;
        let KvShape { heads: key_heads, key_dim, .. } = slab.shape;
        let [width, width_more] = queries.widths();
        let (values, value_row) = slab.value_plane();
        let parts = Parts::new(spans, scores.window, GROUP_SPLIT, true);
        if spans.count > 1 && parts.bytes(queries) > MOST_PARTIAL {
            let mut halves = spans.halves().into_iter().flatten();
            return halves.try_for_each(|half| self.attend_groups(consts, queries, &half, cached, y));
        }
        let params = attention_group::Params {
            heads: word(scores.heads),
            key_heads: word(key_heads),
            quads: word(width / 4),
            quads_more: word(width_more / 4),
            key_eights: word(slab.words(key_dim) / 4),
            value_eights: word(slab.words(value_row) / 4),
            value_width: word(*value_width),
            window: window_number(scores.window),
            scale: scores.scale,
            soft_cap: queries.soft_cap(),
            first_span: word(spans.first),
            spans: word(spans.count),
            table: cached.table,
            table_stride: cached.table_stride,
            part_len: word(GROUP_SPLIT),
        };
        let partial = self.pool.take(parts.bytes(queries))?;
        let bindings = attention_group::Bindings {
            q: q.buffer(),
            q_more: more.map(Tensor::buffer),
            keys: slab.keys(),
            values,
            y: &partial,
            steps: cached.steps(),
        };
        let grid = [key_heads, parts.most, spans.count].map(word);
        self.run(attention_group::call(consts, params, bindings), grid);
        self.merge(queries, Some(&partial), &parts, cached, y);
        Ok(())
    }

    /// Whether [`attention_step`](Self::attention_step) takes the heads of a layer.
    pub(crate) fn steps_heads(&self, w: &Attention<Gpu>, slab: &KvSlab) -> bool {
        let KvShape { key_dim, value_dim, .. } = slab.shape;
        let whole = [key_dim, value_dim].iter().all(|dim| slab.words(*dim).is_multiple_of(4));
        // One pass has one eps.
        let alike = w.key_values.as_ref().is_some_and(|own| own.k_norm.eps == w.q_norm.eps);
        alike && whole && heads_fit([key_dim, value_dim])
    }

    /// The core of an attention layer whose projections lie in one buffer: heads of all tokens in one
    /// dispatch, then attention with its gate. Positions of a single token may be `split` among workgroups,
    /// if who asks can put them together.
    pub(crate) fn attention_step(
        &self,
        heads: &Projected,
        w: &Attention<Gpu>,
        cached: &Cached<'_>,
        split: bool,
    ) -> Result<Attended> {
        if let Some(attended) = self.attention_of_few(heads, w, cached, split)? {
            return Ok(attended);
        }
        let scores = w.scores();
        let Projected { x, q_cols, .. } = heads;
        let (width, stride) = (cached.slab.shape.key_dim, q_cols / scores.heads);
        let turned = self.heads_step(heads, w, cached)?;
        let gate = w.gated.then_some(HeadGate { x, stride, offset: width });
        let value_width = cached.slab.shape.value_dim;
        let queries = Queries { q: &turned, more: None, scores, value_width, gate };
        Ok(Attended::Whole(self.attend(&queries, cached)?))
    }

    /// Norms, rotation and appending; returns the queries.
    fn heads_step(&self, heads: &Projected, w: &Attention<Gpu>, cached: &Cached<'_>) -> Result<Tensor> {
        let Attention { q_norm, key_values: Some(own), rope, .. } = w else {
            unreachable!("heads of a layer with keys")
        };
        let (slab, rows) = (cached.slab, cached.batch.rows());
        let KvShape { heads: key_heads, key_dim, value_dim, float, .. } = slab.shape;
        let (angles, first_angle) = self.angles_of(rope, cached.batch)?;
        let q = self.tensor(rows, w.heads * key_dim)?;
        let params = heads_step::Params {
            rows: word(rows),
            spans: word(cached.batch.spans().len()),
            heads: word(w.heads),
            key_heads: word(key_heads),
            width: word(key_dim),
            stride: word(heads.q_cols / w.heads),
            row_stride: word(heads.x.shape().cols),
            value_width: word(value_dim),
            k_at: word(heads.k_at),
            v_at: word(heads.v_at),
            key_words: word(slab.words(key_dim)),
            value_words: word(slab.words(value_dim)),
            table: cached.table,
            table_stride: cached.table_stride,
            pairs: word(rope.rotary_dim() / 2),
            first_angle: word(first_angle),
            interleaved: rope.interleaved().into(),
            norm_values: own.norm_values.into(),
            eps: q_norm.eps,
        };
        let bindings = heads_step::Bindings {
            x: heads.x.buffer(),
            q_norm: q_norm.w.buffer(),
            k_norm: own.k_norm.w.buffer(),
            steps: &angles,
            q: q.buffer(),
            keys: slab.keys(),
            values: slab.values().expect("values have a width"),
        };
        let consts = HeadChannels::choose(float, [key_dim, value_dim]);
        let grid = by_item(w.heads + 2 * key_heads, rows);
        self.run(heads_step::call(consts, params, bindings), grid);
        Ok(q)
    }

    /// Heads and their attention in one dispatch, where all spans have one token and see few positions, or
    /// `None`.
    fn attention_of_few(
        &self,
        heads: &Projected,
        w: &Attention<Gpu>,
        cached: &Cached<'_>,
        split: bool,
    ) -> Result<Option<Attended>> {
        let Attention { q_norm, key_values: Some(own), rope, gated, .. } = w else { return Ok(None) };
        let (batch, slab, scores) = (cached.batch, cached.slab, w.scores());
        let spans = batch.spans();
        let KvShape { heads: key_heads, key_dim, value_dim, float, .. } = slab.shape;
        // They are put together eight values at a time, which must be of one head.
        let shared = split && spans.len() == 1 && value_dim.is_multiple_of(8);
        let profile = &self.device.profile;
        let consts = Heads::choose(profile, float, [key_dim, value_dim], shared);
        let positions = spans.iter().map(|span| seen(scores.window, span)).max().unwrap_or_default();
        let few = batch.rows() == spans.len() && positions <= profile.few_positions;
        // Query heads that share a key head read it apart.
        let at_once = spans.len() == 1 || scores.heads * spans.len() <= profile.attention_workgroups;
        let quarters = |consts: &Heads| profile.limits.largest_subgroup <= consts.threads / 4;
        let consts = consts.filter(|consts| few && at_once && quarters(consts));
        let Some(consts) = consts else { return Ok(None) };
        let chunk = consts.threads as usize / LANES;
        let part_len = positions.div_ceil(if shared { MOST_SPLITS } else { 1 }).next_multiple_of(chunk);
        let splits = positions.div_ceil(part_len);
        let (angles, first_angle) = self.angles_of(rope, batch)?;
        let params = attention_heads::Params {
            heads: word(scores.heads),
            key_heads: word(key_heads),
            width: word(key_dim),
            stride: word(heads.q_cols / scores.heads),
            row_stride: word(heads.x.shape().cols),
            value_width: word(value_dim),
            k_at: word(heads.k_at),
            v_at: word(heads.v_at),
            key_fours: word(slab.fours(key_dim)),
            value_stride: word(slab.fours(value_dim)),
            value_fours: word(slab.fours(value_dim)),
            first_span: 0,
            table: cached.table,
            table_stride: cached.table_stride,
            window: window_number(scores.window),
            pairs: word(rope.rotary_dim() / 2),
            first_angle: word(first_angle),
            interleaved: rope.interleaved().into(),
            norm_values: own.norm_values.into(),
            gated: (*gated).into(),
            eps: q_norm.eps,
            scale: scores.scale,
            soft_cap: scores.soft_cap.unwrap_or(0.0),
            part_len: word(part_len),
        };
        let shape = Shape { rows: batch.rows(), cols: scores.heads * value_dim };
        // A largest score and a sum for each.
        let room = if shared { MOST_SPLITS * (shape.cols + 2 * scores.heads) } else { shape.len() };
        let y = Tensor::new(shape, self.pool.take(4 * room as u64)?);
        let bindings = attention_heads::Bindings {
            x: heads.x.buffer(),
            q_norm: q_norm.w.buffer(),
            k_norm: own.k_norm.w.buffer(),
            steps: &angles,
            keys: slab.keys(),
            values: slab.values().expect("values have a width"),
            y: y.buffer(),
        };
        let grid = [scores.heads, splits, spans.len()].map(word);
        self.run(attention_heads::call(consts, params, bindings), grid);
        Ok(Some(match shared {
            true => Attended::Splits(Splits { parts: y, count: splits, width: value_dim }),
            false => Attended::Whole(y),
        }))
    }
}
