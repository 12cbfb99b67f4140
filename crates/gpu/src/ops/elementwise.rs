//! Value by value.

use ::backend::{Activation, Handle, Result, Shape, Shared};

use super::word;
use crate::kernels::elementwise::{combine, glu, sigmoid_gate, soft_cap};
use crate::{Gpu, Tensor};

impl Gpu {
    pub(crate) fn glu_of(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        let Shape { rows, cols } = gate.shape();
        let y = self.tensor(rows, cols)?;
        let bindings = glu::Bindings { gate: gate.buffer(), up: up.buffer(), y: y.buffer() };
        let params = glu::Params { len: word(rows * cols) };
        self.run_each(glu::call(glu::Consts { activation }, params, bindings), rows * cols);
        Ok(y)
    }

    pub(crate) fn soft_cap_of(&self, x: &Tensor, cap: f32) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let params = soft_cap::Params { len: word(rows * cols), cap };
        let bindings = soft_cap::Bindings { x: x.buffer(), y: y.buffer() };
        self.run_each(soft_cap::call(params, bindings), rows * cols);
        Ok(y)
    }

    pub(crate) fn sigmoid_gate_of(&self, x: &Tensor, gate: &Tensor) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let params = sigmoid_gate::Params { len: word(rows * cols) };
        let bindings = sigmoid_gate::Bindings { x: x.buffer(), gate: gate.buffer(), y: y.buffer() };
        self.run_each(sigmoid_gate::call(params, bindings), rows * cols);
        Ok(y)
    }

    pub(crate) fn combine_of(&self, h: &Tensor, moe: &Tensor, shared: &Shared<'_, Tensor>) -> Result<Tensor> {
        let Shape { rows, cols } = h.shape();
        let y = self.tensor(rows, cols)?;
        let (kind, shared_part, gate) = match shared {
            Shared::Absent => (0, None, None),
            Shared::Plain(x) => (1, Some(x.buffer()), None),
            Shared::Gated { x, gate } => (2, Some(x.buffer()), Some(gate.buffer())),
        };
        let params = combine::Params { len: word(rows * cols), width: word(cols), kind };
        let bindings =
            combine::Bindings { h: h.buffer(), moe: moe.buffer(), shared_part, gate, y: y.buffer() };
        self.run_each(combine::call(params, bindings), rows * cols);
        Ok(y)
    }
}
