//! From a question to the parts of its answers: what both APIs share.
//!
//! `prompt` renders and tokenises, off the threads that serve connections; `replies` hands the jobs to the scheduler and
//! listens; `choice` takes each answer apart as its tokens come: text from bytes, thoughts and calls from text, stop strings.

mod choice;
mod collect;
mod prompt;
mod question;
mod replies;

pub use choice::{Ending, Event, Outcome, TokenInfo};
pub use collect::{Collected, collect};
pub use prompt::{Prepared, prepare};
pub use question::{Conversation, Prompt, Question};
pub use replies::{Replies, ask};

/// Tokens a request used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompts.
    pub prompt: usize,
    /// Of these, tokens that did not have to be computed.
    pub cached: usize,
    /// Tokens of the answers.
    pub completion: usize,
    /// Of these, tokens of thoughts.
    pub reasoning: usize,
}
