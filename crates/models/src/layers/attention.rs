//! Loading grouped-query attention.

use backend::{Attention, Backend, KeyValues, Norm, Residual};

use crate::Result;
use crate::loader::Loader;
use crate::spec::AttentionSpec;

/// The block at `loader`, behind `norm`.
pub(super) fn load<B: Backend>(
    loader: &Loader<'_, B>,
    spec: &AttentionSpec,
    norm: Norm<B::Tensor>,
    residual: Residual<B::Tensor>,
) -> Result<Attention<B>> {
    let eps = norm.eps;
    let own = spec.reads_cache_of.is_none();
    let names: &[&str] = match (own, spec.k_is_v) {
        (false, _) => &["q_proj"],
        (true, true) => &["q_proj", "k_proj"],
        (true, false) => &["q_proj", "k_proj", "v_proj"],
    };
    let key_values = || {
        let (heads, norm_values) = (spec.kv_heads, spec.v_norm);
        Ok::<_, crate::Error>(KeyValues { heads, k_norm: loader.norm("k_norm", eps)?, norm_values })
    };
    Ok(Attention {
        norm,
        projections: loader.linear(names)?,
        q_norm: loader.norm("q_norm", eps)?,
        key_values: own.then(key_values).transpose()?,
        rope: loader.backend.rope_table(&spec.rope)?,
        out: loader.linear(&["o_proj"])?,
        residual,
        heads: spec.heads,
        gated: spec.gated,
        scale: spec.scale,
        window: spec.window,
        soft_cap: None,
    })
}
