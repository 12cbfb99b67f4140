//! Attention of a single token.

use ::backend::{
    Attention, AttentionWeights, Batch, CacheFloat, Handle, KvShape, LatentAttention, LatentWeights,
    MlaWeights, Result, Shape, Span,
};

use super::attention::{HeadGate, Queries, first_seen, way};
use super::rounded::Splits;
use crate::cache::KvCache;
use crate::pool::Buffer;
use crate::shader::{Kernel, Variant, kernels};
use crate::{Gpu, HeadMatrices, Tensor};

/// Threads of a workgroup, of a position, positions that it takes at a time, quads of queries, and workgroups
/// that are enough.
const STEP_THREADS: usize = 256;
const STEP_LANES: usize = 8;
const STEP_CHUNK: usize = STEP_THREADS / STEP_LANES;
const STEP_QUADS: usize = 640;
const STEP_BUSY: usize = 128;

/// Positions that are few enough for one workgroup per head, which then does everything, and its threads.
const FEW: usize = 512;
const FEW_THREADS: u32 = 512;

/// Workgroups that share the positions of such a head, where the product behind can put them together.
const MOST_SPLITS: usize = 4;

/// The same of latents, which every head reads: positions times heads, the widest part without a position of a query, the widest latent, and
/// rows of values of a workgroup.
const FEW_OF_ALL_HEADS: usize = 16 * 4096;
const WIDEST_PLAIN: usize = 128;
const WIDEST_LATENT: usize = 512;
const LATENT_THREADS: u32 = 512;
const LATENT_LANES: usize = 16;
const LATENT_BUSY: usize = 128;
const MERGED_ROWS: usize = 4;
const MERGED_ROWS_IN_CHAINS: usize = 8;

/// On matrix units: positions of a workgroup, rows of queries and the fewest of them that are worth it, channels of a slice of keys and of values.
const GROUP_SPLIT: usize = 128;
const GROUP_ROWS: std::ops::RangeInclusive<usize> = 4..=16;
const KEY_SLICE: usize = 64;
const VALUE_SLICE: usize = 128;

/// Threads that norm and turn a head of a single token, and its widest.
const HEAD_THREADS: usize = 128;
const WIDEST_HEAD: usize = 1024;

/// The smallest value of a constant that is enough.
fn enough(kernel: &Kernel, name: &str, wanted: usize) -> Option<u32> {
    kernel.values(name).iter().copied().find(|n| wanted <= *n as usize)
}

/// Queries, keys and values of a token as they leave their projections, in one buffer.
#[derive(Clone, Copy)]
struct Heads<'a> {
    q: &'a Tensor,
    /// Where keys and values are behind the queries, and columns from one query to the next.
    k_at: usize,
    v_at: usize,
    stride: usize,
    angles: &'a Buffer,
    first_angle: usize,
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
        let Queries { q, more, spec, value_width, gate } = queries;
        let key_heads = cache.shape.heads;
        let width = q.shape().cols / spec.heads;
        let width_more = more.map_or(0, |more| more.shape().cols / spec.heads);
        let key_words = cache.words(cache.shape.key_dim);
        let (value_plane, value_row) = cache.value_plane();
        let (key_fours, value_fours) =
            (cache.fours(cache.shape.key_dim), value_width.div_ceil(cache.values_in_four()));
        let quads = key_fours * cache.values_in_four() / 4;
        let group = spec.heads / key_heads;
        let rows = [8, 4, 2].into_iter().find(|r| r * quads <= STEP_QUADS && *r < 2 * group).unwrap_or(1);
        let steps = enough(&kernels::ATTENTION_STEP, "KEY_STEPS", key_fours.div_ceil(STEP_LANES));
        let value_lanes = enough(&kernels::ATTENTION_STEP, "VALUE_LANES", value_fours);
        let whole =
            [key_words, cache.words(value_row), width, width_more].iter().all(|n| n.is_multiple_of(4));
        let (Some(steps), Some(value_lanes), true) =
            (steps, value_lanes, whole && rows * quads <= STEP_QUADS)
        else {
            return Ok(false);
        };
        let blocks = group.div_ceil(rows);
        let end = span.position + 1;
        let begin = first_seen(spec.mask, span.position);
        let wanted = STEP_BUSY.div_ceil(blocks * key_heads);
        let split_len = (end - begin).div_ceil(wanted).next_multiple_of(STEP_CHUNK);
        // Splits are counted from position 0; those before the first that is seen find nothing to do.
        let splits = end.div_ceil(split_len);
        let (stride, offset) = gate.map_or((0, 0), |gate| (gate.stride, gate.offset));
        let number = |n: usize| n as u32;
        let numbers = [
            number(spec.heads),
            number(key_heads),
            number(width),
            number(width_more),
            number(key_fours),
            number(cache.fours(value_row)),
            number(value_fours),
            number(*value_width),
            number(cache.slots()),
            number(begin),
            number(end),
            spec.scale.to_bits(),
            spec.soft_cap.unwrap_or(0.0).to_bits(),
            number(splits),
            number(split_len),
            number(span.row),
            number(stride),
            number(offset),
        ];
        let variant = Variant::new(&kernels::ATTENTION_STEP, STEP_THREADS as u32)
            .with("LANES", STEP_LANES as u32)
            .with("CACHE", way(cache.shape.float))
            .with("ROWS", rows as u32)
            .with("KEY_STEPS", steps)
            .with("VALUE_LANES", value_lanes)
            .with("QUERY_QUADS", if self.device.most_threads > 256 { 1024 } else { STEP_QUADS as u32 });
        let grid = [blocks as u32, key_heads as u32, splits as u32];
        let gates = gate.map_or(*q, |gate| gate.x).buffer();
        let inputs = [q.buffer(), more.unwrap_or(q).buffer(), cache.keys(), value_plane, gates];
        self.run_splits((&variant, &inputs, &numbers, grid), queries, span, splits, y)?;
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
        let Queries { q, more, spec, value_width, .. } = queries;
        let key_heads = cache.shape.heads;
        let width = q.shape().cols / spec.heads;
        let width_more = more.map_or(0, |more| more.shape().cols / spec.heads);
        let key_words = cache.words(cache.shape.key_dim);
        let (value_plane, value_row) = cache.value_plane();
        let value_stride = cache.words(value_row);
        let (begin, end) = (first_seen(spec.mask, span.position), span.position + 1);
        let kernel = &kernels::ATTENTION_GROUP;
        let key_slices = enough(kernel, "KEY_SLICES", cache.shape.key_dim.div_ceil(KEY_SLICE));
        let value_slices = enough(kernel, "VALUE_SLICES", value_width.div_ceil(VALUE_SLICE));
        let (Some(key_slices), Some(value_slices)) = (key_slices, value_slices) else { return Ok(false) };
        let whole = [key_words, value_stride, width, width_more].iter().all(|n| n.is_multiple_of(4));
        let suits = self.device.matrices && cache.shape.float == CacheFloat::F16 && whole;
        // Fours of halves of 16 queries, or of their weights, and of a slice; scores.
        let halves = 16 * (16 * key_slices + 2).max(34) + 128 * 18;
        let shared = 8 * halves + 4 * 16 * 132;
        let many = end - begin > FEW && GROUP_ROWS.contains(&(spec.heads / key_heads));
        if !suits || !many || shared > self.device.shared_memory {
            return Ok(false);
        }
        let splits = (end - begin).div_ceil(GROUP_SPLIT);
        let mut numbers = [
            spec.heads,
            key_heads,
            width / 4,
            width_more / 4,
            key_words / 4,
            value_stride / 4,
            *value_width,
            cache.slots(),
            begin,
            end,
        ]
        .map(|n| n as u32)
        .to_vec();
        numbers.extend([spec.scale.to_bits(), spec.soft_cap.unwrap_or(0.0).to_bits(), span.row as u32]);
        let variant = Variant::new(kernel, 256)
            .with("KEY_SLICES", key_slices)
            .with("VALUE_SLICES", value_slices)
            .with("MATRICES", 1);
        let grid = [key_heads as u32, splits as u32, 1];
        let inputs = [q.buffer(), more.unwrap_or(q).buffer(), cache.keys(), value_plane];
        self.run_splits((&variant, &inputs, &numbers, grid), queries, span, splits, y)?;
        Ok(true)
    }

    /// Attention of one token in few dispatches; `None` where that cannot be, or shapes do not fit, which the parts refuse.
    pub(crate) fn attended(
        &self,
        (q, kv): (&Tensor, Option<&[Tensor; 2]>),
        weights: &AttentionWeights<Gpu>,
        batch: &Batch<Gpu>,
        caches: &mut [&mut KvCache],
        (spec, shared): (&Attention, bool),
    ) -> Result<Option<Attended>> {
        let width = weights.q_norm.shape().cols;
        let stride = if weights.gated { 2 * width } else { width };
        let fits = |cache: &KvCache| {
            let KvShape { heads, key_dim, value_dim, .. } = cache.shape;
            let kv_fits = |[k, v]: &[Tensor; 2]| {
                (k.shape().cols, v.shape().cols) == (heads * key_dim, heads * value_dim)
                    && weights.key_value.as_ref().is_some_and(|own| own.heads == heads)
            };
            width == key_dim
                && q.shape().cols == spec.heads * stride
                && spec.heads.is_multiple_of(heads)
                && (!weights.gated || value_dim == key_dim)
                && batch.spans().first().is_some_and(|span| span.position == cache.len())
                && weights.rope.rotary_dim() <= width
                && kv.is_some_and(kv_fits)
        };
        match caches {
            [cache] if fits(cache) => self.attention_step(q, kv, weights, batch, cache, (spec, shared)),
            _ => Ok(None),
        }
    }

    /// The core of an attention layer for one token whose projections lie in one buffer: heads in one dispatch, then attention with its
    /// gate. `None` where that is not so, or heads do not fit. Its positions may be shared, if who asks can put them together.
    pub(crate) fn attention_step(
        &self,
        q: &Tensor,
        kv: Option<&[Tensor; 2]>,
        weights: &AttentionWeights<Gpu>,
        batch: &Batch<Gpu>,
        cache: &mut KvCache,
        (spec, shared): (&Attention, bool),
    ) -> Result<Option<Attended>> {
        let (AttentionWeights { q_norm, rope, eps, gated, .. }, [span]) = (weights, batch.spans()) else {
            return Ok(None);
        };
        let KvShape { heads: key_heads, key_dim, value_dim, float, .. } = cache.shape;
        let place = |x: &Tensor| q.buffer().distance_to(x.buffer()).map(|bytes| bytes as usize / 4);
        let (Some([k, v]), Some(own)) = (kv, &weights.key_value) else { return Ok(None) };
        let (Some(k_at), Some(v_at)) = (place(k), place(v)) else { return Ok(None) };
        let words = cache.words(key_dim).is_multiple_of(4) && cache.words(value_dim).is_multiple_of(4);
        let fits =
            key_dim.max(value_dim) <= WIDEST_HEAD && key_dim.div_ceil(4) <= STEP_QUADS && value_dim > 0;
        if q.shape().rows != 1 || !words || !fits {
            return Ok(None);
        }
        self.reserve(cache, 1)?;
        let stride = q.shape().cols / spec.heads;
        let (angles, first_angle) = self.angles_of(rope, batch)?;
        let heads = Heads { q, k_at, v_at, stride, angles: &angles, first_angle };
        if let Some(attended) = self.attention_of_few(&heads, weights, span, cache, (spec, shared))? {
            return Ok(Some(attended));
        }
        let turned = self.tensor(1, spec.heads * key_dim)?;
        let each = key_dim.max(value_dim).div_ceil(HEAD_THREADS).next_power_of_two();
        let variant = Variant::new(&kernels::HEADS_STEP, HEAD_THREADS as u32)
            .with("CACHE", way(float))
            .with("EACH", each as u32);
        let interleaved = usize::from(rope.interleaved());
        let slot = span.position % cache.slots();
        let mut numbers = [
            spec.heads,
            key_heads,
            key_dim,
            stride,
            value_dim,
            k_at,
            v_at,
            cache.words(key_dim),
            cache.words(value_dim),
            slot,
            rope.rotary_dim() / 2,
            first_angle,
            interleaved,
            usize::from(own.norm_values),
        ]
        .map(|n| n as u32)
        .to_vec();
        numbers.push(eps.to_bits());
        let values = cache.values().expect("values have a width");
        let buffers = [
            q.buffer(),
            q_norm.buffer(),
            own.k_norm.buffer(),
            &angles,
            turned.buffer(),
            cache.keys(),
            values,
        ];
        self.run(&variant, &buffers, &numbers, [(spec.heads + 2 * key_heads) as u32, 1, 1]);
        cache.advance(1);
        let y = self.tensor(1, spec.heads * value_dim)?;
        let gate = gated.then_some(HeadGate { x: q, stride, offset: key_dim });
        let queries = Queries { q: &turned, more: None, spec: *spec, value_width: value_dim, gate };
        self.attend(&queries, span, cache, &y)?;
        Ok(Some(Attended::Whole(y)))
    }

    /// Heads and their attention in one dispatch, where positions are few, or `None`.
    fn attention_of_few(
        &self,
        heads: &Heads<'_>,
        weights: &AttentionWeights<Gpu>,
        span: &Span,
        cache: &mut KvCache,
        (spec, shared): (&Attention, bool),
    ) -> Result<Option<Attended>> {
        let AttentionWeights { q_norm, key_value: Some(own), rope, eps, gated } = weights else {
            return Ok(None);
        };
        let Heads { q, k_at, v_at, stride, angles, first_angle } = *heads;
        let KvShape { heads: key_heads, key_dim, value_dim, float, .. } = cache.shape;
        let begin = first_seen(spec.mask, span.position);
        let threads = if self.device.most_threads >= FEW_THREADS { FEW_THREADS } else { STEP_THREADS as u32 };
        let widest = key_dim.max(value_dim);
        let kernel = &kernels::ATTENTION_HEADS;
        let each = enough(kernel, "EACH", widest.div_ceil(threads as usize / 4));
        let fours = [key_dim, value_dim].map(|dim| cache.fours(dim));
        let steps = enough(kernel, "KEY_STEPS", fours[0].div_ceil(STEP_LANES));
        let value_lanes = enough(kernel, "VALUE_LANES", fours[1]);
        let (Some(each), Some(steps), Some(value_lanes)) = (each, steps, value_lanes) else {
            return Ok(None);
        };
        // They are put together eight values at a time, which must be of one head.
        let shared = shared && value_dim.is_multiple_of(8);
        if span.position - begin >= FEW || self.device.largest_subgroup > threads / 4 {
            return Ok(None);
        }
        let variant = Variant::new(kernel, threads)
            .with("LANES", STEP_LANES as u32)
            .with("CACHE", way(float))
            .with("ROWS", 1)
            .with("KEY_STEPS", steps)
            .with("VALUE_LANES", value_lanes)
            .with("QUERY_QUADS", 1)
            .with("EACH", each)
            .with("SPLIT", u32::from(shared));
        let positions = span.position + 1 - begin;
        let chunk = threads as usize / STEP_LANES;
        let split_len = positions.div_ceil(if shared { MOST_SPLITS } else { 1 }).next_multiple_of(chunk);
        let splits = positions.div_ceil(split_len);
        let mut numbers = [
            spec.heads,
            key_heads,
            key_dim,
            stride,
            value_dim,
            k_at,
            v_at,
            fours[0],
            fours[1],
            fours[1],
            cache.slots(),
            begin,
            span.position,
            rope.rotary_dim() / 2,
            first_angle,
            usize::from(rope.interleaved()),
            usize::from(own.norm_values),
            usize::from(*gated),
        ]
        .map(|n| n as u32)
        .to_vec();
        numbers.extend([*eps, spec.scale, spec.soft_cap.unwrap_or(0.0)].map(f32::to_bits));
        numbers.push(split_len as u32);
        let cols = spec.heads * value_dim;
        let y = match shared {
            // A largest score and a sum for each.
            true => Tensor::new(
                Shape { rows: 1, cols },
                self.pool.take(4 * (MOST_SPLITS * (cols + 2 * spec.heads)) as u64)?,
            ),
            false => self.tensor(1, cols)?,
        };
        let values = cache.values().expect("values have a width");
        let [x, q_norm, k_norm, out] = [q, q_norm, &own.k_norm, &y].map(Tensor::buffer);
        let buffers = [x, q_norm, k_norm, angles, cache.keys(), values, out];
        self.run(&variant, &buffers, &numbers, [spec.heads as u32, splits as u32, 1]);
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
        weights: &LatentWeights<Gpu>,
        batch: &Batch<Gpu>,
        span: &Span,
        cache: &mut KvCache,
        spec: &LatentAttention,
    ) -> Result<Option<Tensor>> {
        let (rank, pe, nope) = (weights.norm.shape().cols, weights.rope.rotary_dim(), weights.nope);
        let MlaWeights { embed_q: embed, unembed_out: unembed } = &weights.mla;
        let kernel = &kernels::LATENT_HEADS;
        let [words, value_words] = [rank + pe, rank].map(|width| cache.words(width));
        let float = cache.shape.float;
        let wide = self.device.most_threads >= LATENT_THREADS;
        let (threads, lanes) =
            if wide { (LATENT_THREADS, LATENT_LANES) } else { (STEP_THREADS as u32, STEP_LANES) };
        let steps = enough(kernel, "KEY_STEPS", words.div_ceil(4 * lanes));
        let value_lanes = enough(kernel, "VALUE_LANES", value_words.div_ceil(4).max(lanes));
        let out_threads = kernels::HEADS_MERGED.threads.iter().copied();
        let out_threads = out_threads.clone().find(|t| unembed.stack.eights() <= *t as usize);
        let (Some(steps), Some(value_lanes), Some(out_threads)) = (steps, value_lanes, out_threads) else {
            return Ok(None);
        };
        let rounds = self.rounds(1, &embed.stack);
        let simple = |m: &HeadMatrices| m.stack.parts.len() == 1 && !m.transposed && m.count == spec.heads;
        let whole = [words, value_words, nope / 8, pe].iter().all(|n| n.is_multiple_of(4));
        let narrow =
            nope <= WIDEST_PLAIN && pe <= STEP_THREADS && rank <= WIDEST_LATENT && rank.is_multiple_of(8);
        let len = span.position + 1;
        let fits = simple(embed) && simple(unembed) && (embed.rows, unembed.stack.cols) == (rank, rank);
        // Latents of codes are appended and attended one after the other.
        if float == CacheFloat::Q8
            || !rounds
            || !whole
            || !narrow
            || !fits
            || spec.heads * len > FEW_OF_ALL_HEADS
        {
            return Ok(None);
        }
        self.reserve(cache, 1)?;
        let (angles, first_angle) = self.angles_of(&weights.rope, batch)?;
        let variant = Variant::new(kernel, threads)
            .format(embed.stack.format)
            .with("LANES", lanes as u32)
            .with("CACHE", way(float))
            .with("ROWS", 1)
            .with("KEY_STEPS", steps)
            .with("VALUE_LANES", value_lanes)
            .with("QUERY_QUADS", 1);
        let split_len = len.div_ceil(LATENT_BUSY.div_ceil(spec.heads)).next_multiple_of(STEP_CHUNK);
        let splits = len.div_ceil(split_len);
        let numbers = [
            nope,
            pe,
            rank,
            1,
            words / 4,
            words / 4,
            value_words / 4,
            cache.slots(),
            span.position,
            first_angle,
            usize::from(weights.rope.interleaved()),
        ];
        let mut numbers: Vec<u32> =
            embed.stack.numbers().into_iter().chain(numbers.map(|n| n as u32)).collect();
        numbers.extend([weights.eps, spec.scale, 0.0].map(f32::to_bits));
        numbers.extend([spec.heads, split_len].map(|n| n as u32));
        let partial = self.pool.take(4 * (splits * spec.heads * (rank + 2)) as u64)?;
        let part = &embed.stack.parts[0];
        let [q, kv, norm] = [q, kv, &weights.norm].map(Tensor::buffer);
        let buffers = [&part.codes, &part.scales, q, kv, norm, &angles, cache.keys(), &partial];
        self.run(&variant, &buffers, &numbers, [spec.heads as u32, splits as u32, 1]);
        cache.advance(1);

        let (stack, y) = (&unembed.stack, self.tensor(1, spec.heads * unembed.rows)?);
        let part = &stack.parts[0];
        let merged_rows = if self.device.chains { MERGED_ROWS_IN_CHAINS } else { MERGED_ROWS };
        let variant = Variant::new(&kernels::HEADS_MERGED, out_threads)
            .format(stack.format)
            .with("ROWS", merged_rows as u32);
        let rest = [unembed.rows, spec.heads, splits].map(|n| n as u32);
        let numbers: Vec<u32> = stack.numbers().into_iter().chain(rest).collect();
        let grid = [unembed.rows.div_ceil(merged_rows) as u32, spec.heads as u32, 1];
        self.run(&variant, &[&part.codes, &part.scales, &partial, y.buffer()], &numbers, grid);
        Ok(Some(y))
    }

    /// Queries and latent of one token on their way to latent attention: the queries' parts without and with a position, the latent in its
    /// cache.
    pub(crate) fn latent_step(
        &self,
        [q, kv]: [&Tensor; 2],
        weights: &LatentWeights<Gpu>,
        batch: &Batch<Gpu>,
        span: &Span,
        cache: &mut KvCache,
        heads: usize,
    ) -> Result<[Tensor; 2]> {
        let (rank, pe, nope) = (weights.norm.shape().cols, weights.rope.rotary_dim(), weights.nope);
        self.reserve(cache, 1)?;
        let parts = [self.tensor(1, heads * nope)?, self.tensor(1, heads * pe)?];
        let (angles, first_angle) = self.angles_of(&weights.rope, batch)?;
        let variant = Variant::new(&kernels::LATENT_STEP, 128).with("CACHE", way(cache.shape.float));
        let slot = span.position % cache.slots();
        let interleaved = usize::from(weights.rope.interleaved());
        let words = cache.words(rank + pe);
        let mut numbers =
            [heads, nope, pe, rank, words, slot, first_angle, interleaved].map(|n| n as u32).to_vec();
        numbers.push(weights.eps.to_bits());
        let [q, kv, norm, plain, turned] = [q, kv, &weights.norm, &parts[0], &parts[1]].map(Tensor::buffer);
        let buffers = [q, kv, norm, &angles, plain, turned, cache.keys()];
        self.run(&variant, &buffers, &numbers, [heads as u32 + 1, 1, 1]);
        cache.advance(1);
        Ok(parts)
    }
}
