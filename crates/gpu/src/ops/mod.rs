//! The operations: a file per group, each from checked shapes to dispatches.

pub(crate) mod attention;
pub(crate) mod attention_step;
pub(crate) mod choose;
pub(crate) mod elementwise;
pub(crate) mod gdn;
pub(crate) mod latent;
pub(crate) mod layout;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod rope;
pub(crate) mod rounded;
pub(crate) mod route;
pub(crate) mod spans;
pub(crate) mod top;

use ::backend::{Result, Shape};

use crate::kernel::Call;
use crate::kernels::elementwise::THREADS;
use crate::{Gpu, Tensor};

/// Workgroups that one dimension of a grid holds.
const LONGEST: usize = 65535;

/// A size as kernels take it.
pub(crate) fn word(size: usize) -> u32 {
    size as u32
}

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
    pub(crate) fn run(&self, call: Call<'_>, grid: [u32; 3]) {
        self.recorder.dispatch(&self.pipelines.get(&call.variant), &call, grid);
    }

    /// Records a kernel in which every thread works for itself, `len` of them.
    pub(crate) fn run_each(&self, call: Call<'_>, len: usize) {
        debug_assert_eq!(call.variant.constant("threads"), Some(word(THREADS)));
        self.run(call, folded(len.div_ceil(THREADS)));
    }
}
