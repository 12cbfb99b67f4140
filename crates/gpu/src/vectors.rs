//! Learned vectors: they lie side by side in few buffers, so that one binding reaches several of them.

use std::sync::{Mutex, PoisonError};

use ::backend::{Result, Shape};

use crate::pool::{ALIGNMENT, Buffer};
use crate::{Gpu, Tensor};

/// Bytes of a buffer: more than all vectors of most models.
const ARENA: u64 = 8 << 20;

/// Where vectors go.
#[derive(Default)]
pub(crate) struct Vectors(Mutex<Option<Arena>>);

struct Arena {
    buffer: Buffer,
    used: u64,
}

impl Vectors {
    /// Takes a vector over.
    pub fn add(&self, gpu: &Gpu, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        let bytes = (4 * values.len().max(1)) as u64;
        let shape = Shape { rows, cols };
        // An arena is replaced whole: nothing is left half-made by a panic.
        let mut arena = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if arena.as_ref().is_none_or(|arena| arena.used + bytes > ARENA) {
            if bytes > ARENA {
                return Ok(self.write(gpu, Tensor::new(shape, gpu.pool.fresh("a vector", bytes)?), values));
            }
            *arena = Some(Arena { buffer: gpu.pool.fresh("vectors", ARENA)?, used: 0 });
        }
        let Some(Arena { buffer, used }) = arena.as_mut() else { unreachable!("made above") };
        let at = *used;
        *used = (at + bytes).next_multiple_of(ALIGNMENT);
        Ok(self.write(gpu, Tensor::new(shape, buffer.behind(at)), values))
    }

    fn write(&self, gpu: &Gpu, vector: Tensor, values: &[f32]) -> Tensor {
        gpu.recorder.write(vector.buffer(), bytemuck::cast_slice(values));
        vector
    }
}
