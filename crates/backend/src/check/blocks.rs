//! Checks of blocks: their weights against each other and against the caches.

use super::{convolution, equal, error, gdn_gates, gdn_shape, heads, vector};
use crate::{
    Attention, GatedDelta, GdnShape, Handle, KvShape, LatentAttention, LinearShape, Mlp, Moe, Residual,
    Result, Routing, Shape, Weights,
};

/// That a linear layer is one matrix of this shape.
fn single(
    operation: &'static str,
    what: &'static str,
    linear: LinearShape,
    rows: usize,
    cols: usize,
) -> Result<()> {
    equal(operation, "the number of matrices", linear.len(), 1)?;
    equal(operation, what, Shape { rows: linear.outputs()[0], cols: linear.inputs }, Shape { rows, cols })
}

fn residual<T: Handle<Shape = Shape>>(
    operation: &'static str,
    residual: &Residual<T>,
    width: usize,
) -> Result<()> {
    match residual {
        Residual::Plain => Ok(()),
        Residual::PostNorm { norm, .. } => vector(operation, "the norm behind", norm.w.shape(), width),
    }
}

/// [`Blocks::attention`](crate::Blocks::attention)
pub fn attention<B: Weights>(w: &Attention<B>, cache: &KvShape) -> Result<()> {
    const OP: &str = "attention";
    let projections = w.projections.shape();
    let hidden = projections.inputs;
    let width = w.q_norm.w.shape().cols;
    vector(OP, "the norm", w.norm.w.shape(), hidden)?;
    vector(OP, "the norm of queries", w.q_norm.w.shape(), width)?;
    residual(OP, &w.residual, hidden)?;
    if w.rope.shape() > width {
        return Err(error(OP, "the rotary width", w.rope.shape(), format!("at most a head's width {width}")));
    }
    if w.window == Some(0) {
        return Err(error(OP, "the window", 0, "1 or more"));
    }
    let q = w.heads * width * if w.gated { 2 } else { 1 };
    heads(OP, "the number of query heads", w.heads, cache.heads)?;
    equal(OP, "the width of a cached key", cache.key_dim, width)?;
    let (k, v) = (cache.heads * cache.key_dim, cache.heads * cache.value_dim);
    let expected: &[usize] = match &w.key_values {
        None => &[q],
        Some(_) if w.keys_are_values() => &[q, k],
        Some(_) => &[q, k, v],
    };
    if projections.outputs() != expected {
        let found = format!("{:?}", projections.outputs());
        return Err(error(OP, "the projections", found, format!("{expected:?}")));
    }
    if let Some(own) = &w.key_values {
        equal(OP, "the heads of a cache", cache.heads, own.heads)?;
        vector(OP, "the norm of keys", own.k_norm.w.shape(), cache.key_dim)?;
    }
    single(OP, "the output projection", w.out.shape(), hidden, w.heads * cache.value_dim)?;
    if w.gated {
        equal(OP, "the width of a gated value", cache.value_dim, width)?;
    }
    Ok(())
}

/// [`Blocks::latent_attention`](crate::Blocks::latent_attention)
pub fn latent_attention<B: Weights>(w: &LatentAttention<B>, cache: &KvShape) -> Result<()> {
    const OP: &str = "latent_attention";
    let projections = w.projections.shape();
    let (hidden, rank, pe) = (projections.inputs, w.latent_norm.w.shape().cols, w.rope.shape());
    vector(OP, "the norm", w.norm.w.shape(), hidden)?;
    vector(OP, "the norm of latents", w.latent_norm.w.shape(), rank)?;
    let q = w.heads * (w.nope + pe);
    let first = match &w.query {
        None => q,
        Some((norm, up)) => {
            let q_rank = norm.w.shape().cols;
            vector(OP, "the norm of queries", norm.w.shape(), q_rank)?;
            single(OP, "the matrix of queries", up.shape(), q, q_rank)?;
            q_rank
        }
    };
    if projections.outputs() != [first, rank + pe] {
        let found = format!("{:?}", projections.outputs());
        return Err(error(OP, "the projections", found, format!("{:?}", [first, rank + pe])));
    }
    let [embed, unembed] = [w.embed_q.shape(), w.unembed_out.shape()];
    equal(OP, "the heads of embed_q", embed.heads, w.heads)?;
    equal(OP, "the heads of unembed_out", unembed.heads, w.heads)?;
    equal(OP, "embed_q", embed.matrix, Shape { rows: rank, cols: w.nope })?;
    equal(OP, "the latents of unembed_out", unembed.matrix.cols, rank)?;
    single(OP, "the output projection", w.out.shape(), hidden, w.heads * unembed.matrix.rows)?;
    equal(OP, "the heads of a cache", cache.heads, 1)?;
    equal(OP, "the width of a cached latent", cache.key_dim, rank + pe)?;
    equal(OP, "the value width of a cache", cache.value_dim, 0)
}

/// [`Blocks::gated_delta`](crate::Blocks::gated_delta)
pub fn gated_delta<B: Weights>(w: &GatedDelta<B>, state: &GdnShape) -> Result<()> {
    const OP: &str = "gated_delta";
    let (shape, projections) = (&w.shape, w.projections.shape());
    gdn_shape(OP, shape)?;
    let (channels, values, heads) = (shape.channels(), shape.value_total(), shape.value_heads);
    let expected: &[usize] = match w.layout {
        crate::GdnLayout::Split => &[channels, values, heads, heads],
        crate::GdnLayout::ByKeyHead => &[channels + values, 2 * heads],
    };
    if projections.outputs() != expected {
        let found = format!("{:?}", projections.outputs());
        return Err(error(OP, "the projections", found, format!("{expected:?}")));
    }
    vector(OP, "the norm", w.norm.w.shape(), projections.inputs)?;
    vector(OP, "the norm of values", w.out_norm.w.shape(), shape.value_dim)?;
    single(OP, "the output projection", w.out.shape(), projections.inputs, values)?;
    let per_head = Shape { rows: 1, cols: heads };
    gdn_gates(per_head, per_head, w.vectors.a_log.shape(), w.vectors.dt_bias.shape())?;
    convolution(OP, Shape { rows: 1, cols: channels }, w.vectors.conv.shape(), state)?;
    if state != shape {
        return Err(error(OP, "the shape of a state", format!("{state:?}"), format!("{shape:?}")));
    }
    Ok(())
}

/// [`Blocks::mlp`](crate::Blocks::mlp)
pub fn mlp<B: Weights>(w: &Mlp<B>) -> Result<()> {
    const OP: &str = "mlp";
    let gate_up = w.gate_up.shape();
    super::gate_up(Shape { rows: 1, cols: gate_up.inputs }, gate_up)?;
    vector(OP, "the norm", w.norm.w.shape(), gate_up.inputs)?;
    single(OP, "the down matrix", w.down.shape(), gate_up.inputs, gate_up.outputs()[0])?;
    residual(OP, &w.residual, gate_up.inputs)
}

/// [`Blocks::moe`](crate::Blocks::moe)
pub fn moe<B: Weights>(w: &Moe<B>) -> Result<()> {
    const OP: &str = "moe";
    let (experts, router) = (w.experts.shape(), w.router.shape());
    let hidden = experts.hidden;
    vector(OP, "the norm", w.norm.w.shape(), hidden)?;
    equal(OP, "the width of the router's input", router.inputs, hidden)?;
    w.router_norm.as_ref().map_or(Ok(()), |own| vector(OP, "the router's norm", own.w.shape(), hidden))?;
    match router.outputs() {
        [count] | [count, 1] => equal(OP, "the experts of the router", *count, experts.count)?,
        other => return Err(error(OP, "the router", format!("{other:?}"), format!("[{}]", experts.count))),
    }
    let logits = Shape { rows: 1, cols: experts.count };
    match &w.routing {
        Routing::Softmax { .. } | Routing::SoftmaxScaled { .. } | Routing::GroupedSigmoid { .. } => {
            super::route(logits, &w.routing)?;
        }
    }
    if let Some(branch) = &w.dense {
        mlp(&branch.mlp)?;
        equal(OP, "the width of the dense branch", branch.mlp.gate_up.shape().inputs, hidden)?;
        vector(OP, "the norm behind the dense branch", branch.mlp_norm.w.shape(), hidden)?;
        vector(OP, "the norm behind the experts", branch.experts_norm.w.shape(), hidden)?;
    }
    residual(OP, &w.residual, hidden)
}
