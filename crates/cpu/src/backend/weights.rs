//! Weights: used where they lie in the mapped file, or copied where the model is larger than memory.

use ::backend::{Error, Result, RopeSpec, Shape, Weights, check};
use checkpoint::Weight;

use crate::{Cpu, Experts, HeadMatrices, Linear, Tensor};

impl Weights for Cpu {
    type Tensor = Tensor;
    type Linear = Linear;
    type HeadMatrices = HeadMatrices;
    type Experts = Experts;
    type Rope = RopeSpec;

    fn linear(&self, weights: &[&Weight]) -> Result<Linear> {
        check::linear(weights)?;
        Ok(Linear(weights.iter().map(|weight| self.resident(weight)).collect::<Result<_>>()?))
    }

    fn head_matrices(&self, weight: &Weight, transposed: bool) -> Result<HeadMatrices> {
        check::head_matrices(weight)?;
        Ok(HeadMatrices { weight: self.resident(weight)?, transposed })
    }

    fn expert_weights(&self, stacks: [&Weight; 3], shared: Option<[&Weight; 3]>) -> Result<Experts> {
        check::expert_weights(stacks, shared)?;
        let layer = match &self.store {
            Some(store) => store.add_layer(stacks).map_err(|e| Error::Read(e.to_string()))?,
            None => None,
        };
        let shared = match shared {
            Some([gate, up, down]) => Some([self.resident(gate)?, self.resident(up)?, self.resident(down)?]),
            None => None,
        };
        let [gate, up, down] = stacks.map(Weight::clone);
        Ok(Experts { gate, up, down, layer, shared })
    }

    fn vector(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        check::equal("vector", "the number of values", values.len(), rows * cols)?;
        Ok(Tensor::new(Shape { rows, cols }, self.machine.arena.copy(values)))
    }

    fn rope_table(&self, spec: &RopeSpec) -> Result<RopeSpec> {
        Ok(spec.clone())
    }

    fn free_memory(&self) -> Option<u64> {
        crate::memory::free()
    }
}
