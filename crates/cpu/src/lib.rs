//! The CPU backend: plain loops over memory-mapped weights.
//!
//! `ops` holds one function per operation on slices, threaded over independent outputs so that results do not depend
//! on the number of threads. `backend` checks shapes and calls them. Every product of a matrix row with a token is
//! summed in the same order whatever the size of the batch, so one long prompt and token by token give the same bits.

mod backend;
mod cache;
mod ops;
mod tensor;
mod weights;

pub use cache::{KvCache, Recurrent};
pub use ops::moe::Routes;
pub use tensor::Tensor;
pub use weights::{Experts, HeadMatrices, Matrix};

use ::backend::{Error, Result};

/// How products are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numerics {
    /// Plain f32 throughout: the reference.
    #[default]
    Exact,
}

/// Settings of the CPU backend.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Worker threads; one per core when absent.
    pub threads: Option<usize>,
    /// How products are rounded.
    pub numerics: Numerics,
}

/// The CPU.
pub struct Cpu {
    pool: rayon::ThreadPool,
    numerics: Numerics,
}

impl Cpu {
    /// Starts the worker threads.
    pub fn new(options: Options) -> Result<Self> {
        if options.threads == Some(0) {
            return Err(Error::Unsupported("the CPU backend needs at least one thread".into()));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads.unwrap_or(0))
            .thread_name(|i| format!("cpu-{i}"))
            .build()
            .map_err(|e| Error::Unsupported(format!("cannot start worker threads: {e}")))?;
        Ok(Self { pool, numerics: options.numerics })
    }
}
