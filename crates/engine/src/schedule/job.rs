//! What the scheduler is asked for, and what it tells on the way.

use std::time::Duration;

use crate::{Constraint, Error, Finish, SamplingParams};

/// One answer to be generated.
pub struct Job {
    /// All tokens so far.
    pub prompt: Vec<u32>,
    /// How many tokens of the prompt a later prompt will probably begin with too: see [`Task::stable`](crate::Task::stable).
    pub stable: usize,
    /// At most so many tokens; until the context is full when absent.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer.
    pub end_ids: Vec<u32>,
    /// How tokens are chosen. `logprobs` in it is ignored.
    pub sampling: SamplingParams,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// Tell with each token how probable it was, and the so many most probable ones.
    pub logprobs: Option<usize>,
    /// Who wants to know.
    pub listener: Box<dyn Listener>,
}

/// Who wants to know what becomes of a job. Its methods are called on the scheduler's thread and must not wait.
pub trait Listener: Send {
    /// Something happened.
    fn update(&mut self, update: Update);

    /// Whether nobody wants the answer any more: the job then ends at once, wherever it is, without a last update.
    fn is_gone(&self) -> bool;
}

/// What happened to a job.
#[derive(Debug)]
pub enum Update {
    /// Its prompt has been computed; the first token comes next.
    Started {
        /// Tokens of the prompt that did not have to be computed.
        reused: usize,
    },
    /// A token of the answer. End tokens are not told.
    Token(TokenUpdate),
    /// The answer is over; the last update.
    Finished(Finish, Timing),
    /// It went wrong; the last update.
    Failed(Error),
}

/// A token of an answer.
#[derive(Clone, Debug)]
pub struct TokenUpdate {
    /// The token.
    pub id: u32,
    /// Logarithm of its probability before temperature and filters, when [`Job::logprobs`] asks for it.
    pub logprob: Option<f32>,
    /// The most probable tokens and theirs.
    pub top: Vec<(u32, f32)>,
}

/// How long the parts of a job took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timing {
    /// Until its first step.
    pub queued: Duration,
    /// From there until its first token.
    pub prompt: Duration,
    /// From there to the end.
    pub decode: Duration,
}

/// Why a job was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// As many jobs wait as may.
    #[error("the server is busy: {waiting} requests wait already; try again in {} s", retry_after.as_secs())]
    Busy {
        /// Jobs that wait.
        waiting: usize,
        /// When there will probably be room.
        retry_after: Duration,
    },
    /// The scheduler is ending and takes nothing new.
    #[error("the server is shutting down")]
    Ending,
    /// The job itself cannot be done, such as a prompt longer than the context.
    #[error(transparent)]
    Invalid(#[from] Error),
}
