//! How steps run.

use crate::{Batch, Blocks, Cache, Error, OperationTime, Result, Span};

/// Starts steps, ahead of time where the machine can, and says how they went.
pub trait Run: Blocks + Cache {
    /// A step that was recorded to be started later; `()` where there is no such thing.
    type Recorded;
    /// A token that the machine has chosen, or will have.
    type Chosen;

    /// A line for people: which machine, how many threads, which numerics.
    fn description(&self) -> String;

    /// Time spent in each operation since the last call, where the machine was asked to measure it; taking it starts
    /// anew.
    fn take_profile(&self) -> Vec<OperationTime> {
        Vec::new()
    }

    /// Calls `task(i)` for every `i` below `count`, several at the same time where the machine has threads that would
    /// otherwise wait: work on what was read, such as sampling.
    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(task);
    }

    /// Runs `task` in the background of the next operations, on a thread that would otherwise wait, if there is one;
    /// else drops it. For work that whoever needs it can still do later.
    fn background(&self, task: Box<dyn FnOnce() + Send>) {
        drop(task);
    }

    /// Largest batch that decodes faster as separate single-token steps.
    fn faster_alone(&self) -> usize {
        1
    }

    /// Whether steps can be recorded before their token is known: where recording takes time, it can be done while the
    /// device is busy with the step before.
    fn records_ahead(&self) -> bool {
        false
    }

    /// Calls `step`, whose operations do not run before [`start`](Self::start); it must not wait for anything. Caches
    /// count its tokens at once, and nothing takes that back: who does not start what was recorded drops the states it
    /// works on, and until then nothing else is done with these.
    fn record<T, E: From<Error>>(
        &self,
        step: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(T, Self::Recorded), E> {
        let _ = step;
        Err(E::from(Error::Unsupported("this machine does not record steps ahead".into())))
    }

    /// Starts what was recorded, after everything recorded meanwhile, with `token` as the one token of its `batch`.
    fn start(&self, recorded: Self::Recorded, batch: &Batch<Self>, token: u32) -> Result<()> {
        let _ = (recorded, batch, token);
        Err(Error::Unsupported("this machine does not record steps ahead".into()))
    }

    /// Chooses the token that [`read_top`](crate::Ops::read_top) would find first for the one row of `logits`, and
    /// starts everything up to that: a step that [follows](Batch::following) can be recorded before the host knows the
    /// token. Only where steps are [recorded ahead](Self::records_ahead).
    fn choose(&self, logits: &Self::Tensor) -> Result<Self::Chosen> {
        let _ = logits;
        Err(Error::Unsupported("this machine does not choose tokens".into()))
    }

    /// Prepares the batch of a token that was chosen so.
    fn prepare_chosen(&self, chosen: &Self::Chosen, span: Span) -> Result<Self::BatchData> {
        let _ = (chosen, span);
        Err(Error::Unsupported("this machine does not choose tokens".into()))
    }

    /// Waits for a token that was chosen, not for what has been started since; with its logit.
    fn read_chosen(&self, chosen: Self::Chosen) -> Result<(u32, f32)> {
        let _ = chosen;
        Err(Error::Unsupported("this machine does not choose tokens".into()))
    }
}
