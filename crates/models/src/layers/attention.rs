//! Grouped-query attention with normalised queries and keys, rotary positions, and an optional output gate.

use backend::{Attention as Spec, AttentionWeights, Backend, Batch, KeyValueNorms, Mask, Norm};

use crate::Result;
use crate::loader::Loader;
use crate::spec::AttentionSpec;

/// One attention layer.
pub(crate) struct Attention<B: Backend> {
    config: AttentionSpec,
    /// Queries, keys, values.
    projections: [B::Matrix; 3],
    core: AttentionWeights<B>,
    o_proj: B::Matrix,
}

impl<B: Backend> Attention<B> {
    pub fn load(loader: &Loader<'_, B>, spec: &AttentionSpec, eps: f32) -> Result<Self> {
        Ok(Self {
            projections: loader.matrices(["q_proj", "k_proj", "v_proj"])?,
            o_proj: loader.matrix("o_proj")?,
            core: AttentionWeights {
                q_norm: loader.vector("q_norm")?,
                key_value: Some(KeyValueNorms {
                    heads: spec.kv_heads,
                    k_norm: loader.vector("k_norm")?,
                    norm_values: false,
                }),
                rope: loader.backend.rope_table(&spec.rope)?,
                eps,
                gated: spec.gated,
            },
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
        mut caches: Vec<&mut B::KvCache>,
    ) -> Result<B::Tensor> {
        let AttentionSpec { heads, head_dim, .. } = self.config;
        let [q, k, v] = b.norm_matmuls(&h, norm, self.projections.each_ref())?;
        let spec = Spec { heads, scale: (head_dim as f32).powf(-0.5), mask: Mask::Causal, soft_cap: None };
        let out = (&self.o_proj, Some(h));
        Ok(b.self_attention_out((q, Some([k, v])), &self.core, batch, &mut caches, &spec, out)?)
    }
}
