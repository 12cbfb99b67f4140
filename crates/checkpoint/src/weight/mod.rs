//! Matrices as stored.

use std::ops::Range;

use crate::{Bytes, Float, Plane};

mod build;
mod decode;
#[cfg(test)]
mod tests;

pub(crate) use build::{E8M0_GROUP, NVFP4_RANGE};

/// How the rows of a weight are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// One float per value.
    Plain(Float),
    /// A row is one little-endian bit stream: code `i`, unsigned, sits at bits `[i*bits, (i+1)*bits)`. The
    /// value is `code * scale + bias`, with one scale and one bias of type `scale` per `group` neighbours.
    Affine {
        /// Bits of a code: 1, 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Neighbours in a row that share a scale and a bias: 32, 64 or 128.
        group: usize,
        /// Type of the scales and biases.
        scale: Float,
    },
    /// Codes of 4 bits, e2m1, the first of a byte in its low half. The value is `code * scale`, with one e8m0 byte of
    /// scale per 32 neighbours.
    Mxfp4,
    /// Codes of 8 bits, e4m3. The value is `code * scale`, with one e8m0 byte of scale per 32 neighbours.
    Mxfp8,
    /// Codes as in [`Format::Mxfp4`]. The value is `code * (scale * factor)`, with one e4m3 byte of scale per 16
    /// neighbours; the factor is [`Weight::global_factor`] of the matrix.
    Nvfp4,
    /// Codes of 8 bits, e4m3. The value is `code * scale`, with one f32 scale per block of the matrix; blocks at the
    /// right and lower edge may be smaller. Rows in one block share their row of scales: ask for it by the row's own
    /// number ([`Plane::row`]).
    Fp8Blocks {
        /// Rows of a block.
        block_rows: usize,
        /// Columns of a block.
        block_cols: usize,
    },
}

/// A matrix `[rows, cols]`, or a stack of `count` equal ones, as stored: `y = W x (+ bias)`.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Tensor path, for messages.
    pub name: String,
    /// Matrices in the stack; 1 for a single matrix.
    pub count: usize,
    /// Outputs of a matrix.
    pub rows: usize,
    /// Inputs of a matrix.
    pub cols: usize,
    /// How rows are stored.
    pub format: Format,
    /// Values or codes.
    pub data: Plane,
    /// One scale per group, for quantised formats.
    pub scales: Option<Plane>,
    /// One bias per group, for formats that have them.
    pub biases: Option<Plane>,
    /// One number per matrix that goes into all its scales, for [`Format::Nvfp4`] where there is one: as stored, see
    /// [`Weight::global_factor`].
    pub global_scale: Option<Vec<f32>>,
    /// Bias of the linear layer, `count * rows` long.
    pub bias: Option<Vec<f32>>,
}

impl Weight {
    /// What multiplies all scales of a matrix. MLX stores the largest magnitude of the matrix, and divides it by the
    /// largest value that codes and scales can make: 6 * 448.
    pub fn global_factor(&self, matrix: usize) -> f32 {
        self.global_scale.as_ref().map_or(1.0, |scales| scales[matrix] / NVFP4_RANGE)
    }

    /// The same rows of every matrix of the stack, sharing the bytes (a fused gate_up splits into gate and up
    /// so).
    ///
    /// # Panics
    /// If the range reaches beyond the rows.
    pub fn row_range(&self, range: Range<usize>) -> Weight {
        let part = |plane: &Plane| plane.row_range(range.clone());
        Weight {
            name: self.name.clone(),
            rows: range.len(),
            data: part(&self.data),
            scales: self.scales.as_ref().map(part),
            biases: self.biases.as_ref().map(part),
            global_scale: self.global_scale.clone(),
            bias: self.bias.as_ref().map(|bias| slices(bias, self.count, self.rows, &range)),
            ..*self
        }
    }

    /// A single matrix `[heads * per_head, cols]` as a stack of `heads` matrices, each the rows in `range` of its
    /// head's slice, sharing the bytes. (DeepSeek's `kv_b_proj` holds, head by head, rows that make keys and rows
    /// that make values.)
    ///
    /// # Panics
    /// If this is not a single matrix, its rows do not divide by `heads`, or the range reaches beyond a slice.
    pub fn head_rows(&self, heads: usize, range: Range<usize>) -> Weight {
        let fits = self.count == 1
            && heads > 0
            && self.rows.is_multiple_of(heads)
            && range.start <= range.end
            && range.end <= self.rows / heads;
        assert!(
            fits,
            "`{}`: rows {range:?} of {heads} heads in {} matrices of {} rows",
            self.name, self.count, self.rows
        );
        let part = |plane: &Plane| plane.head_rows(heads, range.clone());
        let per_head = self.rows / heads;
        Weight {
            name: self.name.clone(),
            count: heads,
            rows: range.len(),
            data: part(&self.data),
            scales: self.scales.as_ref().map(part),
            biases: self.biases.as_ref().map(part),
            global_scale: self.global_scale.as_ref().map(|scales| vec![scales[0]; heads]),
            bias: self.bias.as_ref().map(|bias| slices(bias, heads, per_head, &range)),
            ..*self
        }
    }

    /// Single matrices of one shape and format as a stack, each where it is. `None` when there are none.
    ///
    /// # Panics
    /// If they differ, or are stacks themselves.
    pub(crate) fn stacked(matrices: &[Weight]) -> Option<Weight> {
        let one = matrices.first()?;
        let same = |w: &Weight| {
            (w.count, w.rows, w.cols, w.format) == (1, one.rows, one.cols, one.format)
                && w.bias.is_some() == one.bias.is_some()
        };
        assert!(matrices.iter().all(same), "matrices of different shapes");
        let planes = |plane: fn(&Weight) -> Option<&Plane>| {
            Plane::stack(&matrices.iter().filter_map(plane).cloned().collect::<Vec<_>>())
        };
        let global_scale = matrices.iter().any(|w| w.global_scale.is_some()).then(|| {
            // One that has none is one whose factor is 1.
            matrices.iter().map(|w| w.global_scale.as_ref().map_or(NVFP4_RANGE, |scales| scales[0])).collect()
        });
        let bias =
            one.bias.as_ref().map(|_| matrices.iter().filter_map(|w| w.bias.clone()).flatten().collect());
        Some(Weight {
            name: match matrices.len() {
                1 => one.name.clone(),
                n => format!("{} and {} more", one.name, n - 1),
            },
            count: matrices.len(),
            data: planes(|w| Some(&w.data))?,
            scales: planes(|w| w.scales.as_ref()),
            biases: planes(|w| w.biases.as_ref()),
            global_scale,
            bias,
            ..*one
        })
    }

    fn planes(&self) -> impl Iterator<Item = &Plane> {
        [Some(&self.data), self.scales.as_ref(), self.biases.as_ref()].into_iter().flatten()
    }

    /// What is stored of one matrix, sharing the bytes: its codes or values, then scales and biases where it has them.
    ///
    /// # Panics
    /// If there is no such matrix.
    pub fn pieces(&self, matrix: usize) -> Vec<Bytes> {
        self.planes().map(|plane| plane.piece(matrix)).collect()
    }

    /// One matrix as a weight of its own, over copies of its [pieces](Weight::pieces).
    ///
    /// # Panics
    /// If there is no such matrix, or the copies are fewer or of other lengths.
    pub fn moved(&self, matrix: usize, pieces: impl IntoIterator<Item = Bytes>) -> Weight {
        let mut pieces = pieces.into_iter();
        let mut part = |plane: &Plane| plane.moved(matrix, pieces.next().expect("a copy of every piece"));
        Weight {
            name: self.name.clone(),
            count: 1,
            data: part(&self.data),
            scales: self.scales.as_ref().map(&mut part),
            biases: self.biases.as_ref().map(&mut part),
            global_scale: self.global_scale.as_ref().map(|scales| vec![scales[matrix]]),
            bias: self.bias.as_ref().map(|bias| bias[matrix * self.rows..][..self.rows].to_vec()),
            ..*self
        }
    }

    /// The same over copies of all bytes that it lies in; matrices may share some of them.
    pub fn relocated<E>(
        &self,
        mut copy: impl FnMut(&Bytes) -> std::result::Result<Bytes, E>,
    ) -> std::result::Result<Weight, E> {
        Ok(Weight {
            data: self.data.relocated(&mut copy)?,
            scales: self.scales.as_ref().map(|plane| plane.relocated(&mut copy)).transpose()?,
            biases: self.biases.as_ref().map(|plane| plane.relocated(&mut copy)).transpose()?,
            ..self.clone()
        })
    }

    /// Says that these rows will not be read again soon: a reader of a whole model, row by row, need not keep it in
    /// memory. Reading them again stays possible.
    ///
    /// # Panics
    /// If there is no such matrix, or the rows reach beyond its end.
    pub fn release(&self, matrix: usize, rows: Range<usize>) {
        self.data.release(matrix, rows);
    }

    /// Bytes the rows occupy in the file: codes, scales and biases. The linear layer's bias is not counted.
    pub fn stored_bytes(&self) -> u64 {
        self.planes().map(Plane::stored_bytes).sum()
    }
}

/// The same part of each of `count` slices of `len` values.
fn slices(values: &[f32], count: usize, len: usize, part: &Range<usize>) -> Vec<f32> {
    if part.is_empty() {
        // A stack of nothing can have any count.
        return Vec::new();
    }
    (0..count).flat_map(|i| &values[i * len + part.start..i * len + part.end]).copied().collect()
}
