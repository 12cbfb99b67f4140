//! Gated DeltaNet.

use ::backend::{Batch, GdnShape, GdnWeights, Handle, Result, Span};

use super::norm::by_row;
use super::{each, folded};
use crate::recurrent::Recurrent;
use crate::shader::{Variant, kernels};
use crate::{Gpu, Tensor};

/// Threads of a workgroup of the recurrence, and rows of a state it has.
const THREADS: u32 = 128;
const ROWS: usize = 8;

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
        let variant = by_row(&kernels::GDN_QK_NORM, shape.key_dim);
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

    /// The recurrence over one sequence. With `raw`, queries, keys and gates are as they leave their projections.
    fn recurrence(
        &self,
        [qkv, g, beta]: [&Tensor; 3],
        raw: Option<&GdnWeights<Tensor>>,
        span: &Span,
        state: &Recurrent,
        y: &Tensor,
    ) {
        let GdnShape { key_heads, value_heads, key_dim, value_dim, .. } = state.shape;
        let keys = key_dim.div_ceil(THREADS as usize / ROWS).next_power_of_two();
        let variant = Variant::new(&kernels::GDN, THREADS)
            .with("ROWS", ROWS as u32)
            .with("KEYS", keys as u32)
            .with("RAW", u32::from(raw.is_some()));
        let (a_log, dt_bias) = raw.map_or((g, g), |weights| (&weights.a_log, &weights.dt_bias));
        let buffers = [qkv, g, beta, a_log, dt_bias].map(Tensor::buffer);
        let [qkv, g, beta, a_log, dt_bias] = buffers;
        let numbers = [span.len, span.row, key_heads, value_heads, key_dim, value_dim].map(|n| n as u32);
        let grid = [value_dim.div_ceil(ROWS) as u32, value_heads as u32, 1];
        self.run(&variant, &[qkv, g, beta, a_log, dt_bias, &state.matrices, y.buffer()], &numbers, grid);
    }

    pub(crate) fn gdn_of(
        &self,
        inputs: [&Tensor; 3],
        raw: Option<&GdnWeights<Tensor>>,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        let y = self.tensor(batch.rows(), states[0].shape.value_total())?;
        for (span, state) in batch.spans().iter().zip(states) {
            self.recurrence(inputs, raw, span, state, &y);
        }
        Ok(y)
    }
}
