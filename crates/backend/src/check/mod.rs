//! Shape checks behind [`Checked`](crate::Checked), and those of weights and images, which backends call themselves. Each function is named after its operation and returns what the operation needs to know.

use std::fmt::Display;

use checkpoint::Weight;

use crate::{
    Error, ExpertShape, GdnShape, GroupedSigmoid, Handle, HeadShape, KvImage, KvShape, LinearShape,
    RecurrentImage, Result, RoutedShape, Routing, Scores, Shape, Shared, Span,
};

pub mod blocks;

/// A shape error.
pub fn error(
    operation: &'static str,
    what: &'static str,
    found: impl Display,
    expected: impl Display,
) -> Error {
    Error::Shape { operation, what, found: found.to_string(), expected: expected.to_string() }
}

/// That a shape or count is what the other arguments require.
pub fn equal<T: PartialEq + Display>(
    operation: &'static str,
    what: &'static str,
    found: T,
    expected: T,
) -> Result<()> {
    if found == expected { Ok(()) } else { Err(error(operation, what, found, expected)) }
}

/// That `width` splits into `heads` equal parts; returns the width of one.
pub fn heads(operation: &'static str, what: &'static str, width: usize, heads: usize) -> Result<usize> {
    if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
        return Err(error(operation, what, width, format!("a positive multiple of {heads} heads")));
    }
    Ok(width / heads)
}

/// That a learned vector has one value per channel.
pub fn vector(operation: &'static str, what: &'static str, w: Shape, width: usize) -> Result<()> {
    equal(operation, what, w, Shape { rows: 1, cols: width })
}

/// That an activation has one row per token of the batch.
pub fn rows(operation: &'static str, what: &'static str, x: Shape, spans: &[Span]) -> Result<()> {
    let n = spans.iter().map(|s| s.len).sum();
    equal(operation, what, x.rows, n)
}

/// That weights are matrices over one input; returns their shape.
pub fn linear(weights: &[&Weight]) -> Result<LinearShape> {
    const OP: &str = "linear";
    let Some(first) = weights.first().filter(|_| weights.len() <= LinearShape::MOST) else {
        return Err(error(
            OP,
            "the number of matrices",
            weights.len(),
            format!("1 to {}", LinearShape::MOST),
        ));
    };
    for weight in weights {
        equal(OP, "the matrices of a weight", weight.count, 1)?;
        equal(OP, "the width of the input", weight.cols, first.cols)?;
    }
    Ok(LinearShape::new(first.cols, weights.iter().map(|weight| weight.rows)))
}

/// That matrices per head have no biases.
pub fn head_matrices(weight: &Weight) -> Result<()> {
    match weight.bias {
        Some(_) => Err(Error::Unsupported("head_matrices: biases are not supported".into())),
        None => Ok(()),
    }
}

/// That three stacks form experts; returns `[width, d]` of one.
pub fn expert_weights([gate, up, down]: [&Weight; 3], shared: Option<[&Weight; 3]>) -> Result<Shape> {
    let triple = |w: &Weight| format!("[{}, {}, {}]", w.count, w.rows, w.cols);
    let turned = |w: &Weight| format!("[{}, {}, {}]", w.count, w.cols, w.rows);
    equal("expert_weights", "up", triple(up), triple(gate))?;
    equal("expert_weights", "down", triple(down), turned(gate))?;
    if let Some([shared_gate, shared_up, shared_down]) = shared {
        equal("expert_weights", "the width of the shared expert's input", shared_gate.cols, gate.cols)?;
        equal("expert_weights", "the number of shared experts", shared_gate.count, 1)?;
        equal("expert_weights", "the shared up", triple(shared_up), triple(shared_gate))?;
        equal("expert_weights", "the shared down", triple(shared_down), turned(shared_gate))?;
    }
    if [gate, up, down].iter().any(|w| w.bias.is_some()) {
        return Err(Error::Unsupported("expert_weights: experts with biases are not supported".into()));
    }
    Ok(Shape { rows: gate.rows, cols: gate.cols })
}

/// `reshape`
pub fn reshape(x: Shape, rows: usize, cols: usize) -> Result<Shape> {
    let shape = Shape { rows, cols };
    equal("reshape", "the number of values", x.len(), shape.len())?;
    Ok(shape)
}

/// `select_rows`
pub fn select_rows(x: Shape, rows: &[usize]) -> Result<Shape> {
    if let Some(row) = rows.iter().find(|r| **r >= x.rows) {
        return Err(error("select_rows", "a row", row, format!("less than {}", x.rows)));
    }
    Ok(Shape { rows: rows.len(), cols: x.cols })
}

/// `columns`
pub fn columns(x: Shape, start: usize, width: usize) -> Result<Shape> {
    if start.checked_add(width).is_none_or(|end| end > x.cols) {
        return Err(error(
            "columns",
            "the range",
            format!("{start} + {width}"),
            format!("within {}", x.cols),
        ));
    }
    Ok(Shape { rows: x.rows, cols: width })
}

/// `join_rows`
pub fn join_rows(parts: impl IntoIterator<Item = Shape>) -> Result<Shape> {
    let mut parts = parts.into_iter();
    let first = parts.next().ok_or_else(|| error("join_rows", "the parts", "none", "at least one"))?;
    parts.try_fold(first, |all, part| match part.cols == all.cols {
        true => Ok(Shape { rows: all.rows + part.rows, ..all }),
        false => Err(error("join_rows", "the columns of a part", part.cols, all.cols)),
    })
}

/// `join_columns`
pub fn join_columns(a: Shape, b: Shape) -> Result<Shape> {
    if a.rows != b.rows {
        return Err(error("join_columns", "the rows of b", b.rows, a.rows));
    }
    Ok(Shape { rows: a.rows, cols: a.cols + b.cols })
}

/// `split_heads`; returns the widths of the two parts of a head.
pub fn split_heads(x: Shape, n: usize, first: usize) -> Result<(usize, usize)> {
    let width = heads("split_heads", "the width of x", x.cols, n)?;
    if first > width {
        return Err(error("split_heads", "the first part", first, format!("at most a head's width {width}")));
    }
    Ok((first, width - first))
}

/// `split_qkvz`
pub fn split_qkvz(x: Shape, shape: &GdnShape) -> Result<()> {
    gdn_shape("split_qkvz", shape)?;
    equal("split_qkvz", "the width of x", x.cols, shape.channels() + shape.value_total())
}

/// `embed`: every token inside the table.
pub fn embed(table: LinearShape, tokens: &[u32]) -> Result<()> {
    equal("embed", "the number of matrices", table.len(), 1)?;
    let vocabulary = table.outputs()[0];
    match tokens.iter().find(|id| **id as usize >= vocabulary) {
        Some(&id) => Err(Error::TokenOutOfRange { id, vocabulary }),
        None => Ok(()),
    }
}

/// `matmuls` and its relatives: `x [n, in]` against matrices `[out, in]`.
pub fn matmuls(operation: &'static str, x: Shape, w: LinearShape) -> Result<()> {
    equal(operation, "the width of x", x.cols, w.inputs)
}

/// The same of one matrix; returns `[n, out]`.
pub fn matmul(operation: &'static str, x: Shape, w: LinearShape) -> Result<Shape> {
    matmuls(operation, x, w)?;
    equal(operation, "the number of matrices", w.len(), 1)?;
    Ok(Shape { rows: x.rows, cols: w.outputs()[0] })
}

/// `gate_up`
pub fn gate_up(x: Shape, w: LinearShape) -> Result<()> {
    equal("gate_up", "the number of matrices", w.len(), 2)?;
    equal("gate_up", "the rows of the up matrix", w.outputs()[1], w.outputs()[0])?;
    matmuls("gate_up", x, w)
}

/// `norm_add`
pub fn norm_add(r: Shape, x: Shape, w: Shape) -> Result<()> {
    equal("norm_add", "r", r, x)?;
    vector("norm_add", "w", w, x.cols)
}

/// `gated_norm`; returns the width of a head.
pub fn gated_norm(v: Shape, z: Shape, w: Shape, n: usize) -> Result<usize> {
    equal("gated_norm", "z", z, v)?;
    let width = heads("gated_norm", "the width of v", v.cols, n)?;
    vector("gated_norm", "w", w, width)?;
    Ok(width)
}

/// `rope`; returns the width of a head.
pub fn rope(x: Shape, spans: &[Span], n: usize, rotary_dim: usize) -> Result<usize> {
    rows("rope", "the rows of x", x, spans)?;
    let width = heads("rope", "the width of x", x.cols, n)?;
    if rotary_dim > width {
        return Err(error("rope", "the rotary width", rotary_dim, format!("at most a head's width {width}")));
    }
    Ok(width)
}

/// That a cache of this shape can hold anything.
pub fn kv_shape(shape: &KvShape) -> Result<()> {
    if shape.heads == 0 || shape.key_dim == 0 || shape.window == Some(0) {
        return Err(Error::Unsupported(format!("a key-value cache of an empty shape: {shape:?}")));
    }
    Ok(())
}

/// `kv_append` and `mla_append`
pub fn append(operation: &'static str, k: Shape, v: Shape, spans: &[Span], cache: &KvShape) -> Result<()> {
    rows(operation, "the rows of k", k, spans)?;
    equal(operation, "the rows of v", v.rows, k.rows)?;
    equal(operation, "the width of k", k.cols, cache.heads * cache.key_dim)?;
    equal(operation, "the width of v", v.cols, cache.heads * cache.value_dim)
}

/// `mla_append`
pub fn mla_append(latent: Shape, k_pe: Shape, spans: &[Span], cache: &KvShape) -> Result<()> {
    equal("mla_append", "the rows of k_pe", k_pe.rows, latent.rows)?;
    let keys = Shape { rows: latent.rows, cols: latent.cols + k_pe.cols };
    append("mla_append", keys, Shape { rows: latent.rows, cols: 0 }, spans, cache)
}

/// `sdpa`
pub fn sdpa(q: Shape, scores: &Scores, spans: &[Span], cache: &KvShape) -> Result<()> {
    const OP: &str = "sdpa";
    rows(OP, "the rows of q", q, spans)?;
    if scores.window == Some(0) {
        return Err(error(OP, "the window", 0, "1 or more"));
    }
    equal(OP, "the width of q", q.cols, scores.heads * cache.key_dim)?;
    heads(OP, "the number of query heads", scores.heads, cache.heads)?;
    if cache.value_dim == 0 {
        let expected = "1 or more: a latent cache has its own attention";
        return Err(error(OP, "the value width of a cache", 0, expected));
    }
    kept(OP, scores.window, spans, cache)
}

/// That a cache has kept what is seen.
fn kept(operation: &'static str, window: Option<usize>, spans: &[Span], cache: &KvShape) -> Result<()> {
    let longest = spans.iter().map(|span| span.position + span.len).max().unwrap_or_default();
    match cache.window.filter(|kept| longest > *kept && window.is_none_or(|window| window > *kept)) {
        None => Ok(()),
        Some(kept) => {
            let found = window.map_or("none".into(), |window| window.to_string());
            Err(error(operation, "the window", found, format!("at most the {kept} tokens the cache keeps")))
        }
    }
}

/// `mla_attention`
pub fn mla_attention(q: Shape, q_pe: Shape, n: usize, spans: &[Span], cache: &KvShape) -> Result<()> {
    const OP: &str = "mla_attention";
    rows(OP, "the rows of q", q, spans)?;
    let rank = heads(OP, "the width of q", q.cols, n)?;
    let pe = heads(OP, "the width of q_pe", q_pe.cols, n)?;
    equal(OP, "the rows of q_pe", q_pe.rows, q.rows)?;
    equal(OP, "the heads of a cache", cache.heads, 1)?;
    equal(OP, "the width of a cached latent", cache.key_dim, rank + pe)?;
    kept(OP, None, spans, cache)
}

/// `mla_absorb_q` and `mla_unabsorb`: `x [n, heads * in]` against one matrix `[out, in]` per head; returns `[n, heads * out]`.
pub fn head_matmul(
    operation: &'static str,
    x: Shape,
    HeadShape { heads, matrix }: HeadShape,
) -> Result<Shape> {
    equal(operation, "the width of x", x.cols, heads * matrix.cols)?;
    Ok(Shape { rows: x.rows, cols: heads * matrix.rows })
}

/// `route`
pub fn route<T: Handle<Shape = Shape>>(logits: Shape, routing: &Routing<T>) -> Result<()> {
    let top_k = routing.top_k();
    if top_k == 0 || top_k > logits.cols {
        return Err(error("route", "top_k", top_k, format!("1 to {} experts", logits.cols)));
    }
    match routing {
        Routing::Softmax { .. } => Ok(()),
        Routing::SoftmaxScaled { scale, .. } => vector("route", "the scales", scale.shape(), logits.cols),
        Routing::GroupedSigmoid { spec, bias } => {
            vector("route", "the bias", bias.shape(), logits.cols)?;
            groups(logits.cols, spec)
        }
    }
}

/// That experts can be chosen by groups.
fn groups(experts: usize, spec: &GroupedSigmoid) -> Result<()> {
    let size = heads("route", "the number of experts", experts, spec.groups)?;
    if spec.kept_groups == 0 || spec.kept_groups > spec.groups {
        return Err(error("route", "kept_groups", spec.kept_groups, format!("1 to {} groups", spec.groups)));
    }
    if spec.groups > 1 && size < 2 {
        return Err(error("route", "the experts of a group", size, "2 or more"));
    }
    let kept = spec.kept_groups * size;
    if spec.top_k > kept {
        return Err(error(
            "route",
            "top_k",
            spec.top_k,
            format!("at most {kept} experts of the kept groups"),
        ));
    }
    Ok(())
}

/// `experts`: one set of routes per token, every expert inside the stack.
pub fn experts(x: Shape, routes: RoutedShape, weights: ExpertShape) -> Result<()> {
    equal("experts", "the width of x", x.cols, weights.hidden)?;
    equal("experts", "the tokens routed", routes.tokens, x.rows)?;
    equal("experts", "the experts routed over", routes.experts, weights.count)
}

/// `combine`
pub fn combine<T: Handle<Shape = Shape>>(h: Shape, moe: Shape, shared: &Shared<'_, T>) -> Result<()> {
    equal("combine", "moe", moe, h)?;
    match shared {
        Shared::Absent => Ok(()),
        Shared::Plain(x) => equal("combine", "shared", x.shape(), h),
        Shared::Gated { x, gate } => {
            equal("combine", "shared", x.shape(), h)?;
            equal("combine", "the gate", gate.shape(), Shape { rows: h.rows, cols: 1 })
        }
    }
}

/// `combine_norm`
pub fn combine_norm(a: Shape, wa: Shape, b: Shape, wb: Shape) -> Result<()> {
    equal("combine_norm", "b", b, a)?;
    vector("combine_norm", "wa", wa, a.cols)?;
    vector("combine_norm", "wb", wb, a.cols)
}

/// That a Gated DeltaNet shape is possible.
pub fn gdn_shape(operation: &'static str, shape: &GdnShape) -> Result<()> {
    heads(operation, "the number of value heads", shape.value_heads, shape.key_heads)?;
    if shape.kernel == 0 || shape.key_dim == 0 || shape.value_dim == 0 {
        return Err(error(operation, "a width or the kernel", 0, "1 or more"));
    }
    Ok(())
}

/// `conv_causal`
pub fn conv_causal(x: Shape, w: Shape, spans: &[Span], shape: &GdnShape) -> Result<()> {
    rows("conv_causal", "the rows of x", x, spans)?;
    convolution("conv_causal", x, w, shape)
}

fn convolution(operation: &'static str, x: Shape, w: Shape, shape: &GdnShape) -> Result<()> {
    equal(operation, "the width of x", x.cols, shape.channels())?;
    equal(operation, "w", w, Shape { rows: shape.channels(), cols: shape.kernel })
}

/// `gdn_gates`; returns the number of value heads.
pub fn gdn_gates(a: Shape, b: Shape, a_log: Shape, dt_bias: Shape) -> Result<usize> {
    equal("gdn_gates", "b", b, a)?;
    vector("gdn_gates", "a_log", a_log, a.cols)?;
    vector("gdn_gates", "dt_bias", dt_bias, a.cols)?;
    Ok(a.cols)
}

/// `gdn`
pub fn gdn(qkv: Shape, g: Shape, beta: Shape, spans: &[Span], shape: &GdnShape) -> Result<()> {
    rows("gdn", "the rows of qkv", qkv, spans)?;
    equal("gdn", "the width of qkv", qkv.cols, shape.channels())?;
    equal("gdn", "g", g, Shape { rows: qkv.rows, cols: shape.value_heads })?;
    equal("gdn", "beta", beta, g)
}

/// That a cache's image belongs to its shape; returns the tokens it holds.
pub fn kv_image(shape: &KvShape, image: &KvImage) -> Result<usize> {
    kv_shape(shape)?;
    let kept = image.len.checked_sub(image.first);
    let bytes = |width: usize| kept.and_then(|n| n.checked_mul(shape.heads * shape.float.row_bytes(width)));
    if bytes(shape.key_dim) != Some(image.keys.len()) || bytes(shape.value_dim) != Some(image.values.len()) {
        return Err(Error::Image(format!(
            "tokens {}..{} of a cache with {} bytes a token, but {} bytes of keys and {} of values",
            image.first,
            image.len,
            shape.token_bytes(),
            image.keys.len(),
            image.values.len()
        )));
    }
    match (image.first, shape.window) {
        (0, _) => {}
        // The next token sees itself and the window - 1 before it.
        (_, Some(window)) if image.len - image.first + 1 >= window => {}
        _ => return Err(Error::Image(format!("the cache begins at token {}", image.first))),
    }
    Ok(image.len - image.first)
}

/// That a recurrent state's image belongs to its shape.
pub fn recurrent_image(shape: &GdnShape, image: &RecurrentImage) -> Result<()> {
    if image.window.len() != shape.window_len() || image.state.len() != shape.state_len() {
        return Err(Error::Image(format!(
            "a recurrent state of {} and {} values, expected {} and {}",
            image.window.len(),
            image.state.len(),
            shape.window_len(),
            shape.state_len()
        )));
    }
    Ok(())
}
