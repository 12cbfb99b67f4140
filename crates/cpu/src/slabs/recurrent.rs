//! Recurrent states of one layer, in rows.

use ::backend::{GdnShape, RecurrentImage, Result, Span};

use super::segments::Segments;
use crate::aligned::{numbers, numbers_mut};

/// Rows of a head's matrix that the recurrence works on at a time.
pub(crate) const ROWS: usize = 32;

/// Values of one head of a state.
pub(crate) fn head_len(shape: &GdnShape) -> usize {
    shape.value_dim.div_ceil(ROWS) * ROWS * shape.key_dim
}

/// Values of all heads.
fn matrices_len(shape: &GdnShape) -> usize {
    shape.value_heads * head_len(shape)
}

/// Where row `r` and column `c` of a head's matrix lie in its blocks.
fn place(shape: &GdnShape, r: usize, c: usize) -> usize {
    (r / ROWS * shape.key_dim + c) * ROWS + r % ROWS
}

/// Convolution windows and matrices of a Gated DeltaNet layer: a row is `[matrices | window | where its oldest input is]`.
pub(crate) struct Recurrent {
    shape: GdnShape,
    pub(super) rows: Segments,
}

/// The state of one sequence.
pub(crate) struct State<'a> {
    pub window: Window<'a>,
    /// `S` in blocks of rows, each transposed: `[value_head][dv / ROWS][dk][ROWS]`, the last block filled up with
    /// zeros. So neighbouring rows are lanes, and what a task works on lies together.
    pub matrices: &'a mut [f32],
}

/// The last inputs of a convolution.
pub(crate) struct Window<'a> {
    channels: usize,
    /// Inputs that are kept: one fewer than the taps.
    len: usize,
    /// `[len][channels]`, a ring.
    inputs: &'a mut [f32],
    /// Where in the ring the oldest input is.
    oldest: &'a mut u32,
}

impl Window<'_> {
    /// Taps of the convolution.
    pub fn kernel(&self) -> usize {
        self.len + 1
    }

    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Input `j`, 0 the oldest.
    pub fn input(&self, j: usize) -> &[f32] {
        &self.inputs[(*self.oldest as usize + j) % self.len * self.channels..][..self.channels]
    }

    /// Moves on over the rows `x`.
    pub fn advance(&mut self, x: &[f32]) {
        let n = x.len() / self.channels;
        for row in x.chunks_exact(self.channels).skip(n.saturating_sub(self.len)).filter(|_| self.len > 0) {
            self.inputs[*self.oldest as usize * self.channels..][..self.channels].copy_from_slice(row);
            *self.oldest = (*self.oldest + 1) % self.len as u32;
        }
    }
}

/// A row's parts.
fn state<'a>(shape: &GdnShape, row: &'a mut [u8]) -> State<'a> {
    let (matrices, rest) = row.split_at_mut(size_of::<f32>() * matrices_len(shape));
    let (inputs, rest) = rest.split_at_mut(size_of::<f32>() * shape.window_len());
    let [oldest, ..] = numbers_mut(rest) else { unreachable!("a row ends with a number") };
    let window =
        Window { channels: shape.channels(), len: shape.kernel - 1, inputs: numbers_mut(inputs), oldest };
    State { window, matrices: numbers_mut(matrices) }
}

impl Recurrent {
    pub fn new(shape: &GdnShape) -> Self {
        Self { shape: *shape, rows: Segments::new(Self::bytes(shape)) }
    }

    fn bytes(shape: &GdnShape) -> usize {
        size_of::<f32>() * (matrices_len(shape) + shape.window_len()) + size_of::<u32>()
    }

    /// Bytes of a row.
    pub fn place_bytes(shape: &GdnShape) -> u64 {
        Segments::place_bytes(Self::bytes(shape)) as u64
    }

    pub fn shape(&self) -> GdnShape {
        self.shape
    }

    /// The states of a batch's sequences.
    pub fn of(&mut self, spans: &[Span]) -> Result<Vec<State<'_>>> {
        let Self { shape, rows } = self;
        let numbers: Vec<u32> = spans.iter().map(|span| span.state).collect();
        Ok(rows.several(&numbers)?.into_iter().map(|row| state(shape, row)).collect())
    }

    /// Makes a row that of a sequence that has seen nothing.
    pub fn clear(&mut self, row: u32) {
        self.rows.place_mut(row).fill(0);
    }

    pub fn save(&self, row: u32) -> RecurrentImage {
        let GdnShape { key_dim, value_dim, .. } = self.shape;
        let values = numbers::<f32>(self.rows.place(row));
        let (matrices, rest) = values.split_at(matrices_len(&self.shape));
        let (inputs, rest) = rest.split_at(self.shape.window_len());
        let oldest = rest[0].to_bits() as usize * self.shape.channels();
        let window = [&inputs[oldest..], &inputs[..oldest]].concat();
        let mut state = Vec::with_capacity(self.shape.state_len());
        for head in matrices.chunks_exact(head_len(&self.shape)) {
            for r in 0..value_dim {
                state.extend((0..key_dim).map(|c| head[place(&self.shape, r, c)]));
            }
        }
        RecurrentImage { window, state }
    }

    /// Writes a row from a checked image.
    pub fn load(&mut self, row: u32, image: &RecurrentImage) {
        self.clear(row);
        let Self { shape, rows } = self;
        let State { window, matrices } = state(shape, rows.place_mut(row));
        window.inputs.copy_from_slice(&image.window);
        let len = shape.value_dim * shape.key_dim;
        for (head, rows) in matrices.chunks_exact_mut(head_len(shape)).zip(image.state.chunks_exact(len)) {
            for (i, v) in rows.iter().enumerate() {
                head[place(shape, i / shape.key_dim, i % shape.key_dim)] = *v;
            }
        }
    }
}
