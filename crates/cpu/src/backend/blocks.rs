//! Blocks that this machine does another way than as compositions.

use ::backend::{Batch, Blocks, Checked, GatedDelta, Handle, LatentAttention, Moe, Result, reference};

use crate::ops::gdn;
use crate::ops::latent::{Latent, Widths};
use crate::slabs::Cached;
use crate::{Cpu, Slabs, Tensor};

impl Cpu {
    /// Latent attention from queries to values, in whichever form takes less work.
    fn latent_values(
        &self,
        [q, q_pe]: [&Tensor; 2],
        w: &LatentAttention<Self>,
        batch: &Batch<Self>,
        caches: &[Cached<'_>],
    ) -> Tensor {
        let _time = self.time("latent_attention");
        let [embed, unembed] = [&w.embed_q, &w.unembed_out].map(|matrices| matrices.shape().matrix);
        let widths =
            Widths { rank: embed.rows, pe: w.rope.rotary_dim(), nope: embed.cols, value: unembed.rows };
        let layer = Latent {
            q: q.values(),
            q_pe: q_pe.values(),
            spans: batch.spans(),
            caches,
            embed_q: &w.embed_q,
            unembed_out: &w.unembed_out,
            scores: w.scores(),
            widths,
        };
        self.fill(batch.rows(), w.heads * widths.value, |y| layer.run(&self.machine, y))
    }
}

impl Blocks for Cpu {
    type Hidden = Tensor;

    fn hidden(&self, h: Tensor) -> Tensor {
        h
    }

    fn tensor(&self, h: Tensor) -> Result<Tensor> {
        Ok(h)
    }

    fn latent_attention(
        &self,
        h: Tensor,
        w: &LatentAttention<Self>,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Tensor> {
        let b = &Checked(self);
        let [q, kv] = reference::latent_projections(b, &h, w)?;
        let [q, q_pe] = reference::latent_append(b, [&q, &kv], w, batch, slabs, layer)?;
        let caches = slabs.kv(layer)?.of(batch.spans(), batch.tables().of(layer));
        let y = self.latent_values([&q, &q_pe], w, batch, &caches);
        b.matmul_add(&y, &w.out, h)
    }

    /// Goes through convolution, norms and recurrence in one pass.
    fn gated_delta(
        &self,
        h: Tensor,
        w: &GatedDelta<Self>,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Tensor> {
        reference::gated_delta_with(&Checked(self), h, w, |inputs| {
            let _time = self.time("gated_delta");
            let states = &mut slabs.recurrent_mut(layer)?.of(batch.spans())?;
            let rows = [inputs.qkv.values(), inputs.a.values(), inputs.b.values()];
            Ok(self.fill(batch.rows(), w.shape.value_total(), |y| {
                gdn::gated_delta(&self.machine, rows, &w.shape, &w.vectors, batch.spans(), states, y);
            }))
        })
    }

    fn prefetch(&self, h: &Tensor, w: &Moe<Self>) -> Result<()> {
        match &self.store {
            Some(_) => reference::prefetch(&Checked(self), h, w),
            None => Ok(()),
        }
    }
}
