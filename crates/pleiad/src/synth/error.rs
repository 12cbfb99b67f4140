//! What can go wrong.

use std::{io::ErrorKind, path::PathBuf};

use engine::bytes;

/// `std::result::Result` with this module's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a checkpoint could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No preset has the name.
    #[error("there is no preset `{name}`; there are {known}")]
    UnknownPreset {
        /// What was asked for.
        name: String,
        /// The names there are.
        known: String,
    },

    /// A number of layers the preset cannot have.
    #[error("`--layers {asked}`: {preset} can be made with 1 to {all} layers")]
    Layers {
        /// The preset.
        preset: &'static str,
        /// What was asked for.
        asked: usize,
        /// Layers of the whole model.
        all: usize,
    },

    /// Not a layout of MLX.
    #[error(
        "{bits} bits in groups of {group}: MLX has 1, 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128"
    )]
    Quantization {
        /// Bits of a code.
        bits: u32,
        /// Values that share a scale.
        group: usize,
    },

    /// The disk cannot take the checkpoint.
    #[error(
        "{}: no space left on the disk; the checkpoint takes {}, what was written is removed again. Free some \
         space, or make fewer layers with --layers",
        path.display(),
        bytes(*needed)
    )]
    DiskFull {
        /// Where it should have gone.
        path: PathBuf,
        /// Bytes of the whole checkpoint.
        needed: u64,
    },

    /// Ctrl-C.
    #[error("interrupted; what was written is removed again")]
    Interrupted,

    /// The shape makes no sense.
    #[error(transparent)]
    Model(#[from] models::Error),

    /// The folder cannot be written.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
}

impl Error {
    /// An error while writing `needed` bytes, told apart where there is something to advise.
    pub(super) fn writing(error: checkpoint::Error, needed: u64) -> Error {
        match error {
            checkpoint::Error::Io { path, source }
                if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                Error::DiskFull { path, needed }
            }
            other => Error::Checkpoint(other),
        }
    }
}
