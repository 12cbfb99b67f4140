//! The contract on a GPU.

mod blocks;
mod cache;
mod ops;
mod run;
mod weights;

use ::backend::{Activation, Result};

use crate::ops::product::Projections;
use crate::ops::rounded::{Besides, Prologue};
use crate::{Gpu, Linear, Tensor};

pub use blocks::Hidden;

impl Gpu {
    fn gate_up_of(&self, input: &Prologue<'_>, gate_up: &Linear, activation: Activation) -> Result<Tensor> {
        if let Some(rows) = gate_up.contiguous_rows()
            && self.prepares(input, gate_up.stack())
        {
            let besides = Besides { glu: Some(activation), ..Besides::default() };
            return self.rounded_product(input, gate_up.stack(), rows, &besides);
        }
        let Projections { parts, .. } = self.products(input, gate_up)?;
        let [gate, up] = &parts[..] else { unreachable!("checked: gate and up") };
        self.glu_of(gate, up, activation)
    }
}
