//! The operations: a file per group, each from checked shapes to dispatches.

pub(crate) mod attention;
pub(crate) mod attention_step;
pub(crate) mod elementwise;
pub(crate) mod gdn;
pub(crate) mod layout;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod rope;
pub(crate) mod rounded;
pub(crate) mod route;
pub(crate) mod top;

use ::backend::{Result, Shape};

use crate::pool::Buffer;
use crate::shader::{Kernel, Variant};
use crate::{Gpu, Tensor};

/// Workgroups that one dimension of a grid holds.
const LONGEST: usize = 65535;

/// Threads of kernels in which every thread works for itself.
const ELEMENTS: u32 = 128;

/// Workgroups with tiles for matrix units that keep a large device busy: two for each part of an H200.
const TILES_BUSY: usize = 264;

/// A grid of `groups` workgroups, folded where one dimension is too short. Kernels find their place by `folded`.
pub(crate) fn folded(groups: usize) -> [u32; 3] {
    if groups == 0 {
        return [0; 3];
    }
    let across = groups.min(LONGEST);
    [across as u32, groups.div_ceil(across) as u32, 1]
}

/// A grid of `across` workgroups for each of `items`, which are counted over y, then z.
pub(crate) fn by_item(across: usize, items: usize) -> [u32; 3] {
    let [y, z, _] = folded(items);
    [across as u32, y, z]
}

impl Gpu {
    /// A tensor whose values a kernel will write, all of them.
    pub(crate) fn tensor(&self, rows: usize, cols: usize) -> Result<Tensor> {
        let shape = Shape { rows, cols };
        Ok(Tensor::new(shape, self.pool.take(4 * shape.len() as u64)?))
    }

    /// Records a kernel.
    pub(crate) fn run(&self, variant: &Variant, buffers: &[&Buffer], numbers: &[u32], grid: [u32; 3]) {
        self.recorder.dispatch(&self.pipelines.get(variant), buffers, numbers, grid);
    }

    /// Records a kernel in which every thread works for itself, `len` of them.
    pub(crate) fn run_each(&self, variant: &Variant, buffers: &[&Buffer], numbers: &[u32], len: usize) {
        self.run(variant, buffers, numbers, folded(len.div_ceil(variant.threads as usize)));
    }
}

/// A kernel in which every thread works for itself.
pub(crate) fn each(kernel: &'static Kernel) -> Variant {
    Variant::new(kernel, ELEMENTS)
}
