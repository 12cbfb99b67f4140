//! The largest values of a row, found on the device, so that sampling reads a handful of bytes, or the device goes on by itself.

use ::backend::{Handle, Result, Shape, largest};

use super::{folded, word};
use crate::device_profile::DeviceProfile;
use crate::kernels::route::top;
use crate::pool::Buffer;
use crate::recorder::Reading;
use crate::recurrent::{floats, numbers};
use crate::{Gpu, Tensor};

/// The column of a largest value, and the value: on the device, and on their way to the host.
pub struct Chosen {
    token: Buffer,
    reading: Reading<2>,
}

impl Chosen {
    pub(crate) fn token(&self) -> &Buffer {
        &self.token
    }
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
        let ids = self.pool.take(4 * (rows * k) as u64)?;
        let values = self.largest_of(x, k, &ids)?;
        let len = 4 * (rows * k) as u64;
        let [ids, values] = self.recorder.read([(&ids, len), (&values, len)])?;
        let pairs: Vec<(u32, f32)> = numbers(&ids).into_iter().zip(floats(&values)).collect();
        Ok(pairs.chunks_exact(k).map(<[_]>::to_vec).collect())
    }

    /// Finds the `k` largest values of each row; their columns go into `ids`.
    fn largest_of(&self, x: &Tensor, k: usize, ids: &Buffer) -> Result<Buffer> {
        let Shape { rows, cols } = x.shape();
        let DeviceProfile { largest_block, largest_block_of_one, .. } = self.device.profile;
        let block = if k == 1 { largest_block_of_one } else { largest_block };
        let blocks = cols.div_ceil(block);
        let results = |blocks: usize| self.pool.take(4 * (rows * blocks * k) as u64);
        let values = results(blocks)?;
        let first_ids = if blocks > 1 { &results(blocks)? } else { ids };
        let params = top::Params {
            rows: word(rows),
            cols: word(cols),
            block: word(block),
            blocks: word(blocks),
            k: word(k),
        };
        let bindings = top::Bindings { x: x.buffer(), columns: None, ids: first_ids, values: &values };
        self.run(top::call(top::Consts { again: false }, params, bindings), folded(rows * blocks));
        if blocks == 1 {
            return Ok(values);
        }
        let best = results(1)?;
        let found = word(blocks * k);
        let params = top::Params { cols: found, block: found, blocks: 1, ..params };
        let bindings = top::Bindings { x: &values, columns: Some(first_ids), ids, values: &best };
        self.run(top::call(top::Consts { again: true }, params, bindings), folded(rows));
        Ok(best)
    }

    /// Finds the largest of one row of values.
    pub(crate) fn choose_largest(&self, x: &Tensor) -> Result<Chosen> {
        let token = self.pool.take_lasting(4)?;
        let value = self.largest_of(x, 1, &token)?;
        let reading = self.recorder.begin_read([(&token, 4), (&value, 4)])?;
        Ok(Chosen { token, reading })
    }

    /// Waits for what was chosen.
    pub(crate) fn chosen(&self, Chosen { reading, .. }: Chosen) -> Result<(u32, f32)> {
        let [id, value] = self.recorder.finish_read(reading)?;
        // A word of each was asked for.
        Ok((numbers(&id)[0], floats(&value)[0]))
    }
}
