//! Attention over caches.

use ::backend::{
    Attention, AttentionWeights, Batch, CacheFloat, Handle, KvShape, LatentAttention, LatentWeights, Mask,
    MlaWeights, Result, Span,
};

use super::{TILES_BUSY, by_item, each};
use crate::cache::KvCache;
use crate::pool::Buffer;
use crate::shader::{Kernel, Variant, kernels};
use crate::{Gpu, HeadMatrices, Tensor};

/// Threads of a workgroup: positions it takes at a time.
const THREADS: usize = 128;

/// Quads of queries that fit the shared memory of a workgroup.
const QUERY_QUADS: usize = 512;

/// Workgroups that keep a large device busy; long caches are split until there are as many.
const BUSY: usize = 512;

/// Fewest positions of a split.
const SHORTEST_SPLIT: usize = THREADS;

/// The same for a single token: threads of a workgroup, of a position, positions that it takes at a time, quads of queries, and workgroups
/// that are enough.
const STEP_THREADS: usize = 256;
const STEP_LANES: usize = 8;
const STEP_CHUNK: usize = STEP_THREADS / STEP_LANES;
const STEP_QUADS: usize = 640;
const STEP_BUSY: usize = 128;

/// Positions that are few enough for one workgroup per head, which then does everything, and its threads.
const FEW: usize = 512;
const FEW_THREADS: u32 = 512;

/// The same of latents, which every head reads: positions times heads, the widest part without a position of a query, and rows of values of a
/// workgroup.
const FEW_OF_ALL_HEADS: usize = 16 * 4096;
const WIDEST_PLAIN: usize = 256;
const LATENT_BUSY: usize = 256;
const MERGED_ROWS: usize = 4;

/// Channels of a workgroup that puts splits together.
const MERGED_CHANNELS: usize = 32;

/// Threads that norm and turn a head of a single token, and its widest.
const HEAD_THREADS: usize = 128;
const WIDEST_HEAD: usize = 1024;

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
fn first_seen(mask: Mask, position: usize) -> usize {
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

fn half(float: CacheFloat) -> u32 {
    u32::from(float == CacheFloat::F16)
}

/// The smallest value of a constant that is enough.
fn enough(kernel: &Kernel, name: &str, wanted: usize) -> Option<u32> {
    kernel.values(name).iter().copied().find(|n| wanted <= *n as usize)
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
        let Queries { q, more, spec, value_width, gate } = queries;
        if span.len == 1 && self.attend_step(queries, span, cache, y)? {
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
        let values_in_word = 4 / cache.shape.float.bytes();
        let value_words = value_width.div_ceil(values_in_word);
        let words = [1, 2].into_iter().find(|w| value_words <= w * THREADS).unwrap_or(4);
        let chunks = value_words.div_ceil(words * THREADS);
        let blocks = count.div_ceil(rows);
        let (seen_from, len) = (first_seen(spec.mask, span.position), span.position + span.len);
        let wanted = BUSY.div_ceil(blocks * key_heads * chunks);
        let split_len = (len - seen_from).div_ceil(wanted).max(SHORTEST_SPLIT).next_multiple_of(THREADS);
        // Splits are counted from position 0; those before the first that is seen find nothing to do.
        let splits = len.div_ceil(split_len);
        let (value_plane, value_stride) = cache.value_plane();
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
            .with("HALF", half(cache.shape.float))
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
        let (value_plane, value_words) = cache.value_plane();
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
    fn run_splits(
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

    /// The same for a span of one token, where heads are whole fours of words; returns whether they are.
    fn attend_step(&self, queries: &Queries<'_>, span: &Span, cache: &KvCache, y: &Tensor) -> Result<bool> {
        let Queries { q, more, spec, value_width, gate } = queries;
        let key_heads = cache.shape.heads;
        let width = q.shape().cols / spec.heads;
        let width_more = more.map_or(0, |more| more.shape().cols / spec.heads);
        let key_words = cache.words(cache.shape.key_dim);
        let (value_plane, value_stride) = cache.value_plane();
        let values_in_word = 4 / cache.shape.float.bytes();
        let value_words = value_width.div_ceil(values_in_word);
        let quads = key_words * values_in_word / 4;
        let group = spec.heads / key_heads;
        let rows = [8, 4, 2].into_iter().find(|r| r * quads <= STEP_QUADS && *r < 2 * group).unwrap_or(1);
        let value_fours = value_words.div_ceil(4);
        let steps = enough(&kernels::ATTENTION_STEP, "KEY_STEPS", key_words.div_ceil(4 * STEP_LANES));
        let value_lanes = enough(&kernels::ATTENTION_STEP, "VALUE_LANES", value_fours);
        let whole = [key_words, value_stride, width, width_more].iter().all(|n| n.is_multiple_of(4));
        let (Some(steps), Some(value_lanes), true) =
            (steps, value_lanes, whole && rows * quads <= STEP_QUADS)
        else {
            return Ok(false);
        };
        let blocks = group.div_ceil(rows);
        let end = span.position + 1;
        let begin = first_seen(spec.mask, span.position);
        let wanted =
            std::env::var("TRY_BUSY").map_or(STEP_BUSY, |v| v.parse().unwrap()).div_ceil(blocks * key_heads);
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
            number(key_words / 4),
            number(value_stride / 4),
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
            .with("HALF", half(cache.shape.float))
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

    /// The core of an attention layer for one token whose projections lie in one buffer: heads in one dispatch, then attention with its
    /// gate. `None` where that is not so, or heads do not fit.
    pub(crate) fn attention_step(
        &self,
        q: &Tensor,
        kv: Option<&[Tensor; 2]>,
        weights: &AttentionWeights<Gpu>,
        batch: &Batch<Gpu>,
        cache: &mut KvCache,
        spec: &Attention,
    ) -> Result<Option<Tensor>> {
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
        let begin = first_seen(spec.mask, span.position);
        let few_threads = std::env::var("TRY_T").map_or(FEW_THREADS, |v| v.parse().unwrap());
        let few = std::env::var("TRY_FEW").map_or(FEW, |v| v.parse().unwrap());
        let threads = if self.device.most_threads >= few_threads { few_threads } else { STEP_THREADS as u32 };
        let widest = key_dim.max(value_dim);
        let kernel = &kernels::ATTENTION_HEADS;
        let each = enough(kernel, "EACH", widest.div_ceil(threads as usize / 4));
        let fours = [key_dim, value_dim].map(|dim| cache.words(dim) / 4);
        let steps = enough(kernel, "KEY_STEPS", fours[0].div_ceil(STEP_LANES));
        let value_lanes = enough(kernel, "VALUE_LANES", fours[1]);
        if let (Some(each), Some(steps), Some(value_lanes)) = (each, steps, value_lanes)
            && span.position - begin < few
            && self.device.largest_subgroup <= threads / 4
        {
            let variant = Variant::new(kernel, threads)
                .with("LANES", STEP_LANES as u32)
                .with("HALF", half(float))
                .with("ROWS", 1)
                .with("KEY_STEPS", steps)
                .with("VALUE_LANES", value_lanes)
                .with("QUERY_QUADS", 1)
                .with("EACH", each);
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
            let y = self.tensor(1, spec.heads * value_dim)?;
            let values = cache.values().expect("values have a width");
            let [x, q_norm, k_norm, out] = [q, q_norm, &own.k_norm, &y].map(Tensor::buffer);
            let buffers = [x, q_norm, k_norm, &angles, cache.keys(), values, out];
            self.run(&variant, &buffers, &numbers, [spec.heads as u32, 1, 1]);
            cache.advance(1);
            return Ok(Some(y));
        }
        let turned = self.tensor(1, spec.heads * key_dim)?;
        let each = key_dim.max(value_dim).div_ceil(HEAD_THREADS).next_power_of_two();
        let variant = Variant::new(&kernels::HEADS_STEP, HEAD_THREADS as u32)
            .with("HALF", half(float))
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
        Ok(Some(y))
    }

    /// The same and latent attention itself, over few positions, up to values `[1, heads * value width]`. `None` where it does not fit.
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
        let steps = enough(kernel, "KEY_STEPS", words.div_ceil(4 * STEP_LANES));
        let value_lanes = enough(kernel, "VALUE_LANES", value_words.div_ceil(4));
        let out_threads = kernels::HEADS_MERGED.threads.iter().copied();
        let out_threads = out_threads.clone().find(|t| unembed.stack.eights() <= *t as usize);
        let (Some(steps), Some(value_lanes), Some(out_threads)) = (steps, value_lanes, out_threads) else {
            return Ok(None);
        };
        let simple = |m: &HeadMatrices| m.stack.parts.len() == 1 && !m.transposed && m.count == spec.heads;
        let whole = [words, value_words, nope / 2, pe].iter().all(|n| n.is_multiple_of(4));
        let narrow = nope <= WIDEST_PLAIN && pe <= STEP_THREADS && rank.is_multiple_of(8);
        let len = span.position + 1;
        let fits = simple(embed) && simple(unembed) && (embed.rows, unembed.stack.cols) == (rank, rank);
        if !whole || !narrow || !fits || spec.heads * len > FEW_OF_ALL_HEADS {
            return Ok(None);
        }
        self.reserve(cache, 1)?;
        let (angles, first_angle) = self.angles_of(&weights.rope, batch)?;
        let variant = Variant::new(kernel, STEP_THREADS as u32)
            .format(embed.stack.format)
            .with("LANES", STEP_LANES as u32)
            .with("HALF", half(float))
            .with("ROWS", 1)
            .with("KEY_STEPS", steps)
            .with("VALUE_LANES", value_lanes)
            .with("QUERY_QUADS", 1);
        let split_len = len.div_ceil(std::env::var("TRY_LB").map_or(LATENT_BUSY, |v| v.parse().unwrap()).div_ceil(spec.heads)).next_multiple_of(STEP_CHUNK);
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
        let variant = Variant::new(&kernels::HEADS_MERGED, out_threads)
            .format(stack.format)
            .with("ROWS", MERGED_ROWS as u32);
        let rest = [unembed.rows, spec.heads, splits].map(|n| n as u32);
        let numbers: Vec<u32> = stack.numbers().into_iter().chain(rest).collect();
        let grid = [unembed.rows.div_ceil(MERGED_ROWS) as u32, spec.heads as u32, 1];
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
        let variant = Variant::new(&kernels::LATENT_STEP, 128).with("HALF", half(cache.shape.float));
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
