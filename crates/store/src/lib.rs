//! Experts that are read from their files as they are needed.
//!
//! A model larger than memory keeps everything but its routed experts resident ([`Reader::copy`]). The experts share a
//! [`Store`]: a fixed number of slots, each with room for one expert of one layer. A step of a layer is a [`Pass`]: it says which
//! experts it needs, all missing ones begin to be read at once by several threads, and the pass hands them out in ascending
//! order as they arrive, so that computing overlaps with reading and sums have one order. Slots are taken from the experts
//! that are used least often ([`Frequencies`]).
//!
//! Files are read around the system's cache where it allows, because the store is the cache. What was read is used only if the
//! file is still the one that was opened; a failing, vanishing or silent disk is an [`Error`] for the step that needed it, and
//! the next step tries again. No compute.

mod disk;
mod frequencies;
mod memory;
mod pass;
mod reader;
mod state;
mod store;
#[cfg(test)]
mod tests;

pub use disk::{Disk, Source};
pub use frequencies::Frequencies;
pub use pass::Pass;
pub use reader::Reader;
pub use state::Expert;
pub use store::{Stats, Store, StoreOptions};

/// Why an expert is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{file}: {problem}")]
    Read {
        /// The file.
        file: String,
        /// What the system said, or what is wrong with the file.
        problem: String,
    },
    /// The disk gave no answer.
    #[error("the disk has been silent for {seconds} s while experts were waited for")]
    Silent {
        /// How long.
        seconds: u64,
    },
    /// Memory was refused.
    #[error("no memory for {bytes} bytes of weights: {problem}")]
    Memory {
        /// How much was asked for.
        bytes: usize,
        /// What the system said.
        problem: String,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
