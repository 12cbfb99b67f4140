//! Grouped-query attention with normalised queries and keys, rotary positions, and an optional output gate.

use backend::{Attention as Spec, Backend, Batch, CacheFloat, KvShape, Mask, Pairing, RopeSpec};

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

impl AttentionConfig {
    /// Heads and rotary positions. `rope_theta` and the rotated share stand at the top or inside `rope_parameters`.
    pub fn read(fields: Fields<'_>, frame: &DecoderConfig, gated: bool, rotated_share: f64) -> Result<Self> {
        let heads = fields.size("num_attention_heads")?;
        let kv_heads = fields.size_or("num_key_value_heads", heads)?;
        divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads)?;
        let head_dim = match fields.get("head_dim") {
            Some(_) => fields.size("head_dim")?,
            None => divisible("hidden_size", frame.hidden, "num_attention_heads", heads)?,
        };
        let parameters = fields.object("rope_parameters");
        let either = |field| match parameters.map_or(Ok(None), |p| p.positive(field))? {
            None => fields.positive(field),
            found => Ok(found),
        };
        let theta = either("rope_theta")?.ok_or_else(|| problem("rope_theta", "is missing"))?;
        let rotated = (head_dim as f64 * either("partial_rotary_factor")?.unwrap_or(rotated_share)) as usize;
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
    q_proj: B::Matrix,
    k_proj: B::Matrix,
    v_proj: B::Matrix,
    o_proj: B::Matrix,
    q_norm: B::Tensor,
    k_norm: B::Tensor,
    rope: B::Rope,
}

impl<B: Backend> Attention<B> {
    pub fn load(loader: &Loader<'_, B>, config: &AttentionConfig) -> Result<Self> {
        let AttentionConfig { hidden, heads, kv_heads, head_dim, gated, .. } = *config;
        let q_rows = heads * head_dim * if gated { 2 } else { 1 };
        Ok(Self {
            q_proj: loader.matrix("q_proj", q_rows, hidden)?,
            k_proj: loader.matrix("k_proj", kv_heads * head_dim, hidden)?,
            v_proj: loader.matrix("v_proj", kv_heads * head_dim, hidden)?,
            o_proj: loader.matrix("o_proj", hidden, heads * head_dim)?,
            q_norm: loader.norm("q_norm", head_dim)?,
            k_norm: loader.norm("k_norm", head_dim)?,
            rope: loader.backend.rope_table(&config.rope)?,
            config: config.clone(),
        })
    }

    pub fn kv_shape(&self, float: CacheFloat) -> KvShape {
        let AttentionConfig { kv_heads, head_dim, .. } = self.config;
        KvShape { heads: kv_heads, key_dim: head_dim, value_dim: head_dim, float, window: None }
    }

    /// `x [n, d]` to the layer's output `[n, d]`, before the residual.
    pub fn forward(
        &self,
        b: &B,
        x: &B::Tensor,
        batch: &Batch<B>,
        mut caches: Vec<&mut B::KvCache>,
    ) -> Result<B::Tensor> {
        let AttentionConfig { heads, kv_heads, head_dim, gated, eps, .. } = self.config;
        let [q, k, v] = b.matmuls(x, [&self.q_proj, &self.k_proj, &self.v_proj])?;
        let (q, gate) = if gated {
            let (q, gate) = b.split_heads(&q, heads, head_dim)?;
            (q, Some(gate))
        } else {
            (q, None)
        };
        let q = b.rms_norm_heads(q, Some(&self.q_norm), heads, eps)?;
        let k = b.rms_norm_heads(k, Some(&self.k_norm), kv_heads, eps)?;
        let q = b.rope(q, batch, &self.rope, heads)?;
        let k = b.rope(k, batch, &self.rope, kv_heads)?;
        b.kv_append(&k, &v, batch, &mut caches)?;
        let caches: Vec<&B::KvCache> = caches.into_iter().map(|c| &*c).collect();
        let spec = Spec { heads, scale: (head_dim as f32).powf(-0.5), mask: Mask::Causal, soft_cap: None };
        let mut y = b.attention(&q, batch, &caches, &spec)?;
        if let Some(gate) = gate {
            y = b.sigmoid_gate(y, &gate)?;
        }
        Ok(b.matmul(&y, &self.o_proj)?)
    }
}
