//! The operations of the trait: check shapes, record kernels.

use ::backend::{
    Activation, Attention, Backend, Batch, Error, Factor, GdnShape, GdnWeights, GroupedSigmoid, Handle,
    KvImage, KvShape, LatentAttention, Mask, OperationTime, RecurrentImage, Result, RopeSpec, Shape, Shared,
    Span, check,
};
use checkpoint::Weight;

use crate::ops::attention::Queries;
use crate::ops::layout::PartOfHeads;
use crate::recurrent::floats;
use crate::weights::{Source, UpStacks};
use crate::{
    Experts, Gpu, HeadMatrices, KvCache, Matrix, Numerics, Positions, Recurrent, Rope, Routes, Tensor,
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

    fn checked_head_product(
        &self,
        operation: &'static str,
        x: &Tensor,
        weights: &HeadMatrices,
    ) -> Result<Tensor> {
        let shape = check::head_product(operation, x.shape(), weights.count, weights.product_shape())?;
        self.head_product(x, weights, shape)
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
        Ok(Matrix { rows: weight.rows, stack: self.stack(Source::One(Box::new(weight.clone())))?, bias })
    }

    fn head_matrices(&self, weight: &Weight, transposed: bool) -> Result<HeadMatrices> {
        if weight.bias.is_some() {
            return Err(Error::Unsupported("head_matrices: biases are not supported".into()));
        }
        let stack = self.stack(Source::One(Box::new(weight.clone())))?;
        Ok(HeadMatrices { count: weight.count, rows: weight.rows, stack, transposed })
    }

    fn expert_weights(&self, gate: &Weight, up: &Weight, down: &Weight) -> Result<Experts> {
        let shape = check::expert_weights(gate, up, down)?;
        let stacks = if gate.format == up.format {
            UpStacks::Alternating(self.stack(Source::Alternating(Box::new([gate.clone(), up.clone()])))?)
        } else {
            UpStacks::Apart {
                gate: self.stack(Source::One(Box::new(gate.clone())))?,
                up: self.stack(Source::One(Box::new(up.clone())))?,
            }
        };
        let down = self.stack(Source::One(Box::new(down.clone())))?;
        Ok(Experts { count: gate.count, hidden: shape.cols, width: shape.rows, up: stacks, down })
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

    fn read_top(&self, x: &Tensor, k: usize) -> Result<Vec<Vec<(u32, f32)>>> {
        self.top(x, k)
    }

    fn read_routes(&self, routes: &Routes) -> Result<(Vec<u32>, Vec<f32>)> {
        let len = 4 * (routes.tokens * routes.top_k) as u64;
        let [ids, weights] = self.recorder.read([(&routes.ids, len), (&routes.weights, len)])?;
        Ok((ids.as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b)).collect(), floats(&weights)))
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
        let input = self.input(x)?;
        let mut products = Vec::with_capacity(N);
        for w in weights {
            products.push(self.product(&input, w, None)?);
        }
        products.try_into().map_err(|_| unreachable!("as many products as weights"))
    }

    fn matmul_add(&self, x: &Tensor, weight: &Matrix, residual: Tensor) -> Result<Tensor> {
        let shape = check::matmul("matmul_add", x.shape(), weight.shape())?;
        check::equal("matmul_add", "the residual", residual.shape(), shape)?;
        self.product(&self.input(x)?, weight, Some(&residual))
    }

    fn gate_up(&self, x: &Tensor, gate: &Matrix, up: &Matrix, activation: Activation) -> Result<Tensor> {
        check::gate_up(x.shape(), gate.shape(), up.shape())?;
        let input = self.input(x)?;
        let (gate, up) = (self.product(&input, gate, None)?, self.product(&input, up, None)?);
        self.glu_of(&gate, &up, activation)
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
        let queries = Queries { q, more: None, spec: *spec, value_width };
        for (span, cache) in batch.spans().iter().zip(caches) {
            self.attend(&queries, span, cache, &y)?;
        }
        Ok(y)
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
        let queries = Queries { q, more: Some(q_pe), spec, value_width: rank };
        for (span, cache) in batch.spans().iter().zip(caches) {
            self.attend(&queries, span, cache, &y)?;
        }
        Ok(y)
    }

    fn mla_unabsorb(&self, o: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        self.checked_head_product("mla_unabsorb", o, weights)
    }

    fn route_softmax(&self, logits: &Tensor, top_k: usize, renormalise: bool) -> Result<Routes> {
        check::route("route_softmax", logits.shape(), top_k)?;
        self.route_by_softmax(logits, top_k, renormalise, None)
    }

    fn route_softmax_scaled(
        &self,
        logits: &Tensor,
        top_k: usize,
        per_expert_scale: &Tensor,
    ) -> Result<Routes> {
        check::route("route_softmax_scaled", logits.shape(), top_k)?;
        check::vector("route_softmax_scaled", "the scales", per_expert_scale.shape(), logits.shape().cols)?;
        self.route_by_softmax(logits, top_k, true, Some(per_expert_scale))
    }

    fn route_sigmoid_grouped(&self, logits: &Tensor, bias: &Tensor, spec: &GroupedSigmoid) -> Result<Routes> {
        check::route_grouped(logits.shape(), bias.shape(), spec)?;
        self.route_by_groups(logits, bias, spec)
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
        self.experts_of(x, routes, weights, activation)
    }

    fn combine(&self, h: &Tensor, moe: &Tensor, shared: Shared<'_, Tensor>) -> Result<Tensor> {
        check::combine(h.shape(), moe.shape(), &shared)?;
        self.combine_of(h, moe, &shared)
    }

    fn combine_norm(&self, a: &Tensor, wa: &Tensor, b: &Tensor, wb: &Tensor, eps: f32) -> Result<Tensor> {
        check::combine_norm(a.shape(), wa.shape(), b.shape(), wb.shape())?;
        self.combine_norm_of([a, wa, b, wb], eps)
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
