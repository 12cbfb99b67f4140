//! The contract on the CPU.

mod blocks;
mod ops;
mod run;
mod weights;

use ::backend::{Batch, Handle, Result, Shape};

use crate::ops::product;
use crate::profile::Running;
use crate::{Cpu, HeadMatrices, KvCache, Tensor};

impl Cpu {
    /// Measures the time of an operation, where that is wanted, until what it returns is dropped. Only in methods that
    /// no other one calls, so that nothing counts twice.
    fn time(&self, name: &'static str) -> Option<Running<'_>> {
        self.profile.as_ref().map(|profile| profile.start(name))
    }

    /// A tensor whose values `fill` writes, all of them: they come with what earlier ones have left.
    fn fill(&self, rows: usize, cols: usize, fill: impl FnOnce(&mut [f32])) -> Tensor {
        let mut values = self.machine.arena.take(rows * cols);
        fill(&mut values);
        Tensor::new(Shape { rows, cols }, values)
    }

    /// Overwrites the values of `x` by `change`.
    fn change(&self, mut x: Tensor, change: impl FnOnce(&mut [f32])) -> Tensor {
        change(x.values_mut());
        x
    }

    /// Appends to every cache or, when memory for one is refused, to none; `row(t)` gives the two parts of a key, and
    /// a value.
    fn append<'a>(
        &self,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
        row: impl Fn(usize) -> ([&'a [f32]; 2], &'a [f32]) + Sync,
    ) -> Result<()> {
        for (span, cache) in batch.spans().iter().zip(caches.iter_mut()) {
            cache.reserve(span.len)?;
        }
        // A task writes to a few of the caches.
        let few = caches.len().div_ceil(2 * self.machine.pool.threads());
        self.machine.pool.pieces(caches, few, |i, caches| {
            for (span, cache) in batch.spans()[i * few..].iter().zip(caches) {
                span.rows().map(&row).for_each(|(key, value)| cache.push(key, value));
            }
        });
        Ok(())
    }

    fn head_matmul(&self, x: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let (rows, shape) = (x.shape().rows, weights.shape());
        Ok(self.fill(rows, shape.heads * shape.matrix.rows, |y| {
            let HeadMatrices { weight, transposed } = weights;
            product::head_products(&self.machine, weight, *transposed, x.values(), rows, y)
        }))
    }
}
