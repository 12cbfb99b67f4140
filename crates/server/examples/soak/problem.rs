//! What can be wrong with an answer.

use std::error::Error;
use std::fmt;

/// Why a request was not answered as it should be.
#[derive(Debug)]
pub enum Problem {
    /// The server has no room.
    Refused(u16),
    /// Nothing came for too long.
    Stuck(String),
    /// Anything else.
    Wrong(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(out, "refused: {status}"),
            Self::Stuck(what) => write!(out, "stuck: {what}"),
            Self::Wrong(what) => write!(out, "wrong: {what}"),
        }
    }
}

impl<E: Error> From<E> for Problem {
    fn from(error: E) -> Self {
        Self::Wrong(error.to_string())
    }
}

pub fn wrong<T>(message: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Wrong(message.into()))
}
