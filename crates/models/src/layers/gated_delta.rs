//! Gated DeltaNet: linear attention with a decaying, corrected memory.

use backend::{Backend, Batch, GdnShape, GdnWeights};

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
            key_heads: fields.size("linear_num_key_heads")?,
            value_heads: fields.size("linear_num_value_heads")?,
            key_dim: fields.size("linear_key_head_dim")?,
            value_dim: fields.size("linear_value_head_dim")?,
            kernel: fields.size("linear_conv_kernel_dim")?,
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
    Split { qkv: B::Matrix, z: B::Matrix, b: B::Matrix, a: B::Matrix },
    Fused { qkvz: B::Matrix, ba: B::Matrix },
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
            InProj::Fused {
                qkvz: loader.matrix("in_proj_qkvz", channels + values, hidden)?,
                ba: loader.matrix("in_proj_ba", 2 * heads, hidden)?,
            }
        } else {
            InProj::Split {
                qkv: loader.matrix("in_proj_qkv", channels, hidden)?,
                z: loader.matrix("in_proj_z", values, hidden)?,
                b: loader.matrix("in_proj_b", heads, hidden)?,
                a: loader.matrix("in_proj_a", heads, hidden)?,
            }
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

    /// `x [n, d]` to the layer's output `[n, d]`, before the residual.
    pub fn forward(
        &self,
        b: &B,
        x: &B::Tensor,
        batch: &Batch<B>,
        mut states: Vec<&mut B::Recurrent>,
    ) -> Result<B::Tensor> {
        let shape = &self.config.shape;
        let (qkv, z, beta, a) = match &self.in_proj {
            InProj::Split { qkv, z, b: beta, a } => b.matmuls(x, [qkv, z, beta, a])?.into(),
            InProj::Fused { qkvz, ba } => {
                let [qkvz, ba] = b.matmuls(x, [qkvz, ba])?;
                let (qkv, z) = b.split_qkvz(&qkvz, shape)?;
                let (beta, a) = b.split_heads(&ba, shape.key_heads, shape.value_heads / shape.key_heads)?;
                (qkv, z, beta, a)
            }
        };
        let y = b.gated_delta(&qkv, &a, &beta, &self.core, batch, &mut states)?;
        let y = b.gated_norm(&y, &z, &self.norm, shape.value_heads, self.config.eps)?;
        Ok(b.matmul(&y, &self.out_proj)?)
    }
}
