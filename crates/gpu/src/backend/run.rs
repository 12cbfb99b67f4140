//! How steps run.

use ::backend::{Choice, OperationTime, Result, Run, Sampled};

use crate::{Gpu, Numerics, Slabs, Tensor, Ticket};

impl Run for Gpu {
    type Ticket = Ticket;

    fn description(&self) -> String {
        let adapter = self.adapter();
        let software = if adapter.software { ", software" } else { "" };
        let numerics = match self.numerics() {
            Numerics::Fast => "fast",
            Numerics::Exact => "exact",
        };
        format!("GPU {}, {}{software}, {numerics} numerics", adapter.name, adapter.api)
    }

    /// Experts that are read from disk are waited for in the middle of a step, and kernels that are timed at its end.
    fn depth(&self) -> usize {
        if self.stream.is_none() && !self.recorder.is_timed() { 2 } else { 1 }
    }

    fn submit(&self, logits: Option<&Tensor>, choices: &[Choice<'_>], slabs: &mut Slabs) -> Result<Ticket> {
        match logits {
            Some(logits) => self.choose_rows(logits, choices, slabs),
            None => self.start_only(slabs),
        }
    }

    fn collect(&self, ticket: Ticket) -> Result<Vec<Sampled>> {
        self.chosen(ticket)
    }

    fn take_profile(&self) -> Vec<OperationTime> {
        self.recorder.take_profile()
    }

    fn background(&self, task: Box<dyn FnOnce() + Send>) {
        self.aside.push(task);
    }
}
