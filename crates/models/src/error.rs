//! What can go wrong between a checkpoint and its logits.

/// A model that cannot be built or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A family Pleiad does not know.
    #[error("model_type {found:?} is not supported; Pleiad runs {known}")]
    UnknownFamily {
        /// `model_type` of the config.
        found: String,
        /// Those it knows.
        known: String,
    },
    /// A field of `config.json` that is missing or makes no sense.
    #[error("config.json: `{field}` {problem}")]
    Config {
        /// Name of the field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A layer that asks for a weight which the list of its family's weights lacks, or the other way round.
    #[error(
        "{path} is in the list of the model's weights or in its layers, and not in both: this is a fault of Pleiad"
    )]
    NotListed {
        /// Of the weight.
        path: String,
    },
    /// The checkpoint itself.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// An operation.
    #[error(transparent)]
    Backend(#[from] backend::Error),
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
