//! Weights on the device: codes as the file has them, scales and biases side by side.
//!
//! A weight that one binding cannot reach lies in several parts of whole rows, and operations go over its parts.

use std::ops::Range;
use std::sync::Arc;

use ::backend::{ExpertShape, Handle, HeadShape, LinearShape, Result, Shape};
use checkpoint::{Float, Format, Weight};

use crate::Gpu;
use crate::kernel::WeightParams;
use crate::pool::{ALIGNMENT, Buffer};
use crate::slots::Slots;
use crate::tensor::Tensor;

/// Rows that no part boundary cuts: what a workgroup takes.
const TOGETHER: usize = 128;

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

/// Where the rows of a stack come from: one block after the other, all of the same format and width.
pub(crate) struct Source(Vec<Block>);

struct Block {
    /// The rows of every matrix of one weight, or rows of two in turn.
    weights: Vec<Weight>,
    /// With zeros behind the last.
    rows: usize,
}

impl Block {
    fn new(weights: Vec<Weight>) -> Self {
        let mut block = Self { weights, rows: 0 };
        block.rows = block.weights[0].count * block.matrix_rows();
        block
    }

    fn matrix_rows(&self) -> usize {
        self.weights.len() * self.weights[0].rows
    }

    /// The weight, matrix and row that row `row` is; none where it is filled up.
    fn find(&self, row: usize) -> Option<(&Weight, usize, usize)> {
        let (matrix, row) = (row / self.matrix_rows(), row % self.matrix_rows());
        let turns = self.weights.len();
        (matrix < self.weights[0].count).then(|| (&self.weights[row % turns], matrix, row / turns))
    }
}

impl Source {
    /// One weight.
    pub fn one(weight: &Weight) -> Self {
        Self(vec![Block::new(vec![weight.clone()])])
    }

    /// A stack and what lies behind it; of each the rows of all its weights in turn.
    pub fn in_turn<const N: usize>(weights: [&Weight; N], behind: Option<[&Weight; N]>) -> Self {
        let block = |weights: [&Weight; N]| Block::new(weights.map(Weight::clone).to_vec());
        Self(std::iter::once(weights).chain(behind).map(block).collect())
    }

    /// Several matrices, each beginning where a tensor may begin in a buffer of results.
    pub fn joined(weights: &[&Weight]) -> Self {
        let block = |weight: &&Weight| {
            let block = Block::new(vec![Weight::clone(weight)]);
            let rows = block.rows.next_multiple_of((ALIGNMENT / 4) as usize);
            Block { rows, ..block }
        };
        Self(weights.iter().map(block).collect())
    }

    fn first(&self) -> &Weight {
        &self.0[0].weights[0]
    }

    /// Rows that lie in one part where they can.
    fn matrix_rows(&self) -> usize {
        self.0[0].matrix_rows()
    }

    pub fn rows(&self) -> usize {
        self.0.iter().map(|block| block.rows).sum()
    }

    /// Rows before each block.
    pub fn starts(&self) -> Vec<usize> {
        let start = |end: &mut usize, block: &Block| {
            *end += block.rows;
            Some(*end - block.rows)
        };
        self.0.iter().scan(0, start).collect()
    }

    /// The weight, matrix and row that row `row` of the whole stack is; none where it is filled up.
    fn find(&self, mut row: usize) -> Option<(&Weight, usize, usize)> {
        for block in &self.0 {
            if row < block.rows {
                return block.find(row);
            }
            row -= block.rows;
        }
        None
    }

    /// Writes the codes of a row, as the device has them, to `out`.
    pub fn push_codes(&self, row: usize, row_words: usize, out: &mut Vec<u8>) {
        let end = out.len() + 4 * row_words;
        match self.find(row) {
            Some((weight, matrix, row)) if matches!(weight.format, Format::Fp8Blocks { .. }) => {
                let mut values = vec![0.0; weight.cols];
                weight.decode_row(matrix, row, &mut values);
                values.iter().for_each(|value| Float::F32.put(*value, out));
            }
            Some((weight, matrix, row)) => out.extend_from_slice(weight.data.row(matrix, row)),
            None => {}
        }
        out.resize(end, 0);
    }

    /// Writes the scales and biases of a row, as the device has them, to `out`.
    pub fn push_scales(&self, row: usize, row_scales: usize, out: &mut Vec<u8>) {
        let end = out.len() + 4 * row_scales;
        let Some((weight, matrix, row)) = self.find(row) else {
            out.resize(end, 0);
            return;
        };
        match (weight.format, &weight.scales, &weight.biases) {
            (Format::Affine { scale, .. }, Some(scales), Some(biases)) => {
                let (scales, biases) = (scales.row(matrix, row), biases.row(matrix, row));
                match scale.bytes() {
                    2 => push_pairs::<2>(scales, biases, out),
                    _ => push_pairs::<4>(scales, biases, out),
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

/// Writes numbers of `N` bytes from either in turn.
fn push_pairs<const N: usize>(first: &[u8], second: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + first.len() + second.len(), 0);
    let pairs = out[start..].as_chunks_mut::<N>().0.as_chunks_mut::<2>().0;
    let numbers = first.as_chunks::<N>().0.iter().zip(second.as_chunks::<N>().0);
    pairs.iter_mut().zip(numbers).for_each(|(pair, (first, second))| *pair = [*first, *second]);
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
    /// Rows of a weight that one part holds.
    fn rows_of_part(&self, format: Format, cols: usize) -> usize {
        let (row_words, row_scales) = row_words(format, cols);
        // A row's last codes are read together with the word behind them, and buffers are whole sixteens.
        let room = self.device.largest_part as usize - SPARE;
        room / (4 * row_words.max(row_scales).max(1))
    }

    /// Takes a stack over. Its values come in the background; nothing runs before they are there.
    pub(crate) fn stack(&self, source: Source) -> Result<Stack> {
        let stack = self.room(&source, source.rows())?;
        let source = Arc::new(source);
        for Part { rows, codes, scales } in &stack.parts {
            self.uploads.push(&source, rows.clone(), [(codes, stack.row_words), (scales, stack.row_scales)]);
        }
        Ok(stack)
    }

    /// Room for so many rows like those of a source.
    fn room(&self, source: &Source, rows: usize) -> Result<Stack> {
        let first = source.first();
        let (format, cols) = (first.format, first.cols);
        let (row_words, row_scales) = row_words(format, cols);
        let most = self.rows_of_part(format, cols);
        let mut parts = Vec::new();
        for rows in cut(rows, source.matrix_rows(), most) {
            let codes = self.pool.fresh("weights", (4 * rows.len() * row_words + SPARE) as u64)?;
            let scales = self.pool.fresh("weights", 4 * (rows.len() * row_scales) as u64)?;
            parts.push(Part { rows, codes, scales });
        }
        Ok(Stack { format, cols, row_words, row_scales, parts })
    }

    /// A stack for experts: all of a source, or with slots room for as many.
    pub(crate) fn expert_stack(&self, source: Source, slots: Option<&Slots>) -> Result<Stack> {
        match slots {
            Some(slots) => self.room(&source, slots.count * source.matrix_rows()),
            None => self.stack(source),
        }
    }

    /// Takes matrices over one input over, as one stack where they can be one.
    pub(crate) fn linear_of(&self, weights: &[&Weight]) -> Result<Linear> {
        if let Some(joined) = self.joined(weights)? {
            return Ok(Linear { matrices: joined, joined: true });
        }
        let matrix = |weight: &&Weight| {
            let bias = self.bias(weight)?;
            let stack = Arc::new(self.stack(Source::one(weight))?);
            Ok(Matrix { rows: weight.rows, first: 0, stack, bias })
        };
        let matrices = weights.iter().map(matrix).collect::<Result<Vec<_>>>()?;
        Ok(Linear { joined: matrices.len() == 1, matrices })
    }

    fn joined(&self, weights: &[&Weight]) -> Result<Option<Vec<Matrix>>> {
        let [first, _, ..] = weights else { return Ok(None) };
        let alike = |w: &&Weight| (w.format, w.cols) == (first.format, first.cols) && w.bias.is_none();
        let source = Source::joined(weights);
        if !weights.iter().all(alike) || source.rows() > self.rows_of_part(first.format, first.cols) {
            return Ok(None);
        }
        let starts = source.starts();
        let stack = Arc::new(self.stack(source)?);
        let matrix = |(weight, first): (&&Weight, usize)| Matrix {
            rows: weight.rows,
            first,
            stack: stack.clone(),
            bias: None,
        };
        Ok(Some(weights.iter().zip(starts).map(matrix).collect()))
    }

    /// The bias of a linear layer, if it has one.
    pub(crate) fn bias(&self, weight: &Weight) -> Result<Option<Tensor>> {
        let upload = |bias: &Vec<f32>| ::backend::Weights::vector(self, 1, bias.len(), bias);
        weight.bias.as_ref().map(upload).transpose()
    }
}

impl Stack {
    /// Eights of a row, the last filled up.
    pub fn eights(&self) -> usize {
        self.cols.div_ceil(8)
    }

    /// The parameters with which every kernel over weights begins.
    pub fn params(&self) -> WeightParams {
        let [row_words, row_scales, cols, eights] =
            [self.row_words, self.row_scales, self.cols, self.eights()].map(|n| n as u32);
        WeightParams { row_words, row_scales, cols, eights }
    }
}

/// A matrix `[out, in]` on the device: some rows of a stack, of all its parts or of the one that it has.
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    /// Rows of the stack before it.
    pub(crate) first: usize,
    pub(crate) stack: Arc<Stack>,
    pub(crate) bias: Option<Tensor>,
}

impl Matrix {
    /// Its rows among those of its stack.
    pub(crate) fn rows_of_stack(&self) -> Range<usize> {
        self.first..self.first + self.rows
    }
}

/// Matrices over one input.
pub struct Linear {
    matrices: Vec<Matrix>,
    /// Whether they are neighbours in one stack, so that one dispatch multiplies with all.
    joined: bool,
}

impl Linear {
    pub(crate) fn len(&self) -> usize {
        self.matrices.len()
    }

    /// The first matrix, where there are several.
    pub(crate) fn only(&self) -> &Matrix {
        &self.matrices[0]
    }

    pub(crate) fn matrices(&self) -> &[Matrix] {
        &self.matrices
    }

    /// The stack of the first matrix.
    pub(crate) fn stack(&self) -> &Stack {
        &self.only().stack
    }

    /// The rows of the stack that all the matrices are, where they are neighbours.
    pub(crate) fn rows_of_stack(&self) -> Option<Range<usize>> {
        let last = self.matrices.last().filter(|_| self.joined)?;
        Some(self.only().first..last.first + last.rows)
    }

    /// The same where nothing lies between them, so that columns of one result follow each other.
    pub(crate) fn contiguous_rows(&self) -> Option<Range<usize>> {
        let rows: usize = self.matrices.iter().map(|matrix| matrix.rows).sum();
        self.rows_of_stack().filter(|range| range.len() == rows && self.stack().parts.len() == 1)
    }
}

impl Handle for Linear {
    type Shape = LinearShape;

    fn shape(&self) -> LinearShape {
        LinearShape::new(self.stack().cols, self.matrices.iter().map(|matrix| matrix.rows))
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

impl Handle for HeadMatrices {
    type Shape = HeadShape;

    fn shape(&self) -> HeadShape {
        let (rows, cols) = (self.rows, self.stack.cols);
        let matrix = if self.transposed { Shape { rows: cols, cols: rows } } else { Shape { rows, cols } };
        HeadShape { heads: self.count, matrix }
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
    pub(crate) shared: SharedExpert,
    /// Where the device holds some of them at a time: the stacks have as many matrices.
    pub(crate) slots: Option<Slots>,
}

impl Handle for Experts {
    type Shape = ExpertShape;

    fn shape(&self) -> ExpertShape {
        ExpertShape { count: self.count, hidden: self.hidden, width: self.width }
    }
}

impl Experts {
    /// Matrices of each of the stacks.
    pub(crate) fn matrices(&self) -> usize {
        let experts = self.slots.as_ref().map_or(self.count, |slots| slots.count);
        experts + usize::from(matches!(self.shared, SharedExpert::Behind))
    }
}

/// The expert that every token passes through.
pub(crate) enum SharedExpert {
    /// There is none.
    Absent,
    /// It lies behind the others, like one of them.
    Behind,
    /// Of another width or format.
    Apart { gate_up: Linear, down: Linear },
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
        assert_eq!(cut(400, 200, 140), [0..128, 128..200, 200..328, 328..400]);
        assert_eq!(cut(129, 129, 3), [0..128, 128..129]);
    }
}
