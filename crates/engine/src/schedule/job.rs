//! A job: what the loop is asked for, and what it tells on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::{Constraint, Error, SamplingParams};

/// One request: a prompt and how to continue it.
pub struct Job {
    /// All tokens so far; those that a kept sequence has seen are not computed again.
    pub prompt: Vec<u32>,
    /// How many tokens of the prompt a later prompt will probably begin with too: a place worth
    /// returning to.
    pub stable: usize,
    /// At most so many tokens; until the context is full when absent.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer.
    pub end_ids: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What the answer must look like.
    pub constraint: Option<Constraint>,
    /// Tell with each token its log probability, and the so many most probable ones.
    pub logprobs: Option<usize>,
    /// Tell the logits after every token of the prompt, which is then computed from its beginning.
    pub prompt_logits: bool,
    /// Who wants to know.
    pub listener: Box<dyn Listener>,
}

impl Job {
    /// A greedy job without limits or end tokens.
    pub fn new(prompt: Vec<u32>, listener: Box<dyn Listener>) -> Self {
        Self {
            prompt,
            stable: 0,
            max_tokens: None,
            end_ids: Vec::new(),
            sampling: SamplingParams::greedy(),
            constraint: None,
            logprobs: None,
            prompt_logits: false,
            listener,
        }
    }
}

/// Who wants to know what becomes of a job. Its methods are called between steps and must not wait.
pub trait Listener: Send {
    /// Something happened.
    fn update(&mut self, update: Update);

    /// Whether nobody wants more of the answer: the job then ends before the next step, wherever it
    /// is.
    fn is_gone(&self) -> bool;
}

/// Something that happened to a job.
#[derive(Debug)]
pub enum Update {
    /// A step with a part of its prompt begins.
    Prompt {
        /// Tokens of the prompt that are behind, reused ones included.
        done: usize,
        /// Tokens of the prompt.
        of: usize,
    },
    /// The logits after each of the next tokens of the prompt, row after row, for
    /// [`Job::prompt_logits`].
    PromptLogits(Vec<f32>),
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

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model said so, by one of its end tokens, or its constraint allows nothing more.
    End,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The listener had gone.
    Stopped,
}

/// A token of an answer.
#[derive(Clone, Debug)]
pub struct TokenUpdate {
    /// The token.
    pub id: u32,
    /// Its log probability before temperature and filters, when [`Job::logprobs`] asks for it.
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

/// The receiving end of a job's updates. Dropping it cancels the job.
pub struct Updates {
    updates: Receiver<Update>,
    gone: Arc<AtomicBool>,
}

/// The sending end.
struct Feed {
    updates: Sender<Update>,
    gone: Arc<AtomicBool>,
}

impl Updates {
    /// A listener, and the end where its updates arrive.
    pub fn new() -> (Box<dyn Listener>, Self) {
        let (sender, updates) = channel();
        let gone = Arc::new(AtomicBool::new(false));
        (Box::new(Feed { updates: sender, gone: gone.clone() }), Self { updates, gone })
    }

    /// Ends the job before its next step. Its last update still comes.
    pub fn cancel(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Waits for the next update; `None` when the job was dropped without a last one.
    pub fn wait(&self) -> Option<Update> {
        self.updates.recv().ok()
    }

    /// The same, but `None` too when nothing comes for so long.
    pub fn wait_for(&self, time: Duration) -> Option<Update> {
        self.updates.recv_timeout(time).ok()
    }

    /// The next update, if it is there.
    pub fn next_ready(&self) -> Option<Update> {
        self.updates.try_recv().ok()
    }
}

impl Drop for Updates {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Listener for Feed {
    fn update(&mut self, update: Update) {
        // It fails only when nobody listens any more, which `is_gone` tells.
        let _ = self.updates.send(update);
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}
