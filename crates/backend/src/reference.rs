//! The blocks as compositions of operations: what they mean, and what a machine without a fused kernel runs.

use crate::{
    Attention, Batch, Checked, GatedDelta, GdnLayout, Handle, Head, LatentAttention, LatentScores, Mlp, Moe,
    Norm, Ops, Residual, Result, Scores, Shared,
};

/// `rms(x) * w`
pub fn norm<B: Ops>(b: &Checked<'_, B>, x: &B::Tensor, norm: &Norm<B::Tensor>) -> Result<B::Tensor> {
    b.rms_norm(x, Some(&norm.w), norm.eps)
}

/// The residual stream after a block whose last step is `W y`.
fn project<B: Ops>(
    b: &Checked<'_, B>,
    h: B::Tensor,
    y: &B::Tensor,
    w: &B::Linear,
    residual: &Residual<B::Tensor>,
) -> Result<B::Tensor> {
    match residual {
        Residual::Plain => b.matmul_add(y, w, h),
        Residual::PostNorm { norm, factor } => b.norm_add(&h, &b.matmul(y, w)?, &norm.w, norm.eps, *factor),
    }
}

/// [`Blocks::attention`](crate::Blocks::attention)
pub fn attention<B: Ops>(
    b: &Checked<'_, B>,
    h: B::Tensor,
    w: &Attention<B>,
    batch: &Batch<B>,
    slabs: &mut B::Slabs,
    layer: usize,
) -> Result<B::Tensor> {
    let projected = b.matmuls(&norm(b, &h, &w.norm)?, &w.projections)?;
    let y = attention_core(b, projected, w, batch, slabs, layer)?;
    project(b, h, &y, &w.out, &w.residual)
}

/// The block from its projections to what its output projection takes.
pub fn attention_core<B: Ops>(
    b: &Checked<'_, B>,
    projected: Vec<B::Tensor>,
    w: &Attention<B>,
    batch: &Batch<B>,
    slabs: &mut B::Slabs,
    layer: usize,
) -> Result<B::Tensor> {
    let mut parts = projected.into_iter();
    let mut part = || parts.next().ok_or_else(|| w.missing_part());
    let (mut q, mut gate) = (part()?, None);
    if w.gated {
        let (query, gates) = b.split_heads(&q, w.heads, w.q_norm.w.shape().cols)?;
        (q, gate) = (query, Some(gates));
    }
    if let Some(own) = &w.key_values {
        let k = part()?;
        let v = if w.keys_are_values() { k.clone() } else { part()? };
        let eps = own.k_norm.eps;
        let k = b.rms_norm_heads(k, Some(&own.k_norm.w), own.heads, eps)?;
        let k = b.rope(k, batch, &w.rope, own.heads)?;
        let v = if own.norm_values { b.rms_norm_heads(v, None, own.heads, eps)? } else { v };
        b.kv_append(&k, &v, batch, slabs, layer)?;
    }
    let q = b.rms_norm_heads(q, Some(&w.q_norm.w), w.heads, w.q_norm.eps)?;
    let q = b.rope(q, batch, &w.rope, w.heads)?;
    let y = b.sdpa(&q, batch, slabs, layer, &w.scores())?;
    match gate {
        Some(gate) => b.sigmoid_gate(y, &gate),
        None => Ok(y),
    }
}

impl<B: crate::Weights> Attention<B> {
    /// How queries see keys.
    pub fn scores(&self) -> Scores {
        let Self { heads, scale, window, soft_cap, .. } = *self;
        Scores { heads, scale, window, soft_cap }
    }

    /// Whether the layer has a projection of keys and none of values.
    pub fn keys_are_values(&self) -> bool {
        self.key_values.is_some() && self.projections.shape().len() == 2
    }

    fn missing_part(&self) -> crate::Error {
        crate::check::error(
            "attention",
            "the number of projections",
            self.projections.shape().len(),
            "2 or 3",
        )
    }
}

/// Queries and `[latent | k_pe]` of a latent attention layer.
pub fn latent_projections<B: Ops>(
    b: &Checked<'_, B>,
    h: &B::Tensor,
    w: &LatentAttention<B>,
) -> Result<[B::Tensor; 2]> {
    let [q, kv] = b.matmuls_of(&norm(b, h, &w.norm)?, &w.projections)?;
    let q = match &w.query {
        Some((query_norm, up)) => b.matmul(&norm(b, &q, query_norm)?, up)?,
        None => q,
    };
    Ok([q, kv])
}

/// Appends latents to the caches; returns the queries' parts without and with a position.
pub fn latent_append<B: Ops>(
    b: &Checked<'_, B>,
    [q, kv]: [&B::Tensor; 2],
    w: &LatentAttention<B>,
    batch: &Batch<B>,
    slabs: &mut B::Slabs,
    layer: usize,
) -> Result<[B::Tensor; 2]> {
    let (q, q_pe) = b.split_heads(q, w.heads, w.nope)?;
    let (latent, k_pe) = b.split_heads(kv, 1, w.latent_norm.w.shape().cols)?;
    let latent = norm(b, &latent, &w.latent_norm)?;
    let q_pe = b.rope(q_pe, batch, &w.rope, w.heads)?;
    let k_pe = b.rope(k_pe, batch, &w.rope, 1)?;
    b.mla_append(&latent, &k_pe, batch, slabs, layer)?;
    Ok([q, q_pe])
}

/// Attention in latent space, with the matrices absorbed into query and output: a token costs one pass over the
/// latents. Expanding keys and values first gives the same and may be cheaper for many tokens.
pub fn absorbed<B: Ops>(
    b: &Checked<'_, B>,
    [q, q_pe]: [&B::Tensor; 2],
    w: &LatentAttention<B>,
    batch: &Batch<B>,
    slabs: &B::Slabs,
    layer: usize,
) -> Result<B::Tensor> {
    let q = b.mla_absorb_q(q, &w.embed_q)?;
    let o = b.mla_attention(&q, q_pe, batch, slabs, layer, &w.scores())?;
    b.mla_unabsorb(&o, &w.unembed_out)
}

impl<B: crate::Weights> LatentAttention<B> {
    /// How queries see latents.
    pub fn scores(&self) -> LatentScores {
        LatentScores { heads: self.heads, scale: self.scale }
    }
}

/// [`Blocks::latent_attention`](crate::Blocks::latent_attention)
pub fn latent_attention<B: Ops>(
    b: &Checked<'_, B>,
    h: B::Tensor,
    w: &LatentAttention<B>,
    batch: &Batch<B>,
    slabs: &mut B::Slabs,
    layer: usize,
) -> Result<B::Tensor> {
    let [q, kv] = latent_projections(b, &h, w)?;
    let [q, q_pe] = latent_append(b, [&q, &kv], w, batch, slabs, layer)?;
    let y = absorbed(b, [&q, &q_pe], w, batch, slabs, layer)?;
    b.matmul_add(&y, &w.out, h)
}

/// What the core of a Gated DeltaNet layer takes.
pub struct GdnInputs<T> {
    /// `[q | k | v]`
    pub qkv: T,
    /// Of the gated norm.
    pub z: T,
    /// Of the write strength.
    pub b: T,
    /// Of the decay.
    pub a: T,
}

/// Sorts what comes out of a layer's projections.
pub fn gdn_inputs<B: Ops>(
    b: &Checked<'_, B>,
    projected: Vec<B::Tensor>,
    w: &GatedDelta<B>,
) -> Result<GdnInputs<B::Tensor>> {
    let shape = &w.shape;
    let count = projected.len();
    let wrong = |_| crate::check::error("gated_delta", "the number of projections", count, w.layout.parts());
    Ok(match w.layout {
        GdnLayout::Split => {
            let [qkv, z, b, a] = projected.try_into().map_err(wrong)?;
            GdnInputs { qkv, z, b, a }
        }
        GdnLayout::ByKeyHead => {
            let [qkvz, ba]: [_; 2] = projected.try_into().map_err(wrong)?;
            let (qkv, z) = b.split_qkvz(&qkvz, shape)?;
            let (beta, a) = b.split_heads(&ba, shape.key_heads, shape.value_heads / shape.key_heads)?;
            GdnInputs { qkv, z, b: beta, a }
        }
    })
}

impl GdnLayout {
    /// Matrices of the projections.
    pub fn parts(self) -> usize {
        match self {
            GdnLayout::Split => 4,
            GdnLayout::ByKeyHead => 2,
        }
    }
}

/// Convolution, norms and recurrence: from `[q | k | v]` to `y [n, value_total]`.
pub fn gdn_core<B: Ops>(
    b: &Checked<'_, B>,
    inputs: &GdnInputs<B::Tensor>,
    w: &GatedDelta<B>,
    batch: &Batch<B>,
    slabs: &mut B::Slabs,
    layer: usize,
) -> Result<B::Tensor> {
    let qkv = b.conv_causal(&inputs.qkv, &w.vectors.conv, batch, slabs, layer)?;
    let qkv = b.gdn_qk_norm(qkv, &w.shape)?;
    let (g, beta) = b.gdn_gates(&inputs.a, &inputs.b, &w.vectors)?;
    b.gdn(&qkv, &g, &beta, batch, slabs, layer)
}

/// [`Blocks::gated_delta`](crate::Blocks::gated_delta)
pub fn gated_delta<B: Ops>(
    b: &Checked<'_, B>,
    h: B::Tensor,
    w: &GatedDelta<B>,
    batch: &Batch<B>,
    slabs: &mut B::Slabs,
    layer: usize,
) -> Result<B::Tensor> {
    gated_delta_with(b, h, w, |inputs| gdn_core(b, inputs, w, batch, slabs, layer))
}

/// The same with another way through the core.
pub fn gated_delta_with<B: Ops>(
    b: &Checked<'_, B>,
    h: B::Tensor,
    w: &GatedDelta<B>,
    core: impl FnOnce(&GdnInputs<B::Tensor>) -> Result<B::Tensor>,
) -> Result<B::Tensor> {
    let inputs = gdn_inputs(b, b.matmuls(&norm(b, &h, &w.norm)?, &w.projections)?, w)?;
    let y = core(&inputs)?;
    let y = b.gated_norm(&y, &inputs.z, &w.out_norm.w, w.shape.value_heads, w.out_norm.eps)?;
    b.matmul_add(&y, &w.out, h)
}

/// `act(Wgate x) * (Wup x)`, `x = rms(h) w`.
fn mlp_inside<B: Ops>(b: &Checked<'_, B>, h: &B::Tensor, w: &Mlp<B>) -> Result<B::Tensor> {
    b.gate_up(&norm(b, h, &w.norm)?, &w.gate_up, w.activation)
}

/// [`Blocks::mlp`](crate::Blocks::mlp)
pub fn mlp<B: Ops>(b: &Checked<'_, B>, h: B::Tensor, w: &Mlp<B>) -> Result<B::Tensor> {
    let inside = mlp_inside(b, &h, w)?;
    project(b, h, &inside, &w.down, &w.residual)
}

/// What a router makes of `h`: the input of the experts, the gate of the shared one where it has one, and which
/// experts are chosen.
struct Routed<B: Ops> {
    x: B::Tensor,
    gate: Option<B::Tensor>,
    routes: B::Routes,
}

fn route<B: Ops>(b: &Checked<'_, B>, h: &B::Tensor, w: &Moe<B>) -> Result<Routed<B>> {
    let x = norm(b, h, &w.norm)?;
    let own = w.router_norm.as_ref().map(|own| norm(b, h, own)).transpose()?;
    let mut parts = b.matmuls(own.as_ref().unwrap_or(&x), &w.router)?.into_iter();
    let logits =
        parts.next().ok_or_else(|| crate::check::error("moe", "the router's matrices", 0, "1 or 2"))?;
    let gate = parts.next();
    let routes = b.route(&logits, &w.routing)?;
    Ok(Routed { x, gate, routes })
}

/// [`Blocks::prefetch`](crate::Blocks::prefetch), where experts are read from disk.
pub fn prefetch<B: Ops>(b: &Checked<'_, B>, h: &B::Tensor, w: &Moe<B>) -> Result<()> {
    let Routed { routes, .. } = route(b, h, w)?;
    b.prefetch_experts(&routes, &w.experts, true);
    Ok(())
}

/// The experts of a layer, the shared one among them, plus `h` where it is to be added.
fn experts<B: Ops>(b: &Checked<'_, B>, h: &B::Tensor, w: &Moe<B>, add: bool) -> Result<B::Tensor> {
    let Routed { x, gate, routes } = route(b, h, w)?;
    b.prefetch_experts(&routes, &w.experts, false);
    let shared = b.shared_expert(&x, &w.experts, w.activation)?;
    let y = b.experts(&x, &routes, &w.experts, w.activation)?;
    let shared = match (&shared, &gate) {
        (Some(x), Some(gate)) => Shared::Gated { x, gate },
        (Some(x), None) => Shared::Plain(x),
        (None, _) => Shared::Absent,
    };
    match (add, &shared) {
        (true, _) => b.combine(h, &y, shared),
        (false, Shared::Absent) => Ok(y),
        (false, _) => {
            let zero = b.upload(h.shape().rows, h.shape().cols, &vec![0.0; h.shape().len()])?;
            b.combine(&zero, &y, shared)
        }
    }
}

/// [`Blocks::moe`](crate::Blocks::moe)
pub fn moe<B: Ops>(b: &Checked<'_, B>, h: B::Tensor, w: &Moe<B>) -> Result<B::Tensor> {
    let y = match (&w.dense, &w.residual) {
        (None, Residual::Plain) => return experts(b, &h, w, true),
        (None, _) => experts(b, &h, w, false)?,
        (Some(branch), _) => {
            let dense = b.matmul(&mlp_inside(b, &h, &branch.mlp)?, &branch.mlp.down)?;
            let routed = experts(b, &h, w, false)?;
            let [wa, wb] = [&branch.mlp_norm, &branch.experts_norm];
            b.combine_norm(&dense, &wa.w, &routed, &wb.w, wa.eps)?
        }
    };
    match &w.residual {
        Residual::Plain => b.combine(&h, &y, Shared::Absent),
        Residual::PostNorm { norm, factor } => b.norm_add(&h, &y, &norm.w, norm.eps, *factor),
    }
}

/// [`Blocks::logits`](crate::Blocks::logits)
pub fn logits<B: Ops>(b: &Checked<'_, B>, h: &B::Tensor, w: &Head<'_, B>) -> Result<B::Tensor> {
    let logits = b.matmul(&norm(b, h, w.norm)?, w.linear)?;
    match w.soft_cap {
        Some(cap) => b.soft_cap(logits, cap),
        None => Ok(logits),
    }
}
