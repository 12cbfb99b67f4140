//! Recurrent states of one layer of one sequence.

use std::sync::Arc;

use ::backend::{GdnShape, Handle, RecurrentImage};

use crate::arena::{Arena, Buffer};

/// Rows of a head's matrix that the recurrence works on at a time.
pub(crate) const ROWS: usize = 32;

/// Convolution window and recurrent matrices of a Gated DeltaNet layer.
pub struct Recurrent {
    pub(crate) shape: GdnShape,
    pub(crate) window: Window,
    /// `S` in blocks of rows, each turned round: `[value_head][dv / ROWS][dk][ROWS]`, the last block filled up with
    /// zeros. So neighbouring rows are lanes, and what a task works on lies together.
    pub(crate) state: Buffer,
}

/// The last inputs of a convolution.
#[derive(Clone)]
pub(crate) struct Window {
    channels: usize,
    /// Inputs that are kept: one fewer than the taps.
    len: usize,
    /// `[len][channels]`, a ring.
    inputs: Vec<f32>,
    /// Where in the ring the oldest input is.
    oldest: usize,
}

impl Window {
    /// Taps of the convolution.
    pub fn kernel(&self) -> usize {
        self.len + 1
    }

    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Input `j`, 0 the oldest.
    pub fn input(&self, j: usize) -> &[f32] {
        &self.inputs[(self.oldest + j) % self.len * self.channels..][..self.channels]
    }

    /// Moves on over the rows `x`.
    pub fn advance(&mut self, x: &[f32]) {
        let n = x.len() / self.channels;
        for row in x.chunks_exact(self.channels).skip(n.saturating_sub(self.len)).filter(|_| self.len > 0) {
            self.inputs[self.oldest * self.channels..][..self.channels].copy_from_slice(row);
            self.oldest = (self.oldest + 1) % self.len;
        }
    }
}

/// Values of one head of a state.
pub(crate) fn head_len(shape: &GdnShape) -> usize {
    shape.value_dim.div_ceil(ROWS) * ROWS * shape.key_dim
}

/// Where row `r` and column `c` of a head's matrix lie in its blocks.
fn place(shape: &GdnShape, r: usize, c: usize) -> usize {
    (r / ROWS * shape.key_dim + c) * ROWS + r % ROWS
}

impl Recurrent {
    pub(crate) fn new(arena: &Arc<Arena>, shape: &GdnShape) -> Self {
        let inputs = vec![0.0; shape.window_len()];
        let window = Window { channels: shape.channels(), len: shape.kernel - 1, inputs, oldest: 0 };
        Self { shape: *shape, window, state: arena.zeros(shape.value_heads * head_len(shape)) }
    }

    pub(crate) fn duplicate(&self) -> Self {
        Self { shape: self.shape, window: self.window.clone(), state: self.state.duplicate() }
    }

    pub(crate) fn image(&self) -> RecurrentImage {
        let GdnShape { key_dim, value_dim, .. } = self.shape;
        let window = (0..self.window.len).flat_map(|j| self.window.input(j)).copied().collect();
        let mut state = Vec::with_capacity(self.shape.state_len());
        for head in self.state.chunks_exact(head_len(&self.shape)) {
            for r in 0..value_dim {
                state.extend((0..key_dim).map(|c| head[place(&self.shape, r, c)]));
            }
        }
        RecurrentImage { window, state }
    }

    pub(crate) fn from_image(arena: &Arc<Arena>, shape: &GdnShape, image: &RecurrentImage) -> Self {
        let mut state = Self::new(arena, shape);
        state.window.inputs.copy_from_slice(&image.window);
        let len = shape.value_dim * shape.key_dim;
        for (head, rows) in state.state.chunks_exact_mut(head_len(shape)).zip(image.state.chunks_exact(len)) {
            for (i, v) in rows.iter().enumerate() {
                head[place(shape, i / shape.key_dim, i % shape.key_dim)] = *v;
            }
        }
        state
    }
}

impl Handle for Recurrent {
    type Shape = GdnShape;

    fn shape(&self) -> GdnShape {
        self.shape
    }
}
