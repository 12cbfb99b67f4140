//! Weights: copied to the device, in the background.

use ::backend::{Result, RopeSpec, Weights, check};
use checkpoint::Weight;

use crate::weights::{SharedExpert, Source, UpStacks};
use crate::{Experts, Gpu, HeadMatrices, Linear, Rope, Tensor};

impl Weights for Gpu {
    type Tensor = Tensor;
    type Linear = Linear;
    type HeadMatrices = HeadMatrices;
    type Experts = Experts;
    type Rope = Rope;

    fn linear(&self, weights: &[&Weight]) -> Result<Linear> {
        check::linear(weights)?;
        self.linear_of(weights)
    }

    fn head_matrices(&self, weight: &Weight, transposed: bool) -> Result<HeadMatrices> {
        check::head_matrices(weight)?;
        let stack = self.stack(Source::one(weight))?;
        Ok(HeadMatrices { count: weight.count, rows: weight.rows, stack, transposed })
    }

    fn expert_weights(&self, stacks: [&Weight; 3], shared: Option<[&Weight; 3]>) -> Result<Experts> {
        let shape = check::expert_weights(stacks, shared)?;
        let [gate, up, down] = stacks;
        let alternate = gate.format == up.format;
        let alike = |(shared, weight): (&&Weight, &&Weight)| {
            (shared.format, shared.rows, shared.cols) == (weight.format, weight.rows, weight.cols)
                && shared.bias.is_none()
        };
        let slots = self.stream.as_ref().map(|stream| stream.slots(stacks)).transpose()?.flatten();
        let stack = |source: Source| self.expert_stack(source, slots.as_ref());
        // A shared expert like the others is one more of them, unless they come and go.
        let like_others = |shared: &[&Weight; 3]| alternate && shared.iter().zip(&stacks).all(alike);
        let behind = shared.filter(|shared| slots.is_none() && like_others(shared));
        let up_stacks = if alternate {
            let behind = behind.map(|[gate, up, _]| [gate, up]);
            UpStacks::Alternating(stack(Source::in_turn([gate, up], behind))?)
        } else {
            UpStacks::Apart { gate: stack(Source::one(gate))?, up: stack(Source::one(up))? }
        };
        let down = stack(Source::in_turn([down], behind.map(|[_, _, down]| [down])))?;
        let shared = match (behind, shared) {
            (Some(_), _) => SharedExpert::Behind,
            (None, Some([gate, up, down])) => {
                SharedExpert::Apart { gate_up: self.linear_of(&[gate, up])?, down: self.linear_of(&[down])? }
            }
            (None, None) => SharedExpert::Absent,
        };
        let (hidden, width) = (shape.cols, shape.rows);
        Ok(Experts { count: gate.count, hidden, width, up: up_stacks, down, shared, slots })
    }

    fn vector(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        check::equal("vector", "the number of values", values.len(), rows * cols)?;
        self.vectors.add(self, rows, cols, values)
    }

    fn rope_table(&self, spec: &RopeSpec) -> Result<Rope> {
        Ok(self.ropes.add(spec))
    }

    fn free_memory(&self) -> Option<u64> {
        self.device.free_memory()
    }
}
