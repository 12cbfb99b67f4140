//! The largest values of a row, found on the device, so that sampling reads a handful of bytes.

use ::backend::{Handle, Result, Shape, largest};

use super::folded;
use crate::recurrent::floats;
use crate::shader::{Variant, kernels};
use crate::{Gpu, Tensor};

/// Values of a block: what a workgroup looks through again and again.
const BLOCK: usize = 4096;

/// Most values that are looked for on the device: each costs a pass.
const MOST: usize = 128;

impl Gpu {
    pub(crate) fn top(&self, x: &Tensor, k: usize) -> Result<Vec<Vec<(u32, f32)>>> {
        let Shape { rows, cols } = x.shape();
        let k = k.min(cols);
        if k > MOST || k == 0 || rows == 0 {
            let values = ::backend::Backend::read(self, x)?;
            return Ok(values.chunks_exact(cols.max(1)).map(|row| largest(row, k)).collect());
        }
        let blocks = cols.div_ceil(BLOCK);
        let results = |blocks: usize| self.pool.take(4 * (rows * blocks * k) as u64);
        let find = |again: u32| Variant::new(&kernels::TOP, 256).with("AGAIN", again);
        let (mut ids, mut values) = (results(blocks)?, results(blocks)?);
        let numbers = [rows, cols, BLOCK, blocks, k].map(|n| n as u32);
        self.run(&find(0), &[x.buffer(), x.buffer(), &ids, &values], &numbers, folded(rows * blocks));
        if blocks > 1 {
            let (best_ids, best_values) = (results(1)?, results(1)?);
            let numbers = [rows, blocks * k, blocks * k, 1, k].map(|n| n as u32);
            self.run(&find(1), &[&values, &ids, &best_ids, &best_values], &numbers, folded(rows));
            (ids, values) = (best_ids, best_values);
        }
        let len = 4 * (rows * k) as u64;
        let [ids, values] = self.recorder.read([(&ids, len), (&values, len)])?;
        let ids = ids.as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b));
        let pairs: Vec<(u32, f32)> = ids.zip(floats(&values)).collect();
        Ok(pairs.chunks_exact(k).map(<[_]>::to_vec).collect())
    }
}
