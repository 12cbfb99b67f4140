//! The operations: record kernels.

use ::backend::{
    Activation, Batch, GdnShape, GdnVectors, Handle, LatentScores, Ops, Result, Routing, Scores, Shape,
    Shared, Span, StepTables,
};

use crate::ops::attention::{Cached, Queries};
use crate::ops::gdn::Gates;
use crate::ops::layout::PartOfHeads;
use crate::ops::rounded::Prologue;
use crate::recorder::Copy;
use crate::tensor::{floats, numbers};
use crate::weights::SharedExpert;
use crate::{Experts, Gpu, HeadMatrices, Linear, Positions, Rope, Routes, Slabs, Tensor};

impl Ops for Gpu {
    type Routes = Routes;
    type Slabs = Slabs;
    type BatchData = Positions;

    fn prepare_batch(
        &self,
        tokens: &[u32],
        spans: &[Span],
        tables: &StepTables,
        slabs: &Slabs,
    ) -> Result<Positions> {
        self.positions(tokens, spans, tables, slabs)
    }

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        let y = self.tensor(rows, cols)?;
        self.recorder.write(y.buffer(), bytemuck::cast_slice(values));
        Ok(y)
    }

    fn read(&self, x: &Tensor) -> Result<Vec<f32>> {
        let [bytes] = self.recorder.read([(x.buffer(), 4 * x.shape().len() as u64)])?;
        Ok(floats(&bytes))
    }

    fn read_routes(&self, routes: &Routes) -> Result<(Vec<u32>, Vec<f32>)> {
        let len = 4 * (routes.tokens * routes.top_k) as u64;
        let [ids, weights] = self.recorder.read([(&routes.ids, len), (&routes.weights, len)])?;
        Ok((numbers(&ids), floats(&weights)))
    }

    fn reshape(&self, x: Tensor, rows: usize, cols: usize) -> Result<Tensor> {
        Ok(x.with_shape(Shape { rows, cols }))
    }

    fn select_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        self.select_rows_of(x, rows)
    }

    fn columns(&self, x: &Tensor, start: usize, width: usize) -> Result<Tensor> {
        self.part_of_heads(x, PartOfHeads { heads: 1, stride: x.shape().cols, offset: start, width })
    }

    fn join_rows(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let rows = parts.iter().map(|part| part.shape().rows).sum();
        let cols = parts.first().map_or(0, |part| part.shape().cols);
        let y = self.tensor(rows, cols)?;
        let mut to = 0;
        for part in parts {
            let len = 4 * (part.shape().rows * cols) as u64;
            self.recorder.copy(part.buffer(), y.buffer(), &[Copy { from: 0, to, len }]);
            to += len;
        }
        Ok(y)
    }

    fn join_columns(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.join_columns_of(a, b)
    }

    fn split_heads(&self, x: &Tensor, heads: usize, first: usize) -> Result<(Tensor, Tensor)> {
        let (a, b) = (first, x.shape().cols / heads - first);
        let part = |offset, width| self.part_of_heads(x, PartOfHeads { heads, stride: a + b, offset, width });
        Ok((part(0, a)?, part(a, b)?))
    }

    fn split_qkvz(&self, x: &Tensor, shape: &GdnShape) -> Result<(Tensor, Tensor)> {
        self.split_qkvz_of(x, shape)
    }

    fn embed(&self, table: &Linear, batch: &Batch<Self>, scale: f32) -> Result<Tensor> {
        self.embed_of(table.only(), batch, scale)
    }

    fn matmuls(&self, x: &Tensor, weights: &Linear) -> Result<Vec<Tensor>> {
        Ok(self.products(&Prologue::Plain(x), weights)?.parts)
    }

    fn matmul_add(&self, x: &Tensor, weight: &Linear, residual: Tensor) -> Result<Tensor> {
        self.product(&self.input(x)?, weight.only(), Some(&residual))
    }

    fn gate_up(&self, x: &Tensor, gate_up: &Linear, activation: Activation) -> Result<Tensor> {
        self.gate_up_of(&Prologue::Plain(x), gate_up, activation)
    }

    fn glu(&self, gate: Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        self.glu_of(&gate, up, activation)
    }

    fn soft_cap(&self, x: Tensor, cap: f32) -> Result<Tensor> {
        self.soft_cap_of(&x, cap)
    }

    fn rms_norm(&self, x: &Tensor, w: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        self.rms_norm_of(x, w, x.shape().cols, eps)
    }

    fn rms_norm_heads(&self, x: Tensor, w: Option<&Tensor>, heads: usize, eps: f32) -> Result<Tensor> {
        self.rms_norm_of(&x, w, x.shape().cols / heads, eps)
    }

    fn norm_add(&self, r: &Tensor, x: &Tensor, w: &Tensor, eps: f32, factor: f32) -> Result<Tensor> {
        self.norm_add_of([r, x, w], eps, factor)
    }

    fn gated_norm(&self, v: &Tensor, z: &Tensor, w: &Tensor, heads: usize, eps: f32) -> Result<Tensor> {
        self.gated_norm_of([v, z, w], v.shape().cols / heads, eps)
    }

    fn sigmoid_gate(&self, x: Tensor, g: &Tensor) -> Result<Tensor> {
        self.sigmoid_gate_of(&x, g)
    }

    fn rope(&self, x: Tensor, batch: &Batch<Self>, rope: &Rope, heads: usize) -> Result<Tensor> {
        self.rope_of(&x, batch, rope, x.shape().cols / heads)
    }

    fn kv_append(
        &self,
        k: &Tensor,
        v: &Tensor,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<()> {
        let cached = Cached::of(slabs, layer, batch)?;
        self.append((k, None), cached.slab.keys(), &cached);
        if let Some(values) = cached.slab.values() {
            self.append((v, None), values, &cached);
        }
        Ok(())
    }

    fn sdpa(
        &self,
        q: &Tensor,
        batch: &Batch<Self>,
        slabs: &Slabs,
        layer: usize,
        scores: &Scores,
    ) -> Result<Tensor> {
        let cached = Cached::of(slabs, layer, batch)?;
        let value_width = cached.slab.shape.value_dim;
        self.attend(&Queries { q, more: None, scores: *scores, value_width, gate: None }, &cached)
    }

    fn mla_absorb_q(&self, q: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        self.head_product(q, weights)
    }

    fn mla_append(
        &self,
        latent: &Tensor,
        k_pe: &Tensor,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<()> {
        let cached = Cached::of(slabs, layer, batch)?;
        self.append((latent, Some(k_pe)), cached.slab.keys(), &cached);
        Ok(())
    }

    fn mla_attention(
        &self,
        q: &Tensor,
        q_pe: &Tensor,
        batch: &Batch<Self>,
        slabs: &Slabs,
        layer: usize,
        scores: &LatentScores,
    ) -> Result<Tensor> {
        let LatentScores { heads, scale } = *scores;
        let scores = Scores { heads, scale, window: None, soft_cap: None };
        let value_width = q.shape().cols / heads;
        let queries = Queries { q, more: Some(q_pe), scores, value_width, gate: None };
        self.attend(&queries, &Cached::of(slabs, layer, batch)?)
    }

    fn mla_unabsorb(&self, o: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        self.head_product(o, weights)
    }

    fn route(&self, logits: &Tensor, routing: &Routing<Tensor>) -> Result<Routes> {
        self.route_of(logits, routing, None)
    }

    fn experts(
        &self,
        x: &Tensor,
        routes: &Routes,
        weights: &Experts,
        activation: Activation,
    ) -> Result<Tensor> {
        self.experts_of(&self.input(x)?, routes, weights, activation)
    }

    fn shared_expert(&self, x: &Tensor, weights: &Experts, activation: Activation) -> Result<Option<Tensor>> {
        match &weights.shared {
            SharedExpert::Absent => Ok(None),
            SharedExpert::Apart { gate_up, down } => {
                let hidden = self.gate_up(x, gate_up, activation)?;
                self.product(&self.input(&hidden)?, down.only(), None).map(Some)
            }
            SharedExpert::Behind => {
                let routes = self.routes_to(weights.count, x.shape().rows)?;
                self.experts_of(&self.input(x)?, &routes, weights, activation).map(Some)
            }
        }
    }

    fn combine(&self, h: &Tensor, moe: &Tensor, shared: Shared<'_, Tensor>) -> Result<Tensor> {
        self.combine_of(h, moe, &shared)
    }

    fn combine_norm(&self, a: &Tensor, wa: &Tensor, b: &Tensor, wb: &Tensor, eps: f32) -> Result<Tensor> {
        self.combine_norm_of([a, wa, b, wb], eps)
    }

    fn conv_causal(
        &self,
        x: &Tensor,
        w: &Tensor,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Tensor> {
        self.conv((x.buffer(), x.shape().cols), w, (batch, 1), slabs.recurrent_mut(layer)?)
    }

    fn gdn_qk_norm(&self, qkv: Tensor, shape: &GdnShape) -> Result<Tensor> {
        self.gdn_qk_norm_of(&qkv, shape)
    }

    fn gdn_gates(&self, a: &Tensor, b: &Tensor, vectors: &GdnVectors<Tensor>) -> Result<(Tensor, Tensor)> {
        let Shape { rows, cols } = a.shape();
        self.gdn_gates_of(([a.buffer(), b.buffer()], cols), rows, vectors)
    }

    fn gdn(
        &self,
        qkv: &Tensor,
        g: &Tensor,
        beta: &Tensor,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Tensor> {
        let slab = slabs.recurrent(layer)?;
        let y = self.tensor(batch.rows(), slab.shape.value_total())?;
        self.recurrence(qkv, Gates::Ready([g, beta]), (batch, 1), slab, &y)?;
        Ok(y)
    }
}
