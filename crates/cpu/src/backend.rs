//! The operations of the trait: check shapes, call `ops`, wrap the result.

use ::backend::{
    Activation, Attention, Backend, Batch, Error, Factor, GdnShape, GdnWeights, GroupedSigmoid, Handle,
    KvImage, KvShape, LatentAttention, MlaWeights, MoeWeights, Norm, OperationTime, RecurrentImage, Result,
    RopeSpec, Shape, Shared, Span, check, compositions, largest, largest_allowed,
};
use checkpoint::Weight;

use crate::ops::attention::Grouped;
use crate::ops::latent::{Absorbed, Latent, Widths};
use crate::ops::norm::Scale;
use crate::ops::{elementwise, experts, gdn, layout, norm, product, rope, route};
use crate::profile::{Profile, Running};
use crate::{Cpu, Experts, HeadMatrices, KvCache, Matrix, Numerics, Recurrent, Routes, Tensor, Turns};

impl Cpu {
    /// Measures the time of an operation, where that is wanted, until what it returns is dropped. Only in methods that
    /// no other one calls, so that nothing counts twice.
    fn time(&self, name: &'static str) -> Option<Running<'_>> {
        self.profile.as_ref().map(|profile| profile.start(name))
    }

    /// A tensor whose values `fill` writes, all of them: they come with what earlier ones have left.
    fn fill(&self, rows: usize, cols: usize, fill: impl FnOnce(&mut [f32])) -> Tensor {
        let mut values = self.machine.arena.take(rows * cols);
        fill(&mut values);
        Tensor::new(Shape { rows, cols }, values)
    }

    /// Overwrites the values of `x` by `change`.
    fn change(&self, mut x: Tensor, change: impl FnOnce(&mut [f32])) -> Tensor {
        change(x.values_mut());
        x
    }

    /// Appends keys of shape `k`, values of shape `v`; `row(t)` gives the two parts of a key, and a value.
    fn append<'a>(
        &self,
        operation: &'static str,
        (k, v): (Shape, Shape),
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
        row: impl Fn(usize) -> ([&'a [f32]; 2], &'a [f32]) + Sync,
    ) -> Result<()> {
        // All or none: a step that is refused must not have changed some sequences.
        let held = caches.iter().map(|cache| (cache.shape, cache.len()));
        check::append(operation, k, v, batch.spans(), held)?;
        for (span, cache) in batch.spans().iter().zip(caches.iter_mut()) {
            cache.reserve(span.len)?;
        }
        // A task writes to a few of the caches.
        let few = caches.len().div_ceil(2 * self.machine.pool.threads());
        self.machine.pool.pieces(caches, few, |i, caches| {
            for (span, cache) in batch.spans()[i * few..].iter().zip(caches) {
                span.rows().map(&row).for_each(|(key, value)| cache.push(key, value));
            }
        });
        Ok(())
    }

    fn head_product(&self, operation: &'static str, x: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let shape = check::head_product(operation, x.shape(), weights.weight.count, weights.product_shape())?;
        Ok(self.fill(shape.rows, shape.cols, |y| {
            let HeadMatrices { weight, transposed } = weights;
            product::head_products(&self.machine, weight, *transposed, x.values(), shape.rows, y)
        }))
    }
}

impl Backend for Cpu {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type HeadMatrices = HeadMatrices;
    type Experts = Experts;
    type Rope = RopeSpec;
    type Routes = Routes;
    type KvCache = KvCache;
    type Recurrent = Recurrent;
    type BatchData = Turns;
    type Recorded = ();
    type Chosen = ();

    fn description(&self) -> String {
        let threads = self.machine.pool.threads();
        let numerics = match self.machine.numerics {
            Numerics::Fast => "fast",
            Numerics::Exact => "exact",
        };
        format!("CPU, {threads} thread{}, {numerics} numerics", if threads == 1 { "" } else { "s" })
    }

    fn free_memory(&self) -> Option<u64> {
        crate::memory::free()
    }

    fn take_profile(&self) -> Vec<OperationTime> {
        self.profile.as_ref().map(Profile::take).unwrap_or_default()
    }

    fn matrix(&self, weight: &Weight) -> Result<Matrix> {
        check::matrix(weight)?;
        Ok(Matrix(self.resident(weight)?))
    }

    fn head_matrices(&self, weight: &Weight, transposed: bool) -> Result<HeadMatrices> {
        if weight.bias.is_some() {
            return Err(Error::Unsupported("head_matrices: biases are not supported".into()));
        }
        Ok(HeadMatrices { weight: self.resident(weight)?, transposed })
    }

    fn expert_weights(&self, stacks: [&Weight; 3], shared: Option<[&Weight; 3]>) -> Result<Experts> {
        check::expert_weights(stacks, shared)?;
        let layer = match &self.store {
            Some(store) => store.add_layer(stacks).map_err(|e| Error::Read(e.to_string()))?,
            None => None,
        };
        let shared = match shared {
            Some([gate, up, down]) => Some([self.resident(gate)?, self.resident(up)?, self.resident(down)?]),
            None => None,
        };
        let [gate, up, down] = stacks.map(Weight::clone);
        Ok(Experts { gate, up, down, layer, shared })
    }

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        check::equal("upload", "the number of values", values.len(), rows * cols)?;
        Ok(Tensor::new(Shape { rows, cols }, self.machine.arena.copy(values)))
    }

    fn rope_table(&self, spec: &RopeSpec) -> Result<RopeSpec> {
        Ok(spec.clone())
    }

    fn prepare_batch(&self, _tokens: &[u32], _spans: &[Span]) -> Result<Turns> {
        Ok(Turns::default())
    }

    fn spread(&self, count: usize, task: &(dyn Fn(usize) + Sync)) {
        self.machine.pool.run(count, task);
    }

    fn beside(&self, task: Box<dyn FnOnce() + Send>) {
        self.machine.pool.beside(task);
    }

    fn read(&self, x: &Tensor) -> Result<Vec<f32>> {
        let _time = self.time("read");
        Ok(x.values().to_vec())
    }

    fn read_into(&self, x: &Tensor, values: &mut Vec<f32>) -> Result<()> {
        let _time = self.time("read");
        values.clear();
        values.extend_from_slice(x.values());
        Ok(())
    }

    fn read_top(&self, x: &Tensor, k: usize) -> Result<Vec<Vec<(u32, f32)>>> {
        let _time = self.time("read_top");
        let mut rows = vec![Vec::new(); x.shape().rows];
        self.machine.pool.pieces(&mut rows, 1, |t, row| row[0] = largest(x.row(t), k));
        Ok(rows)
    }

    fn read_top_allowed(
        &self,
        x: &Tensor,
        k: usize,
        allowed: &[Option<&[u32]>],
    ) -> Result<Vec<Vec<(u32, f32)>>> {
        check::read_top_allowed(x.shape(), allowed)?;
        let _time = self.time("read_top_allowed");
        let mut rows = vec![Vec::new(); x.shape().rows];
        let find = |t: usize, row: &mut [_]| row[0] = largest_allowed(x.row(t), k, allowed[t]);
        self.machine.pool.pieces(&mut rows, 1, find);
        Ok(rows)
    }

    fn read_routes(&self, routes: &Routes) -> Result<(Vec<u32>, Vec<f32>)> {
        Ok((routes.ids.clone(), routes.weights.clone()))
    }

    fn reshape(&self, x: Tensor, rows: usize, cols: usize) -> Result<Tensor> {
        let shape = check::reshape(x.shape(), rows, cols)?;
        Ok(x.with_shape(shape))
    }

    fn select_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let _time = self.time("select_rows");
        let shape = check::select_rows(x.shape(), rows)?;
        Ok(self.fill(shape.rows, shape.cols, |y| {
            y.chunks_exact_mut(shape.cols).zip(rows).for_each(|(y, r)| y.copy_from_slice(x.row(*r)));
        }))
    }

    fn columns(&self, x: &Tensor, start: usize, width: usize) -> Result<Tensor> {
        let _time = self.time("columns");
        let shape = check::columns(x.shape(), start, width)?;
        let range = std::iter::once(layout::Columns { start, width });
        Ok(self.fill(shape.rows, shape.cols, |y| {
            layout::gather(&self.machine, x.values(), x.shape().cols, range, y)
        }))
    }

    fn join_rows(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let _time = self.time("join_rows");
        let shape = check::join_rows(parts.iter().map(|part| part.shape()))?;
        Ok(self.fill(shape.rows, shape.cols, |mut y| {
            for part in parts {
                let (own, rest) = std::mem::take(&mut y).split_at_mut(part.values().len());
                own.copy_from_slice(part.values());
                y = rest;
            }
        }))
    }

    fn join_columns(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let _time = self.time("join_columns");
        let shape = check::join_columns(a.shape(), b.shape())?;
        Ok(self.fill(shape.rows, shape.cols, |y| {
            for (t, y) in y.chunks_exact_mut(shape.cols).enumerate() {
                let (left, right) = y.split_at_mut(a.shape().cols);
                left.copy_from_slice(a.row(t));
                right.copy_from_slice(b.row(t));
            }
        }))
    }

    fn split_heads(&self, x: &Tensor, heads: usize, first: usize) -> Result<(Tensor, Tensor)> {
        let _time = self.time("split_heads");
        let Shape { rows, cols } = x.shape();
        let (a, b) = check::split_heads(x.shape(), heads, first)?;
        let part = |first, width| {
            let ranges = layout::part_of_heads(heads, a + b, first, width);
            self.fill(rows, heads * width, |y| layout::gather(&self.machine, x.values(), cols, ranges, y))
        };
        Ok((part(0, a), part(a, b)))
    }

    fn split_qkvz(&self, x: &Tensor, shape: &GdnShape) -> Result<(Tensor, Tensor)> {
        let _time = self.time("split_qkvz");
        check::split_qkvz(x.shape(), shape)?;
        let (qkv, z) = layout::qkvz_ranges(shape);
        let Shape { rows, cols } = x.shape();
        let qkv =
            self.fill(rows, shape.channels(), |y| layout::gather(&self.machine, x.values(), cols, qkv, y));
        let z =
            self.fill(rows, shape.value_total(), |y| layout::gather(&self.machine, x.values(), cols, z, y));
        Ok((qkv, z))
    }

    fn embed(&self, table: &Matrix, batch: &Batch<Self>, scale: f32) -> Result<Tensor> {
        let _time = self.time("embed");
        check::embed(table.shape(), batch.tokens())?;
        Ok(self.fill(batch.rows(), table.0.cols, |y| {
            product::embed(&self.machine, &table.0, batch.tokens(), scale, y)
        }))
    }

    fn matmuls<const N: usize>(&self, x: &Tensor, weights: [&Matrix; N]) -> Result<[Tensor; N]> {
        let _time = self.time("matmul");
        for w in weights {
            check::matmul("matmul", x.shape(), w.shape())?;
        }
        let n = x.shape().rows;
        let mut outputs = weights.map(|w| self.machine.arena.take(n * w.0.rows));
        let slices = outputs.each_mut().map(|y| &mut **y);
        product::matmuls(&self.machine, weights.map(|w| &w.0), x.values(), slices);
        let mut rows = weights.iter().map(|w| w.0.rows);
        Ok(outputs.map(|y| Tensor::new(Shape { rows: n, cols: rows.next().unwrap_or(0) }, y)))
    }

    fn matmul_add(&self, x: &Tensor, weight: &Matrix, residual: Tensor) -> Result<Tensor> {
        let _time = self.time("matmul_add");
        let shape = check::matmul("matmul_add", x.shape(), weight.shape())?;
        check::equal("matmul_add", "the residual", residual.shape(), shape)?;
        Ok(self.change(residual, |r| product::matmul_add(&self.machine, &weight.0, x.values(), r)))
    }

    fn gate_up(&self, x: &Tensor, gate: &Matrix, up: &Matrix, activation: Activation) -> Result<Tensor> {
        let _time = self.time("gate_up");
        check::gate_up(x.shape(), gate.shape(), up.shape())?;
        Ok(self.fill(x.shape().rows, gate.0.rows, |y| {
            product::gate_up(&self.machine, [&gate.0, &up.0], activation, x.values(), y)
        }))
    }

    fn glu(&self, gate: Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        let _time = self.time("glu");
        check::equal("glu", "up", up.shape(), gate.shape())?;
        Ok(self.change(gate, |g| elementwise::glu(&self.machine, activation, g, up.values())))
    }

    fn soft_cap(&self, x: Tensor, cap: f32) -> Result<Tensor> {
        let _time = self.time("soft_cap");
        Ok(self.change(x, |x| elementwise::soft_cap(&self.machine, x, cap)))
    }

    fn rms_norm(&self, x: &Tensor, w: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        let _time = self.time("rms_norm");
        w.map_or(Ok(()), |w| check::vector("rms_norm", "w", w.shape(), x.shape().cols))?;
        let Shape { rows, cols } = x.shape();
        Ok(self
            .fill(rows, cols, |y| norm::rms(&self.machine, x.values(), w.map(Tensor::values), cols, eps, y)))
    }

    fn rms_norm_heads(&self, x: Tensor, w: Option<&Tensor>, heads: usize, eps: f32) -> Result<Tensor> {
        let _time = self.time("rms_norm_heads");
        let width = check::heads("rms_norm_heads", "the width of x", x.shape().cols, heads)?;
        w.map_or(Ok(()), |w| check::vector("rms_norm_heads", "w", w.shape(), width))?;
        Ok(self.change(x, |x| norm::rms_in_place(&self.machine, x, w.map(Tensor::values), width, eps)))
    }

    fn add_norm(
        &self,
        r: &Tensor,
        x: &Tensor,
        w: &Tensor,
        eps: f32,
        factor: Factor<'_, Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let _time = self.time("add_norm");
        check::residual_norm("add_norm", r.shape(), x.shape(), w.shape(), &factor)?;
        let Shape { rows, cols } = x.shape();
        let mut s = self.machine.arena.take(rows * cols);
        let y = self.fill(rows, cols, |y| {
            let inputs = [r.values(), x.values(), w.values()];
            norm::add_norm(&self.machine, inputs, eps, Scale::new(&factor), [&mut s, y]);
        });
        Ok((Tensor::new(x.shape(), s), y))
    }

    fn norm_add(
        &self,
        r: &Tensor,
        x: &Tensor,
        w: &Tensor,
        eps: f32,
        factor: Factor<'_, Tensor>,
    ) -> Result<Tensor> {
        let _time = self.time("norm_add");
        check::residual_norm("norm_add", r.shape(), x.shape(), w.shape(), &factor)?;
        let Shape { rows, cols } = x.shape();
        Ok(self.fill(rows, cols, |y| {
            let inputs = [r.values(), x.values(), w.values()];
            norm::norm_add(&self.machine, inputs, eps, Scale::new(&factor), y);
        }))
    }

    fn gated_norm(&self, v: &Tensor, z: &Tensor, w: &Tensor, heads: usize, eps: f32) -> Result<Tensor> {
        let _time = self.time("gated_norm");
        check::gated_norm(v.shape(), z.shape(), w.shape(), heads)?;
        let Shape { rows, cols } = v.shape();
        let inputs = [v.values(), z.values(), w.values()];
        Ok(self.fill(rows, cols, |y| norm::gated(&self.machine, inputs, eps, y)))
    }

    fn sigmoid_gate(&self, x: Tensor, g: &Tensor) -> Result<Tensor> {
        let _time = self.time("sigmoid_gate");
        check::equal("sigmoid_gate", "g", g.shape(), x.shape())?;
        Ok(self.change(x, |x| elementwise::sigmoid_gate(&self.machine, x, g.values())))
    }

    fn rope(&self, x: Tensor, batch: &Batch<Self>, spec: &RopeSpec, heads: usize) -> Result<Tensor> {
        let _time = self.time("rope");
        let width = check::rope(x.shape(), batch.spans(), heads, spec.rotary_dim())?;
        let cols = x.shape().cols;
        Ok(self.change(x, |x| rope::rope(&self.machine, x, cols, width, spec, batch.data(), batch.spans())))
    }

    fn kv_append(
        &self,
        k: &Tensor,
        v: &Tensor,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
    ) -> Result<()> {
        let _time = self.time("kv_append");
        self.append("kv_append", (k.shape(), v.shape()), batch, caches, |t| ([k.row(t), &[]], v.row(t)))
    }

    fn attention(
        &self,
        q: &Tensor,
        batch: &Batch<Self>,
        caches: &[&KvCache],
        spec: &Attention,
    ) -> Result<Tensor> {
        let _time = self.time("attention");
        let held = caches.iter().map(|cache| (cache.shape, cache.len()));
        let (group, value_width) = check::attention(q.shape(), spec, batch.spans(), held)?;
        let layer = Grouped { q: q.values(), spans: batch.spans(), caches, spec: *spec, group };
        Ok(self.fill(batch.rows(), spec.heads * value_width, |y| layer.run(&self.machine, y)))
    }

    fn mla_absorb_q(&self, q: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let _time = self.time("mla_absorb_q");
        self.head_product("mla_absorb_q", q, weights)
    }

    fn mla_append(
        &self,
        latent: &Tensor,
        k_pe: &Tensor,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
    ) -> Result<()> {
        let _time = self.time("mla_append");
        check::equal("mla_append", "the rows of k_pe", k_pe.shape().rows, latent.shape().rows)?;
        let rows = latent.shape().rows;
        let keys = Shape { rows, cols: latent.shape().cols + k_pe.shape().cols };
        let row = |t| ([latent.row(t), k_pe.row(t)], &[] as &[f32]);
        self.append("mla_append", (keys, Shape { rows, cols: 0 }), batch, caches, row)
    }

    fn mla_attention(
        &self,
        q: &Tensor,
        q_pe: &Tensor,
        batch: &Batch<Self>,
        caches: &[&KvCache],
        spec: &LatentAttention,
    ) -> Result<Tensor> {
        let _time = self.time("mla_attention");
        let held = caches.iter().map(|cache| (cache.shape, cache.len()));
        let (rank, pe) =
            check::mla_attention("mla_attention", q.shape(), q_pe.shape(), spec.heads, batch.spans(), held)?;
        let spans = batch.spans();
        let layer = Absorbed { q: q.values(), q_pe: q_pe.values(), spans, caches, spec: *spec, rank, pe };
        Ok(self.fill(batch.rows(), q.shape().cols, |y| layer.run(&self.machine, y)))
    }

    fn mla_unabsorb(&self, o: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let _time = self.time("mla_unabsorb");
        self.head_product("mla_unabsorb", o, weights)
    }

    fn mla(
        &self,
        q: &Tensor,
        q_pe: &Tensor,
        weights: &MlaWeights<HeadMatrices>,
        batch: &Batch<Self>,
        caches: &[&KvCache],
        spec: &LatentAttention,
    ) -> Result<Tensor> {
        let _time = self.time("mla");
        let MlaWeights { embed_q, unembed_out } = weights;
        let latents = check::head_product("mla", q.shape(), embed_q.weight.count, embed_q.product_shape())?;
        let values =
            check::head_product("mla", latents, unembed_out.weight.count, unembed_out.product_shape())?;
        let held = caches.iter().map(|cache| (cache.shape, cache.len()));
        check::mla_attention("mla", latents, q_pe.shape(), spec.heads, batch.spans(), held)?;
        let widths = Widths {
            rank: embed_q.product_shape().rows,
            pe: q_pe.shape().cols / spec.heads,
            nope: embed_q.product_shape().cols,
            value: unembed_out.product_shape().rows,
        };
        let spans = batch.spans();
        let layer =
            Latent { q: q.values(), q_pe: q_pe.values(), spans, caches, weights, spec: *spec, widths };
        Ok(self.fill(values.rows, values.cols, |y| layer.run(&self.machine, y)))
    }

    fn route_softmax(&self, logits: &Tensor, top_k: usize, renormalise: bool) -> Result<Routes> {
        let _time = self.time("route_softmax");
        check::route("route_softmax", logits.shape(), top_k)?;
        Ok(route::softmax(&self.machine, logits.values(), logits.shape().cols, top_k, renormalise, None))
    }

    fn route_softmax_scaled(
        &self,
        logits: &Tensor,
        top_k: usize,
        per_expert_scale: &Tensor,
    ) -> Result<Routes> {
        let _time = self.time("route_softmax_scaled");
        let experts = logits.shape().cols;
        check::route("route_softmax_scaled", logits.shape(), top_k)?;
        check::vector("route_softmax_scaled", "the scales", per_expert_scale.shape(), experts)?;
        Ok(route::softmax(
            &self.machine,
            logits.values(),
            experts,
            top_k,
            true,
            Some(per_expert_scale.values()),
        ))
    }

    fn route_sigmoid_grouped(&self, logits: &Tensor, bias: &Tensor, spec: &GroupedSigmoid) -> Result<Routes> {
        let _time = self.time("route_sigmoid_grouped");
        let size = check::route_grouped(logits.shape(), bias.shape(), spec)?;
        Ok(route::grouped(&self.machine, logits.values(), bias.values(), size, spec))
    }

    fn experts(
        &self,
        x: &Tensor,
        routes: &Routes,
        weights: &Experts,
        activation: Activation,
    ) -> Result<Tensor> {
        let _time = self.time("experts");
        let shape = Shape { rows: weights.gate.rows, cols: weights.gate.cols };
        check::experts(x.shape(), routes.tokens(), routes.experts, shape, weights.gate.count)?;
        let Shape { rows, cols } = x.shape();
        let (machine, store) = (&self.machine, self.store.as_ref());
        let mut result = Ok(());
        let y = self.fill(rows, cols, |y| {
            result = experts::experts(machine, x.values(), routes, weights, store, activation, y);
        });
        result.map(|()| y)
    }

    fn expect_experts(&self, routes: &Routes, weights: &Experts, guess: bool) {
        if let (Some(store), Some(layer)) = (&self.store, weights.layer) {
            store.expect(layer, routes.ids.iter().map(|expert| *expert as usize), guess);
        }
    }

    fn shared_expert(&self, x: &Tensor, weights: &Experts, activation: Activation) -> Result<Option<Tensor>> {
        check::equal("shared_expert", "the width of x", x.shape().cols, weights.gate.cols)?;
        let Some([gate, up, down]) = &weights.shared else { return Ok(None) };
        let _time = self.time("shared_expert");
        let rows = x.shape().rows;
        let hidden = self.fill(rows, gate.rows, |y| {
            product::gate_up(&self.machine, [gate, up], activation, x.values(), y);
        });
        Ok(Some(self.fill(rows, down.rows, |y| {
            product::matmuls(&self.machine, [down], hidden.values(), [y]);
        })))
    }

    fn expect_moe(&self, h: &Tensor, norm: Norm<'_, Tensor>, weights: &MoeWeights<Self>) -> Result<()> {
        match &self.store {
            Some(_) => compositions::expect_moe(self, h, norm, weights),
            None => Ok(()),
        }
    }

    fn combine(&self, h: &Tensor, moe: &Tensor, shared: Shared<'_, Tensor>) -> Result<Tensor> {
        let _time = self.time("combine");
        check::combine(h.shape(), moe.shape(), &shared)?;
        let Shape { rows, cols } = h.shape();
        Ok(self.fill(rows, cols, |y| {
            elementwise::combine(&self.machine, cols, h.values(), moe.values(), &shared, y);
        }))
    }

    fn combine_norm(&self, a: &Tensor, wa: &Tensor, b: &Tensor, wb: &Tensor, eps: f32) -> Result<Tensor> {
        let _time = self.time("combine_norm");
        check::combine_norm(a.shape(), wa.shape(), b.shape(), wb.shape())?;
        let Shape { rows, cols } = a.shape();
        let inputs = [a.values(), wa.values(), b.values(), wb.values()];
        Ok(self.fill(rows, cols, |y| norm::combine_norm(&self.machine, inputs, eps, y)))
    }

    fn conv_causal(
        &self,
        x: &Tensor,
        w: &Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        let _time = self.time("conv_causal");
        check::conv_causal(x.shape(), w.shape(), batch.spans(), states.iter().map(|state| state.shape))?;
        let cols = x.shape().cols;
        let taps = w.turned(self.machine.set);
        Ok(self.fill(batch.rows(), cols, |y| {
            for (span, state) in batch.spans().iter().zip(states) {
                let y = &mut y[span.row * cols..][..span.len * cols];
                gdn::conv_causal(&self.machine, x.rows(span.rows()), &taps, &mut state.window, y);
            }
        }))
    }

    fn gdn_qk_norm(&self, qkv: Tensor, shape: &GdnShape) -> Result<Tensor> {
        let _time = self.time("gdn_qk_norm");
        check::gdn_shape("gdn_qk_norm", shape)?;
        check::equal("gdn_qk_norm", "the width of qkv", qkv.shape().cols, shape.channels())?;
        Ok(self.change(qkv, |qkv| gdn::qk_norm(&self.machine, qkv, shape)))
    }

    fn gdn_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let _time = self.time("gdn_gates");
        check::gdn_gates(a.shape(), b.shape(), a_log.shape(), dt_bias.shape())?;
        let Shape { rows, cols } = a.shape();
        let mut g = self.machine.arena.take(rows * cols);
        let beta = self.fill(rows, cols, |beta| {
            let inputs = [a.values(), b.values(), a_log.values(), dt_bias.values()];
            gdn::gates(&self.machine, inputs, [&mut g, beta]);
        });
        Ok((Tensor::new(a.shape(), g), beta))
    }

    fn gdn(
        &self,
        qkv: &Tensor,
        g: &Tensor,
        beta: &Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        let _time = self.time("gdn");
        let shapes = states.iter().map(|state| state.shape);
        let width = check::gdn(qkv.shape(), g.shape(), beta.shape(), batch.spans(), shapes)?;
        Ok(self.fill(batch.rows(), width, |y| {
            for (span, state) in batch.spans().iter().zip(states) {
                let y = &mut y[span.row * width..][..span.len * width];
                gdn::recurrence(
                    &self.machine,
                    qkv.rows(span.rows()),
                    g.rows(span.rows()),
                    beta.rows(span.rows()),
                    state,
                    y,
                );
            }
        }))
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
        let _time = self.time("gated_delta");
        let shapes = states.iter().map(|state| state.shape);
        check::gated_delta(qkv.shape(), a.shape(), b.shape(), weights, batch.spans(), shapes)?;
        Ok(self.fill(batch.rows(), weights.shape.value_total(), |y| {
            let inputs = [qkv.values(), a.values(), b.values()];
            gdn::gated_delta(&self.machine, inputs, weights, batch.spans(), states, y);
        }))
    }

    fn kv_cache(&self, shape: &KvShape) -> Result<KvCache> {
        check::kv_shape(shape)?;
        Ok(KvCache::new(shape, self.machine.numerics))
    }

    fn kv_truncate(&self, cache: &mut KvCache, len: usize) -> Result<bool> {
        Ok(cache.truncate(len))
    }

    fn kv_save(&self, cache: &KvCache) -> Result<KvImage> {
        Ok(cache.image())
    }

    fn kv_load(&self, shape: &KvShape, image: &KvImage) -> Result<KvCache> {
        let tokens = check::kv_image(shape, image)?;
        KvCache::from_image(shape, self.machine.numerics, image, tokens)
    }

    fn recurrent(&self, shape: &GdnShape) -> Result<Recurrent> {
        check::gdn_shape("recurrent", shape)?;
        Ok(Recurrent::new(&self.machine.arena, shape))
    }

    fn recurrent_clone(&self, state: &Recurrent) -> Result<Recurrent> {
        Ok(state.duplicate())
    }

    fn recurrent_save(&self, state: &Recurrent) -> Result<RecurrentImage> {
        Ok(state.image())
    }

    fn recurrent_load(&self, shape: &GdnShape, image: &RecurrentImage) -> Result<Recurrent> {
        check::recurrent_image(shape, image)?;
        Ok(Recurrent::from_image(&self.machine.arena, shape, image))
    }
}
