//! Gated DeltaNet.

use ::backend::reference::GdnInputs;
use ::backend::{Batch, GatedDelta, GdnShape, GdnVectors, Handle, Result};

use super::layout::PartOfHeads;
use super::spans::Spans;
use super::{folded, word};
use crate::kernels::gdn::{
    CHUNK, CHUNK_WORDS, Columns, Convolution, Delta, ROWS, STEP_ROWS, SliceThreads, Step, THREADS, WIDEST,
    conv, conv_step, conv_window, gdn, gdn_chunks, gdn_gates, gdn_qk_norm, gdn_raw, gdn_scan, gdn_step,
};
use crate::pool::Buffer;
use crate::slabs::RecurrentSlab;
use crate::{Gpu, Tensor};

/// What the projections of a layer have made.
pub(crate) struct DeltaInputs {
    /// `[q | k | v]` of each token, and values from one token's to the next one's.
    pub qkv: Buffer,
    pub stride: usize,
    /// Of the decay and of the write strength, as they leave their projections.
    pub gates: [Buffer; 2],
    pub gate_stride: usize,
    /// Of the gated norm.
    pub z: Tensor,
}

impl DeltaInputs {
    pub fn of(inputs: GdnInputs<Tensor>) -> Self {
        let GdnInputs { qkv, z, b, a } = inputs;
        let (stride, gate_stride) = (qkv.shape().cols, a.shape().cols);
        let [qkv, a, b] = [qkv, a, b].map(|x| x.buffer().clone());
        Self { qkv, stride, gates: [a, b], gate_stride, z }
    }
}

/// Gates of the recurrence.
#[derive(Clone, Copy)]
pub(crate) enum Gates<'a> {
    /// `g` and `beta`; queries and keys are normed.
    Ready([&'a Tensor; 2]),
    /// As they leave their projections, like queries and keys.
    Raw(&'a DeltaInputs, &'a GdnVectors<Tensor>),
}

impl Spans<'_> {
    /// The parameters of the recurrence's kernels.
    fn delta(&self, shape: &GdnShape, gate_stride: usize) -> Delta {
        Delta {
            first_span: word(self.first),
            shortest: word(*self.tokens.start()),
            longest: word(*self.tokens.end()),
            first_row: word(self.rows.start),
            key_heads: word(shape.key_heads),
            value_heads: word(shape.value_heads),
            key_dim: word(shape.key_dim),
            value_dim: word(shape.value_dim),
            gate_stride: word(gate_stride),
        }
    }

    /// Of each span, a workgroup for every `rows` rows of every head's state.
    fn by_rows(&self, shape: &GdnShape, rows: usize) -> [u32; 3] {
        [shape.value_dim.div_ceil(rows), shape.value_heads, self.count].map(word)
    }
}

impl Gpu {
    /// The convolution of spans of at least `shortest` tokens; other rows of the result are undefined. Rows
    /// of `x` lie `stride` values apart.
    pub(crate) fn conv(
        &self,
        (x, stride): (&Buffer, usize),
        weight: &Tensor,
        (batch, shortest): (&Batch<Self>, usize),
        slab: &mut RecurrentSlab,
    ) -> Result<Tensor> {
        let channels = slab.shape.channels();
        let y = self.tensor(batch.rows(), channels)?;
        let windows = &slab.windows_of_step(batch.spans());
        let (steps, weight, y_of) = (&batch.data().steps, weight.buffer(), y.buffer());
        let params = |spans: &Spans<'_>| Convolution {
            spans: word(batch.spans().len()),
            first_span: word(spans.first),
            shortest: word(*spans.tokens.start()),
            longest: word(*spans.tokens.end()),
            first_row: word(spans.rows.start),
            rows: word(spans.rows.len()),
            channels: word(channels),
            stride: word(stride),
            kernel: word(slab.shape.kernel),
        };
        let by_channel = |spans: &Spans<'_>| [word(channels.div_ceil(THREADS)), word(spans.count), 1];
        let few = self.device.profile.convolution_tokens;
        if let Some(spans) = Spans::of(batch, shortest..=few) {
            let bindings = conv_step::Bindings { x, steps, weight, windows, y: y_of };
            self.run(conv_step::call(params(&spans), bindings), by_channel(&spans));
        }
        if let Some(spans) = Spans::of(batch, shortest.max(few + 1)..=usize::MAX) {
            let bindings = conv::Bindings { x, steps, weight, windows, y: y_of };
            self.run_each(conv::call(params(&spans), bindings), spans.rows.len() * channels);
            let bindings = conv_window::Bindings { x, steps, windows };
            self.run(conv_window::call(params(&spans), bindings), by_channel(&spans));
        }
        Ok(y)
    }

    pub(crate) fn gdn_qk_norm_of(&self, qkv: &Tensor, shape: &GdnShape) -> Result<Tensor> {
        let (rows, channels) = (qkv.shape().rows, shape.channels());
        let y = self.tensor(rows, channels)?;
        let slices = channels.div_ceil(shape.key_dim);
        let params = gdn_qk_norm::Params {
            rows: word(rows),
            channels: word(channels),
            key_total: word(shape.key_total()),
            key_dim: word(shape.key_dim),
            slices: word(slices),
        };
        let consts = SliceThreads::choose(&self.device.profile, shape.key_dim, rows * slices);
        let bindings = gdn_qk_norm::Bindings { x: qkv.buffer(), y: y.buffer() };
        self.run(gdn_qk_norm::call(consts, params, bindings), folded(rows * slices));
        Ok(y)
    }

    /// `g` and `beta` of so many rows, which lie `stride` values apart in `a` and in `b`.
    pub(crate) fn gdn_gates_of(
        &self,
        ([a, b], stride): ([&Buffer; 2], usize),
        rows: usize,
        vectors: &GdnVectors<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let heads = vectors.a_log.shape().cols;
        let (g, beta) = (self.tensor(rows, heads)?, self.tensor(rows, heads)?);
        let [a_log, dt_bias] = [&vectors.a_log, &vectors.dt_bias].map(Tensor::buffer);
        let bindings = gdn_gates::Bindings { a, b, a_log, dt_bias, g: g.buffer(), beta: beta.buffer() };
        let params = gdn_gates::Params { len: word(rows * heads), heads: word(heads), stride: word(stride) };
        self.run_each(gdn_gates::call(params, bindings), rows * heads);
        Ok((g, beta))
    }

    /// The recurrence over spans of at least `shortest` tokens, into their rows of `y`.
    pub(crate) fn recurrence(
        &self,
        qkv: &Tensor,
        gates: Gates<'_>,
        (batch, shortest): (&Batch<Self>, usize),
        slab: &RecurrentSlab,
        y: &Tensor,
    ) -> Result<()> {
        let chunked = if slab.shape.key_dim <= WIDEST { CHUNK } else { usize::MAX };
        if let Some(spans) = Spans::of(batch, shortest..=chunked - 1) {
            self.by_token(qkv, gates, (batch, &spans), slab, y);
        }
        let Some(spans) = Spans::of(batch, chunked..=usize::MAX) else { return Ok(()) };
        match gates {
            Gates::Ready(gates) => self.by_chunk(qkv, gates, (batch, &spans), slab, y),
            Gates::Raw(inputs, vectors) => {
                let raw = (inputs.gates.each_ref(), inputs.gate_stride);
                let (g, beta) = self.gdn_gates_of(raw, batch.rows(), vectors)?;
                let qkv = self.gdn_qk_norm_of(qkv, &slab.shape)?;
                self.by_chunk(&qkv, [&g, &beta], (batch, &spans), slab, y)
            }
        }
    }

    /// The recurrence token by token.
    fn by_token(
        &self,
        qkv: &Tensor,
        gates: Gates<'_>,
        (batch, spans): (&Batch<Self>, &Spans<'_>),
        slab: &RecurrentSlab,
        y: &Tensor,
    ) {
        let shape = &slab.shape;
        let consts = Columns::choose(shape.key_dim);
        let (qkv, steps, state, y) = (qkv.buffer(), &batch.data().steps, slab.matrices(), y.buffer());
        let call = match gates {
            Gates::Raw(inputs, vectors) => {
                let [a, b] = &inputs.gates;
                let [a_log, dt_bias] = [&vectors.a_log, &vectors.dt_bias].map(Tensor::buffer);
                let bindings = gdn_raw::Bindings { qkv, steps, state, y, a, b, a_log, dt_bias };
                gdn_raw::call(consts, spans.delta(shape, inputs.gate_stride), bindings)
            }
            Gates::Ready(gates) => {
                let [g, beta] = gates.map(Tensor::buffer);
                let bindings = gdn::Bindings { qkv, steps, state, y, g, beta };
                gdn::call(consts, spans.delta(shape, shape.value_heads), bindings)
            }
        };
        self.run(call, spans.by_rows(shape, ROWS));
    }

    /// The recurrence a chunk of tokens at a time.
    fn by_chunk(
        &self,
        qkv: &Tensor,
        gates: [&Tensor; 2],
        (batch, spans): (&Batch<Self>, &Spans<'_>),
        slab: &RecurrentSlab,
        y: &Tensor,
    ) -> Result<()> {
        let shape = &slab.shape;
        // Every span may leave a chunk that is not full.
        let count = spans.rows.len() / CHUNK + spans.count;
        let chunks = self.tensor(count * shape.value_heads, CHUNK_WORDS)?;
        let params = spans.delta(shape, shape.value_heads);
        let steps = &batch.data().steps;
        let [qkv, g, beta, chunks] = [qkv, gates[0], gates[1], &chunks].map(Tensor::buffer);
        let grid = [spans.most().div_ceil(CHUNK), shape.value_heads, spans.count].map(word);
        self.run(gdn_chunks::call(params, gdn_chunks::Bindings { qkv, steps, g, beta, chunks }), grid);
        let bindings = gdn_scan::Bindings { qkv, steps, chunks, state: slab.matrices(), y: y.buffer() };
        self.run(gdn_scan::call(params, bindings), spans.by_rows(shape, ROWS));
        Ok(())
    }

    /// Whole steps of all spans of one token, into their rows of `y`. Returns false where their projections
    /// do not lie in one buffer, or a head does not fit.
    pub(crate) fn gdn_step(
        &self,
        inputs: &DeltaInputs,
        w: &GatedDelta<Gpu>,
        batch: &Batch<Self>,
        slab: &mut RecurrentSlab,
        y: &Tensor,
    ) -> bool {
        let GdnShape { key_heads, value_heads, key_dim, value_dim, kernel } = w.shape;
        let DeltaInputs { qkv, stride, gates, gate_stride, .. } = inputs;
        let [Some(a_at), Some(b_at)] = gates.each_ref().map(|gate| qkv.distance_to(gate)) else {
            return false;
        };
        let one_stride = stride == gate_stride || batch.rows() == 1;
        let Some(spans) = Spans::of(batch, 1..=1) else { return true };
        let (profile, heads) = (&self.device.profile, value_heads * spans.count);
        let consts = Step::choose(profile, [key_dim, value_dim], kernel, heads);
        let Some(consts) = consts.filter(|_| one_stride) else { return false };
        let params = gdn_step::Params {
            first_span: word(spans.first),
            key_heads: word(key_heads),
            value_heads: word(value_heads),
            key_dim: word(key_dim),
            value_dim: word(value_dim),
            stride: word(*stride),
            a_at: (a_at / 4) as u32,
            b_at: (b_at / 4) as u32,
        };
        let windows = slab.windows_of_step(batch.spans());
        let bindings = gdn_step::Bindings {
            x: qkv,
            taps: w.vectors.conv.buffer(),
            a_log: w.vectors.a_log.buffer(),
            dt_bias: w.vectors.dt_bias.buffer(),
            steps: &batch.data().steps,
            windows: &windows,
            state: slab.matrices(),
            y: y.buffer(),
        };
        self.run(
            gdn_step::call(consts, params, bindings),
            spans.by_rows(&w.shape, STEP_ROWS * consts.turns as usize),
        );
        true
    }

    /// What the projections of several tokens make, as one product; `None` where their matrices are not one
    /// stack.
    pub(crate) fn joined_delta(&self, h: &Tensor, w: &GatedDelta<Gpu>) -> Result<Option<DeltaInputs>> {
        let [qkv, z, b, a] = w.projections.matrices() else { return Ok(None) };
        let Some(y) = self.joined_products(h, &w.norm, &w.projections)? else { return Ok(None) };
        let (first, stride, width) = (qkv.first, y.shape().cols, w.shape.value_total());
        let z = PartOfHeads { heads: 1, stride, offset: z.first - first, width };
        let gates = [a, b].map(|gate| y.buffer().behind(4 * (gate.first - first) as u64));
        let z = self.part_of_heads(&y, z)?;
        Ok(Some(DeltaInputs { qkv: y.buffer().clone(), stride, gates, gate_stride: stride, z }))
    }

    /// Convolution, norms, gates and recurrence.
    pub(crate) fn delta_of(
        &self,
        inputs: &DeltaInputs,
        w: &GatedDelta<Gpu>,
        batch: &Batch<Self>,
        slab: &mut RecurrentSlab,
    ) -> Result<Tensor> {
        let y = self.tensor(batch.rows(), w.shape.value_total())?;
        let shortest = if self.gdn_step(inputs, w, batch, slab, &y) { 2 } else { 1 };
        if batch.spans().iter().any(|span| span.len >= shortest) {
            let (x, gates) = ((&inputs.qkv, inputs.stride), Gates::Raw(inputs, &w.vectors));
            let qkv = self.conv(x, &w.vectors.conv, (batch, shortest), slab)?;
            self.recurrence(&qkv, gates, (batch, shortest), slab, &y)?;
        }
        Ok(y)
    }
}
