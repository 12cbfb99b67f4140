//! How steps run.

use crate::{Blocks, Cache, Choice, OperationTime, Result, Sampled};

/// Chooses tokens, ahead of the host where the machine can, and says how steps went.
///
/// Look-ahead is to submit the next step before the present one is collected: its batch continues sequences with
/// [`Tokens::Last`](crate::Tokens::Last).
pub trait Run: Blocks + Cache {
    /// What was submitted.
    type Ticket: Send;

    /// A line for people: which machine, how many threads, which numerics.
    fn description(&self) -> String;

    /// Steps that may be under way: 2 where the machine works while the host goes on.
    fn depth(&self) -> usize {
        1
    }

    /// Starts what was recorded, and has a token chosen from each row of `logits`, where there are any. Each is
    /// remembered for its slot.
    fn submit(
        &self,
        logits: Option<&Self::Tensor>,
        choices: &[Choice<'_>],
        slabs: &mut Self::Slabs,
    ) -> Result<Self::Ticket>;

    /// Waits for what was submitted and returns the tokens that were chosen; does not wait for what has been submitted
    /// since.
    fn collect(&self, ticket: Self::Ticket) -> Result<Vec<Sampled>>;

    /// Time spent in each operation since the last call, where the machine was asked to measure it; taking it starts
    /// anew.
    fn take_profile(&self) -> Vec<OperationTime> {
        Vec::new()
    }

    /// Calls `task(i)` for every `i` below `count`, several at the same time where the machine has threads that would
    /// otherwise wait: work on what was read.
    fn parallel_for(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(task);
    }

    /// Runs `task` in the background of the next operations, on a thread that would otherwise wait, if there is one;
    /// else drops it. For work that whoever needs it can still do later.
    fn background(&self, task: Box<dyn FnOnce() + Send>) {
        drop(task);
    }
}
