//! The operations of the trait: check shapes, record kernels.

use std::sync::Arc;

use ::backend::{
    Activation, Attention, AttentionWeights, Backend, Batch, Error, Factor, GdnShape, GdnWeights,
    GroupedSigmoid, Handle, KvImage, KvShape, LatentAttention, LatentWeights, LayerEnd, LayerStart, Mask,
    MoeWeights, Norm, OperationTime, RecurrentImage, Result, RopeSpec, Routing, Shape, Shared, Span,
    UnitWeights, check, compositions,
};
use checkpoint::Weight;

use crate::ops::attention::Queries;
use crate::ops::attention_step::Attended;
use crate::ops::layout::PartOfHeads;
use crate::ops::product::neighbours;
use crate::ops::rounded::{Besides, Prologue};
use crate::ops::route;
use crate::recorder::Copy;
use crate::recurrent::{floats, numbers};
use crate::weights::{SharedExpert, Source, UpStacks};
use crate::{
    Chosen, Experts, Gpu, HeadMatrices, KvCache, Matrix, Numerics, Positions, Recorded, Recurrent, Rope,
    Routes, Tensor,
};

impl Gpu {
    /// Appends to every cache or, when one does not fit, to none.
    fn append_all(
        &self,
        operation: &'static str,
        (k, v): (Shape, Shape),
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
        write: impl Fn(&KvCache, &Span),
    ) -> Result<()> {
        let held = caches.iter().map(|cache| (cache.shape, cache.len()));
        check::append(operation, k, v, batch.spans(), held)?;
        for (span, cache) in batch.spans().iter().zip(caches.iter_mut()) {
            self.reserve(cache, span.len)?;
        }
        for (span, cache) in batch.spans().iter().zip(caches) {
            write(cache, span);
            cache.advance(span.len);
        }
        Ok(())
    }

    fn gate_up_of(
        &self,
        input: &Prologue<'_>,
        [gate, up]: [&Matrix; 2],
        activation: Activation,
    ) -> Result<Tensor> {
        if let Some(rows) = Self::gate_up_rows([gate, up])
            && self.prepares(input, &gate.stack)
        {
            let besides = Besides { glu: Some(activation), ..Besides::default() };
            return self.rounded_product(input, &gate.stack, rows, &besides);
        }
        let [gate, up] = self.products(input, [gate, up])?;
        self.glu_of(&gate, &up, activation)
    }

    fn checked_head_product(
        &self,
        operation: &'static str,
        x: &Tensor,
        weights: &HeadMatrices,
    ) -> Result<Tensor> {
        let shape = check::head_product(operation, x.shape(), weights.count, weights.product_shape())?;
        self.head_product(x, weights, shape)
    }

    pub(crate) fn start_recorded(&self, recorded: Recorded) {
        self.recorder.start(recorded.segments);
        if let Some(shelf) = recorded.shelf {
            self.pool.give_back(shelf);
        }
    }
}

impl Backend for Gpu {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type HeadMatrices = HeadMatrices;
    type Experts = Experts;
    type Rope = Rope;
    type Routes = Routes;
    type KvCache = KvCache;
    type Recurrent = Recurrent;
    type BatchData = Positions;
    type Recorded = Recorded;
    type Chosen = Chosen;

    fn description(&self) -> String {
        let adapter = self.adapter();
        let software = if adapter.software { ", software" } else { "" };
        let numerics = match self.numerics() {
            Numerics::Fast => "fast",
            Numerics::Exact => "exact",
        };
        format!("GPU {}, {}{software}, {numerics} numerics", adapter.name, adapter.api)
    }

    fn free_memory(&self) -> Option<u64> {
        self.device.free_memory()
    }

    fn take_profile(&self) -> Vec<OperationTime> {
        self.recorder.take_profile()
    }

    fn matrix(&self, weight: &Weight) -> Result<Matrix> {
        check::matrix(weight)?;
        let bias = self.bias(weight)?;
        let stack = Arc::new(self.stack(Source::one(weight))?);
        Ok(Matrix { rows: weight.rows, first: 0, stack, bias })
    }

    fn matrices<const N: usize>(&self, weights: [&Weight; N]) -> Result<[Matrix; N]> {
        for weight in weights {
            check::matrix(weight)?;
        }
        if let Some(joined) = self.joined(weights)? {
            return Ok(joined);
        }
        let matrices = weights.iter().map(|weight| self.matrix(weight)).collect::<Result<Vec<_>>>()?;
        matrices.try_into().map_err(|_| unreachable!("as many matrices as weights"))
    }

    fn head_matrices(&self, weight: &Weight, transposed: bool) -> Result<HeadMatrices> {
        if weight.bias.is_some() {
            return Err(Error::Unsupported("head_matrices: biases are not supported".into()));
        }
        let stack = self.stack(Source::one(weight))?;
        Ok(HeadMatrices { count: weight.count, rows: weight.rows, stack, transposed })
    }

    fn expert_weights(&self, stacks: [&Weight; 3], shared: Option<[&Weight; 3]>) -> Result<Experts> {
        let shape = check::expert_weights(stacks, shared)?;
        let [gate, up, down] = stacks;
        let alternate = gate.format == up.format;
        let alike = |(shared, weight): (&&Weight, &&Weight)| {
            (shared.format, shared.rows, shared.cols) == (weight.format, weight.rows, weight.cols)
                && shared.bias.is_none()
        };
        let slots = self.stream.as_ref().map(|stream| stream.slots(stacks)).transpose()?.flatten();
        let stack = |source: Source| self.expert_stack(source, slots.as_ref());
        // A shared expert like the others is one more of them, unless they come and go.
        let like_others = |shared: &[&Weight; 3]| alternate && shared.iter().zip(&stacks).all(alike);
        let behind = shared.filter(|shared| slots.is_none() && like_others(shared));
        let up_stacks = if alternate {
            let behind = behind.map(|[gate, up, _]| [gate, up]);
            UpStacks::Alternating(stack(Source::in_turn([gate, up], behind))?)
        } else {
            UpStacks::Apart { gate: stack(Source::one(gate))?, up: stack(Source::one(up))? }
        };
        let down = stack(Source::in_turn([down], behind.map(|[_, _, down]| [down])))?;
        let shared = match (behind, shared) {
            (Some(_), _) => SharedExpert::Behind,
            (None, Some([gate, up, down])) => {
                let [gate, up] = self.matrices([gate, up])?;
                SharedExpert::Apart([gate, up, self.matrix(down)?])
            }
            (None, None) => SharedExpert::Absent,
        };
        let (hidden, width) = (shape.cols, shape.rows);
        Ok(Experts { count: gate.count, hidden, width, up: up_stacks, down, shared, slots })
    }

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        check::equal("upload", "the number of values", values.len(), rows * cols)?;
        let y = self.tensor(rows, cols)?;
        self.recorder.write(y.buffer(), bytemuck::cast_slice(values));
        Ok(y)
    }

    fn rope_table(&self, spec: &RopeSpec) -> Result<Rope> {
        Ok(self.ropes.add(spec))
    }

    fn prepare_batch(&self, tokens: &[u32], spans: &[Span]) -> Result<Positions> {
        self.positions(tokens, spans)
    }

    fn read(&self, x: &Tensor) -> Result<Vec<f32>> {
        let [bytes] = self.recorder.read([(x.buffer(), 4 * x.shape().len() as u64)])?;
        Ok(floats(&bytes))
    }

    fn sooner_alone(&self) -> usize {
        // Measured on an H200 (docs/performance.md). Experts that are read from disk are read once for all.
        let alone = self.device.chains() && self.device.rounds && self.stream.is_none();
        if alone { self.device.profile.steps_alone } else { 1 }
    }

    fn beside(&self, task: Box<dyn FnOnce() + Send>) {
        self.aside.push(task);
    }

    fn read_top(&self, x: &Tensor, k: usize) -> Result<Vec<Vec<(u32, f32)>>> {
        self.top(x, k)
    }

    fn read_routes(&self, routes: &Routes) -> Result<(Vec<u32>, Vec<f32>)> {
        let len = 4 * (routes.tokens * routes.top_k) as u64;
        let [ids, weights] = self.recorder.read([(&routes.ids, len), (&routes.weights, len)])?;
        Ok((numbers(&ids), floats(&weights)))
    }

    /// Experts that are read from disk are waited for in the middle of a step.
    fn records_ahead(&self) -> bool {
        self.stream.is_none() && !self.recorder.is_timed()
    }

    fn record<T, E: From<Error>>(
        &self,
        step: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<(T, Recorded), E> {
        self.pool.set_apart();
        let captured = self.recorder.capture(step);
        let shelf = self.pool.rejoin();
        let (result, segments) = captured?;
        Ok((result, Recorded { segments, shelf }))
    }

    fn start(&self, mut recorded: Recorded, batch: &Batch<Self>, token: u32) -> Result<()> {
        recorded.replace(&batch.data().tokens, &token.to_ne_bytes())?;
        self.start_recorded(recorded);
        Ok(())
    }

    fn choose(&self, logits: &Tensor) -> Result<Chosen> {
        check::equal("choose", "the rows of logits", logits.shape().rows, 1)?;
        self.choose_largest(logits)
    }

    fn prepare_chosen(&self, chosen: &Chosen, span: Span) -> Result<Positions> {
        self.positions_of(chosen.token().clone(), &[span])
    }

    fn read_chosen(&self, chosen: Chosen) -> Result<(u32, f32)> {
        self.chosen(chosen)
    }

    fn reshape(&self, x: Tensor, rows: usize, cols: usize) -> Result<Tensor> {
        let shape = check::reshape(x.shape(), rows, cols)?;
        Ok(x.with_shape(shape))
    }

    fn select_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        check::select_rows(x.shape(), rows)?;
        self.select_rows_of(x, rows)
    }

    fn columns(&self, x: &Tensor, start: usize, width: usize) -> Result<Tensor> {
        check::columns(x.shape(), start, width)?;
        self.part_of_heads(x, PartOfHeads { heads: 1, stride: x.shape().cols, offset: start, width })
    }

    fn join_rows(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let Shape { rows, cols } = check::join_rows(parts.iter().map(|part| part.shape()))?;
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
        check::join_columns(a.shape(), b.shape())?;
        self.join_columns_of(a, b)
    }

    fn split_heads(&self, x: &Tensor, heads: usize, first: usize) -> Result<(Tensor, Tensor)> {
        let (a, b) = check::split_heads(x.shape(), heads, first)?;
        let part = |offset, width| self.part_of_heads(x, PartOfHeads { heads, stride: a + b, offset, width });
        Ok((part(0, a)?, part(a, b)?))
    }

    fn split_qkvz(&self, x: &Tensor, shape: &GdnShape) -> Result<(Tensor, Tensor)> {
        check::split_qkvz(x.shape(), shape)?;
        self.split_qkvz_of(x, shape)
    }

    fn embed(&self, table: &Matrix, batch: &Batch<Self>, scale: f32) -> Result<Tensor> {
        check::embed(table.shape(), batch.tokens())?;
        self.embed_of(table, batch, scale)
    }

    fn matmuls<const N: usize>(&self, x: &Tensor, weights: [&Matrix; N]) -> Result<[Tensor; N]> {
        for w in weights {
            check::matmul("matmul", x.shape(), w.shape())?;
        }
        self.products(&Prologue::Plain(x), weights)
    }

    fn norm_matmuls<const N: usize>(
        &self,
        x: &Tensor,
        norm: Norm<'_, Tensor>,
        weights: [&Matrix; N],
    ) -> Result<[Tensor; N]> {
        check::vector("rms_norm", "w", norm.w.shape(), x.shape().cols)?;
        for w in weights {
            check::matmul("matmul", x.shape(), w.shape())?;
        }
        self.products(&Prologue::Norm(x, norm), weights)
    }

    fn matmul_add(&self, x: &Tensor, weight: &Matrix, residual: Tensor) -> Result<Tensor> {
        let shape = check::matmul("matmul_add", x.shape(), weight.shape())?;
        check::equal("matmul_add", "the residual", residual.shape(), shape)?;
        self.product(&self.input(x)?, weight, Some(&residual))
    }

    fn gate_up(&self, x: &Tensor, gate: &Matrix, up: &Matrix, activation: Activation) -> Result<Tensor> {
        check::gate_up(x.shape(), gate.shape(), up.shape())?;
        self.gate_up_of(&Prologue::Plain(x), [gate, up], activation)
    }

    fn norm_gate_up(
        &self,
        x: &Tensor,
        norm: Norm<'_, Tensor>,
        [gate, up]: [&Matrix; 2],
        activation: Activation,
    ) -> Result<Tensor> {
        check::vector("rms_norm", "w", norm.w.shape(), x.shape().cols)?;
        check::gate_up(x.shape(), gate.shape(), up.shape())?;
        self.gate_up_of(&Prologue::Norm(x, norm), [gate, up], activation)
    }

    fn norm_add_gate_up(
        &self,
        r: &Tensor,
        [x, post]: [&Tensor; 2],
        norm: Norm<'_, Tensor>,
        gate_up: [&Matrix; 2],
        activation: Activation,
    ) -> Result<(Tensor, Tensor)> {
        check::residual_norm("norm_add", r.shape(), x.shape(), post.shape(), &Factor::<Tensor>::One)?;
        check::vector("rms_norm", "w", norm.w.shape(), x.shape().cols)?;
        check::gate_up(x.shape(), gate_up[0].shape(), gate_up[1].shape())?;
        let input = Prologue::NormAdd { r, x, post, norm };
        if let Some(both) = self.norm_add_gate_up_of(&input, gate_up, activation)? {
            return Ok(both);
        }
        let h = self.norm_add_of([r, x, post], norm.eps, &Factor::One)?;
        let hidden = self.gate_up_of(&Prologue::Norm(&h, norm), gate_up, activation)?;
        Ok((h, hidden))
    }

    fn glu(&self, gate: Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        check::equal("glu", "up", up.shape(), gate.shape())?;
        self.glu_of(&gate, up, activation)
    }

    fn soft_cap(&self, x: Tensor, cap: f32) -> Result<Tensor> {
        self.soft_cap_of(&x, cap)
    }

    fn rms_norm(&self, x: &Tensor, w: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        w.map_or(Ok(()), |w| check::vector("rms_norm", "w", w.shape(), x.shape().cols))?;
        self.rms_norm_of(x, w, x.shape().cols, eps)
    }

    fn rms_norm_heads(&self, x: Tensor, w: Option<&Tensor>, heads: usize, eps: f32) -> Result<Tensor> {
        let width = check::heads("rms_norm_heads", "the width of x", x.shape().cols, heads)?;
        w.map_or(Ok(()), |w| check::vector("rms_norm_heads", "w", w.shape(), width))?;
        self.rms_norm_of(&x, w, width, eps)
    }

    fn add_norm(
        &self,
        r: &Tensor,
        x: &Tensor,
        w: &Tensor,
        eps: f32,
        factor: Factor<'_, Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        check::residual_norm("add_norm", r.shape(), x.shape(), w.shape(), &factor)?;
        self.add_norm_of([r, x, w], eps, &factor)
    }

    fn norm_add(
        &self,
        r: &Tensor,
        x: &Tensor,
        w: &Tensor,
        eps: f32,
        factor: Factor<'_, Tensor>,
    ) -> Result<Tensor> {
        check::residual_norm("norm_add", r.shape(), x.shape(), w.shape(), &factor)?;
        self.norm_add_of([r, x, w], eps, &factor)
    }

    fn gated_norm(&self, v: &Tensor, z: &Tensor, w: &Tensor, heads: usize, eps: f32) -> Result<Tensor> {
        let width = check::gated_norm(v.shape(), z.shape(), w.shape(), heads)?;
        self.gated_norm_of([v, z, w], width, eps)
    }

    fn gated_norm_matmul_add(
        &self,
        [v, z]: [&Tensor; 2],
        norm: Norm<'_, Tensor>,
        heads: usize,
        weight: &Matrix,
        residual: Tensor,
    ) -> Result<Tensor> {
        let width = check::gated_norm(v.shape(), z.shape(), norm.w.shape(), heads)?;
        let shape = check::matmul("matmul_add", v.shape(), weight.shape())?;
        check::equal("matmul_add", "the residual", residual.shape(), shape)?;
        let input = Prologue::GatedNorm([v, z], norm);
        if self.prepares(&input, &weight.stack) {
            let bias = weight.bias.as_ref();
            let besides = Besides { bias, residual: Some(&residual), ..Besides::default() };
            let rows = weight.first..weight.first + weight.rows;
            return self.rounded_product(&input, &weight.stack, rows, &besides);
        }
        let x = self.gated_norm_of([v, z, norm.w], width, norm.eps)?;
        self.product(&self.input(&x)?, weight, Some(&residual))
    }

    fn sigmoid_gate(&self, x: Tensor, g: &Tensor) -> Result<Tensor> {
        check::equal("sigmoid_gate", "g", g.shape(), x.shape())?;
        self.sigmoid_gate_of(&x, g)
    }

    fn rope(&self, x: Tensor, batch: &Batch<Self>, rope: &Rope, heads: usize) -> Result<Tensor> {
        let width = check::rope(x.shape(), batch.spans(), heads, rope.rotary_dim())?;
        self.rope_of(&x, batch, rope, width)
    }

    fn kv_append(
        &self,
        k: &Tensor,
        v: &Tensor,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
    ) -> Result<()> {
        self.append_all("kv_append", (k.shape(), v.shape()), batch, caches, |cache, span| {
            self.append((k, None), cache.keys(), cache.shape.key_dim, cache, span);
            if let Some(values) = cache.values() {
                self.append((v, None), values, cache.shape.value_dim, cache, span);
            }
        })
    }

    fn attention(
        &self,
        q: &Tensor,
        batch: &Batch<Self>,
        caches: &[&KvCache],
        spec: &Attention,
    ) -> Result<Tensor> {
        let held = caches.iter().map(|cache| (cache.shape, cache.len()));
        let (_, value_width) = check::attention(q.shape(), spec, batch.spans(), held)?;
        let y = self.tensor(batch.rows(), spec.heads * value_width)?;
        let queries = Queries { q, more: None, spec: *spec, value_width, gate: None };
        for (span, cache) in batch.spans().iter().zip(caches) {
            self.attend(&queries, span, cache, &y)?;
        }
        Ok(y)
    }

    fn self_attention(
        &self,
        q: Tensor,
        kv: Option<[Tensor; 2]>,
        weights: &AttentionWeights<Self>,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
        spec: &Attention,
    ) -> Result<Tensor> {
        match self.attended((&q, kv.as_ref()), weights, batch, caches, (spec, false))? {
            Some(Attended::Whole(y)) => Ok(y),
            _ => compositions::self_attention(self, q, kv, weights, batch, caches, spec),
        }
    }

    fn self_attention_out(
        &self,
        (q, kv): (Tensor, Option<[Tensor; 2]>),
        weights: &AttentionWeights<Self>,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
        spec: &Attention,
        (out, residual): (&Matrix, Option<Tensor>),
    ) -> Result<Tensor> {
        let shared = self.rounds(q.shape().rows, &out.stack);
        let y = match self.attended((&q, kv.as_ref()), weights, batch, caches, (spec, shared))? {
            Some(Attended::Splits(splits)) => {
                let shape = check::matmul("matmul", splits.parts.shape(), out.shape())?;
                if let Some(residual) = &residual {
                    check::equal("matmul_add", "the residual", residual.shape(), shape)?;
                }
                let besides =
                    Besides { bias: out.bias.as_ref(), residual: residual.as_ref(), ..Besides::default() };
                let rows = out.first..out.first + out.rows;
                return self.rounded_product(&Prologue::Splits(&splits), &out.stack, rows, &besides);
            }
            Some(Attended::Whole(y)) => y,
            None => compositions::self_attention(self, q, kv, weights, batch, caches, spec)?,
        };
        compositions::projected(self, &y, (out, residual))
    }

    fn mla_absorb_q(&self, q: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        self.checked_head_product("mla_absorb_q", q, weights)
    }

    fn mla_append(
        &self,
        latent: &Tensor,
        k_pe: &Tensor,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
    ) -> Result<()> {
        check::equal("mla_append", "the rows of k_pe", k_pe.shape().rows, latent.shape().rows)?;
        let rows = latent.shape().rows;
        let keys = Shape { rows, cols: latent.shape().cols + k_pe.shape().cols };
        self.append_all("mla_append", (keys, Shape { rows, cols: 0 }), batch, caches, |cache, span| {
            self.append((latent, Some(k_pe)), cache.keys(), cache.shape.key_dim, cache, span);
        })
    }

    fn mla_attention(
        &self,
        q: &Tensor,
        q_pe: &Tensor,
        batch: &Batch<Self>,
        caches: &[&KvCache],
        spec: &LatentAttention,
    ) -> Result<Tensor> {
        let held = caches.iter().map(|cache| (cache.shape, cache.len()));
        let (rank, _) =
            check::mla_attention("mla_attention", q.shape(), q_pe.shape(), spec.heads, batch.spans(), held)?;
        let y = self.tensor(batch.rows(), q.shape().cols)?;
        let spec = Attention { heads: spec.heads, scale: spec.scale, mask: Mask::Causal, soft_cap: None };
        let queries = Queries { q, more: Some(q_pe), spec, value_width: rank, gate: None };
        for (span, cache) in batch.spans().iter().zip(caches) {
            self.attend(&queries, span, cache, &y)?;
        }
        Ok(y)
    }

    fn mla_unabsorb(&self, o: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        self.checked_head_product("mla_unabsorb", o, weights)
    }

    fn latent_attention(
        &self,
        q: &Tensor,
        kv: &Tensor,
        weights: &LatentWeights<Self>,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
        spec: &LatentAttention,
    ) -> Result<Tensor> {
        let (rank, pe) = (weights.norm.shape().cols, weights.rope.rotary_dim());
        let (q_shape, kv_shape) = (q.shape(), kv.shape());
        // What does not fit is refused by the parts.
        if let ([cache], [span]) = (&mut *caches, batch.spans())
            && (q_shape.rows, kv_shape.rows, span.len) == (1, 1, 1)
            && q_shape.cols == spec.heads * (weights.nope + pe)
            && kv_shape.cols == rank + pe
            && (cache.shape.heads, cache.shape.key_dim, cache.shape.value_dim) == (1, rank + pe, 0)
            && span.position == cache.len()
        {
            if let Some(y) = self.latent_heads([q, kv], weights, batch, span, cache, spec)? {
                return Ok(y);
            }
            let [q, q_pe] = self.latent_step([q, kv], weights, batch, span, cache, spec.heads)?;
            return self.mla(&q, &q_pe, &weights.mla, batch, &[&**cache], spec);
        }
        compositions::latent_attention(self, q, kv, weights, batch, caches, spec)
    }

    fn route_softmax(&self, logits: &Tensor, top_k: usize, renormalise: bool) -> Result<Routes> {
        check::route("route_softmax", logits.shape(), top_k)?;
        self.route_by_softmax(logits, (top_k, renormalise), None, None)
    }

    fn route_softmax_scaled(
        &self,
        logits: &Tensor,
        top_k: usize,
        per_expert_scale: &Tensor,
    ) -> Result<Routes> {
        check::route("route_softmax_scaled", logits.shape(), top_k)?;
        check::vector("route_softmax_scaled", "the scales", per_expert_scale.shape(), logits.shape().cols)?;
        self.route_by_softmax(logits, (top_k, true), Some(per_expert_scale), None)
    }

    fn route_sigmoid_grouped(&self, logits: &Tensor, bias: &Tensor, spec: &GroupedSigmoid) -> Result<Routes> {
        check::route_grouped(logits.shape(), bias.shape(), spec)?;
        self.route_by_groups(logits, bias, spec, None)
    }

    fn experts(
        &self,
        x: &Tensor,
        routes: &Routes,
        weights: &Experts,
        activation: Activation,
    ) -> Result<Tensor> {
        let shape = Shape { rows: weights.width, cols: weights.hidden };
        check::experts(x.shape(), routes.tokens, routes.experts, shape, weights.count)?;
        self.experts_of(&self.input(x)?, routes, weights, activation)
    }

    fn shared_expert(&self, x: &Tensor, weights: &Experts, activation: Activation) -> Result<Option<Tensor>> {
        check::equal("shared_expert", "the width of x", x.shape().cols, weights.hidden)?;
        match &weights.shared {
            SharedExpert::Absent => Ok(None),
            SharedExpert::Apart([gate, up, down]) => {
                self.matmul(&self.gate_up(x, gate, up, activation)?, down).map(Some)
            }
            SharedExpert::Behind => {
                let routes = self.routes_to(weights.count, x.shape().rows)?;
                self.experts_of(&self.input(x)?, &routes, weights, activation).map(Some)
            }
        }
    }

    fn moe(
        &self,
        h: &Tensor,
        norm: Norm<'_, Tensor>,
        weights: &MoeWeights<Self>,
        add: bool,
    ) -> Result<Tensor> {
        let MoeWeights { router, router_norm, shared_gate, routing, experts, activation } = weights;
        let shared = matches!(experts.shared, SharedExpert::Behind);
        // The router, and with it the shared expert's gate.
        let rows = match shared_gate {
            Some(gate) => neighbours([router, gate]).filter(|rows| rows.len() == router.rows + 1),
            None => Some(router.first..router.first + router.rows),
        };
        let (Some(rows), true) = (rows, shared || matches!(experts.shared, SharedExpert::Absent)) else {
            return compositions::moe(self, h, norm, weights, add);
        };
        check::vector("rms_norm", "w", norm.w.shape(), h.shape().cols)?;
        check::matmul("matmul", h.shape(), router.shape())?;
        let shape = Shape { rows: experts.width, cols: experts.hidden };
        check::experts(h.shape(), h.shape().rows, router.rows, shape, experts.count)?;
        let logits = Shape { rows: h.shape().rows, cols: router.rows };
        match routing {
            Routing::Softmax { top_k, .. } => check::route("route_softmax", logits, *top_k)?,
            Routing::SoftmaxScaled { top_k, scale } => {
                check::route("route_softmax_scaled", logits, *top_k)?;
                check::vector("route_softmax_scaled", "the scales", scale.shape(), logits.cols)?;
            }
            Routing::GroupedSigmoid { spec, bias } => {
                check::route_grouped(logits, bias.shape(), spec)?;
            }
        }
        let own = router_norm.as_ref().map(|w| Norm { w, eps: norm.eps });
        own.map_or(Ok(()), |own| check::vector("rms_norm", "w", own.w.shape(), h.shape().cols))?;
        let input = Prologue::Norm(h, own.unwrap_or(norm));
        let bias = router.bias.as_ref();
        let simple = router.stack.parts.len() == 1 && h.shape().cols.is_multiple_of(8);
        if h.shape().rows == 1 && simple && self.steps_experts(experts, routing) {
            let digits = Self::digits_for(experts, norm.w);
            let logits = if self.prepares(&input, &router.stack) {
                let besides = Besides { bias, digits: Some(digits), ..Besides::default() };
                self.rounded_product(&input, &router.stack, rows, &besides)?
            } else {
                self.norm_product(h, own.unwrap_or(norm), &router.stack, rows, bias, digits)?
            };
            let up = self.experts_step_up(&logits, weights)?;
            return self.experts_step_down(&up, experts, add.then_some(h));
        }
        let x = self.rms_norm_of(h, Some(norm.w), h.shape().cols, norm.eps)?;
        let x = self.input(&x)?;
        let routed = own.map(|own| self.rms_norm_of(h, Some(own.w), h.shape().cols, own.eps)).transpose()?;
        let own_input = routed.as_ref().map(|routed| self.input(routed)).transpose()?;
        let logits = self.product_with(own_input.as_ref().unwrap_or(&x), &router.stack, rows, bias, None)?;
        let shared = shared.then_some(route::Shared { gated: shared_gate.is_some() });
        let routes = match routing {
            Routing::Softmax { top_k, renormalise } => {
                self.route_by_softmax(&logits, (*top_k, *renormalise), None, shared)?
            }
            Routing::SoftmaxScaled { top_k, scale } => {
                self.route_by_softmax(&logits, (*top_k, true), Some(scale), shared)?
            }
            Routing::GroupedSigmoid { spec, bias } => self.route_by_groups(&logits, bias, spec, shared)?,
        };
        let y = self.experts_of(&x, &routes, experts, *activation)?;
        if add { self.combine_of(h, &y, &Shared::Absent) } else { Ok(y) }
    }

    fn norm_add_unit_moe(
        &self,
        r: &Tensor,
        [x, post]: [&Tensor; 2],
        (norm, unit): (Norm<'_, Tensor>, &UnitWeights<Self>),
        (moe_norm, weights): (Norm<'_, Tensor>, &MoeWeights<Self>),
    ) -> Result<[Tensor; 3]> {
        match self.unit_beside_moe(r, [x, post], (norm, unit), (moe_norm, weights))? {
            Some(all) => Ok(all),
            None => compositions::norm_add_unit_moe(self, r, [x, post], (norm, unit), (moe_norm, weights)),
        }
    }

    fn combine(&self, h: &Tensor, moe: &Tensor, shared: Shared<'_, Tensor>) -> Result<Tensor> {
        check::combine(h.shape(), moe.shape(), &shared)?;
        self.combine_of(h, moe, &shared)
    }

    fn combine_norm(&self, a: &Tensor, wa: &Tensor, b: &Tensor, wb: &Tensor, eps: f32) -> Result<Tensor> {
        check::combine_norm(a.shape(), wa.shape(), b.shape(), wb.shape())?;
        self.combine_norm_of([a, wa, b, wb], eps)
    }

    fn combine_norm_add(
        &self,
        r: &Tensor,
        [a, b]: [&Tensor; 2],
        [wa, wb, w]: [&Tensor; 3],
        eps: f32,
        factor: Factor<'_, Tensor>,
    ) -> Result<Tensor> {
        check::combine_norm(a.shape(), wa.shape(), b.shape(), wb.shape())?;
        check::residual_norm("norm_add", r.shape(), a.shape(), w.shape(), &factor)?;
        match factor {
            Factor::One => self.combine_norm_add_of([r, a, b], [wa, wb, w], eps, 1.0),
            Factor::Scalar(factor) => self.combine_norm_add_of([r, a, b], [wa, wb, w], eps, factor),
            Factor::Channels(_) => {
                let both = self.combine_norm_of([a, wa, b, wb], eps)?;
                self.norm_add_of([r, &both, w], eps, &factor)
            }
        }
    }

    fn end_norm_matmuls<const N: usize>(
        &self,
        end: &LayerEnd<'_, Tensor>,
        weights: [&Matrix; N],
    ) -> Result<Option<LayerStart<Tensor, N>>> {
        self.end_products(end, weights)
    }

    fn conv_causal(
        &self,
        x: &Tensor,
        w: &Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        check::conv_causal(x.shape(), w.shape(), batch.spans(), states.iter().map(|state| state.shape))?;
        self.conv(x, w, batch, states)
    }

    fn gdn_qk_norm(&self, qkv: Tensor, shape: &GdnShape) -> Result<Tensor> {
        check::gdn_shape("gdn_qk_norm", shape)?;
        check::equal("gdn_qk_norm", "the width of qkv", qkv.shape().cols, shape.channels())?;
        self.gdn_qk_norm_of(&qkv, shape)
    }

    fn gdn_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        check::gdn_gates(a.shape(), b.shape(), a_log.shape(), dt_bias.shape())?;
        self.gdn_gates_of([a, b, a_log, dt_bias])
    }

    fn gdn(
        &self,
        qkv: &Tensor,
        g: &Tensor,
        beta: &Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        let shapes = states.iter().map(|state| state.shape);
        check::gdn(qkv.shape(), g.shape(), beta.shape(), batch.spans(), shapes)?;
        self.gdn_of([qkv, g, beta], None, batch, states)
    }

    fn gated_delta(
        &self,
        qkv: &Tensor,
        a: &Tensor,
        b: &Tensor,
        weights: &GdnWeights<Tensor>,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        let shapes = states.iter().map(|state| state.shape);
        check::gated_delta(qkv.shape(), a.shape(), b.shape(), weights, batch.spans(), shapes)?;
        if let [state] = &mut *states
            && let Some(y) = self.gdn_step([qkv, a, b], weights, state)?
        {
            return Ok(y);
        }
        let qkv = self.conv(qkv, &weights.conv, batch, states)?;
        self.gdn_of([&qkv, a, b], Some(weights), batch, states)
    }

    fn kv_cache(&self, shape: &KvShape) -> Result<KvCache> {
        check::kv_shape(shape)?;
        Ok(KvCache::new(shape))
    }

    fn kv_truncate(&self, cache: &mut KvCache, len: usize) -> Result<bool> {
        Ok(cache.truncate(len))
    }

    fn kv_save(&self, cache: &KvCache) -> Result<KvImage> {
        self.image(cache)
    }

    fn kv_load(&self, shape: &KvShape, image: &KvImage) -> Result<KvCache> {
        let tokens = check::kv_image(shape, image)?;
        self.cache_of(shape, image, tokens)
    }

    fn recurrent(&self, shape: &GdnShape) -> Result<Recurrent> {
        check::gdn_shape("recurrent", shape)?;
        self.zero_state(shape)
    }

    fn recurrent_clone(&self, state: &Recurrent) -> Result<Recurrent> {
        self.copy_state(state)
    }

    fn recurrent_save(&self, state: &Recurrent) -> Result<RecurrentImage> {
        self.state_image(state)
    }

    fn recurrent_load(&self, shape: &GdnShape, image: &RecurrentImage) -> Result<Recurrent> {
        check::recurrent_image(shape, image)?;
        self.state_of(shape, image)
    }
}
