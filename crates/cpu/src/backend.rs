//! The operations of the trait: check shapes, call `ops`, wrap the result.

use ::backend::{
    Activation, Attention, Backend, Batch, Error, Factor, GdnShape, GroupedSigmoid, Handle, KvImage, KvShape,
    LatentAttention, MlaWeights, RecurrentImage, Result, RopeSpec, Shape, Shared, Span, check,
};
use checkpoint::Weight;
use rayon::prelude::*;

use crate::ops::latent::Widths;
use crate::ops::{attention, gdn, glu, latent, layout, moe, norm, product, rope, sigmoid};
use crate::{Cpu, Experts, HeadMatrices, KvCache, Matrix, Numerics, Recurrent, Routes, Tensor};

impl Cpu {
    /// Runs an operation's loops on the worker threads and wraps the values.
    fn compute(&self, rows: usize, cols: usize, values: impl FnOnce() -> Vec<f32> + Send) -> Tensor {
        Tensor::new(Shape { rows, cols }, self.pool.install(values))
    }

    /// Overwrites the values of `x` by `change`.
    fn change(&self, x: Tensor, change: impl FnOnce(&mut [f32]) + Send) -> Tensor {
        let shape = x.shape();
        let mut values = x.into_values();
        self.pool.install(|| change(&mut values));
        Tensor::new(shape, values)
    }

    fn append(
        &self,
        operation: &'static str,
        (k, v): (&Tensor, &Tensor),
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
    ) -> Result<()> {
        check::rows(operation, "the rows of k", k.shape(), batch.spans())?;
        check::per_span(operation, batch.spans(), caches.len())?;
        // All or none: a step that is refused must not have changed some sequences.
        for (span, cache) in batch.spans().iter().zip(caches.iter_mut()) {
            check::append(operation, k.shape(), v.shape(), &cache.shape, cache.len(), span)?;
        }
        for (span, cache) in batch.spans().iter().zip(caches.iter_mut()) {
            cache.reserve(span.len)?;
        }
        for (span, cache) in batch.spans().iter().zip(caches) {
            span.rows().for_each(|t| cache.push(k.row(t), v.row(t)));
        }
        Ok(())
    }

    fn head_product(&self, operation: &'static str, x: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let shape = check::head_product(operation, x.shape(), weights.weight.count, weights.product_shape())?;
        Ok(self.compute(shape.rows, shape.cols, || {
            product::head_products(&weights.weight, weights.transposed, x.values(), shape.rows)
        }))
    }
}

fn apply_factor(x: &mut [f32], factor: &Factor<'_, Tensor>) {
    match factor {
        Factor::One => {}
        Factor::Scalar(f) => x.iter_mut().for_each(|x| *x *= f),
        Factor::Channels(f) => x
            .chunks_exact_mut(f.shape().cols)
            .for_each(|row| row.iter_mut().zip(f.values()).for_each(|(x, f)| *x *= f)),
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
    type BatchData = ();

    fn description(&self) -> String {
        let threads = self.pool.current_num_threads();
        let numerics = match self.numerics {
            Numerics::Exact => "exact",
        };
        format!("CPU, {threads} thread{}, {numerics} numerics", if threads == 1 { "" } else { "s" })
    }

    fn free_memory(&self) -> Option<u64> {
        let text = std::fs::read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    }

    fn matrix(&self, weight: &Weight) -> Result<Matrix> {
        check::matrix(weight)?;
        Ok(Matrix(weight.clone()))
    }

    fn head_matrices(&self, weight: &Weight, transposed: bool) -> Result<HeadMatrices> {
        if weight.bias.is_some() {
            return Err(Error::Unsupported("head_matrices: biases are not supported".into()));
        }
        Ok(HeadMatrices { weight: weight.clone(), transposed })
    }

    fn expert_weights(&self, gate: &Weight, up: &Weight, down: &Weight) -> Result<Experts> {
        check::expert_weights(gate, up, down)?;
        Ok(Experts { gate: gate.clone(), up: up.clone(), down: down.clone() })
    }

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        check::equal("upload", "the number of values", values.len(), rows * cols)?;
        Ok(Tensor::new(Shape { rows, cols }, values.to_vec()))
    }

    fn rope_table(&self, spec: &RopeSpec) -> Result<RopeSpec> {
        Ok(spec.clone())
    }

    fn prepare_batch(&self, _tokens: &[u32], _spans: &[Span]) -> Result<()> {
        Ok(())
    }

    fn read(&self, x: &Tensor) -> Result<Vec<f32>> {
        Ok(x.values().to_vec())
    }

    fn read_routes(&self, routes: &Routes) -> Result<(Vec<u32>, Vec<f32>)> {
        Ok((routes.ids.clone(), routes.weights.clone()))
    }

    fn reshape(&self, x: Tensor, rows: usize, cols: usize) -> Result<Tensor> {
        let shape = check::reshape(x.shape(), rows, cols)?;
        Ok(x.with_shape(shape))
    }

    fn select_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let shape = check::select_rows(x.shape(), rows)?;
        Ok(Tensor::new(shape, rows.iter().flat_map(|r| x.row(*r)).copied().collect()))
    }

    fn columns(&self, x: &Tensor, start: usize, width: usize) -> Result<Tensor> {
        let shape = check::columns(x.shape(), start, width)?;
        Ok(Tensor::new(
            shape,
            layout::gather(x.values(), x.shape().cols, &[layout::Columns { start, width }]),
        ))
    }

    fn split_heads(&self, x: &Tensor, heads: usize, first: usize) -> Result<(Tensor, Tensor)> {
        let Shape { rows, cols } = x.shape();
        let (a, b) = check::split_heads(x.shape(), heads, first)?;
        let part = |first, width| {
            let ranges = layout::part_of_heads(heads, a + b, first, width);
            Tensor::new(Shape { rows, cols: heads * width }, layout::gather(x.values(), cols, &ranges))
        };
        Ok((part(0, a), part(a, b)))
    }

    fn split_qkvz(&self, x: &Tensor, shape: &GdnShape) -> Result<(Tensor, Tensor)> {
        check::split_qkvz(x.shape(), shape)?;
        let (qkv, z) = layout::qkvz_ranges(shape);
        let part = |ranges: &[layout::Columns], cols| {
            Tensor::new(
                Shape { rows: x.shape().rows, cols },
                layout::gather(x.values(), x.shape().cols, ranges),
            )
        };
        Ok((part(&qkv, shape.channels()), part(&z, shape.value_total())))
    }

    fn embed(&self, table: &Matrix, batch: &Batch<Self>, scale: f32) -> Result<Tensor> {
        check::embed(table.shape(), batch.tokens())?;
        Ok(self.compute(batch.rows(), table.0.cols, || product::embed(&table.0, batch.tokens(), scale)))
    }

    fn matmuls<const N: usize>(&self, x: &Tensor, weights: [&Matrix; N]) -> Result<[Tensor; N]> {
        for w in weights {
            check::matmul("matmul", x.shape(), w.shape())?;
        }
        let n = x.shape().rows;
        Ok(weights.map(|w| self.compute(n, w.0.rows, || product::matmul(&w.0, x.values(), n))))
    }

    fn matmul_add(&self, x: &Tensor, weight: &Matrix, residual: Tensor) -> Result<Tensor> {
        let shape = check::matmul("matmul_add", x.shape(), weight.shape())?;
        check::equal("matmul_add", "the residual", residual.shape(), shape)?;
        Ok(self.change(residual, |r| {
            let y = product::matmul(&weight.0, x.values(), shape.rows);
            r.iter_mut().zip(&y).for_each(|(r, y)| *r += y);
        }))
    }

    fn gate_up(&self, x: &Tensor, gate: &Matrix, up: &Matrix, activation: Activation) -> Result<Tensor> {
        check::gate_up(x.shape(), gate.shape(), up.shape())?;
        let [g, u] = self.matmuls(x, [gate, up])?;
        self.glu(g, &u, activation)
    }

    fn glu(&self, gate: Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        check::equal("glu", "up", up.shape(), gate.shape())?;
        Ok(self
            .change(gate, |g| g.iter_mut().zip(up.values()).for_each(|(g, u)| *g = glu(activation, *g, *u))))
    }

    fn soft_cap(&self, x: Tensor, cap: f32) -> Result<Tensor> {
        Ok(self.change(x, |x| x.par_iter_mut().for_each(|x| *x = cap * (*x / cap).tanh())))
    }

    fn rms_norm(&self, x: &Tensor, w: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        w.map_or(Ok(()), |w| check::vector("rms_norm", "w", w.shape(), x.shape().cols))?;
        let cols = x.shape().cols;
        Ok(self.change(x.clone(), |x| norm::rms_slices(x, w.map(Tensor::values), cols, eps)))
    }

    fn rms_norm_heads(&self, x: Tensor, w: Option<&Tensor>, heads: usize, eps: f32) -> Result<Tensor> {
        let width = check::heads("rms_norm_heads", "the width of x", x.shape().cols, heads)?;
        w.map_or(Ok(()), |w| check::vector("rms_norm_heads", "w", w.shape(), width))?;
        Ok(self.change(x, |x| norm::rms_slices(x, w.map(Tensor::values), width, eps)))
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
        let s = self.change(x.clone(), |s| s.iter_mut().zip(r.values()).for_each(|(s, r)| *s += r));
        let y = self.change(s.clone(), |y| {
            norm::rms_slices(y, Some(w.values()), w.shape().cols, eps);
            apply_factor(y, &factor);
        });
        Ok((s, y))
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
        Ok(self.change(x.clone(), |y| {
            norm::rms_slices(y, Some(w.values()), w.shape().cols, eps);
            y.iter_mut().zip(r.values()).for_each(|(y, r)| *y += r);
            apply_factor(y, &factor);
        }))
    }

    fn gated_norm(&self, v: &Tensor, z: &Tensor, w: &Tensor, heads: usize, eps: f32) -> Result<Tensor> {
        check::gated_norm(v.shape(), z.shape(), w.shape(), heads)?;
        let Shape { rows, cols } = v.shape();
        Ok(self.compute(rows, cols, || norm::gated(v.values(), z.values(), w.values(), eps)))
    }

    fn sigmoid_gate(&self, x: Tensor, g: &Tensor) -> Result<Tensor> {
        check::equal("sigmoid_gate", "g", g.shape(), x.shape())?;
        Ok(self.change(x, |x| x.iter_mut().zip(g.values()).for_each(|(x, g)| *x *= sigmoid(*g))))
    }

    fn rope(&self, x: Tensor, batch: &Batch<Self>, spec: &RopeSpec, heads: usize) -> Result<Tensor> {
        let width = check::rope(x.shape(), batch.spans(), heads, spec.rotary_dim())?;
        let cols = x.shape().cols;
        Ok(self.change(x, |x| rope::rope(x, cols, width, spec, batch.spans())))
    }

    fn kv_append(
        &self,
        k: &Tensor,
        v: &Tensor,
        batch: &Batch<Self>,
        caches: &mut [&mut KvCache],
    ) -> Result<()> {
        self.append("kv_append", (k, v), batch, caches)
    }

    fn attention(
        &self,
        q: &Tensor,
        batch: &Batch<Self>,
        caches: &[&KvCache],
        spec: &Attention,
    ) -> Result<Tensor> {
        check::rows("attention", "the rows of q", q.shape(), batch.spans())?;
        check::per_span("attention", batch.spans(), caches.len())?;
        let width = spec.heads * caches[0].shape.value_dim;
        let mut groups = Vec::with_capacity(caches.len());
        for (span, cache) in batch.spans().iter().zip(caches) {
            check::equal(
                "attention",
                "the value width of a cache",
                spec.heads * cache.shape.value_dim,
                width,
            )?;
            groups.push(check::attention(q.shape(), spec, &cache.shape, cache.len(), span)?);
        }
        Ok(self.compute(batch.rows(), width, || {
            let mut y = vec![0.0; batch.rows() * width];
            for ((span, cache), group) in batch.spans().iter().zip(caches).zip(groups) {
                let y = &mut y[span.row * width..][..span.len * width];
                attention::attention(q.rows(span.rows()), y, span, cache, spec, group);
            }
            y
        }))
    }

    fn mla_absorb_q(&self, q: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        self.head_product("mla_absorb_q", q, weights)
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
        let both: Vec<f32> =
            (0..rows).flat_map(|t| latent.row(t).iter().chain(k_pe.row(t))).copied().collect();
        let keys = Tensor::new(Shape { rows, cols: latent.shape().cols + k_pe.shape().cols }, both);
        let values = Tensor::new(Shape { rows, cols: 0 }, Vec::new());
        self.append("mla_append", (&keys, &values), batch, caches)
    }

    fn mla_attention(
        &self,
        q: &Tensor,
        q_pe: &Tensor,
        batch: &Batch<Self>,
        caches: &[&KvCache],
        spec: &LatentAttention,
    ) -> Result<Tensor> {
        check::rows("mla_attention", "the rows of q", q.shape(), batch.spans())?;
        check::per_span("mla_attention", batch.spans(), caches.len())?;
        let mut widths = (0, 0);
        for (span, cache) in batch.spans().iter().zip(caches) {
            widths =
                check::mla_attention(q.shape(), q_pe.shape(), spec.heads, &cache.shape, cache.len(), span)?;
        }
        let cols = q.shape().cols;
        Ok(self.compute(batch.rows(), cols, || {
            let mut y = vec![0.0; batch.rows() * cols];
            for (span, cache) in batch.spans().iter().zip(caches) {
                let y = &mut y[span.row * cols..][..span.len * cols];
                latent::absorbed(q.rows(span.rows()), q_pe.rows(span.rows()), y, span, cache, spec, widths);
            }
            y
        }))
    }

    fn mla_unabsorb(&self, o: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
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
        let MlaWeights { embed_q, unembed_out } = weights;
        let latents = check::head_product("mla", q.shape(), embed_q.weight.count, embed_q.product_shape())?;
        let values =
            check::head_product("mla", latents, unembed_out.weight.count, unembed_out.product_shape())?;
        check::rows("mla", "the rows of q", q.shape(), batch.spans())?;
        check::per_span("mla", batch.spans(), caches.len())?;
        for (span, cache) in batch.spans().iter().zip(caches) {
            check::mla_attention(latents, q_pe.shape(), spec.heads, &cache.shape, cache.len(), span)?;
        }
        let widths = Widths {
            rank: embed_q.product_shape().rows,
            pe: q_pe.shape().cols / spec.heads,
            nope: embed_q.product_shape().cols,
            value: unembed_out.product_shape().rows,
        };
        Ok(self.compute(values.rows, values.cols, || {
            let span = |(span, cache): (&Span, &&KvCache)| {
                latent::attention(
                    q.rows(span.rows()),
                    q_pe.rows(span.rows()),
                    span,
                    cache,
                    weights,
                    spec,
                    widths,
                )
            };
            batch.spans().iter().zip(caches).flat_map(span).collect()
        }))
    }

    fn route_softmax(&self, logits: &Tensor, top_k: usize, renormalise: bool) -> Result<Routes> {
        check::route("route_softmax", logits.shape(), top_k)?;
        Ok(moe::route_softmax(logits.values(), logits.shape().cols, top_k, renormalise, None))
    }

    fn route_softmax_scaled(
        &self,
        logits: &Tensor,
        top_k: usize,
        per_expert_scale: &Tensor,
    ) -> Result<Routes> {
        let experts = logits.shape().cols;
        check::route("route_softmax_scaled", logits.shape(), top_k)?;
        check::vector("route_softmax_scaled", "the scales", per_expert_scale.shape(), experts)?;
        Ok(moe::route_softmax(logits.values(), experts, top_k, true, Some(per_expert_scale.values())))
    }

    fn route_sigmoid_grouped(&self, logits: &Tensor, bias: &Tensor, spec: &GroupedSigmoid) -> Result<Routes> {
        let size = check::route_grouped(logits.shape(), bias.shape(), spec)?;
        Ok(moe::route_grouped(logits.values(), bias.values(), size, spec))
    }

    fn experts(
        &self,
        x: &Tensor,
        routes: &Routes,
        weights: &Experts,
        activation: Activation,
    ) -> Result<Tensor> {
        let shape = Shape { rows: weights.gate.rows, cols: weights.gate.cols };
        check::experts(x.shape(), routes.tokens(), routes.experts, shape, weights.gate.count)?;
        let Shape { rows, cols } = x.shape();
        Ok(self.compute(rows, cols, || moe::experts(x.values(), cols, routes, weights, activation)))
    }

    fn combine(&self, h: &Tensor, moe: &Tensor, shared: Shared<'_, Tensor>) -> Result<Tensor> {
        check::combine(h.shape(), moe.shape(), &shared)?;
        Ok(self.change(h.clone(), |y| {
            y.par_chunks_exact_mut(h.shape().cols).enumerate().for_each(|(t, y)| {
                let (x, strength) = match shared {
                    Shared::Absent => (moe, 0.0),
                    Shared::Plain(x) => (x, 1.0),
                    Shared::Gated { x, gate } => (x, sigmoid(gate.values()[t])),
                };
                y.iter_mut().zip(moe.row(t)).for_each(|(y, m)| *y += m);
                if strength != 0.0 {
                    y.iter_mut().zip(x.row(t)).for_each(|(y, x)| *y += strength * x);
                }
            });
        }))
    }

    fn combine_norm(&self, a: &Tensor, wa: &Tensor, b: &Tensor, wb: &Tensor, eps: f32) -> Result<Tensor> {
        check::combine_norm(a.shape(), wa.shape(), b.shape(), wb.shape())?;
        let a = self.rms_norm(a, Some(wa), eps)?;
        self.norm_add(&a, b, wb, eps, Factor::One)
    }

    fn conv_causal(
        &self,
        x: &Tensor,
        w: &Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        check::rows("conv_causal", "the rows of x", x.shape(), batch.spans())?;
        check::per_span("conv_causal", batch.spans(), states.len())?;
        for state in states.iter() {
            check::conv_causal(x.shape(), w.shape(), &state.shape)?;
        }
        let cols = x.shape().cols;
        Ok(self.compute(batch.rows(), cols, || {
            let mut y = vec![0.0; batch.rows() * cols];
            for (span, state) in batch.spans().iter().zip(states) {
                let y = &mut y[span.row * cols..][..span.len * cols];
                gdn::conv_causal(x.rows(span.rows()), w.values(), state, y);
            }
            y
        }))
    }

    fn gdn_qk_norm(&self, qkv: Tensor, shape: &GdnShape) -> Result<Tensor> {
        check::gdn_shape("gdn_qk_norm", shape)?;
        check::equal("gdn_qk_norm", "the width of qkv", qkv.shape().cols, shape.channels())?;
        Ok(self.change(qkv, |qkv| gdn::qk_norm(qkv, shape)))
    }

    fn gdn_gates(
        &self,
        a: &Tensor,
        b: &Tensor,
        a_log: &Tensor,
        dt_bias: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        check::gdn_gates(a.shape(), b.shape(), a_log.shape(), dt_bias.shape())?;
        let (g, beta) = gdn::gates(a.values(), b.values(), a_log.values(), dt_bias.values());
        Ok((Tensor::new(a.shape(), g), Tensor::new(b.shape(), beta)))
    }

    fn gdn(
        &self,
        qkv: &Tensor,
        g: &Tensor,
        beta: &Tensor,
        batch: &Batch<Self>,
        states: &mut [&mut Recurrent],
    ) -> Result<Tensor> {
        check::rows("gdn", "the rows of qkv", qkv.shape(), batch.spans())?;
        check::per_span("gdn", batch.spans(), states.len())?;
        for state in states.iter() {
            check::gdn(qkv.shape(), g.shape(), beta.shape(), &state.shape)?;
            check::equal(
                "gdn",
                "the value width of a state",
                state.shape.value_total(),
                states[0].shape.value_total(),
            )?;
        }
        let width = states[0].shape.value_total();
        Ok(self.compute(batch.rows(), width, || {
            let mut y = vec![0.0; batch.rows() * width];
            for (span, state) in batch.spans().iter().zip(states) {
                let y = &mut y[span.row * width..][..span.len * width];
                gdn::recurrence(qkv.rows(span.rows()), g.rows(span.rows()), beta.rows(span.rows()), state, y);
            }
            y
        }))
    }

    fn kv_cache(&self, shape: &KvShape) -> Result<KvCache> {
        check::kv_shape(shape)?;
        Ok(KvCache::new(shape))
    }

    fn kv_truncate(&self, cache: &mut KvCache, len: usize) -> Result<bool> {
        Ok(cache.truncate(len))
    }

    fn kv_save(&self, cache: &KvCache) -> Result<KvImage> {
        Ok(cache.image())
    }

    fn kv_load(&self, shape: &KvShape, image: &KvImage) -> Result<KvCache> {
        let tokens = check::kv_image(shape, image)?;
        KvCache::from_image(shape, image, tokens)
    }

    fn recurrent(&self, shape: &GdnShape) -> Result<Recurrent> {
        check::gdn_shape("recurrent", shape)?;
        Ok(Recurrent::new(shape))
    }

    fn recurrent_clone(&self, state: &Recurrent) -> Result<Recurrent> {
        Ok(state.clone())
    }

    fn recurrent_save(&self, state: &Recurrent) -> Result<RecurrentImage> {
        Ok(state.image())
    }

    fn recurrent_load(&self, shape: &GdnShape, image: &RecurrentImage) -> Result<Recurrent> {
        check::recurrent_image(shape, image)?;
        Ok(Recurrent::from_image(shape, image))
    }
}
