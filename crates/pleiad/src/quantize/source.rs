//! Matrices in mlx-lm's layout, read block by block from whatever the source has.

use std::ops::Range;

use checkpoint::{Float, Format, Weight};

use super::encode::round_to;

/// Values decoded at a time.
const BLOCK: usize = 1 << 19;

/// A matrix or a stack of them.
pub struct Matrices {
    weight: Weight,
    /// Whether rows are the source's columns.
    transposed: bool,
    /// Whether mlx-lm stores it with an axis for the matrices.
    stacked: bool,
}

/// Neighbouring rows of one matrix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    matrix: usize,
    rows: Range<usize>,
}

impl Matrices {
    pub fn new(weight: Weight, stacked: bool, transposed: bool) -> Matrices {
        Matrices { weight, transposed, stacked }
    }

    pub fn cols(&self) -> usize {
        if self.transposed { self.weight.rows } else { self.weight.cols }
    }

    fn rows(&self) -> usize {
        if self.transposed { self.weight.cols } else { self.weight.rows }
    }

    /// Bytes in the source.
    pub fn stored_bytes(&self) -> u64 {
        self.weight.stored_bytes()
    }

    /// Values of all matrices.
    pub fn values(&self) -> u64 {
        self.weight.count as u64 * self.weight.rows as u64 * self.weight.cols as u64
    }

    /// The bias of the linear layer, with its shape.
    pub fn bias(&self) -> Option<(Vec<usize>, Vec<f32>)> {
        Some((self.shape_with(&[]), self.weight.bias.clone()?))
    }

    /// The shape as mlx-lm stores it, for rows of `last` elements.
    pub fn shape(&self, last: usize) -> Vec<usize> {
        self.shape_with(&[last])
    }

    fn shape_with(&self, last: &[usize]) -> Vec<usize> {
        let stack: &[usize] = if self.stacked { &[self.weight.count] } else { &[] };
        [stack, &[self.rows()], last].concat()
    }

    /// The type of the values once decoded, or what else the weight is. Blocks of fp8 are decoded to bf16, as mlx-lm
    /// does.
    pub fn float(&self) -> Result<Float, &'static str> {
        match self.weight.format {
            Format::Plain(float) => Ok(float),
            Format::Fp8Blocks { .. } => Ok(Float::Bf16),
            Format::Affine { .. } => Err("affine"),
            Format::Mxfp4 => Err("mxfp4"),
            Format::Mxfp8 => Err("mxfp8"),
            Format::Nvfp4 => Err("nvfp4"),
        }
    }

    /// Its rows in order, in blocks of a bounded size. A transposed matrix is one block: a head's is small.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        let rows = self.rows();
        let step = if self.transposed { rows.max(1) } else { (BLOCK / self.cols().max(1)).max(1) };
        (0..self.weight.count).flat_map(move |matrix| {
            (0..rows).step_by(step).map(move |row| Block { matrix, rows: row..rows.min(row + step) })
        })
    }

    /// Decodes the rows of a block, one after the other, to values of the type that [`Matrices::float`] says.
    pub fn read(&self, Block { matrix, rows }: &Block) -> Vec<f32> {
        let cols = self.cols();
        let mut values = vec![0.0; rows.len() * cols];
        if self.transposed {
            let mut source = vec![0.0; self.weight.cols];
            for col in 0..cols {
                self.weight.decode_row(*matrix, col, &mut source);
                for (i, row) in rows.clone().enumerate() {
                    values[i * cols + col] = source[row];
                }
            }
        } else {
            for (row, values) in rows.clone().zip(values.chunks_exact_mut(cols.max(1))) {
                self.weight.decode_row(*matrix, row, values);
            }
        }
        // Every row is read once: the pages of a large model must not pile up.
        self.weight.release(*matrix, if self.transposed { 0..cols } else { rows.clone() });
        if let Format::Fp8Blocks { .. } = self.weight.format {
            round_to(Float::Bf16, &mut values);
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use checkpoint::Bytes;

    #[test]
    fn blocks_are_the_rows_in_order_and_heads_are_turned() {
        let (count, rows, cols) = (2, 3, 5);
        let values: Vec<f32> = (0..count * rows * cols).map(|i| i as f32).collect();
        let bytes = Bytes::from_vec(values.iter().flat_map(|v| v.to_le_bytes()).collect());
        let weight = Weight::plain("w", count, rows, cols, Float::F32, bytes).unwrap();

        let plain = Matrices::new(weight.clone(), true, false);
        assert_eq!(plain.shape(9), [2, 3, 9]);
        assert_eq!(plain.blocks().flat_map(|block| plain.read(&block)).collect::<Vec<_>>(), values);

        let turned = Matrices::new(weight, true, true);
        assert_eq!((turned.shape(3), turned.cols()), (vec![2, 5, 3], 3));
        let read: Vec<f32> = turned.blocks().flat_map(|block| turned.read(&block)).collect();
        for matrix in 0..count {
            for row in 0..cols {
                for col in 0..rows {
                    let at = |row, col, rows, cols| (matrix * rows + row) * cols + col;
                    assert_eq!(read[at(row, col, cols, rows)], values[at(col, row, rows, cols)]);
                }
            }
        }
    }

    #[test]
    fn large_matrices_come_in_parts() {
        let (rows, cols) = (7, BLOCK / 3);
        let bytes = Bytes::from_vec(vec![0; rows * cols * 2]);
        let weight = Weight::plain("w", 1, rows, cols, Float::Bf16, bytes).unwrap();
        let sizes: Vec<usize> =
            Matrices::new(weight, false, false).blocks().map(|block| block.rows.len()).collect();
        assert_eq!(sizes, [3, 3, 1]);
    }
}
