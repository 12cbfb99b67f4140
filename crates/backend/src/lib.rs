//! The contract between models and the machines that run them.
//!
//! [`Backend`] has one method per operation of a mixture-of-experts model, each with its formula. Model code calls
//! them in order and never looks at a result: the CPU computes at once, a GPU only records, and nothing waits until
//! [`Backend::read`]. This crate holds no kernels; it holds what every backend shares: shapes and their checks,
//! batches, descriptions of caches and positions, and errors.

mod batch;
pub mod check;
pub mod compositions;
mod error;
mod operations;
mod profile;
mod rope;
mod shapes;
mod top;

pub use batch::{Batch, Span};
pub use error::{Error, Result};
pub use operations::Backend;
pub use profile::OperationTime;
pub use rope::{Pairing, RopeSpec, YarnSpec};
pub use shapes::{
    Activation, Attention, AttentionWeights, CacheFloat, EndNorms, Factor, GdnShape, GdnWeights,
    GroupedSigmoid, Handle, KeyValueNorms, KvImage, KvShape, LatentAttention, LatentWeights, LayerEnd,
    LayerStart, Mask, MlaWeights, MoeWeights, Norm, RecurrentImage, Routing, Shape, Shared, UnitWeights,
};
pub use top::{largest, largest_allowed};
