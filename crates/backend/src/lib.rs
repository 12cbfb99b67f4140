//! The contract between models and the machines that run them.
//!
//! Five traits: [`Weights`] takes a checkpoint's weights over, [`Ops`] has one method per formula, [`Blocks`] is what
//! models call, [`Cache`] what sequences keep, [`Run`] how steps run; [`Backend`] is all of them. Model code calls blocks
//! in order and never looks at a result: the CPU computes at once, a GPU only records, and nothing waits until a read.
//! [`Checked`] checks shapes, once for all machines; [`reference`](mod@reference) has the blocks as compositions of
//! operations. This crate holds no kernels.

mod batch;
mod blocks;
mod cache;
pub mod check;
mod checked;
mod error;
mod ops;
pub mod pool;
mod profile;
pub mod reference;
mod rope;
mod run;
pub mod sampling;
mod shapes;
mod top;
mod weights;

pub use batch::{Batch, Span, StepTables, Tokens};
pub use blocks::{
    Attention, Blocks, DenseBranch, GatedDelta, GdnLayout, Head, KeyValues, LatentAttention, Mlp, Moe, Norm,
    Residual,
};
pub use cache::Cache;
pub use checked::Checked;
pub use error::{Error, Result};
pub use ops::Ops;
pub use profile::OperationTime;
pub use rope::{Pairing, RopeSpec, YarnSpec};
pub use run::Run;
pub use sampling::{Adjusted, Choice, Sampled, Sampling, choose};
pub use shapes::{
    Activation, CacheFloat, ExpertShape, GdnShape, GdnVectors, GroupedSigmoid, Handle, HeadShape, KvImage,
    KvShape, LatentScores, LinearShape, RecurrentImage, RoutedShape, Routing, Scores, Shape, Shared,
};
pub use top::largest;
pub use weights::Weights;

/// A machine that runs models: the whole contract.
pub trait Backend: Run {}

impl<B: Run> Backend for B {}
