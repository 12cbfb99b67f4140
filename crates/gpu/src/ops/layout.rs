//! Rows and columns that only move.

use ::backend::{GdnShape, Handle, Result, Shape};

use super::word;
use crate::kernels::elementwise::part_of_heads;
use crate::recorder::Copy;
use crate::{Gpu, Tensor};

/// Some columns of every head.
#[derive(Clone, Copy)]
pub(crate) struct PartOfHeads {
    pub heads: usize,
    /// Columns of one head.
    pub stride: usize,
    /// First column of the part, and how many.
    pub offset: usize,
    pub width: usize,
}

impl Gpu {
    /// Writes the part into the columns of `y` from `start` on.
    fn move_part(&self, x: &Tensor, part: PartOfHeads, y: &Tensor, start: usize) {
        let PartOfHeads { heads, stride, offset, width } = part;
        let Shape { rows, cols } = x.shape();
        let params = part_of_heads::Params {
            tokens: word(rows),
            heads: word(heads),
            cols: word(cols),
            stride: word(stride),
            offset: word(offset),
            width: word(width),
            out_cols: word(y.shape().cols),
            out_start: word(start),
        };
        let bindings = part_of_heads::Bindings { x: x.buffer(), y: y.buffer() };
        self.run_each(part_of_heads::call(params, bindings), rows * heads * width);
    }

    pub(crate) fn part_of_heads(&self, x: &Tensor, part: PartOfHeads) -> Result<Tensor> {
        let y = self.tensor(x.shape().rows, part.heads * part.width)?;
        self.move_part(x, part, &y, 0);
        Ok(y)
    }

    pub(crate) fn join_columns_of(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let whole =
            |x: &Tensor| PartOfHeads { heads: 1, stride: x.shape().cols, offset: 0, width: x.shape().cols };
        let y = self.tensor(a.shape().rows, a.shape().cols + b.shape().cols)?;
        self.move_part(a, whole(a), &y, 0);
        self.move_part(b, whole(b), &y, a.shape().cols);
        Ok(y)
    }

    pub(crate) fn split_qkvz_of(&self, x: &Tensor, shape: &GdnShape) -> Result<(Tensor, Tensor)> {
        let GdnShape { key_heads, value_heads, key_dim, value_dim, .. } = *shape;
        let values = value_heads / key_heads * value_dim;
        let stride = 2 * (key_dim + values);
        let part = |offset, width| PartOfHeads { heads: key_heads, stride, offset, width };
        let qkv = self.tensor(x.shape().rows, shape.channels())?;
        self.move_part(x, part(0, key_dim), &qkv, 0);
        self.move_part(x, part(key_dim, key_dim), &qkv, shape.key_total());
        self.move_part(x, part(2 * key_dim, values), &qkv, 2 * shape.key_total());
        let z = self.part_of_heads(x, part(2 * key_dim + values, values))?;
        Ok((qkv, z))
    }

    pub(crate) fn select_rows_of(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let cols = x.shape().cols;
        let y = self.tensor(rows.len(), cols)?;
        let len = 4 * cols as u64;
        let copy = |(to, from): (usize, &usize)| Copy { from: *from as u64 * len, to: to as u64 * len, len };
        let copies: Vec<Copy> = rows.iter().enumerate().map(copy).collect();
        self.recorder.copy(x.buffer(), y.buffer(), &copies);
        Ok(y)
    }
}
