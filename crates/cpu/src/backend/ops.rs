//! The operations: call `ops`, wrap the result.

use ::backend::{
    Activation, Batch, GdnShape, GdnVectors, Handle, LatentScores, Ops, Result, Routing, Scores, Shape,
    Shared, Span, StepTables, check,
};
use checkpoint::Weight;

use crate::arena::Buffer;
use crate::ops::attention::Grouped;
use crate::ops::latent::Absorbed;
use crate::ops::rope::Turns;
use crate::ops::{elementwise, experts, gdn, layout, norm, product, rope, route};
use crate::{BatchData, Cpu, Experts, HeadMatrices, Linear, Routes, Slabs, Tensor};

impl Ops for Cpu {
    type Routes = Routes;
    type Slabs = Slabs;
    type BatchData = BatchData;

    fn prepare_batch(
        &self,
        tokens: &[u32],
        spans: &[Span],
        _tables: &StepTables,
        slabs: &Slabs,
    ) -> Result<BatchData> {
        let mut tokens = tokens.to_vec();
        for span in spans.iter().filter(|span| span.follows) {
            tokens[span.row] = slabs.last(span.slot)?;
        }
        Ok(BatchData { tokens, turns: Turns::default() })
    }

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        Ok(Tensor::new(Shape { rows, cols }, self.machine.arena.copy(values)))
    }

    fn read(&self, x: &Tensor) -> Result<Vec<f32>> {
        let _time = self.time("read");
        Ok(x.values().to_vec())
    }

    fn read_routes(&self, routes: &Routes) -> Result<(Vec<u32>, Vec<f32>)> {
        Ok((routes.ids.clone(), routes.weights.clone()))
    }

    fn reshape(&self, x: Tensor, rows: usize, cols: usize) -> Result<Tensor> {
        Ok(x.with_shape(Shape { rows, cols }))
    }

    fn select_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Tensor> {
        let _time = self.time("select_rows");
        let cols = x.shape().cols;
        Ok(self.fill(rows.len(), cols, |y| {
            y.chunks_exact_mut(cols).zip(rows).for_each(|(y, r)| y.copy_from_slice(x.row(*r)));
        }))
    }

    fn columns(&self, x: &Tensor, start: usize, width: usize) -> Result<Tensor> {
        let _time = self.time("columns");
        let range = std::iter::once(layout::Columns { start, width });
        Ok(self.fill(x.shape().rows, width, |y| {
            layout::gather(&self.machine, x.values(), x.shape().cols, range, y)
        }))
    }

    fn join_rows(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let _time = self.time("join_rows");
        let rows = parts.iter().map(|part| part.shape().rows).sum();
        let cols = parts.first().map_or(0, |part| part.shape().cols);
        Ok(self.fill(rows, cols, |mut y| {
            for part in parts {
                let (own, rest) = std::mem::take(&mut y).split_at_mut(part.values().len());
                own.copy_from_slice(part.values());
                y = rest;
            }
        }))
    }

    fn join_columns(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let _time = self.time("join_columns");
        let cols = a.shape().cols + b.shape().cols;
        Ok(self.fill(a.shape().rows, cols, |y| {
            for (t, y) in y.chunks_exact_mut(cols).enumerate() {
                let (left, right) = y.split_at_mut(a.shape().cols);
                left.copy_from_slice(a.row(t));
                right.copy_from_slice(b.row(t));
            }
        }))
    }

    fn split_heads(&self, x: &Tensor, heads: usize, first: usize) -> Result<(Tensor, Tensor)> {
        let _time = self.time("split_heads");
        let Shape { rows, cols } = x.shape();
        let (a, b) = (first, cols / heads - first);
        let part = |first, width| {
            let ranges = layout::part_of_heads(heads, a + b, first, width);
            self.fill(rows, heads * width, |y| layout::gather(&self.machine, x.values(), cols, ranges, y))
        };
        Ok((part(0, a), part(a, b)))
    }

    fn split_qkvz(&self, x: &Tensor, shape: &GdnShape) -> Result<(Tensor, Tensor)> {
        let _time = self.time("split_qkvz");
        let (qkv, z) = layout::qkvz_ranges(shape);
        let Shape { rows, cols } = x.shape();
        let qkv =
            self.fill(rows, shape.channels(), |y| layout::gather(&self.machine, x.values(), cols, qkv, y));
        let z =
            self.fill(rows, shape.value_total(), |y| layout::gather(&self.machine, x.values(), cols, z, y));
        Ok((qkv, z))
    }

    fn embed(&self, table: &Linear, batch: &Batch<Self>, scale: f32) -> Result<Tensor> {
        let _time = self.time("embed");
        // Those that only this machine knows among them.
        let tokens = &batch.data().tokens;
        check::embed(table.shape(), tokens)?;
        let table = table.only();
        Ok(self.fill(tokens.len(), table.cols, |y| product::embed(&self.machine, table, tokens, scale, y)))
    }

    fn matmuls(&self, x: &Tensor, weights: &Linear) -> Result<Vec<Tensor>> {
        let _time = self.time("matmul");
        let n = x.shape().rows;
        let mut outputs: Vec<_> = weights.0.iter().map(|w| self.machine.arena.take(n * w.rows)).collect();
        let slices = outputs.iter_mut().map(|y| &mut **y);
        product::matmuls(&self.machine, weights.0.iter(), x.values(), slices);
        let tensor = |(y, w): (Buffer, &Weight)| Tensor::new(Shape { rows: n, cols: w.rows }, y);
        Ok(outputs.into_iter().zip(&weights.0).map(tensor).collect())
    }

    fn matmul_add(&self, x: &Tensor, weight: &Linear, residual: Tensor) -> Result<Tensor> {
        let _time = self.time("matmul_add");
        Ok(self.change(residual, |r| product::matmul_add(&self.machine, weight.only(), x.values(), r)))
    }

    fn gate_up(&self, x: &Tensor, gate_up: &Linear, activation: Activation) -> Result<Tensor> {
        let _time = self.time("gate_up");
        let [gate, up] = &gate_up.0[..] else { unreachable!("checked: gate and up") };
        Ok(self.fill(x.shape().rows, gate.rows, |y| {
            product::gate_up(&self.machine, [gate, up], activation, x.values(), y)
        }))
    }

    fn glu(&self, gate: Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        let _time = self.time("glu");
        Ok(self.change(gate, |g| elementwise::glu(&self.machine, activation, g, up.values())))
    }

    fn soft_cap(&self, x: Tensor, cap: f32) -> Result<Tensor> {
        let _time = self.time("soft_cap");
        Ok(self.change(x, |x| elementwise::soft_cap(&self.machine, x, cap)))
    }

    fn rms_norm(&self, x: &Tensor, w: Option<&Tensor>, eps: f32) -> Result<Tensor> {
        let _time = self.time("rms_norm");
        let Shape { rows, cols } = x.shape();
        Ok(self
            .fill(rows, cols, |y| norm::rms(&self.machine, x.values(), w.map(Tensor::values), cols, eps, y)))
    }

    fn rms_norm_heads(&self, x: Tensor, w: Option<&Tensor>, heads: usize, eps: f32) -> Result<Tensor> {
        let _time = self.time("rms_norm_heads");
        let width = x.shape().cols / heads;
        Ok(self.change(x, |x| norm::rms_in_place(&self.machine, x, w.map(Tensor::values), width, eps)))
    }

    fn norm_add(&self, r: &Tensor, x: &Tensor, w: &Tensor, eps: f32, factor: f32) -> Result<Tensor> {
        let _time = self.time("norm_add");
        let Shape { rows, cols } = x.shape();
        Ok(self.fill(rows, cols, |y| {
            let inputs = [r.values(), x.values(), w.values()];
            norm::norm_add(&self.machine, inputs, eps, factor, y);
        }))
    }

    fn gated_norm(&self, v: &Tensor, z: &Tensor, w: &Tensor, _heads: usize, eps: f32) -> Result<Tensor> {
        let _time = self.time("gated_norm");
        let Shape { rows, cols } = v.shape();
        let inputs = [v.values(), z.values(), w.values()];
        Ok(self.fill(rows, cols, |y| norm::gated(&self.machine, inputs, eps, y)))
    }

    fn sigmoid_gate(&self, x: Tensor, g: &Tensor) -> Result<Tensor> {
        let _time = self.time("sigmoid_gate");
        Ok(self.change(x, |x| elementwise::sigmoid_gate(&self.machine, x, g.values())))
    }

    fn rope(
        &self,
        x: Tensor,
        batch: &Batch<Self>,
        spec: &::backend::RopeSpec,
        heads: usize,
    ) -> Result<Tensor> {
        let _time = self.time("rope");
        let cols = x.shape().cols;
        let width = cols / heads;
        Ok(self.change(x, |x| {
            rope::rope(&self.machine, x, cols, width, spec, &batch.data().turns, batch.spans())
        }))
    }

    fn kv_append(
        &self,
        k: &Tensor,
        v: &Tensor,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<()> {
        let _time = self.time("kv_append");
        let (kv, tables) = (slabs.kv_mut(layer)?, batch.tables().of(layer));
        kv.append(&self.machine.pool, batch.spans(), tables, |t| ([k.row(t), &[]], v.row(t)))
    }

    fn sdpa(
        &self,
        q: &Tensor,
        batch: &Batch<Self>,
        slabs: &Slabs,
        layer: usize,
        scores: &Scores,
    ) -> Result<Tensor> {
        let _time = self.time("sdpa");
        let (kv, spans) = (slabs.kv(layer)?, batch.spans());
        let group = scores.heads / kv.shape().heads;
        let caches = &kv.of(spans, batch.tables().of(layer));
        let layer = Grouped { q: q.values(), spans, caches, scores: *scores, group };
        Ok(self.fill(batch.rows(), scores.heads * kv.shape().value_dim, |y| layer.run(&self.machine, y)))
    }

    fn mla_absorb_q(&self, q: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let _time = self.time("mla_absorb_q");
        self.head_matmul(q, weights)
    }

    fn mla_append(
        &self,
        latent: &Tensor,
        k_pe: &Tensor,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<()> {
        let _time = self.time("mla_append");
        let (kv, tables) = (slabs.kv_mut(layer)?, batch.tables().of(layer));
        kv.append(&self.machine.pool, batch.spans(), tables, |t| ([latent.row(t), k_pe.row(t)], &[]))
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
        let _time = self.time("mla_attention");
        let [rank, pe] = [q, q_pe].map(|x| x.shape().cols / scores.heads);
        let spans = batch.spans();
        let caches = &slabs.kv(layer)?.of(spans, batch.tables().of(layer));
        let layer = Absorbed { q: q.values(), q_pe: q_pe.values(), spans, caches, scores: *scores, rank, pe };
        Ok(self.fill(batch.rows(), q.shape().cols, |y| layer.run(&self.machine, y)))
    }

    fn mla_unabsorb(&self, o: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let _time = self.time("mla_unabsorb");
        self.head_matmul(o, weights)
    }

    fn route(&self, logits: &Tensor, routing: &Routing<Tensor>) -> Result<Routes> {
        let _time = self.time("route");
        let (machine, values, experts) = (&self.machine, logits.values(), logits.shape().cols);
        Ok(match routing {
            Routing::Softmax { top_k, renormalise } => {
                route::softmax(machine, values, experts, *top_k, *renormalise, None)
            }
            Routing::SoftmaxScaled { top_k, scale } => {
                route::softmax(machine, values, experts, *top_k, true, Some(scale.values()))
            }
            Routing::GroupedSigmoid { spec, bias } => {
                route::grouped(machine, values, bias.values(), experts / spec.groups, spec)
            }
        })
    }

    fn experts(
        &self,
        x: &Tensor,
        routes: &Routes,
        weights: &Experts,
        activation: Activation,
    ) -> Result<Tensor> {
        let _time = self.time("experts");
        let Shape { rows, cols } = x.shape();
        let (machine, store) = (&self.machine, self.store.as_ref());
        let mut result = Ok(());
        let y = self.fill(rows, cols, |y| {
            result = experts::experts(machine, x.values(), routes, weights, store, activation, y);
        });
        result.map(|()| y)
    }

    fn prefetch_experts(&self, routes: &Routes, weights: &Experts, speculative: bool) {
        if let (Some(store), Some(layer)) = (&self.store, weights.layer) {
            store.expect(layer, routes.ids.iter().map(|expert| *expert as usize), speculative);
        }
    }

    fn shared_expert(&self, x: &Tensor, weights: &Experts, activation: Activation) -> Result<Option<Tensor>> {
        let Some([gate, up, down]) = &weights.shared else { return Ok(None) };
        let _time = self.time("shared_expert");
        let rows = x.shape().rows;
        let hidden = self.fill(rows, gate.rows, |y| {
            product::gate_up(&self.machine, [gate, up], activation, x.values(), y);
        });
        Ok(Some(self.fill(rows, down.rows, |y| {
            product::matmuls(&self.machine, std::iter::once(down), hidden.values(), std::iter::once(y));
        })))
    }

    fn combine(&self, h: &Tensor, moe: &Tensor, shared: Shared<'_, Tensor>) -> Result<Tensor> {
        let _time = self.time("combine");
        let Shape { rows, cols } = h.shape();
        Ok(self.fill(rows, cols, |y| {
            elementwise::combine(&self.machine, cols, h.values(), moe.values(), &shared, y);
        }))
    }

    fn combine_norm(&self, a: &Tensor, wa: &Tensor, b: &Tensor, wb: &Tensor, eps: f32) -> Result<Tensor> {
        let _time = self.time("combine_norm");
        let Shape { rows, cols } = a.shape();
        let inputs = [a.values(), wa.values(), b.values(), wb.values()];
        Ok(self.fill(rows, cols, |y| norm::combine_norm(&self.machine, inputs, eps, y)))
    }

    fn conv_causal(
        &self,
        x: &Tensor,
        w: &Tensor,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Tensor> {
        let _time = self.time("conv_causal");
        let cols = x.shape().cols;
        let taps = w.turned(self.machine.set);
        let states = slabs.recurrent_mut(layer)?.of(batch.spans())?;
        Ok(self.fill(batch.rows(), cols, |y| {
            for (span, mut state) in batch.spans().iter().zip(states) {
                let y = &mut y[span.row * cols..][..span.len * cols];
                gdn::conv_causal(&self.machine, x.rows(span.rows()), &taps, &mut state.window, y);
            }
        }))
    }

    fn gdn_qk_norm(&self, qkv: Tensor, shape: &GdnShape) -> Result<Tensor> {
        let _time = self.time("gdn_qk_norm");
        Ok(self.change(qkv, |qkv| gdn::qk_norm(&self.machine, qkv, shape)))
    }

    fn gdn_gates(&self, a: &Tensor, b: &Tensor, vectors: &GdnVectors<Tensor>) -> Result<(Tensor, Tensor)> {
        let _time = self.time("gdn_gates");
        let Shape { rows, cols } = a.shape();
        let mut g = self.machine.arena.take(rows * cols);
        let beta = self.fill(rows, cols, |beta| {
            let inputs = [a.values(), b.values(), vectors.a_log.values(), vectors.dt_bias.values()];
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
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Tensor> {
        let _time = self.time("gdn");
        let layer = slabs.recurrent_mut(layer)?;
        let shape = layer.shape();
        let (states, width) = (layer.of(batch.spans())?, shape.value_total());
        Ok(self.fill(batch.rows(), width, |y| {
            for (span, state) in batch.spans().iter().zip(states) {
                let y = &mut y[span.row * width..][..span.len * width];
                let [qkv, g, beta] = [qkv, g, beta].map(|x| x.rows(span.rows()));
                gdn::recurrence(&self.machine, qkv, [g, beta], shape, state.matrices, y);
            }
        }))
    }
}
