//! Products of one token with weights whose codes are multiplied as whole numbers, the token rounded by every workgroup for itself;
//! and whole layers of experts made of them.

use std::ops::Range;

use ::backend::{Activation, Handle, Mlp, Moe, Norm, Result, Routing, Shape};

use super::product::Projections;
use super::{by_item, folded, word};
use crate::kernel::Call;
use crate::kernels::rounded::{
    DOWN_ROWS, ExpertsDown, ExpertsUp, GROUP, MOST_CANDIDATES, MOST_CHOSEN, Plan, Product, Rounded, Team,
    UpProduct, bits_of, experts_down_rounded, experts_up_rounded, has_integer_codes, keys_for,
    rounded_gated_norm, rounded_layer_end, rounded_norm, rounded_norm_add, rounded_norm_add_router,
    rounded_norm_router, rounded_plain, rounded_splits, team,
};
use crate::pool::{ALIGNMENT, Buffer};
use crate::weights::{Experts, Linear, Part, SharedExpert, Stack, UpStacks};
use crate::{Gpu, Tensor};

/// A norm that a product begins with.
#[derive(Clone, Copy)]
pub(crate) struct NormRef<'a> {
    pub w: &'a Tensor,
    pub eps: f32,
}

impl<'a> NormRef<'a> {
    pub fn of(norm: &'a Norm<Tensor>) -> Self {
        Self { w: &norm.w, eps: norm.eps }
    }
}

/// What a layer of experts beside a dense unit leaves: `h = (r + rms(rms(a) * wa + rms(b) * wb) * w) * factor`, not computed yet.
pub struct LayerEnd {
    pub(crate) r: Tensor,
    /// The dense branch and the routed one.
    pub(crate) branches: [Tensor; 2],
    /// `wa`, `wb` and `w`.
    pub(crate) norms: [Tensor; 3],
    /// Of all norms.
    pub(crate) eps: f32,
    pub(crate) factor: f32,
}

/// The norms of a layer's end and the one behind it in the buffer that all of them lie in, and where each begins, in fours.
pub(crate) struct EndNorms<'a> {
    vectors: Buffer,
    at: [u32; 4],
    norm: NormRef<'a>,
}

impl<'a> EndNorms<'a> {
    /// `None` where one binding does not reach them all.
    fn of(end: &LayerEnd, norm: &'a Norm<Tensor>) -> Option<Self> {
        let [wa, wb, w] = &end.norms;
        let all = [wa, wb, w, &norm.w].map(Tensor::buffer);
        let vectors = all[0].beginning();
        let mut at = [0; 4];
        for (at, buffer) in at.iter_mut().zip(all) {
            *at = (vectors.distance_to(buffer)? / 16) as u32;
        }
        Some(Self { vectors, at, norm: NormRef::of(norm) })
    }
}

/// What the input of a product is made of.
#[derive(Clone, Copy)]
pub(crate) enum Prologue<'a> {
    /// It is there.
    Plain(&'a Tensor),
    /// `rms(x) * w`
    Norm(&'a Tensor, NormRef<'a>),
    /// `rms(v) * w * silu(z)` over slices as wide as `w`.
    GatedNorm([&'a Tensor; 2], NormRef<'a>),
    /// `rms(h) * w`, where `h = r + rms(x) * post`.
    NormAdd { r: &'a Tensor, x: &'a Tensor, post: &'a Tensor, norm: NormRef<'a> },
    /// Attention whose positions were shared.
    Splits(&'a Splits),
    /// `rms(h) * w`, where `h` is what the layer in front leaves.
    End(&'a LayerEnd, &'a EndNorms<'a>),
}

/// What up to four workgroups for each head have of their positions' values, `[1, heads * width]` from each, and their largest scores and sums.
pub(crate) struct Splits {
    pub parts: Tensor,
    pub count: usize,
    /// Of a head.
    pub width: usize,
}

impl<'a> Prologue<'a> {
    fn first(&self) -> &'a Tensor {
        match self {
            Prologue::Plain(x) | Prologue::Norm(x, _) | Prologue::GatedNorm([x, _], _) => x,
            Prologue::NormAdd { x, .. } => x,
            Prologue::Splits(splits) => &splits.parts,
            Prologue::End(end, _) => &end.branches[0],
        }
    }
}

/// What a product with some rows of a stack does besides.
#[derive(Clone, Copy, Default)]
pub(crate) struct Besides<'a> {
    pub bias: Option<&'a Tensor>,
    pub residual: Option<&'a Tensor>,
    /// The second half of the rows is multiplied with the activated first.
    pub glu: Option<Activation>,
    /// What experts take is rounded beside it.
    pub digits: Option<Digits<'a>>,
}

/// `rms(x) * w`, rounded for experts, behind the results of a router.
#[derive(Clone, Copy)]
pub(crate) struct Digits<'a> {
    pub w: &'a Tensor,
    /// Of a code of their weights.
    pub bits: u32,
}

/// Experts' activated halves, rounded, and which experts they are.
pub(crate) struct StepHidden {
    hidden: Buffer,
    routes: Buffer,
    /// Experts of the token, the shared one among them.
    slots: usize,
}

/// Where such digits begin behind so many results, in numbers.
pub(crate) fn digits_at(results: usize) -> usize {
    results.next_multiple_of(ALIGNMENT as usize / 4)
}

/// What a product has left behind its results.
fn behind(y: &Tensor, cols: usize) -> Tensor {
    let at = 4 * digits_at(y.shape().cols) as u64;
    Tensor::new(Shape { rows: 1, cols }, y.buffer().behind(at))
}

/// What a product of one token reads and writes besides the input that its prologue makes.
struct Sides<'a> {
    part: &'a Part,
    bias: Option<&'a Buffer>,
    residual: Option<&'a Buffer>,
    digits: Option<Digits<'a>>,
    y: &'a Buffer,
}

impl<'a> Prologue<'a> {
    /// The parameters that it takes, the others being `params`.
    fn params(&self, params: Rounded, y_cols: usize) -> Rounded {
        let h_at = word(digits_at(y_cols));
        match self {
            Prologue::Plain(_) => params,
            Prologue::Norm(_, norm) => Rounded { eps: norm.eps, ..params },
            Prologue::GatedNorm(_, norm) => {
                Rounded { eps: norm.eps, slice_width: word(norm.w.shape().cols), ..params }
            }
            Prologue::NormAdd { norm, .. } => Rounded { eps: norm.eps, h_at, ..params },
            Prologue::Splits(splits) => {
                Rounded { slice_width: word(splits.width), splits: word(splits.count), ..params }
            }
            Prologue::End(end, norms) => {
                let [dense_norm_at, routed_norm_at, post_norm_at, norm_at] = norms.at;
                let params = Rounded { dense_norm_at, routed_norm_at, post_norm_at, norm_at, ..params };
                Rounded { eps: end.eps, factor: end.factor, h_at, ..params }
            }
        }
    }

    /// The product's kernel that begins with it.
    fn call(&self, consts: Team, params: Rounded, sides: &Sides<'a>) -> Call<'a> {
        let Sides { part, bias, residual, digits, y } = *sides;
        let (codes, scales) = (&part.codes, &part.scales);
        let expert_norm = digits.map(|digits| digits.w.buffer());
        let adds = !matches!(self, Prologue::NormAdd { .. } | Prologue::End(..));
        debug_assert!(adds || (bias.is_none() && residual.is_none()), "what leaves h adds nothing");
        match *self {
            Prologue::Plain(x) => {
                let x = x.buffer();
                let bindings = rounded_plain::Bindings { codes, scales, y, bias, residual, x };
                rounded_plain::call(consts, params, bindings)
            }
            Prologue::Norm(x, norm) => {
                let [x, norm] = [x, norm.w].map(Tensor::buffer);
                match expert_norm {
                    Some(expert_norm) => {
                        use rounded_norm_router::{Bindings, call};
                        let bindings = Bindings { codes, scales, y, bias, residual, x, norm, expert_norm };
                        call(consts, params, bindings)
                    }
                    None => {
                        let bindings = rounded_norm::Bindings { codes, scales, y, bias, residual, x, norm };
                        rounded_norm::call(consts, params, bindings)
                    }
                }
            }
            Prologue::GatedNorm([x, gate], norm) => {
                use rounded_gated_norm::{Bindings, call};
                let [x, norm, gate] = [x, norm.w, gate].map(Tensor::buffer);
                call(consts, params, Bindings { codes, scales, y, bias, residual, x, norm, gate })
            }
            Prologue::NormAdd { r, x, post, norm } => {
                let [stream, x, post_norm, norm] = [r, x, post, norm.w].map(Tensor::buffer);
                match expert_norm {
                    Some(expert_norm) => {
                        use rounded_norm_add_router::{Bindings, call};
                        let bindings = Bindings { codes, scales, y, stream, x, post_norm, norm, expert_norm };
                        call(consts, params, bindings)
                    }
                    None => {
                        use rounded_norm_add::{Bindings, call};
                        call(consts, params, Bindings { codes, scales, y, stream, x, post_norm, norm })
                    }
                }
            }
            Prologue::Splits(splits) => {
                let parts = splits.parts.buffer();
                let bindings = rounded_splits::Bindings { codes, scales, y, bias, residual, parts };
                rounded_splits::call(consts, params, bindings)
            }
            Prologue::End(end, norms) => {
                use rounded_layer_end::{Bindings, call};
                let [dense, routed] = end.branches.each_ref().map(Tensor::buffer);
                let (stream, vectors) = (end.r.buffer(), &norms.vectors);
                call(consts, params, Bindings { codes, scales, y, dense, routed, stream, vectors })
            }
        }
    }
}

impl Gpu {
    /// Whether products of so many tokens with these weights are rounded here.
    pub(crate) fn rounds(&self, tokens: usize, stack: &Stack) -> bool {
        self.device.rounds && tokens == 1 && has_integer_codes(stack.format)
    }

    /// Whether the input can be prepared in the product with these weights.
    pub(crate) fn prepares(&self, input: &Prologue<'_>, stack: &Stack) -> bool {
        let groups = stack.cols / GROUP;
        let [lanes, steps] = team(groups);
        self.rounds(input.first().shape().rows, stack)
            && match input {
                Prologue::Plain(_) | Prologue::Norm(..) | Prologue::Splits(_) => true,
                Prologue::NormAdd { .. } | Prologue::End(..) => groups <= lanes * steps,
                Prologue::GatedNorm(_, norm) => {
                    let width = norm.w.shape().cols;
                    let at_once = lanes * steps * GROUP;
                    width.is_multiple_of(GROUP) && (groups <= lanes * steps || at_once.is_multiple_of(width))
                }
            }
    }

    /// The product with rows `rows` of a stack, which [`prepares`](Self::prepares) the input.
    pub(crate) fn rounded_product(
        &self,
        input: &Prologue<'_>,
        stack: &Stack,
        rows: Range<usize>,
        besides: &Besides<'_>,
    ) -> Result<Tensor> {
        let Besides { bias, residual, glu, digits } = *besides;
        let profile = &self.device.profile;
        let product = Product { format: stack.format, cols: stack.cols, rows: rows.len(), glu };
        let plan = Plan::choose(profile, &product);
        let (results, halves) = (product.results(), if glu.is_some() { 2 } else { 1 });
        let leaves_h = matches!(input, Prologue::NormAdd { .. } | Prologue::End(..));
        let y = match leaves_h || digits.is_some() {
            true => self.tensor_with_digits(results, stack.cols)?,
            false => self.tensor(1, results)?,
        };
        let [bias, residual] = [bias, residual].map(|added| added.map(Tensor::buffer));
        for part in &stack.parts {
            let here = rows.start.max(part.rows.start)..rows.end.min(part.rows.end);
            if here.is_empty() {
                continue;
            }
            let here_results = here.len() / halves;
            let [blocks, workgroups] = plan.blocks(profile, here_results);
            let params = Rounded {
                weight: stack.params(),
                rows: word(here_results),
                skip: word(here.start - part.rows.start),
                first: word((here.start - rows.start) / halves),
                up: word(results),
                has_bias: bias.is_some().into(),
                has_residual: residual.is_some().into(),
                blocks: word(blocks),
                groups: word(workgroups),
                eps: 0.0,
                slice_width: 0,
                splits: 0,
                factor: 1.0,
                h_at: 0,
                digits_at: word(digits_at(results)),
                digit_bits: digits.map_or(0, |digits| digits.bits),
                dense_norm_at: 0,
                routed_norm_at: 0,
                post_norm_at: 0,
                norm_at: 0,
            };
            let sides = Sides { part, bias, residual, digits, y: y.buffer() };
            let call = input.call(plan.team, input.params(params, results), &sides);
            // One more for the digits.
            self.run(call, folded(workgroups + usize::from(digits.is_some())));
        }
        Ok(y)
    }

    /// What a layer of one token in a chain leaves, and what several matrices make of its norm: every workgroup of the product makes `h` for
    /// itself. `None` where it cannot; and behind barriers, where that takes longer than a dispatch of its own.
    pub(crate) fn end_products(
        &self,
        end: &LayerEnd,
        norm: &Norm<Tensor>,
        weights: &Linear,
    ) -> Result<Option<(Tensor, Projections)>> {
        let (Some(norms), Some(rows)) = (EndNorms::of(end, norm), weights.rows_of_stack()) else {
            return Ok(None);
        };
        let (stack, input) = (weights.stack(), Prologue::End(end, &norms));
        let whole = stack.parts.len() == 1 && weights.only().bias.is_none() && norms.norm.eps == end.eps;
        if !(self.device.chains() && whole && self.prepares(&input, stack)) {
            return Ok(None);
        }
        let y = self.rounded_product(&input, stack, rows, &Besides::default())?;
        Ok(Some((behind(&y, stack.cols), Projections::of(&y, weights))))
    }

    /// `h = r + rms(x) * post`, and `act(Wgate z) * Wup z` for `z = rms(h) * w`, of one token; `None` where that is not one product.
    pub(crate) fn norm_add_gate_up_of(
        &self,
        input: &Prologue<'_>,
        gate_up: &Linear,
        activation: Activation,
    ) -> Result<Option<(Tensor, Tensor)>> {
        let stack = gate_up.stack();
        let Some(rows) = gate_up.contiguous_rows().filter(|_| self.prepares(input, stack)) else {
            return Ok(None);
        };
        let besides = Besides { glu: Some(activation), ..Besides::default() };
        let y = self.rounded_product(input, stack, rows, &besides)?;
        Ok(Some((behind(&y, stack.cols), y)))
    }

    /// `h = r + rms(x) * post`, what a gated unit makes of it and what experts do, of one token in a chain, where the router makes `h` for
    /// itself, so that it waits for no product of the unit. `None` where it cannot; and behind barriers, where nothing is won by it.
    pub(crate) fn unit_beside_moe(
        &self,
        r: &Tensor,
        [x, post]: [&Tensor; 2],
        unit: &Mlp<Gpu>,
        w: &Moe<Gpu>,
    ) -> Result<Option<[Tensor; 3]>> {
        let (stack, experts) = (w.router.stack(), &w.experts);
        let norm = NormRef::of(&unit.norm);
        let own = NormRef::of(w.router_norm.as_ref().unwrap_or(&w.norm));
        let [dense, routed] = [norm, own].map(|norm| Prologue::NormAdd { r, x, post, norm });
        let alone = w.router.len() == 1 && w.router.only().bias.is_none() && stack.parts.len() == 1;
        let possible = self.device.chains() && alone && own.eps == norm.eps;
        if !(possible && self.prepares(&routed, stack) && self.steps_experts(experts, &w.routing)) {
            return Ok(None);
        }
        let Some((h, hidden)) = self.norm_add_gate_up_of(&dense, &unit.gate_up, unit.activation)? else {
            return Ok(None);
        };
        let besides = Besides { digits: Some(Self::digits_for(experts, &w.norm.w)), ..Besides::default() };
        let logits = self.rounded_product(&routed, stack, w.router.only().rows_of_stack(), &besides)?;
        let dense = self.product(&self.input(&hidden)?, unit.down.only(), None)?;
        let up = self.experts_step_up(&logits, w)?;
        let routed = self.experts_step_down(&up, experts, None)?;
        Ok(Some([h, dense, routed]))
    }

    /// Room for the results of a router and, behind them, digits of so many inputs.
    pub(crate) fn tensor_with_digits(&self, results: usize, inputs: usize) -> Result<Tensor> {
        // A word for each input, and two for each group, of which two are read at once.
        let words = digits_at(results) + inputs + 2 * (inputs / GROUP + 2);
        let shape = Shape { rows: 1, cols: results };
        Ok(Tensor::new(shape, self.pool.take(4 * words as u64)?))
    }

    /// Whether a whole layer of these experts can be done for one token, routed so.
    pub(crate) fn steps_experts(&self, weights: &Experts, routing: &Routing<Tensor>) -> bool {
        let top_k = match routing {
            Routing::Softmax { top_k, .. } | Routing::SoftmaxScaled { top_k, .. } => *top_k,
            Routing::GroupedSigmoid { spec, .. } if spec.groups == 1 => spec.top_k,
            Routing::GroupedSigmoid { .. } => return false,
        };
        let whole = |stack: &Stack| stack.parts.len() == 1 && self.rounds(1, stack);
        weights.count.div_ceil(32) * top_k <= MOST_CANDIDATES
            && keys_for(weights.count).is_some()
            && weights.width.is_multiple_of(GROUP)
            && top_k < MOST_CHOSEN
            && matches!(&weights.up, UpStacks::Alternating(up) if whole(up))
            && whole(&weights.down)
            && !matches!(weights.shared, SharedExpert::Apart { .. })
            && weights.slots.is_none()
    }

    /// The digits that such experts take of a norm with `w`.
    pub(crate) fn digits_for<'a>(experts: &Experts, w: &'a Tensor) -> Digits<'a> {
        let UpStacks::Alternating(up) = &experts.up else { unreachable!("asked before") };
        Digits { w, bits: bits_of(up.format) }
    }

    /// What the experts of one token have before their last product, from its logits `[1, experts]`, or `[1, experts + 1]` with that of the
    /// shared expert's weight, and the [digits](Digits) of their input behind them.
    pub(crate) fn experts_step_up(&self, logits: &Tensor, w: &Moe<Gpu>) -> Result<StepHidden> {
        let Moe { routing, experts: weights, activation, .. } = w;
        let UpStacks::Alternating(up) = &weights.up else { unreachable!("asked before") };
        let (kind, top_k, renormalise, scaling) = match routing {
            Routing::Softmax { top_k, renormalise } => (0, *top_k, *renormalise, 1.0),
            Routing::SoftmaxScaled { top_k, .. } => (2, *top_k, true, 1.0),
            Routing::GroupedSigmoid { spec, .. } => (1, spec.top_k, spec.renormalise, spec.scaling),
        };
        let (choice_bias, expert_scale) = match routing {
            Routing::Softmax { .. } => (None, None),
            Routing::SoftmaxScaled { scale, .. } => (None, Some(scale.buffer())),
            Routing::GroupedSigmoid { bias, .. } => (Some(bias.buffer()), None),
        };
        let slots = top_k + usize::from(matches!(weights.shared, SharedExpert::Behind));
        let gated = usize::from(logits.shape().cols > weights.count);
        // Two digits for each value, a scale and a sum for every sixteen.
        let hidden = self.pool.take((slots * weights.width / 16 * 40) as u64)?;
        let routes = self.pool.take(8 * slots as u64)?;
        let product = UpProduct {
            format: up.format,
            cols: up.cols,
            rows: 2 * weights.width,
            slots,
            experts: weights.count,
            activation: *activation,
            down: weights.down.format,
        };
        let chosen = ExpertsUp::choose(&self.device.profile, &product);
        let (consts, groups) = chosen.expect("asked before");
        let params = experts_up_rounded::Params {
            weight: up.params(),
            expert_rows: word(product.rows),
            experts: word(weights.count),
            top_k: word(top_k),
            slots: word(slots),
            kind,
            renormalise: renormalise.into(),
            scaling,
            gated: word(gated),
            gate_at: word(weights.count),
            groups: word(groups),
        };
        let part = &up.parts[0];
        let bindings = experts_up_rounded::Bindings {
            codes: &part.codes,
            scales: &part.scales,
            x: &logits.buffer().behind(4 * digits_at(logits.shape().cols) as u64),
            logits: logits.buffer(),
            choice_bias,
            expert_scale,
            h: &hidden,
            routes: &routes,
        };
        // One more in each slot, of which the first slot's writes the routes.
        self.run(experts_up_rounded::call(consts, params, bindings), by_item(groups + 1, slots));
        Ok(StepHidden { hidden, routes, slots })
    }

    /// The experts' last product, `residual` added.
    pub(crate) fn experts_step_down(
        &self,
        step: &StepHidden,
        weights: &Experts,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let StepHidden { hidden, routes, slots } = step;
        let (down, y) = (&weights.down, self.tensor(1, weights.hidden)?);
        let consts = ExpertsDown::choose(&self.device.profile, down.format, *slots * down.cols / GROUP);
        let params = experts_down_rounded::Params {
            weight: down.params(),
            expert_rows: word(weights.hidden),
            slots: word(*slots),
            has_residual: residual.is_some().into(),
        };
        let part = &down.parts[0];
        let bindings = experts_down_rounded::Bindings {
            codes: &part.codes,
            scales: &part.scales,
            h: hidden,
            routes,
            residual: residual.map(Tensor::buffer),
            y: y.buffer(),
        };
        let grid = folded(weights.hidden.div_ceil(DOWN_ROWS));
        self.run(experts_down_rounded::call(consts, params, bindings), grid);
        Ok(y)
    }
}
