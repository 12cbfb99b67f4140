//! Operations that are made of others, for backends that cannot do them at once, or not for all shapes.

use crate::{
    Attention, AttentionWeights, Backend, Batch, Handle, LatentAttention, LatentWeights, MoeWeights, Norm,
    Result, Routing, Shared, UnitWeights,
};

/// [`Backend::self_attention`]
pub fn self_attention<B: Backend>(
    b: &B,
    q: B::Tensor,
    kv: Option<[B::Tensor; 2]>,
    weights: &AttentionWeights<B>,
    batch: &Batch<B>,
    caches: &mut [&mut B::KvCache],
    spec: &Attention,
) -> Result<B::Tensor> {
    let AttentionWeights { q_norm, key_value, rope, eps, gated } = weights;
    let (q, gate) = if *gated {
        let (q, gate) = b.split_heads(&q, spec.heads, q_norm.shape().cols)?;
        (q, Some(gate))
    } else {
        (q, None)
    };
    if let (Some(own), Some([k, v])) = (key_value, kv) {
        let k = b.rms_norm_heads(k, Some(&own.k_norm), own.heads, *eps)?;
        let k = b.rope(k, batch, rope, own.heads)?;
        let v = if own.norm_values { b.rms_norm_heads(v, None, own.heads, *eps)? } else { v };
        b.kv_append(&k, &v, batch, caches)?;
    }
    let q = b.rms_norm_heads(q, Some(q_norm), spec.heads, *eps)?;
    let q = b.rope(q, batch, rope, spec.heads)?;
    let caches: Vec<&B::KvCache> = caches.iter().map(|cache| &**cache).collect();
    let y = b.attention(&q, batch, &caches, spec)?;
    match gate {
        Some(gate) => b.sigmoid_gate(y, &gate),
        None => Ok(y),
    }
}

/// `W y[t]`, plus a residual.
pub fn projected<B: Backend>(
    b: &B,
    y: &B::Tensor,
    (w, residual): (&B::Matrix, Option<B::Tensor>),
) -> Result<B::Tensor> {
    match residual {
        Some(residual) => b.matmul_add(y, w, residual),
        None => b.matmul(y, w),
    }
}

/// [`Backend::latent_attention`]
pub fn latent_attention<B: Backend>(
    b: &B,
    q: &B::Tensor,
    kv: &B::Tensor,
    weights: &LatentWeights<B>,
    batch: &Batch<B>,
    caches: &mut [&mut B::KvCache],
    spec: &LatentAttention,
) -> Result<B::Tensor> {
    let LatentWeights { norm, eps, rope, nope, mla } = weights;
    let (q, q_pe) = b.split_heads(q, spec.heads, *nope)?;
    let (latent, k_pe) = b.split_heads(kv, 1, norm.shape().cols)?;
    let latent = b.rms_norm(&latent, Some(norm), *eps)?;
    let q_pe = b.rope(q_pe, batch, rope, spec.heads)?;
    let k_pe = b.rope(k_pe, batch, rope, 1)?;
    b.mla_append(&latent, &k_pe, batch, caches)?;
    let caches: Vec<&B::KvCache> = caches.iter().map(|cache| &**cache).collect();
    b.mla(&q, &q_pe, mla, batch, &caches, spec)
}

/// The input of the experts, the gate of the shared one where it has one, and which experts are chosen.
type Routed<B> = (<B as Backend>::Tensor, Option<<B as Backend>::Tensor>, <B as Backend>::Routes);

/// The first half of [`Backend::moe`].
fn route<B: Backend>(
    b: &B,
    h: &B::Tensor,
    norm: Norm<'_, B::Tensor>,
    weights: &MoeWeights<B>,
) -> Result<Routed<B>> {
    let MoeWeights { router, router_norm, shared_gate, routing, .. } = weights;
    let x = b.rms_norm(h, Some(norm.w), norm.eps)?;
    let routed = router_norm.as_ref().map(|w| b.rms_norm(h, Some(w), norm.eps)).transpose()?;
    let routed = routed.as_ref().unwrap_or(&x);
    let (logits, gate) = match shared_gate {
        Some(gate) => {
            let [logits, gate] = b.matmuls(routed, [router, gate])?;
            (logits, Some(gate))
        }
        None => (b.matmul(routed, router)?, None),
    };
    let routes = match routing {
        Routing::Softmax { top_k, renormalise } => b.route_softmax(&logits, *top_k, *renormalise)?,
        Routing::SoftmaxScaled { top_k, scale } => b.route_softmax_scaled(&logits, *top_k, scale)?,
        Routing::GroupedSigmoid { spec, bias } => b.route_sigmoid_grouped(&logits, bias, spec)?,
    };
    Ok((x, gate, routes))
}

/// [`Backend::expect_moe`]
pub fn expect_moe<B: Backend>(
    b: &B,
    h: &B::Tensor,
    norm: Norm<'_, B::Tensor>,
    weights: &MoeWeights<B>,
) -> Result<()> {
    let (_, _, routes) = route(b, h, norm, weights)?;
    b.expect_experts(&routes, &weights.experts, true);
    Ok(())
}

/// [`Backend::moe`]
pub fn moe<B: Backend>(
    b: &B,
    h: &B::Tensor,
    norm: Norm<'_, B::Tensor>,
    weights: &MoeWeights<B>,
    add: bool,
) -> Result<B::Tensor> {
    let MoeWeights { experts, activation, .. } = weights;
    let (x, gate, routes) = route(b, h, norm, weights)?;
    b.expect_experts(&routes, experts, false);
    let shared = b.shared_expert(&x, experts, *activation)?;
    let y = b.experts(&x, &routes, experts, *activation)?;
    let shared = match (&shared, &gate) {
        (Some(x), Some(gate)) => Shared::Gated { x, gate },
        (Some(x), None) => Shared::Plain(x),
        (None, _) => Shared::Absent,
    };
    match (add, &shared) {
        (true, _) => b.combine(h, &y, shared),
        (false, Shared::Absent) => Ok(y),
        // The residual's place is taken by the experts.
        (false, _) => {
            let zero = b.upload(h.shape().rows, h.shape().cols, &vec![0.0; h.shape().len()])?;
            b.combine(&zero, &y, shared)
        }
    }
}

/// [`Backend::norm_add_unit_moe`]
pub fn norm_add_unit_moe<B: Backend>(
    b: &B,
    r: &B::Tensor,
    x_post: [&B::Tensor; 2],
    (norm, unit): (Norm<'_, B::Tensor>, &UnitWeights<B>),
    (moe_norm, weights): (Norm<'_, B::Tensor>, &MoeWeights<B>),
) -> Result<[B::Tensor; 3]> {
    let (h, hidden) = b.norm_add_gate_up(r, x_post, norm, unit.gate_up.each_ref(), unit.activation)?;
    let dense = b.matmul(&hidden, &unit.down)?;
    let routed = b.moe(&h, moe_norm, weights, false)?;
    Ok([h, dense, routed])
}
