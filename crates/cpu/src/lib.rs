//! The CPU backend.
//!
//! `backend` calls `ops`: one function per operation on slices, threaded over independent outputs, so that
//! results do not depend on the number of threads. `kernels` are integer products with quantised weights, one file per
//! instruction set; everything else is plain loops that `vector` compiles once per set. `pool` runs tasks,
//! `arena` lends memory, `slabs` is that of caches.

mod aligned;
mod arena;
mod backend;
mod kernels;
mod memory;
mod ops;
mod pool;
mod prefetch;
mod profile;
mod slabs;
mod tensor;
mod vector;
mod weights;

pub use backend::BatchData;
pub use kernels::Set;
pub use memory::free as free_memory;
pub use ops::route::Routes;
pub use slabs::Slabs;
pub use tensor::Tensor;
pub use weights::{Experts, HeadMatrices, Linear};

use std::num::NonZero;
use std::sync::Arc;

use ::backend::{Error, Result};
use checkpoint::Weight;
use store::{Store, StoreOptions};

use arena::Arena;
use pool::Pool;
use profile::Profile;

/// How products are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numerics {
    /// Activations are rounded to 15 bits inside products with quantised weights, and to 16 in attention over caches of halves or codes.
    #[default]
    Fast,
    /// Plain f32 throughout: the reference.
    Exact,
}

/// Settings of the CPU backend.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Worker threads; one per physical core when absent.
    pub threads: Option<usize>,
    /// How products are rounded.
    pub numerics: Numerics,
    /// Instructions to use; the best there are when absent.
    pub kernels: Option<Set>,
    /// Whether to measure the time spent in each operation.
    pub profile: bool,
    /// For models larger than memory: experts are read from disk as they are needed and share so many bytes, and all other
    /// weights are copied to memory. When absent, weights are used from the mapped file.
    pub streaming: Option<StoreOptions>,
}

/// What operations run on: the threads and their instructions.
pub(crate) struct Machine {
    pub pool: Pool,
    pub set: Set,
    pub numerics: Numerics,
    pub arena: Arc<Arena>,
}

/// The CPU.
pub struct Cpu {
    machine: Machine,
    /// Present when times are wanted.
    profile: Option<Profile>,
    /// Present when experts are read from disk.
    store: Option<Store>,
}

impl Cpu {
    /// Starts the worker threads.
    pub fn new(options: Options) -> Result<Self> {
        let threads = match options.threads {
            None => pool::physical_cores(),
            Some(threads) => NonZero::new(threads)
                .ok_or_else(|| Error::Unsupported("the CPU backend needs at least one thread".into()))?,
        };
        let pool = Pool::new(threads)
            .map_err(|e| Error::Unsupported(format!("cannot start worker threads: {e}")))?;
        let set = options.kernels.unwrap_or_else(Set::best);
        let machine = Machine { pool, set, numerics: options.numerics, arena: Arc::default() };
        let store = options.streaming.map(Store::new).transpose();
        let store = store.map_err(|e| Error::Unsupported(format!("cannot start threads that read: {e}")))?;
        Ok(Self { machine, profile: options.profile.then(Profile::default), store })
    }

    /// What experts are read with, where they are.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// A weight where it can be used: in the mapped file, or in memory where the model is larger.
    fn resident(&self, weight: &Weight) -> Result<Weight> {
        match &self.store {
            Some(store) => store.reader().copy(weight).map_err(|e| Error::Read(e.to_string())),
            None => Ok(weight.clone()),
        }
    }

    /// Threads that compute, the calling one among them.
    pub fn threads(&self) -> usize {
        self.machine.pool.threads()
    }
}
