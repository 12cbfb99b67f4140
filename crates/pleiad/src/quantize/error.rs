//! What can go wrong.

use std::{io::ErrorKind, path::PathBuf};

use engine::bytes;

/// `std::result::Result` with this module's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a checkpoint could not be quantised.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a layout of MLX.
    #[error(
        "{what}: MLX has affine with 1, 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, and with fixed bits and \
         groups mxfp4 (4, 32), mxfp8 (8, 32) and nvfp4 (4, 16)"
    )]
    Layout {
        /// What was asked for.
        what: String,
    },

    /// The source has been quantised before.
    #[error(
        "{} is quantised already (`{name}` is {found}): quantising twice only loses precision; start from the \
         original in bf16, f16, f32 or fp8",
        folder.display()
    )]
    AlreadyQuantised {
        /// The source.
        folder: PathBuf,
        /// A weight that is quantised.
        name: String,
        /// How.
        found: &'static str,
    },

    /// No matrix could be quantised.
    #[error("{}", nothing(*group, widths))]
    Nothing {
        /// Values that would share a scale.
        group: usize,
        /// Widths of the matrices.
        widths: Vec<usize>,
    },

    /// `--mixed` is neither a recipe nor a file.
    #[error(
        "`--mixed {name}` is neither a recipe ({known}) nor a JSON file of patterns like \
         {{\"lm_head\": {{\"bits\": 8}}, \"*.v_proj\": {{\"bits\": 6, \"group_size\": 64}}, \"embed_tokens\": false}}"
    )]
    UnknownRecipe {
        /// What was given.
        name: String,
        /// The recipes there are.
        known: String,
    },

    /// A recipe that cannot be read.
    #[error("{}: {problem}", path.display())]
    Recipe {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },

    /// A pattern of a recipe matches nothing.
    #[error(
        "{}: the pattern `{pattern}` names no matrix of this model; a pattern is part of a path like `{example}`, or, \
         with `*` for anything, the whole of it",
        path.display()
    )]
    UnusedPattern {
        /// The file.
        path: PathBuf,
        /// The pattern.
        pattern: String,
        /// A path of the model.
        example: String,
    },

    /// Flags that do not go together.
    #[error("{0}")]
    Usage(String),

    /// Ctrl-C.
    #[error("interrupted; what was written is removed again")]
    Interrupted,

    /// A file beside the weights cannot be read, or a scratch file not written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// The disk cannot take the checkpoint.
    #[error(
        "{}: no space left on the disk; the checkpoint takes {}, what was written is removed again. Free some space, \
         or take fewer bits",
        path.display(),
        bytes(*needed)
    )]
    DiskFull {
        /// Where it should have gone.
        path: PathBuf,
        /// Bytes of the whole checkpoint.
        needed: u64,
    },

    /// The source cannot be read, or the folder not written.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
}

fn nothing(group: usize, widths: &[usize]) -> String {
    let list: Vec<String> = widths.iter().take(8).map(usize::to_string).collect();
    let advice =
        match [128, 64, 32].iter().find(|g| **g < group && widths.iter().any(|w| w.is_multiple_of(**g))) {
            Some(smaller) => format!("try --group {smaller}"),
            None => "this model cannot be quantised so".into(),
        };
    format!(
        "no matrix can be quantised: none has a width that groups of {group} divide ({}); {advice}",
        list.join(", ")
    )
}

impl Error {
    /// For `map_err` on operations on `path`.
    pub fn file(path: &std::path::Path) -> impl Fn(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { path: path.clone(), source }
    }

    /// The same while writing `needed` bytes, told apart where there is something to advise.
    pub fn writing(self, needed: u64) -> Error {
        let full = |e: &std::io::Error| matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        match self {
            Error::Checkpoint(checkpoint::Error::Io { path, source }) if full(&source) => {
                Error::DiskFull { path, needed }
            }
            Error::File { path, source } if full(&source) => Error::DiskFull { path, needed },
            other => other,
        }
    }
}
