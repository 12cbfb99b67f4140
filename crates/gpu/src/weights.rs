//! Weights on the device: codes as the file has them, scales and biases side by side.
//!
//! A weight that one binding cannot reach lies in several parts of whole rows, and operations go over its parts.

use std::ops::Range;
use std::sync::Arc;

use ::backend::{Handle, Result, Shape};
use checkpoint::{Float, Format, Weight};

use crate::Gpu;
use crate::pool::Buffer;
use crate::tensor::Tensor;

/// Rows that no part boundary cuts: what a workgroup takes.
const TOGETHER: usize = 64;

/// Bytes behind the last row.
const SPARE: usize = 16;

/// A stack of matrices on the device, its rows numbered through.
pub(crate) struct Stack {
    pub format: Format,
    pub cols: usize,
    /// Words of a row of codes, and of a row of scales.
    pub row_words: usize,
    pub row_scales: usize,
    pub parts: Vec<Part>,
}

/// Some of the rows.
pub(crate) struct Part {
    pub rows: Range<usize>,
    pub codes: Buffer,
    pub scales: Buffer,
}

/// Where the rows of a stack come from.
#[derive(Clone)]
pub(crate) enum Source {
    /// The rows of every matrix, one after the other.
    One(Box<Weight>),
    /// Rows of the two in turn.
    Alternating(Box<[Weight; 2]>),
}

impl Source {
    fn first(&self) -> &Weight {
        match self {
            Source::One(weight) => weight,
            Source::Alternating(pair) => &pair[0],
        }
    }

    /// Rows of one matrix of the stack.
    fn matrix_rows(&self) -> usize {
        match self {
            Source::One(weight) => weight.rows,
            Source::Alternating(pair) => 2 * pair[0].rows,
        }
    }

    fn rows(&self) -> usize {
        self.first().count * self.matrix_rows()
    }

    /// The weight, matrix and row that row `row` of the whole stack is.
    fn find(&self, row: usize) -> (&Weight, usize, usize) {
        let (matrix, row) = (row / self.matrix_rows(), row % self.matrix_rows());
        match self {
            Source::One(weight) => (weight, matrix, row),
            Source::Alternating(pair) => (&pair[row % 2], matrix, row / 2),
        }
    }

    /// Writes the codes of a row, as the device has them, to `out`.
    pub fn push_codes(&self, row: usize, row_words: usize, out: &mut Vec<u8>) {
        let end = out.len() + 4 * row_words;
        let (weight, matrix, row) = self.find(row);
        if let Format::Fp8Blocks { .. } = weight.format {
            let mut values = vec![0.0; weight.cols];
            weight.decode_row(matrix, row, &mut values);
            values.iter().for_each(|value| Float::F32.put(*value, out));
        } else {
            out.extend_from_slice(weight.data.row(matrix, row));
        }
        out.resize(end, 0);
    }

    /// Writes the scales and biases of a row, as the device has them, to `out`.
    pub fn push_scales(&self, row: usize, row_scales: usize, out: &mut Vec<u8>) {
        let end = out.len() + 4 * row_scales;
        let (weight, matrix, row) = self.find(row);
        match (weight.format, &weight.scales, &weight.biases) {
            (Format::Affine { scale, .. }, Some(scales), Some(biases)) => {
                let size = scale.bytes();
                let pairs = scales
                    .row(matrix, row)
                    .chunks_exact(size)
                    .zip(biases.row(matrix, row).chunks_exact(size));
                for (scale, bias) in pairs {
                    out.extend_from_slice(scale);
                    out.extend_from_slice(bias);
                }
            }
            (Format::Mxfp4 | Format::Mxfp8, Some(scales), _) => {
                out.extend_from_slice(scales.row(matrix, row))
            }
            (Format::Nvfp4, ..) => {
                (0..row_scales).for_each(|group| Float::F32.put(weight.scale(matrix, row, group), out));
            }
            _ => {}
        }
        out.resize(end, 0);
    }
}

/// Words of a row of codes and of a row of scales.
fn row_words(format: Format, cols: usize) -> (usize, usize) {
    // Kernels read eight values at a time: rows of formats without groups are filled up with zeros.
    let padded = cols.next_multiple_of(8);
    match format {
        Format::Plain(float) => (padded * float.bytes() / 4, 0),
        Format::Fp8Blocks { .. } => (padded, 0),
        Format::Affine { bits, group, scale } => {
            (cols * bits as usize / 32, cols / group * 2 * scale.bytes() / 4)
        }
        Format::Mxfp4 => (cols / 8, (cols / 32).div_ceil(4)),
        Format::Mxfp8 => (cols / 4, (cols / 32).div_ceil(4)),
        Format::Nvfp4 => (cols / 8, cols / 16),
    }
}

/// Ranges of rows of which each has at most `most`, and, where it can be, whole matrices.
fn cut(rows: usize, matrix_rows: usize, most: usize) -> Vec<Range<usize>> {
    if rows <= most {
        return std::iter::once(0..rows).collect();
    }
    let pieces = |range: Range<usize>, step: usize| {
        range.clone().step_by(step.max(1)).map(move |start| start..range.end.min(start + step.max(1)))
    };
    if most >= matrix_rows {
        return pieces(0..rows, most / matrix_rows * matrix_rows).collect();
    }
    let step = (most / TOGETHER * TOGETHER).max(TOGETHER);
    (0..rows / matrix_rows).flat_map(|m| pieces(m * matrix_rows..(m + 1) * matrix_rows, step)).collect()
}

impl Gpu {
    /// Takes a stack over. Its values come in the background; nothing runs before they are there.
    pub(crate) fn stack(&self, source: Source) -> Result<Stack> {
        let first = source.first();
        let (format, cols) = (first.format, first.cols);
        let (row_words, row_scales) = row_words(format, cols);
        // A row's last codes are read together with the word behind them, and buffers are whole sixteens.
        let room = self.device.largest_part as usize - SPARE;
        let most = room / (4 * row_words.max(row_scales).max(1));
        let source = Arc::new(source);
        let mut parts = Vec::new();
        for rows in cut(source.rows(), source.matrix_rows(), most) {
            let codes = self.pool.fresh("weights", (4 * rows.len() * row_words + SPARE) as u64)?;
            let scales = self.pool.fresh("weights", 4 * (rows.len() * row_scales) as u64)?;
            self.uploads.push(&source, rows.clone(), [(&codes, row_words), (&scales, row_scales)]);
            parts.push(Part { rows, codes, scales });
        }
        Ok(Stack { format, cols, row_words, row_scales, parts })
    }

    /// The bias of a linear layer, if it has one.
    pub(crate) fn bias(&self, weight: &Weight) -> Result<Option<Tensor>> {
        let upload = |bias: &Vec<f32>| ::backend::Backend::upload(self, 1, bias.len(), bias);
        weight.bias.as_ref().map(upload).transpose()
    }
}

impl Stack {
    /// Eights of a row, the last filled up.
    pub fn eights(&self) -> usize {
        self.cols.div_ceil(8)
    }

    /// Whether rows of inputs are whole eights.
    pub fn aligned(&self) -> u32 {
        u32::from(self.cols.is_multiple_of(8))
    }

    /// The numbers with which every kernel over weights begins.
    pub fn numbers(&self) -> [u32; 4] {
        [self.row_words, self.row_scales, self.cols, self.eights()].map(|n| n as u32)
    }
}

/// A matrix `[out, in]` on the device.
pub struct Matrix {
    pub(crate) rows: usize,
    pub(crate) stack: Stack,
    pub(crate) bias: Option<Tensor>,
}

impl Handle for Matrix {
    fn shape(&self) -> Shape {
        Shape { rows: self.rows, cols: self.stack.cols }
    }
}

/// One matrix per head on the device.
pub struct HeadMatrices {
    pub(crate) count: usize,
    /// Rows of one stored matrix.
    pub(crate) rows: usize,
    pub(crate) stack: Stack,
    pub(crate) transposed: bool,
}

impl HeadMatrices {
    /// `[out, in]` of one head's product.
    pub(crate) fn product_shape(&self) -> Shape {
        let (rows, cols) = (self.rows, self.stack.cols);
        if self.transposed { Shape { rows: cols, cols: rows } } else { Shape { rows, cols } }
    }
}

/// The experts of one layer on the device.
pub struct Experts {
    pub(crate) count: usize,
    /// Channels that go into an expert and come out.
    pub(crate) hidden: usize,
    /// Channels inside an expert.
    pub(crate) width: usize,
    pub(crate) up: UpStacks,
    pub(crate) down: Stack,
}

/// The matrices before an expert's activation.
pub(crate) enum UpStacks {
    /// Rows of gate and up in turn: they are needed together.
    Alternating(Stack),
    /// Of different formats.
    Apart { gate: Stack, up: Stack },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_matrices_or_whole_workgroups() {
        assert_eq!(cut(10, 10, 10).len(), 1);
        assert_eq!(cut(40, 10, 25), [0..20, 20..40]);
        assert_eq!(cut(50, 10, 25), [0..20, 20..40, 40..50]);
        assert_eq!(cut(200, 100, 70), [0..64, 64..100, 100..164, 164..200]);
        assert_eq!(cut(65, 65, 3), [0..64, 64..65]);
    }
}
