//! Gated DeltaNet: linear attention with a decaying, corrected memory.

use backend::{Backend, Batch, GdnShape, GdnWeights, Norm};

use super::DecoderConfig;
use crate::Result;
use crate::config::{Fields, divisible};
use crate::loader::Loader;
use crate::words::counted;

/// Shape of a Gated DeltaNet layer.
#[derive(Clone, Debug)]
pub(crate) struct GatedDeltaConfig {
    pub hidden: usize,
    pub shape: GdnShape,
    /// Whether the projections are stored as `in_proj_qkvz` and `in_proj_ba`, interleaved by key head (Qwen3-Next).
    pub fused: bool,
    pub eps: f32,
}

impl GatedDeltaConfig {
    pub fn read(fields: Fields<'_>, frame: &DecoderConfig, fused: bool) -> Result<Self> {
        let shape = GdnShape {
            key_heads: fields.size_or("linear_num_key_heads", 16)?,
            value_heads: fields.size("linear_num_value_heads")?,
            key_dim: fields.size("linear_key_head_dim")?,
            value_dim: fields.size_or("linear_value_head_dim", 128)?,
            kernel: fields.size_or("linear_conv_kernel_dim", 4)?,
        };
        divisible("linear_num_value_heads", shape.value_heads, "linear_num_key_heads", shape.key_heads)?;
        Ok(Self { hidden: frame.hidden, shape, fused, eps: frame.eps })
    }

    /// A line for people.
    pub fn describe(&self, layers: usize) -> (String, String) {
        let GdnShape { key_heads, value_heads, key_dim, value_dim, kernel } = self.shape;
        let text = format!(
            "{}, {value_heads} value heads of {value_dim}, {key_heads} key heads of {key_dim}, convolution of {kernel}",
            counted(layers, "layer")
        );
        ("Gated DeltaNet".into(), text)
    }
}

/// The projections of the input, as the checkpoint stores them.
enum InProj<B: Backend> {
    /// `[q | k | v]`, `z`, `b`, `a`
    Split([B::Matrix; 4]),
    /// `qkvz`, `ba`
    Fused([B::Matrix; 2]),
}

/// One Gated DeltaNet layer.
pub(crate) struct GatedDelta<B: Backend> {
    config: GatedDeltaConfig,
    in_proj: InProj<B>,
    core: GdnWeights<B::Tensor>,
    norm: B::Tensor,
    out_proj: B::Matrix,
}

impl<B: Backend> GatedDelta<B> {
    pub fn load(loader: &Loader<'_, B>, config: &GatedDeltaConfig) -> Result<Self> {
        let GatedDeltaConfig { hidden, shape, fused, .. } = *config;
        let (channels, values, heads) = (shape.channels(), shape.value_total(), shape.value_heads);
        let in_proj = if fused {
            let names = [("in_proj_qkvz", channels + values), ("in_proj_ba", 2 * heads)];
            InProj::Fused(loader.matrices(names, hidden)?)
        } else {
            let names = [
                ("in_proj_qkv", channels),
                ("in_proj_z", values),
                ("in_proj_b", heads),
                ("in_proj_a", heads),
            ];
            InProj::Split(loader.matrices(names, hidden)?)
        };
        Ok(Self {
            config: config.clone(),
            in_proj,
            core: GdnWeights {
                shape,
                conv: loader.backend.upload(
                    channels,
                    shape.kernel,
                    // mlx-lm's layout; the originals' [channels, 1, kernel] is the same in memory.
                    &loader.values("conv1d.weight", &[channels, shape.kernel, 1])?,
                )?,
                a_log: loader.vector("A_log", heads)?,
                dt_bias: loader.vector("dt_bias", heads)?,
            },
            // A vector, not a norm like the others: no checkpoint stores it minus one.
            norm: loader.vector("norm.weight", shape.value_dim)?,
            out_proj: loader.matrix("out_proj", hidden, values)?,
        })
    }

    pub fn shape(&self) -> GdnShape {
        self.config.shape
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
