//! Gated DeltaNet.

use ::backend::{Batch, GatedDelta, GdnShape, GdnVectors, Handle, Result, Span};

use super::{folded, word};
use crate::kernels::gdn::{
    CHUNK, CHUNK_WORDS, Columns, Convolution, Delta, ROWS, STEP_LANES, SliceThreads, Step, THREADS, WIDEST,
    conv, conv_step, conv_window, gdn, gdn_chunks, gdn_gates, gdn_qk_norm, gdn_raw, gdn_scan, gdn_step,
};
use crate::recurrent::Recurrent;
use crate::{Gpu, Tensor};

impl Gpu {
    pub(crate) fn conv(
        &self,
        x: &Tensor,
        weight: &Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        let channels = x.shape().cols;
        let y = self.tensor(batch.rows(), channels)?;
        for (span, state) in batch.spans().iter().zip(states) {
            let params = Convolution {
                tokens: word(span.len),
                first_row: word(span.row),
                channels: word(channels),
                kernel: word(state.shape.kernel),
            };
            let (x, weight, window, y) = (x.buffer(), weight.buffer(), &state.window, y.buffer());
            if span.len <= self.device.profile.convolution_tokens {
                let bindings = conv_step::Bindings { x, weight, window, y };
                self.run_each(conv_step::call(params, bindings), channels);
            } else {
                let bindings = conv::Bindings { x, weight, window, y };
                self.run_each(conv::call(params, bindings), span.len * channels);
                self.run_each(conv_window::call(params, conv_window::Bindings { x, window }), channels);
            }
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

    pub(crate) fn gdn_gates_of(&self, [a, b, a_log, dt_bias]: [&Tensor; 4]) -> Result<(Tensor, Tensor)> {
        let (rows, heads) = (a.shape().rows, a.shape().cols);
        let (g, beta) = (self.tensor(rows, heads)?, self.tensor(rows, heads)?);
        let [a, b, a_log, dt_bias] = [a, b, a_log, dt_bias].map(Tensor::buffer);
        let bindings = gdn_gates::Bindings { a, b, a_log, dt_bias, g: g.buffer(), beta: beta.buffer() };
        let params = gdn_gates::Params { len: word(rows * heads), heads: word(heads) };
        self.run_each(gdn_gates::call(params, bindings), rows * heads);
        Ok((g, beta))
    }

    /// The recurrence over one sequence, token by token. With `raw`, queries, keys and gates are as they leave their projections.
    fn by_token(
        &self,
        inputs: [&Tensor; 3],
        raw: Option<&GdnVectors<Tensor>>,
        span: &Span,
        state: &Recurrent,
        y: &Tensor,
    ) {
        let (consts, params) = (Columns::choose(state.shape.key_dim), params(span, &state.shape));
        let ([qkv, a, b], state_of, y) = (inputs.map(Tensor::buffer), &state.matrices, y.buffer());
        let call = match raw {
            Some(weights) => {
                let [a_log, dt_bias] = [&weights.a_log, &weights.dt_bias].map(Tensor::buffer);
                let bindings = gdn_raw::Bindings { qkv, state: state_of, y, a, b, a_log, dt_bias };
                gdn_raw::call(consts, params, bindings)
            }
            None => gdn::call(consts, params, gdn::Bindings { qkv, state: state_of, y, g: a, beta: b }),
        };
        self.run(call, by_rows(&state.shape));
    }

    /// The recurrence over one sequence, a chunk of tokens at a time.
    fn by_chunk(
        &self,
        [qkv, g, beta]: [&Tensor; 3],
        span: &Span,
        state: &Recurrent,
        y: &Tensor,
    ) -> Result<()> {
        let shape = &state.shape;
        let count = span.len.div_ceil(CHUNK);
        let chunks = self.tensor(count * shape.value_heads, CHUNK_WORDS)?;
        let params = params(span, shape);
        let [qkv, g, beta, chunks] = [qkv, g, beta, &chunks].map(Tensor::buffer);
        let grid = [word(count), word(shape.value_heads), 1];
        self.run(gdn_chunks::call(params, gdn_chunks::Bindings { qkv, g, beta, chunks }), grid);
        let bindings = gdn_scan::Bindings { qkv, chunks, state: &state.matrices, y: y.buffer() };
        self.run(gdn_scan::call(params, bindings), by_rows(shape));
        Ok(())
    }

    /// A whole step of one token whose projections lie in one buffer; `None` where that is not so, or a head does not fit.
    pub(crate) fn gdn_step(
        &self,
        qkv: &Tensor,
        [a_at, b_at]: [usize; 2],
        w: &GatedDelta<Gpu>,
        state: &mut Recurrent,
    ) -> Result<Option<Tensor>> {
        let (shape, weights) = (&w.shape, &w.vectors);
        let GdnShape { key_heads, value_heads, key_dim, value_dim, kernel } = *shape;
        let Some(consts) = Step::choose(key_dim, kernel).filter(|_| qkv.shape().rows == 1) else {
            return Ok(None);
        };
        let y = self.tensor(1, shape.value_total())?;
        let params = gdn_step::Params {
            key_heads: word(key_heads),
            value_heads: word(value_heads),
            key_dim: word(key_dim),
            value_dim: word(value_dim),
            a_at: word(a_at),
            b_at: word(b_at),
        };
        let bindings = gdn_step::Bindings {
            x: qkv.buffer(),
            taps: weights.conv.buffer(),
            a_log: weights.a_log.buffer(),
            dt_bias: weights.dt_bias.buffer(),
            window: &state.window,
            next_window: &state.next_window,
            state: &state.matrices,
            y: y.buffer(),
        };
        let grid = [word(value_dim.div_ceil(THREADS / STEP_LANES)), word(value_heads), 1];
        self.run(gdn_step::call(consts, params, bindings), grid);
        std::mem::swap(&mut state.window, &mut state.next_window);
        Ok(Some(y))
    }

    pub(crate) fn gdn_of(
        &self,
        inputs: [&Tensor; 3],
        raw: Option<&GdnVectors<Tensor>>,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        let shape = states[0].shape;
        let in_chunks = |span: &Span| span.len >= CHUNK && shape.key_dim <= WIDEST;
        let y = self.tensor(batch.rows(), shape.value_total())?;
        let normed = match raw {
            Some(weights) if batch.spans().iter().any(in_chunks) => {
                let [qkv, a, b] = inputs;
                let (g, beta) = self.gdn_gates_of([a, b, &weights.a_log, &weights.dt_bias])?;
                Some([self.gdn_qk_norm_of(qkv, &shape)?, g, beta])
            }
            _ => None,
        };
        for (span, state) in batch.spans().iter().zip(states) {
            if in_chunks(span) {
                self.by_chunk(normed.as_ref().map_or(inputs, |normed| normed.each_ref()), span, state, &y)?;
            } else {
                self.by_token(inputs, raw, span, state, &y);
            }
        }
        Ok(y)
    }
}

/// The parameters of the recurrence's kernels.
fn params(span: &Span, shape: &GdnShape) -> Delta {
    Delta {
        tokens: word(span.len),
        first_row: word(span.row),
        key_heads: word(shape.key_heads),
        value_heads: word(shape.value_heads),
        key_dim: word(shape.key_dim),
        value_dim: word(shape.value_dim),
    }
}

/// A workgroup for every few rows of every head's state.
fn by_rows(shape: &GdnShape) -> [u32; 3] {
    [shape.value_dim.div_ceil(ROWS) as u32, shape.value_heads as u32, 1]
}
