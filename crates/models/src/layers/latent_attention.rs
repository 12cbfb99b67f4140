//! Multi-head latent attention: keys and values of all heads are made from one small latent per token, and only that is
//! kept.

use backend::{Backend, Batch, LatentAttention as Spec, LatentWeights, MlaWeights, Norm};

use crate::Result;
use crate::loader::Loader;
use crate::spec::LatentSpec;

/// The eps of the norms inside the layer, whatever the config's own.
const EPS: f32 = 1e-6;

/// What follows the first projection in the making of queries.
enum Query<B: Backend> {
    /// Nothing.
    Direct,
    /// The query had a latent of its own.
    Latent { norm: B::Tensor, up: B::Matrix },
}

/// One latent attention layer.
pub(crate) struct LatentAttention<B: Backend> {
    config: LatentSpec,
    /// To queries or their latents, and to `[latent | k_pe]`.
    projections: [B::Matrix; 2],
    query: Query<B>,
    core: LatentWeights<B>,
    o_proj: B::Matrix,
}

impl<B: Backend> LatentAttention<B> {
    pub fn load(loader: &Loader<'_, B>, spec: &LatentSpec) -> Result<Self> {
        let first = if spec.q_rank.is_none() { "q_proj" } else { "q_a_proj" };
        Ok(Self {
            projections: loader.matrices([first, "kv_a_proj_with_mqa"])?,
            query: match spec.q_rank {
                None => Query::Direct,
                Some(_) => {
                    Query::Latent { norm: loader.vector("q_a_layernorm")?, up: loader.matrix("q_b_proj")? }
                }
            },
            core: LatentWeights {
                norm: loader.vector("kv_a_layernorm")?,
                eps: EPS,
                rope: loader.backend.rope_table(&spec.rope)?,
                nope: spec.nope,
                mla: MlaWeights {
                    embed_q: loader.head_matrices("embed_q")?,
                    unembed_out: loader.head_matrices("unembed_out")?,
                },
            },
            o_proj: loader.matrix("o_proj")?,
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
        let LatentSpec { heads, scale, .. } = self.config;
        let [q, kv] = b.norm_matmuls(&h, norm, self.projections.each_ref())?;
        let q = match &self.query {
            Query::Direct => q,
            Query::Latent { norm, up } => {
                let [q] = b.norm_matmuls(&q, Norm { w: norm, eps: EPS }, [up])?;
                q
            }
        };
        let y = b.latent_attention(&q, &kv, &self.core, batch, &mut caches, &Spec { heads, scale })?;
        Ok(b.matmul_add(&y, &self.o_proj, h)?)
    }
}
