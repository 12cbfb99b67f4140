//! What can go wrong between here and the hub.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use engine::bytes;

/// `std::result::Result` with this module's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a server gave no answer, or only a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// There was no connection at all.
    NoConnection,
    /// The connection ended early, or nothing came for too long.
    Cut,
    /// Trying again would give the same.
    Final,
}

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a name of the hub.
    #[error("`{0}` is not a model of the hub: expected a name like org/name")]
    BadRepo(String),

    /// Not a branch, tag or commit.
    #[error("`{0}` is not a revision: expected a branch, a tag or a commit")]
    BadRevision(String),

    /// A variable of the environment.
    #[error("{name}: {problem}")]
    Setting {
        /// The variable.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },

    /// The hub does not have it, or does not say so to strangers.
    #[error("{endpoint} has no model `{repo}`. If it is private, set HF_TOKEN to a token that may read it")]
    NoSuchRepo {
        /// Where we asked.
        endpoint: String,
        /// What for.
        repo: String,
    },

    /// The model is there, the revision is not.
    #[error("{repo} has no revision `{revision}`")]
    NoSuchRevision {
        /// The model.
        repo: String,
        /// What was asked for.
        revision: String,
    },

    /// The hub wants to know who asks.
    #[error(
        "{repo} may not be read {}: accept its terms at {endpoint}/{repo} if it has any, then set HF_TOKEN to a \
         token of that account{}",
        if *with_token { "with this token" } else { "without a token" },
        said(message)
    )]
    Denied {
        /// Where we asked.
        endpoint: String,
        /// The model.
        repo: String,
        /// Whether a token was sent.
        with_token: bool,
        /// What the hub says about it.
        message: String,
    },

    /// An answer other than the one hoped for.
    #[error("{what}: {host} answers {status}{}", said(message))]
    Status {
        /// What was asked for.
        what: String,
        /// Who answered.
        host: String,
        /// The status code.
        status: u16,
        /// What the server says about it.
        message: String,
    },

    /// No answer, or half of one.
    #[error("{what}: {host} {problem}")]
    Unreachable {
        /// What was asked for.
        what: String,
        /// Who did not answer.
        host: String,
        /// How that showed.
        problem: String,
        /// Whether to ask again.
        silence: Silence,
    },

    /// An answer that makes no sense.
    #[error("{host} sends something unexpected: {problem}")]
    Unexpected {
        /// Who sent it.
        host: String,
        /// What it is.
        problem: String,
    },

    /// Not what this program can run.
    #[error("{repo} is no model in MLX format: {problem}")]
    NotAModel {
        /// The repository.
        repo: String,
        /// What it lacks.
        problem: String,
    },

    /// The bytes are not those the hub promised.
    #[error("{file}: what arrived is damaged ({problem}) and was removed; try again")]
    Damaged {
        /// The file.
        file: String,
        /// How that showed.
        problem: String,
    },

    /// The disk cannot take the file.
    #[error(
        "{}: no space left on the disk, {} more of this file to come. What is there stays: free some space and \
         pull again, or set HF_HOME to a folder on another disk",
        path.display(),
        bytes(*needed)
    )]
    DiskFull {
        /// The file.
        path: PathBuf,
        /// Bytes of it that are missing.
        needed: u64,
    },

    /// The cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },

    /// The network is off limits and the cache does not have it.
    #[error(
        "{repo} is not complete in {}, and HF_HUB_OFFLINE forbids to fetch it: unset that variable to go online",
        cache.display()
    )]
    Offline {
        /// The model.
        repo: String,
        /// The cache folder.
        cache: PathBuf,
    },

    /// This machine cannot speak https.
    #[error(
        "this processor lacks instructions that https needs here ({0}). Fetch the model with Python's `hf download`: \
         Pleiad finds it in the same cache"
    )]
    NoHttps(&'static str),

    /// Another worker has failed; that error is the one to tell.
    #[error("stopped")]
    Stopped,
}

/// Words of the server, if there are any.
fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" (it says: {message})") }
}

impl Error {
    /// For `map_err`: an error of the system at `path`.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { path: path.to_owned(), source }
    }

    /// For `map_err`: an error while writing a file of which `needed` bytes are missing.
    pub fn writing(path: &Path, needed: u64) -> impl FnOnce(std::io::Error) -> Error {
        move |source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Error::DiskFull { path: path.to_owned(), needed }
            }
            _ => Error::Io { path: path.to_owned(), source },
        }
    }

    /// Whether the same question may get an answer a moment later.
    pub fn may_pass(&self) -> bool {
        match self {
            Error::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            Error::Unreachable { silence, .. } => *silence != Silence::Final,
            _ => false,
        }
    }

    /// Whether there was no connection at all: at the first question that means that the network is down.
    pub fn is_no_connection(&self) -> bool {
        matches!(self, Error::Unreachable { silence: Silence::NoConnection, .. })
    }
}
