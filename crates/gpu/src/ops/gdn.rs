//! Gated DeltaNet.

use ::backend::{Batch, GdnShape, GdnWeights, Handle, Result, Span};

use super::{each, folded};
use crate::recurrent::Recurrent;
use crate::shader::{Variant, kernels};
use crate::{Gpu, Tensor};

/// Threads of a workgroup of the recurrence, and rows of a state it has.
const THREADS: u32 = 128;
const ROWS: usize = 8;

/// Tokens that are taken at once in longer sequences, as in `pieces/chunk.wgsl`, the words kept for them per head, and the widest
/// head that fits a workgroup then.
const CHUNK: usize = 16;
const CHUNK_WORDS: usize = 2 * CHUNK * CHUNK + 2 * CHUNK;
const WIDEST: usize = 128;

/// Threads of a row of the state in a step of one token.
const STEP_LANES: usize = 16;

/// Most taps of its convolution.
const MOST_TAPS: usize = 4;

/// Most tokens that one thread takes through the convolution.
const FEW: usize = 4;

impl Gpu {
    pub(crate) fn conv(
        &self,
        x: &Tensor,
        w: &Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        let channels = x.shape().cols;
        let y = self.tensor(batch.rows(), channels)?;
        for (span, state) in batch.spans().iter().zip(states) {
            let kernel = state.shape.kernel;
            let numbers = [span.len, span.row, channels, kernel].map(|n| n as u32);
            let buffers = [x.buffer(), w.buffer(), &state.window, y.buffer()];
            if span.len <= FEW {
                self.run_each(&each(&kernels::CONV_STEP), &buffers, &numbers, channels);
            } else {
                self.run_each(&each(&kernels::CONV), &buffers, &numbers, span.len * channels);
                let buffers = [x.buffer(), &state.window];
                self.run_each(&each(&kernels::CONV_WINDOW), &buffers, &numbers, channels);
            }
        }
        Ok(y)
    }

    pub(crate) fn gdn_qk_norm_of(&self, qkv: &Tensor, shape: &GdnShape) -> Result<Tensor> {
        let (rows, channels) = (qkv.shape().rows, shape.channels());
        let y = self.tensor(rows, channels)?;
        let slices = channels.div_ceil(shape.key_dim);
        let numbers = [rows, channels, shape.key_total(), shape.key_dim, slices].map(|n| n as u32);
        let variant = self.by_row(&kernels::GDN_QK_NORM, shape.key_dim, rows * slices);
        self.run(&variant, &[qkv.buffer(), y.buffer()], &numbers, folded(rows * slices));
        Ok(y)
    }

    pub(crate) fn gdn_gates_of(&self, [a, b, a_log, dt_bias]: [&Tensor; 4]) -> Result<(Tensor, Tensor)> {
        let (rows, heads) = (a.shape().rows, a.shape().cols);
        let (g, beta) = (self.tensor(rows, heads)?, self.tensor(rows, heads)?);
        let buffers = [a.buffer(), b.buffer(), a_log.buffer(), dt_bias.buffer(), g.buffer(), beta.buffer()];
        let numbers = [rows * heads, heads].map(|n| n as u32);
        self.run_each(&each(&kernels::GDN_GATES), &buffers, &numbers, rows * heads);
        Ok((g, beta))
    }

    /// The recurrence over one sequence, token by token. With `raw`, queries, keys and gates are as they leave their projections.
    fn by_token(
        &self,
        [qkv, g, beta]: [&Tensor; 3],
        raw: Option<&GdnWeights<Tensor>>,
        span: &Span,
        state: &Recurrent,
        y: &Tensor,
    ) {
        let keys = state.shape.key_dim.div_ceil(THREADS as usize / ROWS).next_power_of_two();
        let variant = Variant::new(&kernels::GDN, THREADS)
            .with("ROWS", ROWS as u32)
            .with("KEYS", keys as u32)
            .with("RAW", u32::from(raw.is_some()));
        let (a_log, dt_bias) = raw.map_or((g, g), |weights| (&weights.a_log, &weights.dt_bias));
        let [qkv, g, beta, a_log, dt_bias] = [qkv, g, beta, a_log, dt_bias].map(Tensor::buffer);
        let buffers = [qkv, g, beta, a_log, dt_bias, &state.matrices, y.buffer()];
        self.run(&variant, &buffers, &numbers(span, &state.shape), by_rows(&state.shape));
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
        let numbers = numbers(span, shape);
        let buffers = [qkv.buffer(), g.buffer(), beta.buffer(), chunks.buffer()];
        let grid = [count as u32, shape.value_heads as u32, 1];
        self.run(&Variant::new(&kernels::GDN_CHUNKS, (CHUNK * CHUNK) as u32), &buffers, &numbers, grid);
        let buffers = [qkv.buffer(), chunks.buffer(), &state.matrices, y.buffer()];
        self.run(&Variant::new(&kernels::GDN_SCAN, THREADS), &buffers, &numbers, by_rows(shape));
        Ok(())
    }

    /// A whole step of one token whose projections lie in one buffer; `None` where that is not so, or a head does not fit.
    pub(crate) fn gdn_step(
        &self,
        [qkv, a, b]: [&Tensor; 3],
        weights: &GdnWeights<Tensor>,
        state: &mut Recurrent,
    ) -> Result<Option<Tensor>> {
        let GdnShape { key_heads, value_heads, key_dim, value_dim, kernel } = weights.shape;
        let place = |x: &Tensor| qkv.buffer().distance_to(x.buffer()).map(|bytes| bytes as usize / 4);
        let (Some(a_at), Some(b_at)) = (place(a), place(b)) else { return Ok(None) };
        if qkv.shape().rows != 1 || key_dim > WIDEST || !key_dim.is_multiple_of(4) || kernel > MOST_TAPS {
            return Ok(None);
        }
        let y = self.tensor(1, weights.shape.value_total())?;
        let variant = Variant::new(&kernels::GDN_STEP, THREADS)
            .with("LANES", STEP_LANES as u32)
            .with("QUADS", key_dim.div_ceil(4 * STEP_LANES).next_power_of_two() as u32)
            .with("TAPS", kernel as u32);
        let numbers = [key_heads, value_heads, key_dim, value_dim, a_at, b_at].map(|n| n as u32);
        let [qkv, conv, a_log, dt_bias] =
            [qkv, &weights.conv, &weights.a_log, &weights.dt_bias].map(Tensor::buffer);
        let Recurrent { window, next_window, matrices, .. } = &*state;
        let buffers = [qkv, conv, a_log, dt_bias, window, next_window, matrices, y.buffer()];
        let rows = THREADS as usize / STEP_LANES;
        self.run(&variant, &buffers, &numbers, [value_dim.div_ceil(rows) as u32, value_heads as u32, 1]);
        std::mem::swap(&mut state.window, &mut state.next_window);
        Ok(Some(y))
    }

    pub(crate) fn gdn_of(
        &self,
        inputs: [&Tensor; 3],
        raw: Option<&GdnWeights<Tensor>>,
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

/// The numbers of the recurrence's kernels.
fn numbers(span: &Span, shape: &GdnShape) -> [u32; 6] {
    [span.len, span.row, shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim].map(|n| n as u32)
}

/// A workgroup for every few rows of every head's state.
fn by_rows(shape: &GdnShape) -> [u32; 3] {
    [shape.value_dim.div_ceil(ROWS) as u32, shape.value_heads as u32, 1]
}
