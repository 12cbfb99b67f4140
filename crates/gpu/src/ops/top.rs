//! The largest value of a row, found on the device.

use ::backend::{Handle, Result, Shape};

use super::{folded, word};
use crate::kernels::route::top;
use crate::pool::Buffer;
use crate::{Gpu, Tensor};

/// The largest value of each block of a row, and its column: `[row][block]`.
pub(crate) struct Largest {
    /// Blocks of a row.
    pub(crate) blocks: usize,
    pub(crate) ids: Buffer,
    pub(crate) values: Buffer,
}

impl Gpu {
    /// The largest value of each block.
    pub(crate) fn largest_blocks(&self, x: &Tensor) -> Result<Largest> {
        let Shape { rows, cols } = x.shape();
        let block = self.device.profile.largest_block;
        let blocks = cols.div_ceil(block);
        let room = || self.pool.take(4 * (rows * blocks) as u64);
        let found = Largest { blocks, ids: room()?, values: room()? };
        let params =
            top::Params { rows: word(rows), cols: word(cols), block: word(block), blocks: word(blocks) };
        let bindings = top::Bindings { x: x.buffer(), ids: &found.ids, values: &found.values };
        self.run(top::call(params, bindings), folded(rows * blocks));
        Ok(found)
    }
}
