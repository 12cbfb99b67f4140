//! Value by value.

use ::backend::{Activation, Handle, Result, Shape, Shared};

use super::each;
use crate::shader::kernels;
use crate::{Gpu, Tensor};

/// What kernels call an activation.
pub(crate) fn number(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
    }
}

impl Gpu {
    pub(crate) fn glu_of(&self, gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        let Shape { rows, cols } = gate.shape();
        let y = self.tensor(rows, cols)?;
        let variant = each(&kernels::GLU).with("ACTIVATION", number(activation));
        self.run_each(
            &variant,
            &[gate.buffer(), up.buffer(), y.buffer()],
            &[(rows * cols) as u32],
            rows * cols,
        );
        Ok(y)
    }

    pub(crate) fn soft_cap_of(&self, x: &Tensor, cap: f32) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let numbers = [(rows * cols) as u32, cap.to_bits()];
        self.run_each(&each(&kernels::SOFT_CAP), &[x.buffer(), y.buffer()], &numbers, rows * cols);
        Ok(y)
    }

    pub(crate) fn sigmoid_gate_of(&self, x: &Tensor, g: &Tensor) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let buffers = [x.buffer(), g.buffer(), y.buffer()];
        self.run_each(&each(&kernels::SIGMOID_GATE), &buffers, &[(rows * cols) as u32], rows * cols);
        Ok(y)
    }

    pub(crate) fn combine_of(&self, h: &Tensor, moe: &Tensor, shared: &Shared<'_, Tensor>) -> Result<Tensor> {
        let Shape { rows, cols } = h.shape();
        let y = self.tensor(rows, cols)?;
        // Where there is no shared expert, something that is there stands in for it.
        let (kind, x, gate) = match shared {
            Shared::Absent => (0, h, h),
            Shared::Plain(x) => (1, *x, h),
            Shared::Gated { x, gate } => (2, *x, *gate),
        };
        let buffers = [h.buffer(), moe.buffer(), x.buffer(), gate.buffer(), y.buffer()];
        let numbers = [(rows * cols) as u32, cols as u32, kind];
        self.run_each(&each(&kernels::COMBINE), &buffers, &numbers, rows * cols);
        Ok(y)
    }
}
