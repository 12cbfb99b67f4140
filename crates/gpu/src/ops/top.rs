//! The largest values of a row, found on the device, so that who wants a few reads a handful of bytes.

use ::backend::{Handle, Result, Shape, largest};

use super::{folded, word};
use crate::device_profile::DeviceProfile;
use crate::kernels::route::top;
use crate::pool::Buffer;
use crate::tensor::{floats, numbers};
use crate::{Gpu, Tensor};

/// The largest values of each block of a row: `[row][block][k]`, and their columns.
pub(crate) struct Largest {
    /// Blocks of a row.
    pub(crate) blocks: usize,
    pub(crate) ids: Buffer,
    pub(crate) values: Buffer,
}

impl Gpu {
    pub(crate) fn top(&self, x: &Tensor, k: usize) -> Result<Vec<Vec<(u32, f32)>>> {
        let Shape { rows, cols } = x.shape();
        let k = k.min(cols);
        let DeviceProfile { values_per_pass, most_largest, .. } = self.device.profile;
        let few = k > 1 && rows * cols <= values_per_pass * k;
        if few || k > most_largest || k == 0 || rows == 0 {
            let values = ::backend::Ops::read(self, x)?;
            return Ok(values.chunks_exact(cols.max(1)).map(|row| largest(row, k)).collect());
        }
        let len = 4 * (rows * k) as u64;
        let Largest { ids, values, .. } = self.largest_of(x, k)?;
        let [ids, values] = self.recorder.read([(&ids, len), (&values, len)])?;
        let pairs: Vec<(u32, f32)> = numbers(&ids).into_iter().zip(floats(&values)).collect();
        Ok(pairs.chunks_exact(k).map(<[_]>::to_vec).collect())
    }

    /// The `k` largest values of each row.
    fn largest_of(&self, x: &Tensor, k: usize) -> Result<Largest> {
        let rows = x.shape().rows;
        let DeviceProfile { largest_block, largest_block_of_one, .. } = self.device.profile;
        let found = self.first_pass(x, k, if k == 1 { largest_block_of_one } else { largest_block })?;
        if found.blocks == 1 {
            return Ok(found);
        }
        let best = self.room_for_largest(rows, 1, k)?;
        let cols = word(found.blocks * k);
        let params = top::Params { rows: word(rows), cols, block: cols, blocks: 1, k: word(k) };
        let (x, columns) = (&found.values, Some(&found.ids));
        let bindings = top::Bindings { x, columns, ids: &best.ids, values: &best.values };
        self.run(top::call(top::Consts { again: true }, params, bindings), folded(rows));
        Ok(best)
    }

    /// The largest value of each block.
    pub(crate) fn largest_blocks(&self, x: &Tensor) -> Result<Largest> {
        self.first_pass(x, 1, self.device.profile.largest_block_of_one)
    }

    /// The `k` largest values of each block of so many.
    fn first_pass(&self, x: &Tensor, k: usize, block: usize) -> Result<Largest> {
        let Shape { rows, cols } = x.shape();
        let found = self.room_for_largest(rows, cols.div_ceil(block), k)?;
        let params = top::Params {
            rows: word(rows),
            cols: word(cols),
            block: word(block),
            blocks: word(found.blocks),
            k: word(k),
        };
        let bindings = top::Bindings { x: x.buffer(), columns: None, ids: &found.ids, values: &found.values };
        self.run(top::call(top::Consts { again: false }, params, bindings), folded(rows * found.blocks));
        Ok(found)
    }

    fn room_for_largest(&self, rows: usize, blocks: usize, k: usize) -> Result<Largest> {
        let room = || self.pool.take(4 * (rows * blocks * k) as u64);
        Ok(Largest { blocks, ids: room()?, values: room()? })
    }
}
