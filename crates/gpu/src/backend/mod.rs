//! The contract on a GPU.

mod blocks;
mod ops;
mod run;
mod weights;

use ::backend::{Activation, Batch, Result, Span};

use crate::ops::product::Projections;
use crate::ops::rounded::{Besides, Prologue};
use crate::{Gpu, KvCache, Linear, Recorded, Tensor};

pub use blocks::Hidden;

impl Gpu {
    /// Appends to every cache or, when memory for one is refused, to none.
    fn append_all(
        &self,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
        write: impl Fn(&KvCache, &Span),
    ) -> Result<()> {
        for (span, cache) in batch.spans().iter().zip(caches.iter_mut()) {
            self.reserve(cache, span.len)?;
        }
        for (span, cache) in batch.spans().iter().zip(caches) {
            write(cache, span);
            cache.advance(span.len);
        }
        Ok(())
    }

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

    pub(crate) fn start_recorded(&self, recorded: Recorded) {
        self.recorder.start(recorded.segments);
        if let Some(shelf) = recorded.shelf {
            self.pool.give_back(shelf);
        }
    }
}
