//! The contract on the CPU.

mod blocks;
mod ops;
mod run;
mod weights;

use ::backend::{Handle, Result, Shape};

use crate::ops::product;
use crate::ops::rope::Turns;
use crate::profile::Running;
use crate::{Cpu, HeadMatrices, Tensor};

/// What a batch keeps here.
pub struct BatchData {
    /// Its tokens, with those that were last chosen for their slots.
    tokens: Vec<u32>,
    turns: Turns,
}

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

    fn head_matmul(&self, x: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let (rows, shape) = (x.shape().rows, weights.shape());
        Ok(self.fill(rows, shape.heads * shape.matrix.rows, |y| {
            let HeadMatrices { weight, transposed } = weights;
            product::head_products(&self.machine, weight, *transposed, x.values(), rows, y)
        }))
    }
}
