//! Loading multi-head latent attention.

use backend::{Backend, LatentAttention, Norm};

use crate::Result;
use crate::loader::Loader;
use crate::spec::LatentSpec;

/// The eps of the norms inside the block, whatever the config's own.
const EPS: f32 = 1e-6;

/// The block at `loader`, behind `norm`.
pub(super) fn load<B: Backend>(
    loader: &Loader<'_, B>,
    spec: &LatentSpec,
    norm: Norm<B::Tensor>,
) -> Result<LatentAttention<B>> {
    let first = if spec.q_rank.is_none() { "q_proj" } else { "q_a_proj" };
    let query = || Ok::<_, crate::Error>((loader.norm("q_a_layernorm", EPS)?, loader.linear(&["q_b_proj"])?));
    Ok(LatentAttention {
        norm,
        projections: loader.linear(&[first, "kv_a_proj_with_mqa"])?,
        query: spec.q_rank.map(|_| query()).transpose()?,
        latent_norm: loader.norm("kv_a_layernorm", EPS)?,
        rope: loader.backend.rope_table(&spec.rope)?,
        nope: spec.nope,
        embed_q: loader.head_matrices("embed_q")?,
        unembed_out: loader.head_matrices("unembed_out")?,
        out: loader.linear(&["o_proj"])?,
        heads: spec.heads,
        scale: spec.scale,
    })
}
