//! Loading Gated DeltaNet.

use backend::{Backend, GatedDelta, GdnLayout, GdnVectors, Norm};

use crate::Result;
use crate::loader::Loader;
use crate::spec::GatedDeltaSpec;

/// The block at `loader`, behind `norm`.
pub(super) fn load<B: Backend>(
    loader: &Loader<'_, B>,
    spec: &GatedDeltaSpec,
    norm: Norm<B::Tensor>,
) -> Result<GatedDelta<B>> {
    let shape = spec.shape;
    let (layout, names): (_, &[&str]) = match spec.fused {
        true => (GdnLayout::ByKeyHead, &["in_proj_qkvz", "in_proj_ba"]),
        false => (GdnLayout::Split, &["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"]),
    };
    let conv = loader.values("conv1d.weight")?;
    Ok(GatedDelta {
        norm,
        projections: loader.linear(names)?,
        layout,
        shape,
        vectors: GdnVectors {
            conv: loader.backend.vector(shape.channels(), shape.kernel, &conv)?,
            a_log: loader.vector("A_log")?,
            dt_bias: loader.vector("dt_bias")?,
        },
        out_norm: loader.norm("norm.weight", spec.eps)?,
        out: loader.linear(&["out_proj"])?,
    })
}
