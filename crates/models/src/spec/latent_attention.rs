//! Multi-head latent attention: keys and values of all heads are made from one small latent per
//! token.

use backend::{CacheFloat, KvShape, Pairing, RopeSpec};

use crate::Result;
use crate::config::{Fields, rope, yarn};
use crate::weights::{Branch, FusedRows, Role};
use crate::words::counted;

/// Shape of a latent attention layer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LatentSpec {
    pub heads: usize,
    /// Width of the query's own latent; `None`: queries are projected directly.
    pub q_rank: Option<usize>,
    /// Width of the latent that is kept.
    pub rank: usize,
    /// Part of a query or key head without position.
    pub nope: usize,
    /// Part with position; its key is shared by all heads.
    pub pe: usize,
    pub value_dim: usize,
    pub rope: RopeSpec,
    /// Factor on the score, YaRN's `mscale^2` included.
    pub scale: f32,
}

impl LatentSpec {
    /// DeepSeek's fields.
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        let (nope, pe) = (fields.size_or("qk_nope_head_dim", 128)?, fields.size_or("qk_rope_head_dim", 64)?);
        let q_rank = fields.get("q_lora_rank").map(|_| fields.size("q_lora_rank")).transpose()?;
        let parameters = fields.object("rope_parameters");
        let scaling = fields.object("rope_scaling").or(parameters);
        let theta = match parameters.map_or(Ok(None), |p| p.positive("rope_theta"))? {
            Some(theta) => theta,
            None => fields.positive("rope_theta")?.unwrap_or(10_000.0),
        };
        // YaRN's attention temperature: the rotary embedding carries the ratio, the scale the rest.
        let temperature = match scaling.map(yarn).transpose()?.flatten() {
            Some(yarn) if yarn.mscale_all_dim != 0.0 => yarn.temperature(yarn.mscale_all_dim),
            _ => 1.0,
        };
        let scale = ((nope + pe) as f64).powf(-0.5) * temperature * temperature;
        Ok(Self {
            heads: fields.size("num_attention_heads")?,
            q_rank: fields.or_default("q_lora_rank", q_rank, 1536),
            rank: fields.size_or("kv_lora_rank", 512)?,
            nope,
            pe,
            value_dim: fields.size_or("v_head_dim", 128)?,
            rope: rope(pe, theta, Pairing::Interleaved, scaling)?,
            scale: scale as f32,
        })
    }

    pub(super) fn weights(&self, mut at: Branch<'_>, hidden: usize) {
        let Self { heads, q_rank, rank, nope, pe, value_dim, .. } = *self;
        match q_rank {
            None => at.matrix("q_proj", heads * (nope + pe), hidden, Role::Projection),
            Some(q_rank) => {
                at.matrix("q_a_proj", q_rank, hidden, Role::Projection);
                at.norm("q_a_layernorm", q_rank);
                at.matrix("q_b_proj", heads * (nope + pe), q_rank, Role::Projection);
            }
        }
        at.matrix("kv_a_proj_with_mqa", rank + pe, hidden, Role::Projection);
        at.norm("kv_a_layernorm", rank);
        // The older `kv_b_proj` holds for every head the rows that make its key, then those that
        // make its value.
        let fused =
            |rows, transposed| FusedRows { name: "kv_b_proj", per_head: nope + value_dim, rows, transposed };
        at.heads("embed_q", [heads, rank, nope], fused(0..nope, true), Role::IntoLatent);
        let values = fused(nope..nope + value_dim, false);
        at.heads("unembed_out", [heads, value_dim, rank], values, Role::Projection);
        at.matrix("o_proj", hidden, heads * value_dim, Role::Projection);
    }

    pub(super) fn cache(&self, float: CacheFloat) -> KvShape {
        KvShape { heads: 1, key_dim: self.rank + self.pe, value_dim: 0, float, window: None }
    }

    /// A line for people.
    pub(super) fn describe(&self, layers: usize) -> String {
        let Self { heads, rank, nope, pe, value_dim, .. } = self;
        format!(
            "{}, {} of {nope} + {pe} rotated, values of {value_dim}, latent of {rank}",
            counted(layers, "layer"),
            counted(*heads, "head")
        )
    }
}
