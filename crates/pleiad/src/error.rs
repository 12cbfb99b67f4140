//! What ends a command early, and how it is said.

use std::process::ExitCode;

use crate::machine::NoRoom;
use crate::plan::TooSmall;
use crate::{hub, quantize, synth};

/// Any error of the program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Text and sequences.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// The model folder.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A synthetic checkpoint.
    #[error(transparent)]
    Synth(#[from] synth::Error),
    /// Fetching from the hub.
    #[error(transparent)]
    Hub(#[from] hub::Error),
    /// Quantising.
    #[error(transparent)]
    Quantize(#[from] quantize::Error),
    /// Serving.
    #[error(transparent)]
    Server(#[from] server::Error),
    /// A model that a GPU cannot hold.
    #[error("{0}; take --backend cpu, or a model of fewer bits")]
    NoRoom(#[from] NoRoom),
    /// A budget in which a model cannot run at all.
    #[error("{0}; take a larger --memory, a shorter --context, or a model of fewer bits")]
    TooSmall(#[from] TooSmall),
    /// Arguments that do not go together.
    #[error("{0}")]
    Usage(String),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The answer could not be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] std::io::Error),
}

impl From<models::Error> for Error {
    fn from(error: models::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl From<backend::Error> for Error {
    fn from(error: backend::Error) -> Self {
        Error::Engine(error.into())
    }
}

impl Error {
    /// Whether another machine might do what this one cannot.
    #[cfg(feature = "gpu")]
    pub fn is_of_the_machine(&self) -> bool {
        use backend::Error::{Device, OutOfMemory, Unsupported};
        match self {
            Error::NoRoom(_) | Error::Engine(engine::Error::ContextTooLarge { .. }) => true,
            Error::Engine(engine::Error::Model(models::Error::Backend(error))) => {
                matches!(error, Device(_) | OutOfMemory(_) | Unsupported(_))
            }
            _ => false,
        }
    }

    /// Says the error on the standard error stream and chooses the exit code: 2 for whatever the user gave us, 1 for
    /// an output that failed, 130 for Ctrl-C, as shells have it. A reader that went away early, like `head`, is no error at all.
    pub fn report(&self) -> ExitCode {
        match self {
            Error::Output(e) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            _ => {
                eprintln!("pleiad: {self}");
                match self {
                    Error::Output(_) => ExitCode::FAILURE,
                    Error::Interrupted
                    | Error::Synth(synth::Error::Interrupted)
                    | Error::Quantize(quantize::Error::Interrupted) => ExitCode::from(130),
                    _ => ExitCode::from(2),
                }
            }
        }
    }
}
