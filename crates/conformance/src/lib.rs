//! Cases for every operation, run on every backend.
//!
//! A [`Case`] makes its own inputs from a seed, runs one operation (or a few that belong together)
//! on a backend and compares what comes back with [`formulas`]: the specification in f64,
//! independent of every backend. Each case owns its shapes and its error bound. [`run`] runs them;
//! [`Case::outputs`] gives raw values, for comparing two configurations of one backend bit by bit.
//! [`models`] does the same for whole models, over tiny checkpoints.

mod case;
pub mod cases;
pub mod formulas;
pub mod host;
pub mod models;
pub mod random;
pub mod weights;

pub use case::{
    Bound, Case, CaseResult, Expected, Failure, Fault, Outcome, Output, all_fast, is_product, report, run,
};
pub use cases::all;
