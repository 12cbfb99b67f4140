//! Gated DeltaNet: linear attention with a decaying, corrected memory.

use backend::GdnShape;

use crate::Result;
use crate::config::{Fields, divisible};
use crate::weights::{Branch, Role};
use crate::words::counted;

/// Shape of a Gated DeltaNet layer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct GatedDeltaSpec {
    pub shape: GdnShape,
    /// Whether the projections are stored as `in_proj_qkvz` and `in_proj_ba`, interleaved by key
    /// head (Qwen3-Next).
    pub fused: bool,
    /// Of the gated norm.
    pub eps: f32,
}

impl GatedDeltaSpec {
    /// Qwen's fields.
    pub fn read(fields: Fields<'_>, fused: bool, eps: f32) -> Result<Self> {
        let shape = GdnShape {
            key_heads: fields.size_or("linear_num_key_heads", 16)?,
            value_heads: fields.size("linear_num_value_heads")?,
            key_dim: fields.size("linear_key_head_dim")?,
            value_dim: fields.size_or("linear_value_head_dim", 128)?,
            kernel: fields.size_or("linear_conv_kernel_dim", 4)?,
        };
        divisible("linear_num_value_heads", shape.value_heads, "linear_num_key_heads", shape.key_heads)?;
        Ok(Self { shape, fused, eps })
    }

    pub(super) fn weights(&self, mut at: Branch<'_>, hidden: usize) {
        let shape = self.shape;
        let (channels, values, heads) = (shape.channels(), shape.value_total(), shape.value_heads);
        let projections: &[(&str, usize)] = match self.fused {
            true => &[("in_proj_qkvz", channels + values), ("in_proj_ba", 2 * heads)],
            false => &[
                ("in_proj_qkv", channels),
                ("in_proj_z", values),
                ("in_proj_b", heads),
                ("in_proj_a", heads),
            ],
        };
        for (name, rows) in projections {
            at.matrix(name, *rows, hidden, Role::Projection);
        }
        // mlx-lm's layout; the originals' [channels, 1, kernel] is the same in memory.
        at.values("conv1d.weight", &[channels, shape.kernel, 1], Role::Convolution);
        at.values("A_log", &[heads], Role::Decay);
        at.values("dt_bias", &[heads], Role::TimeStep);
        // A vector, not a norm like the others: no checkpoint stores it minus one.
        at.values("norm.weight", &[shape.value_dim], Role::FACTOR);
        at.matrix("out_proj", hidden, values, Role::Projection);
    }

    /// A line for people.
    pub(super) fn describe(&self, layers: usize) -> String {
        let GdnShape { key_heads, value_heads, key_dim, value_dim, kernel } = self.shape;
        let layers = counted(layers, "layer");
        format!(
            "{layers}, {value_heads} value heads of {value_dim}, {key_heads} key heads of {key_dim}, convolution of {kernel}"
        )
    }
}
