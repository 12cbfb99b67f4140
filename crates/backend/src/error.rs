//! What can go wrong when an operation is recorded or read.

/// An operation that could not be recorded, or a device that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Inputs that do not fit together.
    #[error("{operation}: {what} is {found}, expected {expected}")]
    Shape {
        /// The operation, by its name in [`Backend`](crate::Backend).
        operation: &'static str,
        /// Which argument, or which dimension of it.
        what: &'static str,
        /// Its value.
        found: String,
        /// What the other arguments require.
        expected: String,
    },
    /// A token id beyond the embedding table.
    #[error("token id {id} is out of range: the model's vocabulary has {vocabulary} entries (0 to {})", vocabulary - 1)]
    TokenOutOfRange {
        /// The id given.
        id: u32,
        /// Rows of the embedding table.
        vocabulary: usize,
    },
    /// Something this backend cannot run.
    #[error("{0}")]
    Unsupported(String),
    /// Memory for weights, caches or activations was refused.
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    /// Weights could not be read from their file.
    #[error("cannot read weights: {0}")]
    Read(String),
    /// The device is missing, was lost or reports a fault.
    #[error("{0}")]
    Device(String),
    /// A saved cache or state that does not belong to this model.
    #[error("saved state does not fit this model: {0}")]
    Image(String),
}

/// A result of a backend.
pub type Result<T> = std::result::Result<T, Error>;
