//! A machine whose arguments are checked: one wrapper around any, so that all refuse the same inputs with the same words.

use std::ops::Deref;

use crate::{
    Activation, Attention, Batch, Blocks, GatedDelta, GdnShape, GdnVectors, Handle, Head, LatentAttention,
    LatentScores, Mlp, Moe, Ops, Result, Routing, Scores, Shared, check,
};

/// What models, blocks and tests call: [`Ops`] and [`Blocks`] behind their checks. Methods that need none are the
/// machine's own.
pub struct Checked<'a, B>(pub &'a B);

impl<B> Clone for Checked<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Checked<'_, B> {}

impl<B> Deref for Checked<'_, B> {
    type Target = B;

    fn deref(&self) -> &B {
        self.0
    }
}

/// [`Ops`], checked.
impl<B: Ops> Checked<'_, B> {
    /// [`Ops::upload`]
    pub fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<B::Tensor> {
        check::equal("upload", "the number of values", values.len(), rows * cols)?;
        self.0.upload(rows, cols, values)
    }

    /// [`Ops::reshape`]
    pub fn reshape(&self, x: B::Tensor, rows: usize, cols: usize) -> Result<B::Tensor> {
        check::reshape(x.shape(), rows, cols)?;
        self.0.reshape(x, rows, cols)
    }

    /// [`Ops::select_rows`]
    pub fn select_rows(&self, x: &B::Tensor, rows: &[usize]) -> Result<B::Tensor> {
        check::select_rows(x.shape(), rows)?;
        self.0.select_rows(x, rows)
    }

    /// [`Ops::columns`]
    pub fn columns(&self, x: &B::Tensor, start: usize, width: usize) -> Result<B::Tensor> {
        check::columns(x.shape(), start, width)?;
        self.0.columns(x, start, width)
    }

    /// [`Ops::join_rows`]
    pub fn join_rows(&self, parts: &[&B::Tensor]) -> Result<B::Tensor> {
        check::join_rows(parts.iter().map(|part| part.shape()))?;
        self.0.join_rows(parts)
    }

    /// [`Ops::join_columns`]
    pub fn join_columns(&self, a: &B::Tensor, b: &B::Tensor) -> Result<B::Tensor> {
        check::join_columns(a.shape(), b.shape())?;
        self.0.join_columns(a, b)
    }

    /// [`Ops::split_heads`]
    pub fn split_heads(&self, x: &B::Tensor, heads: usize, first: usize) -> Result<(B::Tensor, B::Tensor)> {
        check::split_heads(x.shape(), heads, first)?;
        self.0.split_heads(x, heads, first)
    }

    /// [`Ops::split_qkvz`]
    pub fn split_qkvz(&self, x: &B::Tensor, shape: &GdnShape) -> Result<(B::Tensor, B::Tensor)> {
        check::split_qkvz(x.shape(), shape)?;
        self.0.split_qkvz(x, shape)
    }

    /// [`Ops::embed`]
    pub fn embed(&self, table: &B::Linear, batch: &Batch<B>, scale: f32) -> Result<B::Tensor> {
        check::embed(table.shape(), batch.tokens())?;
        self.0.embed(table, batch, scale)
    }

    /// [`Ops::matmuls`]
    pub fn matmuls(&self, x: &B::Tensor, weights: &B::Linear) -> Result<Vec<B::Tensor>> {
        check::matmuls("matmul", x.shape(), weights.shape())?;
        self.0.matmuls(x, weights)
    }

    /// The same of as many matrices as are expected.
    pub fn matmuls_of<const N: usize>(&self, x: &B::Tensor, weights: &B::Linear) -> Result<[B::Tensor; N]> {
        let count = weights.shape().len();
        let wrong = |_| check::error("matmul", "the number of matrices", count, N);
        self.matmuls(x, weights)?.try_into().map_err(wrong)
    }

    /// The same of the one matrix.
    pub fn matmul(&self, x: &B::Tensor, weight: &B::Linear) -> Result<B::Tensor> {
        let [y] = self.matmuls_of(x, weight)?;
        Ok(y)
    }

    /// [`Ops::matmul_add`]
    pub fn matmul_add(&self, x: &B::Tensor, weight: &B::Linear, residual: B::Tensor) -> Result<B::Tensor> {
        let shape = check::matmul("matmul_add", x.shape(), weight.shape())?;
        check::equal("matmul_add", "the residual", residual.shape(), shape)?;
        self.0.matmul_add(x, weight, residual)
    }

    /// [`Ops::gate_up`]
    pub fn gate_up(&self, x: &B::Tensor, gate_up: &B::Linear, activation: Activation) -> Result<B::Tensor> {
        check::gate_up(x.shape(), gate_up.shape())?;
        self.0.gate_up(x, gate_up, activation)
    }

    /// [`Ops::glu`]
    pub fn glu(&self, gate: B::Tensor, up: &B::Tensor, activation: Activation) -> Result<B::Tensor> {
        check::equal("glu", "up", up.shape(), gate.shape())?;
        self.0.glu(gate, up, activation)
    }

    /// [`Ops::rms_norm`]
    pub fn rms_norm(&self, x: &B::Tensor, w: Option<&B::Tensor>, eps: f32) -> Result<B::Tensor> {
        w.map_or(Ok(()), |w| check::vector("rms_norm", "w", w.shape(), x.shape().cols))?;
        self.0.rms_norm(x, w, eps)
    }

    /// [`Ops::rms_norm_heads`]
    pub fn rms_norm_heads(
        &self,
        x: B::Tensor,
        w: Option<&B::Tensor>,
        heads: usize,
        eps: f32,
    ) -> Result<B::Tensor> {
        let width = check::heads("rms_norm_heads", "the width of x", x.shape().cols, heads)?;
        w.map_or(Ok(()), |w| check::vector("rms_norm_heads", "w", w.shape(), width))?;
        self.0.rms_norm_heads(x, w, heads, eps)
    }

    /// [`Ops::norm_add`]
    pub fn norm_add(
        &self,
        r: &B::Tensor,
        x: &B::Tensor,
        w: &B::Tensor,
        eps: f32,
        factor: f32,
    ) -> Result<B::Tensor> {
        check::norm_add(r.shape(), x.shape(), w.shape())?;
        self.0.norm_add(r, x, w, eps, factor)
    }

    /// [`Ops::gated_norm`]
    pub fn gated_norm(
        &self,
        v: &B::Tensor,
        z: &B::Tensor,
        w: &B::Tensor,
        heads: usize,
        eps: f32,
    ) -> Result<B::Tensor> {
        check::gated_norm(v.shape(), z.shape(), w.shape(), heads)?;
        self.0.gated_norm(v, z, w, heads, eps)
    }

    /// [`Ops::sigmoid_gate`]
    pub fn sigmoid_gate(&self, x: B::Tensor, g: &B::Tensor) -> Result<B::Tensor> {
        check::equal("sigmoid_gate", "g", g.shape(), x.shape())?;
        self.0.sigmoid_gate(x, g)
    }

    /// [`Ops::rope`]
    pub fn rope(&self, x: B::Tensor, batch: &Batch<B>, rope: &B::Rope, heads: usize) -> Result<B::Tensor> {
        check::rope(x.shape(), batch.spans(), heads, rope.shape())?;
        self.0.rope(x, batch, rope, heads)
    }

    /// [`Ops::kv_append`]
    pub fn kv_append(
        &self,
        k: &B::Tensor,
        v: &B::Tensor,
        batch: &Batch<B>,
        slabs: &mut B::Slabs,
        layer: usize,
    ) -> Result<()> {
        check::append("kv_append", k.shape(), v.shape(), batch.spans(), &batch.kv_shape(layer)?)?;
        self.0.kv_append(k, v, batch, slabs, layer)
    }

    /// [`Ops::sdpa`]
    pub fn sdpa(
        &self,
        q: &B::Tensor,
        batch: &Batch<B>,
        slabs: &B::Slabs,
        layer: usize,
        scores: &Scores,
    ) -> Result<B::Tensor> {
        check::sdpa(q.shape(), scores, batch.spans(), &batch.kv_shape(layer)?)?;
        self.0.sdpa(q, batch, slabs, layer, scores)
    }

    /// [`Ops::mla_absorb_q`]
    pub fn mla_absorb_q(&self, q: &B::Tensor, weights: &B::HeadMatrices) -> Result<B::Tensor> {
        check::head_matmul("mla_absorb_q", q.shape(), weights.shape())?;
        self.0.mla_absorb_q(q, weights)
    }

    /// [`Ops::mla_append`]
    pub fn mla_append(
        &self,
        latent: &B::Tensor,
        k_pe: &B::Tensor,
        batch: &Batch<B>,
        slabs: &mut B::Slabs,
        layer: usize,
    ) -> Result<()> {
        check::mla_append(latent.shape(), k_pe.shape(), batch.spans(), &batch.kv_shape(layer)?)?;
        self.0.mla_append(latent, k_pe, batch, slabs, layer)
    }

    /// [`Ops::mla_attention`]
    pub fn mla_attention(
        &self,
        q: &B::Tensor,
        q_pe: &B::Tensor,
        batch: &Batch<B>,
        slabs: &B::Slabs,
        layer: usize,
        scores: &LatentScores,
    ) -> Result<B::Tensor> {
        check::mla_attention(q.shape(), q_pe.shape(), scores.heads, batch.spans(), &batch.kv_shape(layer)?)?;
        self.0.mla_attention(q, q_pe, batch, slabs, layer, scores)
    }

    /// [`Ops::mla_unabsorb`]
    pub fn mla_unabsorb(&self, o: &B::Tensor, weights: &B::HeadMatrices) -> Result<B::Tensor> {
        check::head_matmul("mla_unabsorb", o.shape(), weights.shape())?;
        self.0.mla_unabsorb(o, weights)
    }

    /// [`Ops::route`]
    pub fn route(&self, logits: &B::Tensor, routing: &Routing<B::Tensor>) -> Result<B::Routes> {
        check::route(logits.shape(), routing)?;
        self.0.route(logits, routing)
    }

    /// [`Ops::experts`]
    pub fn experts(
        &self,
        x: &B::Tensor,
        routes: &B::Routes,
        weights: &B::Experts,
        activation: Activation,
    ) -> Result<B::Tensor> {
        check::experts(x.shape(), routes.shape(), weights.shape())?;
        self.0.experts(x, routes, weights, activation)
    }

    /// [`Ops::shared_expert`]
    pub fn shared_expert(
        &self,
        x: &B::Tensor,
        weights: &B::Experts,
        activation: Activation,
    ) -> Result<Option<B::Tensor>> {
        check::equal("shared_expert", "the width of x", x.shape().cols, weights.shape().hidden)?;
        self.0.shared_expert(x, weights, activation)
    }

    /// [`Ops::combine`]
    pub fn combine(
        &self,
        h: &B::Tensor,
        moe: &B::Tensor,
        shared: Shared<'_, B::Tensor>,
    ) -> Result<B::Tensor> {
        check::combine(h.shape(), moe.shape(), &shared)?;
        self.0.combine(h, moe, shared)
    }

    /// [`Ops::combine_norm`]
    pub fn combine_norm(
        &self,
        a: &B::Tensor,
        wa: &B::Tensor,
        b: &B::Tensor,
        wb: &B::Tensor,
        eps: f32,
    ) -> Result<B::Tensor> {
        check::combine_norm(a.shape(), wa.shape(), b.shape(), wb.shape())?;
        self.0.combine_norm(a, wa, b, wb, eps)
    }

    /// [`Ops::conv_causal`]
    pub fn conv_causal(
        &self,
        x: &B::Tensor,
        w: &B::Tensor,
        batch: &Batch<B>,
        slabs: &mut B::Slabs,
        layer: usize,
    ) -> Result<B::Tensor> {
        check::conv_causal(x.shape(), w.shape(), batch.spans(), &batch.gdn_shape(layer)?)?;
        self.0.conv_causal(x, w, batch, slabs, layer)
    }

    /// [`Ops::gdn_qk_norm`]
    pub fn gdn_qk_norm(&self, qkv: B::Tensor, shape: &GdnShape) -> Result<B::Tensor> {
        check::gdn_shape("gdn_qk_norm", shape)?;
        check::equal("gdn_qk_norm", "the width of qkv", qkv.shape().cols, shape.channels())?;
        self.0.gdn_qk_norm(qkv, shape)
    }

    /// [`Ops::gdn_gates`]
    pub fn gdn_gates(
        &self,
        a: &B::Tensor,
        b: &B::Tensor,
        vectors: &GdnVectors<B::Tensor>,
    ) -> Result<(B::Tensor, B::Tensor)> {
        check::gdn_gates(a.shape(), b.shape(), vectors.a_log.shape(), vectors.dt_bias.shape())?;
        self.0.gdn_gates(a, b, vectors)
    }

    /// [`Ops::gdn`]
    pub fn gdn(
        &self,
        qkv: &B::Tensor,
        g: &B::Tensor,
        beta: &B::Tensor,
        batch: &Batch<B>,
        slabs: &mut B::Slabs,
        layer: usize,
    ) -> Result<B::Tensor> {
        check::gdn(qkv.shape(), g.shape(), beta.shape(), batch.spans(), &batch.gdn_shape(layer)?)?;
        self.0.gdn(qkv, g, beta, batch, slabs, layer)
    }
}

/// [`Blocks`], checked. The widths of the residual stream are the models' business: a block's own weights are checked
/// against each other and against the caches, and the stream against them when it meets a tensor.
impl<B: Blocks> Checked<'_, B> {
    /// [`Blocks::attention`]
    pub fn attention(
        &self,
        h: B::Hidden,
        w: &Attention<B>,
        batch: &Batch<B>,
        slabs: &mut B::Slabs,
        layer: usize,
    ) -> Result<B::Hidden> {
        check::blocks::attention(w, &batch.kv_shape(layer)?)?;
        self.0.attention(h, w, batch, slabs, layer)
    }

    /// [`Blocks::latent_attention`]
    pub fn latent_attention(
        &self,
        h: B::Hidden,
        w: &LatentAttention<B>,
        batch: &Batch<B>,
        slabs: &mut B::Slabs,
        layer: usize,
    ) -> Result<B::Hidden> {
        check::blocks::latent_attention(w, &batch.kv_shape(layer)?)?;
        self.0.latent_attention(h, w, batch, slabs, layer)
    }

    /// [`Blocks::gated_delta`]
    pub fn gated_delta(
        &self,
        h: B::Hidden,
        w: &GatedDelta<B>,
        batch: &Batch<B>,
        slabs: &mut B::Slabs,
        layer: usize,
    ) -> Result<B::Hidden> {
        check::blocks::gated_delta(w, &batch.gdn_shape(layer)?)?;
        self.0.gated_delta(h, w, batch, slabs, layer)
    }

    /// [`Blocks::mlp`]
    pub fn mlp(&self, h: B::Hidden, w: &Mlp<B>) -> Result<B::Hidden> {
        check::blocks::mlp(w)?;
        self.0.mlp(h, w)
    }

    /// [`Blocks::moe`]
    pub fn moe(&self, h: B::Hidden, w: &Moe<B>) -> Result<B::Hidden> {
        check::blocks::moe(w)?;
        self.0.moe(h, w)
    }

    /// [`Blocks::logits`]
    pub fn logits(&self, h: &B::Tensor, w: &Head<'_, B>) -> Result<B::Tensor> {
        check::vector("logits", "the norm", w.norm.w.shape(), h.shape().cols)?;
        check::matmul("logits", h.shape(), w.linear.shape())?;
        self.0.logits(h, w)
    }
}
