//! Grouped-query attention with normalised queries and keys, rotary positions, and an optional output gate.

use backend::{
    Attention as Spec, AttentionWeights, Backend, Batch, CacheFloat, KeyValueNorms, KvShape, Mask, Norm,
    Pairing, RopeSpec,
};

use super::DecoderConfig;
use crate::Result;
use crate::config::{Fields, divisible, problem, rope};
use crate::loader::Loader;
use crate::words::counted;

/// Shape of an attention layer.
#[derive(Clone, Debug)]
pub(crate) struct AttentionConfig {
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Whether `q_proj` yields `[query | gate]` per head (Qwen3-Next and later).
    pub gated: bool,
    pub eps: f32,
    pub rope: RopeSpec,
}

/// What a family takes where its config does not name a field.
pub(crate) struct AttentionDefaults {
    /// `None`: as many as query heads.
    pub kv_heads: Option<usize>,
    /// `None`: the hidden width divided among the heads.
    pub head_dim: Option<usize>,
    /// `None`: the config must name it.
    pub theta: Option<f64>,
    /// Share of a head's channels that is rotated.
    pub rotated_share: f64,
}

impl AttentionConfig {
    /// Heads and rotary positions. `rope_theta` and the rotated share stand at the top or inside `rope_parameters`.
    pub fn read(
        fields: Fields<'_>,
        frame: &DecoderConfig,
        gated: bool,
        defaults: &AttentionDefaults,
    ) -> Result<Self> {
        let heads = fields.size("num_attention_heads")?;
        let kv_heads = fields.size_or("num_key_value_heads", defaults.kv_heads.unwrap_or(heads))?;
        divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads)?;
        let head_dim = match (fields.get("head_dim"), defaults.head_dim) {
            (Some(_), _) => fields.size("head_dim")?,
            (None, Some(head_dim)) => head_dim,
            (None, None) => divisible("hidden_size", frame.hidden, "num_attention_heads", heads)?,
        };
        let parameters = fields.object("rope_parameters");
        let either = |field| match parameters.map_or(Ok(None), |p| p.positive(field))? {
            None => fields.positive(field),
            found => Ok(found),
        };
        let theta = either("rope_theta")?.or(defaults.theta);
        let theta = theta.ok_or_else(|| problem("rope_theta", "is missing"))?;
        let share = either("partial_rotary_factor")?.unwrap_or(defaults.rotated_share);
        let rotated = (head_dim as f64 * share) as usize;
        if rotated > head_dim {
            return Err(problem("partial_rotary_factor", "is above 1"));
        }
        let rope = rope(rotated, theta, Pairing::Halves, fields.object("rope_scaling").or(parameters))?;
        Ok(Self { hidden: frame.hidden, heads, kv_heads, head_dim, gated, eps: frame.eps, rope })
    }

    /// A line for people.
    pub fn describe(&self, layers: usize) -> (String, String) {
        let Self { heads, kv_heads, head_dim, gated, rope, .. } = self;
        let gate = if *gated { ", output gate" } else { "" };
        let rotated = rope.rotary_dim();
        let text = format!(
            "{}, {heads} query and {kv_heads} key-value heads of {head_dim}, {rotated} rotated{gate}",
            counted(layers, "layer")
        );
        ("attention".into(), text)
    }
}

/// One attention layer.
pub(crate) struct Attention<B: Backend> {
    config: AttentionConfig,
    /// Queries, keys, values.
    projections: [B::Matrix; 3],
    core: AttentionWeights<B>,
    o_proj: B::Matrix,
}

impl<B: Backend> Attention<B> {
    pub fn load(loader: &Loader<'_, B>, config: &AttentionConfig) -> Result<Self> {
        let AttentionConfig { hidden, heads, kv_heads, head_dim, gated, .. } = *config;
        let q_rows = heads * head_dim * if gated { 2 } else { 1 };
        let kv_rows = kv_heads * head_dim;
        let names = [("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)];
        Ok(Self {
            projections: loader.matrices(names, hidden)?,
            o_proj: loader.matrix("o_proj", hidden, heads * head_dim)?,
            core: AttentionWeights {
                q_norm: loader.norm("q_norm", head_dim)?,
                key_value: Some(KeyValueNorms {
                    heads: kv_heads,
                    k_norm: loader.norm("k_norm", head_dim)?,
                    norm_values: false,
                }),
                rope: loader.backend.rope_table(&config.rope)?,
                eps: config.eps,
                gated,
            },
            config: config.clone(),
        })
    }

    pub fn kv_shape(&self, float: CacheFloat) -> KvShape {
        let AttentionConfig { kv_heads, head_dim, .. } = self.config;
        KvShape { heads: kv_heads, key_dim: head_dim, value_dim: head_dim, float, window: None }
    }

    /// `h [n, d]` to `h + f(norm(h))`.
    pub fn forward(
        &self,
        b: &B,
        h: B::Tensor,
        norm: Norm<'_, B::Tensor>,
        batch: &Batch<B>,
        mut caches: Vec<&mut B::KvCache>,
    ) -> Result<B::Tensor> {
        let AttentionConfig { heads, head_dim, .. } = self.config;
        let [q, k, v] = b.norm_matmuls(&h, norm, self.projections.each_ref())?;
        let spec = Spec { heads, scale: (head_dim as f32).powf(-0.5), mask: Mask::Causal, soft_cap: None };
        let out = (&self.o_proj, Some(h));
        Ok(b.self_attention_out((q, Some([k, v])), &self.core, batch, &mut caches, &spec, out)?)
    }
}
