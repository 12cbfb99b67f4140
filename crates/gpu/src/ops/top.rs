//! The largest values of a row, found on the device, so that sampling reads a handful of bytes, or the device goes on by itself.

use ::backend::{Handle, Result, Shape, largest};

use super::folded;
use crate::pool::Buffer;
use crate::recorder::Reading;
use crate::recurrent::{floats, numbers};
use crate::shader::{Variant, kernels};
use crate::{Gpu, Tensor};

/// Values of a block: what a workgroup looks through again and again, and if it does so only once.
const BLOCK: usize = 4096;
const BLOCK_OF_ONE: usize = 1024;

/// Most values that are looked for on the device: each costs a pass.
const MOST: usize = 128;

/// As many values are read and looked through by the host in the time of a pass: on an H200, 40 of 248,320 took the same either way.
const PER_PASS: usize = 6000;

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
        let few = k > 1 && rows * cols <= PER_PASS * k;
        if few || k > MOST || k == 0 || rows == 0 {
            let values = ::backend::Backend::read(self, x)?;
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
        let block = if k == 1 { BLOCK_OF_ONE } else { BLOCK };
        let blocks = cols.div_ceil(block);
        let results = |blocks: usize| self.pool.take(4 * (rows * blocks * k) as u64);
        let find = |again: u32| Variant::new(&kernels::TOP, 256).with("AGAIN", again);
        let values = results(blocks)?;
        let sizes = [rows, cols, block, blocks, k].map(|n| n as u32);
        let first_ids = if blocks > 1 { &results(blocks)? } else { ids };
        self.run(&find(0), &[x.buffer(), x.buffer(), first_ids, &values], &sizes, folded(rows * blocks));
        if blocks == 1 {
            return Ok(values);
        }
        let best = results(1)?;
        let sizes = [rows, blocks * k, blocks * k, 1, k].map(|n| n as u32);
        self.run(&find(1), &[&values, first_ids, ids, &best], &sizes, folded(rows));
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
