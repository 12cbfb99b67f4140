//! Gated DeltaNet: linear attention with a decaying, corrected memory.

use backend::{Backend, Batch, GdnWeights, Norm};

use crate::Result;
use crate::loader::Loader;
use crate::spec::GatedDeltaSpec;

/// The projections of the input, as the checkpoint stores them.
enum InProj<B: Backend> {
    /// `[q | k | v]`, `z`, `b`, `a`
    Split([B::Matrix; 4]),
    /// `qkvz`, `ba`
    Fused([B::Matrix; 2]),
}

/// One Gated DeltaNet layer.
pub(crate) struct GatedDelta<B: Backend> {
    config: GatedDeltaSpec,
    in_proj: InProj<B>,
    core: GdnWeights<B::Tensor>,
    norm: B::Tensor,
    out_proj: B::Matrix,
}

impl<B: Backend> GatedDelta<B> {
    pub fn load(loader: &Loader<'_, B>, spec: &GatedDeltaSpec) -> Result<Self> {
        let shape = spec.shape;
        let conv = loader.values("conv1d.weight")?;
        Ok(Self {
            in_proj: match spec.fused {
                true => InProj::Fused(loader.matrices(["in_proj_qkvz", "in_proj_ba"])?),
                false => {
                    InProj::Split(loader.matrices(["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"])?)
                }
            },
            core: GdnWeights {
                shape,
                conv: loader.backend.upload(shape.channels(), shape.kernel, &conv)?,
                a_log: loader.vector("A_log")?,
                dt_bias: loader.vector("dt_bias")?,
            },
            norm: loader.vector("norm.weight")?,
            out_proj: loader.matrix("out_proj")?,
            config: spec.clone(),
        })
    }

    /// `h [n, d]` to `h + f(norm(h))`.
    pub fn forward(
        &self,
        b: &B,
        h: B::Tensor,
        norm: Norm<'_, B::Tensor>,
        batch: &Batch<B>,
        mut states: Vec<&mut B::Recurrent>,
    ) -> Result<B::Tensor> {
        let shape = &self.config.shape;
        let (qkv, z, beta, a) = match &self.in_proj {
            InProj::Split(matrices) => b.norm_matmuls(&h, norm, matrices.each_ref())?.into(),
            InProj::Fused(matrices) => {
                let [qkvz, ba] = b.norm_matmuls(&h, norm, matrices.each_ref())?;
                let (qkv, z) = b.split_qkvz(&qkvz, shape)?;
                let (beta, a) = b.split_heads(&ba, shape.key_heads, shape.value_heads / shape.key_heads)?;
                (qkv, z, beta, a)
            }
        };
        let y = b.gated_delta(&qkv, &a, &beta, &self.core, batch, &mut states)?;
        let norm = Norm { w: &self.norm, eps: self.config.eps };
        Ok(b.gated_norm_matmul_add([&y, &z], norm, shape.value_heads, &self.out_proj, h)?)
    }
}
