//! Who answers: the scheduler, or what tests put in its place.

use engine::{Job, Refused, Scheduler, Stats};

/// What the server needs of a scheduler.
pub trait Answers: Send + Sync + 'static {
    /// Hands over a job, or says why not.
    fn submit(&self, job: Job) -> Result<(), Refused>;

    /// What is going on.
    fn stats(&self) -> Stats;

    /// Longest sequence, prompt and answer.
    fn context(&self) -> usize;

    /// Takes nothing new, and returns when all jobs are done.
    fn finish(&self);
}

impl Answers for Scheduler {
    fn submit(&self, job: Job) -> Result<(), Refused> {
        Scheduler::submit(self, job)
    }

    fn stats(&self) -> Stats {
        Scheduler::stats(self)
    }

    fn context(&self) -> usize {
        Scheduler::context(self)
    }

    fn finish(&self) {
        Scheduler::finish(self);
    }
}
