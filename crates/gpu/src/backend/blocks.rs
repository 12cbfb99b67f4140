//! Blocks of one token in few dispatches, because each costs microseconds whatever it does.

use ::backend::{
    Attention, Batch, Blocks, Checked, DenseBranch, GatedDelta, GdnLayout, Handle, Head, LatentAttention,
    Mlp, Moe, Norm, Residual, Result, reference,
};

use crate::ops::attention::Cached;
use crate::ops::attention_step::{Attended, Projected};
use crate::ops::gdn::DeltaInputs;
use crate::ops::product::Projections;
use crate::ops::rounded::{Besides, LayerEnd, NormRef, Prologue};
use crate::ops::route;
use crate::weights::{Matrix, SharedExpert};
use crate::{Gpu, Linear, Slabs, Tensor};

/// The residual stream, and what is still to be added to it.
pub enum Hidden {
    /// Nothing.
    Whole(Tensor),
    /// What a block with a norm behind it has left: `(r + rms(x) * w) * factor`.
    Normed(Normed),
    /// What a layer of experts beside a dense unit has left.
    LayerEnd(LayerEnd),
}

/// See [`Hidden::Normed`].
pub struct Normed {
    r: Tensor,
    x: Tensor,
    norm: Norm<Tensor>,
    factor: f32,
}

/// What the projections of an attention layer leave.
enum HeadInputs {
    /// All of a token in one row.
    Together(Projected),
    Apart(Vec<Tensor>),
}

impl Hidden {
    /// Tokens.
    fn rows(&self) -> usize {
        match self {
            Hidden::Whole(h) => h.shape().rows,
            Hidden::Normed(normed) => normed.r.shape().rows,
            Hidden::LayerEnd(end) => end.r.shape().rows,
        }
    }
}

impl Gpu {
    /// The residual stream as a tensor.
    fn whole(&self, h: Hidden) -> Result<Tensor> {
        match h {
            Hidden::Whole(h) => Ok(h),
            Hidden::Normed(Normed { r, x, norm, factor }) => {
                self.norm_add_of([&r, &x, &norm.w], norm.eps, factor)
            }
            Hidden::LayerEnd(LayerEnd { r, branches: [a, b], norms: [wa, wb, w], eps, factor }) => {
                self.combine_norm_add_of([&r, &a, &b], [&wa, &wb, &w], eps, factor)
            }
        }
    }

    /// The residual stream as a tensor, and the projections of its norm.
    fn project(&self, h: Hidden, norm: &Norm<Tensor>, weights: &Linear) -> Result<(Tensor, Projections)> {
        if let Hidden::LayerEnd(end) = &h
            && let Some(both) = self.end_products(end, norm, weights)?
        {
            return Ok(both);
        }
        let h = self.whole(h)?;
        let projected = self.products(&Prologue::Norm(&h, NormRef::of(norm)), weights)?;
        Ok((h, projected))
    }

    /// The residual stream behind `W y`, `y` being what the prologue makes.
    fn join_stream(
        &self,
        h: Tensor,
        y: &Prologue<'_>,
        w: &Matrix,
        residual: &Residual<Tensor>,
    ) -> Result<Hidden> {
        let added = matches!(residual, Residual::Plain).then_some(&h);
        let x = match y {
            Prologue::Plain(y) => self.product(&self.input(y)?, w, added)?,
            _ => {
                let besides = Besides { bias: w.bias.as_ref(), residual: added, ..Besides::default() };
                self.rounded_product(y, &w.stack, w.rows_of_stack(), &besides)?
            }
        };
        Ok(match residual {
            Residual::Plain => Hidden::Whole(x),
            Residual::PostNorm { norm, factor } => {
                Hidden::Normed(Normed { r: h, x, norm: norm.clone(), factor: *factor })
            }
        })
    }

    /// `act(Wgate z) * Wup z`, `z = rms(h) * w`, and `h`.
    fn mlp_inside(&self, h: Hidden, w: &Mlp<Self>) -> Result<(Tensor, Tensor)> {
        let norm = NormRef::of(&w.norm);
        if let Hidden::Normed(Normed { r, x, norm: post, factor: 1.0 }) = &h
            && post.eps == norm.eps
        {
            let input = Prologue::NormAdd { r, x, post: &post.w, norm };
            if let Some(both) = self.norm_add_gate_up_of(&input, &w.gate_up, w.activation)? {
                return Ok(both);
            }
        }
        let h = self.whole(h)?;
        let inside = self.gate_up_of(&Prologue::Norm(&h, norm), &w.gate_up, w.activation)?;
        Ok((h, inside))
    }

    /// Experts, the shared one among them, and `h` where it is to be added; `None` where that is no single pass.
    fn experts_pass(&self, h: &Tensor, w: &Moe<Self>, add: bool) -> Result<Option<Tensor>> {
        let Moe { router, routing, experts, activation, .. } = w;
        let shared = matches!(experts.shared, SharedExpert::Behind);
        // One matrix may lie in parts; several are one product where nothing lies between them.
        let rows_of = |router: &Linear| match router.len() {
            1 => router.rows_of_stack(),
            _ => router.contiguous_rows(),
        };
        let (Some(rows), true) = (rows_of(router), shared || matches!(experts.shared, SharedExpert::Absent))
        else {
            return Ok(None);
        };
        let gated = router.len() > 1;
        let (stack, bias) = (router.stack(), router.only().bias.as_ref());
        let norm = NormRef::of(&w.norm);
        let own = w.router_norm.as_ref().map(NormRef::of);
        let input = Prologue::Norm(h, own.unwrap_or(norm));
        let simple = stack.parts.len() == 1 && h.shape().cols.is_multiple_of(8);
        if h.shape().rows == 1 && simple && self.steps_experts(experts, routing) {
            let digits = Self::digits_for(experts, norm.w);
            let logits = if self.prepares(&input, stack) {
                let besides = Besides { bias, digits: Some(digits), ..Besides::default() };
                self.rounded_product(&input, stack, rows, &besides)?
            } else {
                self.norm_product(h, own.unwrap_or(norm), stack, rows, bias, digits)?
            };
            let up = self.experts_step_up(&logits, w)?;
            return self.experts_step_down(&up, experts, add.then_some(h)).map(Some);
        }
        let normed = |norm: NormRef<'_>| self.rms_norm_of(h, Some(norm.w), h.shape().cols, norm.eps);
        let x = normed(norm)?;
        let x = self.input(&x)?;
        let routed = own.map(normed).transpose()?;
        let routed = routed.as_ref().map(|routed| self.input(routed)).transpose()?;
        let logits = self.product_with(routed.as_ref().unwrap_or(&x), stack, rows, bias, None)?;
        let routes = self.route_of(&logits, routing, shared.then_some(route::Shared { gated }))?;
        let y = self.experts_of(&x, &routes, experts, *activation)?;
        if add { self.combine_of(h, &y, &::backend::Shared::Absent).map(Some) } else { Ok(Some(y)) }
    }

    /// The residual stream as a tensor, and the projections of an attention layer: in one buffer where its
    /// heads `fit` one dispatch.
    fn head_inputs(&self, h: Hidden, w: &Attention<Self>, fit: bool) -> Result<(Tensor, HeadInputs)> {
        let (mut h, weights) = (h, &w.projections);
        if fit && h.rows() > 1 {
            let whole = self.whole(h)?;
            if let Some(x) = self.joined_products(&whole, &w.norm, weights)?
                && let Some(heads) = Projected::of(x, weights)
            {
                return Ok((whole, HeadInputs::Together(heads)));
            }
            h = Hidden::Whole(whole);
        }
        let (h, Projections { parts, joined }) = self.project(h, &w.norm, weights)?;
        let heads = parts.first().filter(|_| fit && joined);
        let inputs = match heads.and_then(|q| Projected::of(q.clone(), weights)) {
            Some(heads) => HeadInputs::Together(heads),
            None => HeadInputs::Apart(parts),
        };
        Ok((h, inputs))
    }

    /// The residual stream as a tensor, and the projections of a Gated DeltaNet layer.
    fn delta_inputs(&self, h: Hidden, w: &GatedDelta<Self>) -> Result<(Tensor, DeltaInputs)> {
        let mut h = h;
        if h.rows() > 1 && w.layout == GdnLayout::Split {
            let whole = self.whole(h)?;
            if let Some(inputs) = self.joined_delta(&whole, w)? {
                return Ok((whole, inputs));
            }
            h = Hidden::Whole(whole);
        }
        let (h, Projections { parts, .. }) = self.project(h, &w.norm, &w.projections)?;
        Ok((h, DeltaInputs::of(reference::gdn_inputs(&Checked(self), parts, w)?)))
    }

    /// What experts beside a dense unit leave: the unit's result and theirs, `norm` behind both.
    fn layer_end(
        r: Tensor,
        branches: [Tensor; 2],
        branch: &DenseBranch<Self>,
        (norm, factor): (&Norm<Tensor>, f32),
    ) -> Hidden {
        let norms = [&branch.mlp_norm, &branch.experts_norm, norm].map(|norm| norm.w.clone());
        Hidden::LayerEnd(LayerEnd { r, branches, norms, eps: norm.eps, factor })
    }
}

impl Blocks for Gpu {
    type Hidden = Hidden;

    fn hidden(&self, h: Tensor) -> Hidden {
        Hidden::Whole(h)
    }

    fn tensor(&self, h: Hidden) -> Result<Tensor> {
        self.whole(h)
    }

    fn attention(
        &self,
        h: Hidden,
        w: &Attention<Self>,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Hidden> {
        let fits = self.steps_heads(w, slabs.kv(layer)?);
        let (h, heads) = self.head_inputs(h, w, fits)?;
        let out = w.out.only();
        let attended = match heads {
            HeadInputs::Together(heads) => {
                let splits = self.rounds(h.shape().rows, &out.stack);
                self.attention_step(&heads, w, &Cached::of(slabs, layer, batch)?, splits)?
            }
            HeadInputs::Apart(parts) => {
                Attended::Whole(reference::attention_core(&Checked(self), parts, w, batch, slabs, layer)?)
            }
        };
        let y = match &attended {
            Attended::Splits(splits) => Prologue::Splits(splits),
            Attended::Whole(y) => Prologue::Plain(y),
        };
        self.join_stream(h, &y, out, &w.residual)
    }

    fn latent_attention(
        &self,
        h: Hidden,
        w: &LatentAttention<Self>,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Hidden> {
        let (h, Projections { parts, .. }) = self.project(h, &w.norm, &w.projections)?;
        let [q, kv] = &parts[..] else { unreachable!("checked: queries and latents") };
        let up = w.query.as_ref().map(|(norm, up)| {
            let mut projected = self.products(&Prologue::Norm(q, NormRef::of(norm)), up)?;
            Ok::<_, ::backend::Error>(projected.parts.swap_remove(0))
        });
        let up = up.transpose()?;
        let inputs = [up.as_ref().unwrap_or(q), kv];
        let cached = Cached::of(slabs, layer, batch)?;
        let y = match self.latent_heads(inputs, w, &cached)? {
            Some(y) => y,
            None => {
                let [q, q_pe] = self.latent_step(inputs, w, &cached)?;
                reference::absorbed(&Checked(self), [&q, &q_pe], w, batch, slabs, layer)?
            }
        };
        self.join_stream(h, &Prologue::Plain(&y), w.out.only(), &Residual::Plain)
    }

    fn gated_delta(
        &self,
        h: Hidden,
        w: &GatedDelta<Self>,
        batch: &Batch<Self>,
        slabs: &mut Slabs,
        layer: usize,
    ) -> Result<Hidden> {
        let (h, inputs) = self.delta_inputs(h, w)?;
        let y = self.delta_of(&inputs, w, batch, slabs.recurrent_mut(layer)?)?;
        let (norm, out) = (NormRef::of(&w.out_norm), w.out.only());
        let prologue = Prologue::GatedNorm([&y, &inputs.z], norm);
        if self.prepares(&prologue, &out.stack) {
            return self.join_stream(h, &prologue, out, &Residual::Plain);
        }
        let y = self.gated_norm_of([&y, &inputs.z, norm.w], w.shape.value_dim, norm.eps)?;
        self.join_stream(h, &Prologue::Plain(&y), out, &Residual::Plain)
    }

    fn mlp(&self, h: Hidden, w: &Mlp<Self>) -> Result<Hidden> {
        let (h, inside) = self.mlp_inside(h, w)?;
        self.join_stream(h, &Prologue::Plain(&inside), w.down.only(), &w.residual)
    }

    fn moe(&self, h: Hidden, w: &Moe<Self>) -> Result<Hidden> {
        let (Some(branch), Residual::PostNorm { norm, factor }) = (&w.dense, &w.residual) else {
            let h = self.whole(h)?;
            let plain = matches!((&w.dense, &w.residual), (None, Residual::Plain));
            if plain && let Some(y) = self.experts_pass(&h, w, true)? {
                return Ok(Hidden::Whole(y));
            }
            return Ok(Hidden::Whole(reference::moe(&Checked(self), h, w)?));
        };
        let ends_alike = norm.eps == branch.mlp_norm.eps;
        if ends_alike
            && let Hidden::Normed(Normed { r, x, norm: post, factor: 1.0 }) = &h
            && let Some([r, dense, routed]) = self.unit_beside_moe(r, [x, &post.w], &branch.mlp, w)?
        {
            return Ok(Self::layer_end(r, [dense, routed], branch, (norm, *factor)));
        }
        let (h, inside) = self.mlp_inside(h, &branch.mlp)?;
        let dense = self.product(&self.input(&inside)?, branch.mlp.down.only(), None)?;
        match self.experts_pass(&h, w, false)? {
            Some(routed) if ends_alike => Ok(Self::layer_end(h, [dense, routed], branch, (norm, *factor))),
            _ => Ok(Hidden::Whole(reference::moe(&Checked(self), h, w)?)),
        }
    }

    fn logits(&self, h: &Tensor, w: &Head<'_, Self>) -> Result<Tensor> {
        let mut projected = self.products(&Prologue::Norm(h, NormRef::of(w.norm)), w.linear)?;
        let logits = projected.parts.swap_remove(0);
        match w.soft_cap {
            Some(cap) => self.soft_cap_of(&logits, cap),
            None => Ok(logits),
        }
    }
}
