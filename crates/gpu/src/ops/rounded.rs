//! Products of one token with weights whose codes are multiplied as whole numbers, the token rounded by every workgroup for itself;
//! and whole layers of experts made of them.

use std::ops::Range;

use ::backend::{
    Activation, Handle, LayerEnd, LayerStart, MoeWeights, Norm, Result, Routing, Shape, UnitWeights,
};
use checkpoint::Format;

use super::elementwise::number;
use super::product::{neighbours, parts_of};
use super::{by_item, folded};
use crate::pool::{ALIGNMENT, Buffer};
use crate::shader::{Variant, has_whole_codes, kernels};
use crate::weights::{Experts, Matrix, SharedExpert, Stack, UpStacks};
use crate::{Gpu, Tensor};

/// Threads of a workgroup.
const THREADS: usize = 256;

/// Values that share a scale after rounding.
const GROUP: usize = 32;

/// Workgroups of which each takes several blocks of rows rather than that there were more, since preparing the input costs, too.
const MANY: usize = 264;

/// Rows from which on a product is taken for a model's head, which has many blocks for each; and groups of a row that threads have room for then.
const MANY_ROWS: usize = 32_768;
const MOST_GROUPS_AHEAD: usize = 96;

/// Rows that threads share of an expert's gate and up, and of all experts' down.
const UP_ROWS: usize = 4;
const DOWN_ROWS: usize = 4;

/// Experts that come into question after each block of 32 has chosen, at most, and experts of a token.
const MOST_CANDIDATES: usize = 256;
const MOST_CHOSEN: usize = 32;

/// What the input of a product is made of.
#[derive(Clone, Copy)]
pub(crate) enum Prepared<'a> {
    /// It is there.
    Plain(&'a Tensor),
    /// `rms(x) * w`
    Norm(&'a Tensor, Norm<'a, Tensor>),
    /// `rms(v) * w * silu(z)` over slices as wide as `w`.
    GatedNorm([&'a Tensor; 2], Norm<'a, Tensor>),
    /// `rms(h) * w`, where `h = r + rms(x) * post`.
    NormAdd { r: &'a Tensor, x: &'a Tensor, post: &'a Tensor, norm: Norm<'a, Tensor> },
    /// Attention whose positions were shared.
    Splits(&'a Splits),
    /// `rms(h) * w`, where `h` is what the layer in front leaves, and its norms and `w` are in a row.
    End(&'a LayerEnd<'a, Tensor>, &'a Tensor),
}

/// What up to four workgroups for each head have of their positions' values, `[1, heads * width]` from each, and their largest scores and sums.
pub(crate) struct Splits {
    pub parts: Tensor,
    pub count: usize,
    /// Of a head.
    pub width: usize,
}

impl<'a> Prepared<'a> {
    fn first(&self) -> &'a Tensor {
        match self {
            Prepared::Plain(x) | Prepared::Norm(x, _) | Prepared::GatedNorm([x, _], _) => x,
            Prepared::NormAdd { x, .. } => x,
            Prepared::Splits(splits) => &splits.parts,
            Prepared::End(end, _) => &end.halves[0],
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

/// Bits of a code of a format that [has whole ones](has_whole_codes).
pub(crate) fn bits_of(format: Format) -> u32 {
    match format {
        Format::Affine { bits, .. } => bits,
        _ => 0,
    }
}

/// Logits of so many experts that a thread has when a subgroup chooses; `None` if they are too many.
fn keys_for(experts: usize) -> Option<u32> {
    let mut keys = kernels::EXPERTS_UP_ROUNDED.values("KEYS").iter().copied();
    keys.find(|keys| experts <= 32 * *keys as usize)
}

impl Gpu {
    /// Threads that share a row of so many groups, and groups that each has of it at a time.
    pub(crate) fn team(groups: usize) -> [usize; 2] {
        if groups <= 8 {
            return [8, 1];
        }
        [32, groups.div_ceil(32).min(4)]
    }

    /// The same of a head, where the next rows are asked for while these are multiplied: fewer threads have more of each.
    fn head_team(groups: usize) -> [usize; 2] {
        if groups <= 8 { [8, 1] } else { [16, groups.div_ceil(16)] }
    }

    /// Whether workgroups have twice the threads, where the device allows, so that none has more than eight values of an input to prepare: half
    /// the instructions for that, and they have to stay in a cache with those of all kernels of a layer.
    fn wide(&self, stack: &Stack) -> bool {
        stack.cols > 8 * THREADS && self.device.most_threads as usize >= 2 * THREADS
    }

    /// Whether products of so many tokens with these weights are rounded here.
    pub(crate) fn rounds(&self, tokens: usize, stack: &Stack) -> bool {
        self.device.rounds && tokens == 1 && has_whole_codes(stack.format)
    }

    /// Whether the input can be prepared in the product with these weights.
    pub(crate) fn prepares(&self, input: &Prepared<'_>, stack: &Stack) -> bool {
        let groups = stack.cols / GROUP;
        let [lanes, steps] = Self::team(groups);
        self.rounds(input.first().shape().rows, stack)
            && match input {
                Prepared::Plain(_) | Prepared::Norm(..) | Prepared::Splits(_) => true,
                Prepared::NormAdd { .. } | Prepared::End(..) => groups <= lanes * steps,
                Prepared::GatedNorm(_, norm) => {
                    let width = norm.w.shape().cols;
                    let at_once = lanes * steps * GROUP;
                    width.is_multiple_of(GROUP) && (groups <= lanes * steps || at_once.is_multiple_of(width))
                }
            }
    }

    /// The product with rows `rows` of a stack, which [`prepares`](Self::prepares) the input.
    pub(crate) fn rounded_product(
        &self,
        input: &Prepared<'_>,
        stack: &Stack,
        rows: Range<usize>,
        besides: &Besides<'_>,
    ) -> Result<Tensor> {
        let x = input.first();
        let (kind, w, z, eps) = match input {
            Prepared::Plain(x) => (0, *x, *x, 0.0),
            Prepared::Norm(x, norm) => (1, norm.w, besides.digits.map_or(*x, |digits| digits.w), norm.eps),
            Prepared::GatedNorm([_, z], norm) => (2, norm.w, *z, norm.eps),
            Prepared::NormAdd { post, norm, .. } => (3, *post, norm.w, norm.eps),
            Prepared::Splits(_) => (4, x, x, 0.0),
            Prepared::End(end, norms) => (5, *norms, &end.halves[1], end.eps),
        };
        let factor = if let Prepared::End(end, _) = input { end.factor } else { 1.0 };
        let (width, splits) = match input {
            Prepared::Splits(splits) => (splits.width, splits.count),
            _ => (w.shape().cols, 0),
        };
        let halves = if besides.glu.is_some() { 2 } else { 1 };
        let results = rows.len() / halves;
        let adds = matches!(input, Prepared::NormAdd { .. });
        let more = besides.digits.is_some() || adds || matches!(input, Prepared::End(..));
        let y = match more {
            true => self.tensor_with_digits(results, stack.cols)?,
            false => self.tensor(1, results)?,
        };
        let beside = match input {
            Prepared::NormAdd { r, .. } => r,
            Prepared::End(end, _) => &end.r,
            _ => besides.residual.unwrap_or(x),
        };
        // A router of such an input has no bias, and the experts' norm in its place.
        let fifth = besides.digits.filter(|_| adds).map_or(besides.bias, |digits| Some(digits.w));
        let groups = stack.cols / GROUP;
        let head = rows.len() >= MANY_ROWS && groups <= MOST_GROUPS_AHEAD && halves == 1;
        let [lanes, steps] = if head { Self::head_team(groups) } else { Self::team(groups) };
        let wide = self.wide(stack);
        let threads = if wide { 2 * THREADS } else { THREADS };
        let teams = threads / lanes;
        // Measured on an H200 (docs/performance.md).
        let each = match rows.len() {
            _ if head => 8 / bits_of(stack.format) as usize,
            4096.. if !wide => 2,
            _ => halves,
        };
        let long_row = groups > lanes * steps;
        // As many threads, where kernels wait for each other, and where each has many turns.
        let many = if head || self.device.chains { MANY * THREADS / threads } else { MANY };
        // Who has several blocks of wide rows asks for the next while it multiplies, as heads do.
        let several = wide && self.device.chains && !long_row && halves == 1 && results > many * teams * each;
        let variant = Variant::new(&kernels::MATVEC_ROUNDED, threads as u32)
            .format(stack.format)
            .with("LANES", lanes as u32)
            .with("STEPS", steps as u32)
            .with("ROWS", each as u32)
            .with("AHEAD", u32::from(head || several))
            .with("INPUT", kind)
            .with("LONG", u32::from(long_row))
            .with("GATED", u32::from(besides.glu.is_some()))
            .with("ACTIVATION", besides.glu.map_or(0, number))
            .with("DIGITS", u32::from(besides.digits.is_some()));
        for part in &stack.parts {
            let here = rows.start.max(part.rows.start)..rows.end.min(part.rows.end);
            if here.is_empty() {
                continue;
            }
            let here_results = here.len() / halves;
            let blocks = here_results.div_ceil(teams * each / halves);
            let workgroups = if long_row {
                blocks
            } else if head {
                blocks.min(many)
            } else if wide && self.device.chains {
                // No more than one for each part of the device, so that others find room.
                blocks.div_ceil(blocks.div_ceil(many))
            } else {
                blocks.div_ceil((blocks / many).max(1))
            };
            let has = [besides.bias.is_some(), besides.residual.is_some()].map(usize::from);
            let skip = here.start - part.rows.start;
            let place = (here.start - rows.start) / halves;
            let numbers = [here_results, skip, place, results, has[0], has[1], blocks].map(|n| n as u32);
            let mut numbers: Vec<u32> = stack.numbers().into_iter().chain(numbers).collect();
            let bits = besides.digits.map_or(0, |digits| digits.bits);
            numbers.extend([eps.to_bits(), width as u32]);
            numbers.extend([workgroups as u32, digits_at(results) as u32, bits, splits as u32]);
            numbers.push(factor.to_bits());
            let buffers = [
                &part.codes,
                &part.scales,
                x.buffer(),
                w.buffer(),
                z.buffer(),
                // What nobody writes: it is loaded before inputs are there.
                fifth.map_or(&part.scales, Tensor::buffer),
                beside.buffer(),
                y.buffer(),
            ];
            // One more for the digits.
            let all = workgroups + usize::from(besides.digits.is_some());
            self.run(&variant, &buffers, &numbers, folded(all));
        }
        Ok(y)
    }

    /// [`Backend::end_norm_matmuls`](::backend::Backend::end_norm_matmuls) of one token in a chain: every workgroup of the product makes `h` for itself. `None` where it
    /// cannot, or shapes do not fit, which the parts refuse; and behind barriers, where that takes longer than a dispatch of its own.
    pub(crate) fn end_products<const N: usize>(
        &self,
        end: &LayerEnd<'_, Tensor>,
        weights: [&Matrix; N],
    ) -> Result<Option<LayerStart<Tensor, N>>> {
        let (Some(norms), Some(rows)) = (&end.norms.with_next, neighbours(weights)) else { return Ok(None) };
        let stack = &weights[0].stack;
        let (input, cols) = (Prepared::End(end, norms), stack.cols);
        let fits =
            [&end.r, &end.halves[0], &end.halves[1]].iter().all(|v| v.shape() == Shape { rows: 1, cols })
                && norms.shape() == Shape { rows: 1, cols: 4 * cols };
        let whole = stack.parts.len() == 1 && weights[0].bias.is_none();
        if !(self.device.chains && fits && whole && self.prepares(&input, stack)) {
            return Ok(None);
        }
        let y = self.rounded_product(&input, stack, rows, &Besides::default())?;
        Ok(Some(LayerStart { h: behind(&y, cols), products: parts_of(&y, weights) }))
    }

    /// `h = r + rms(x) * post`, and `act(Wgate z) * Wup z` for `z = rms(h) * w`, of one token; `None` where that is not one product.
    pub(crate) fn norm_add_gate_up_of(
        &self,
        input: &Prepared<'_>,
        [gate, up]: [&Matrix; 2],
        activation: Activation,
    ) -> Result<Option<(Tensor, Tensor)>> {
        let Some(rows) = Self::gate_up_rows([gate, up]).filter(|_| self.prepares(input, &gate.stack)) else {
            return Ok(None);
        };
        let besides = Besides { glu: Some(activation), ..Besides::default() };
        let y = self.rounded_product(input, &gate.stack, rows, &besides)?;
        Ok(Some((behind(&y, gate.stack.cols), y)))
    }

    /// [`Backend::norm_add_unit_moe`](::backend::Backend::norm_add_unit_moe) of one token in a chain, where the router makes `h` for itself, so that it waits for no product
    /// of the unit. `None` where it cannot, or shapes do not fit, which the parts refuse; and behind barriers, where nothing is won by it.
    pub(crate) fn unit_beside_moe(
        &self,
        r: &Tensor,
        [x, post]: [&Tensor; 2],
        (norm, unit): (Norm<'_, Tensor>, &UnitWeights<Self>),
        (moe_norm, weights): (Norm<'_, Tensor>, &MoeWeights<Self>),
    ) -> Result<Option<[Tensor; 3]>> {
        let MoeWeights { router, router_norm, shared_gate, routing, experts, .. } = weights;
        let own = Norm { w: router_norm.as_ref().unwrap_or(moe_norm.w), eps: moe_norm.eps };
        let [dense, routed] = [norm, own].map(|norm| Prepared::NormAdd { r, x, post, norm });
        let cols = x.shape().cols;
        let vectors = [r, post, norm.w, own.w, moe_norm.w];
        let fits = vectors.iter().all(|v| v.shape() == Shape { rows: 1, cols })
            && [&unit.gate_up[0], &unit.gate_up[1], router].iter().all(|m| m.stack.cols == cols)
            && [experts.hidden, unit.down.rows] == [cols; 2]
            && unit.down.stack.cols == unit.gate_up[0].rows
            && router.rows == experts.count;
        let alone = shared_gate.is_none() && router.bias.is_none() && router.stack.parts.len() == 1;
        let possible = self.device.chains && fits && alone;
        if !(possible && self.prepares(&routed, &router.stack) && self.steps_experts(experts, routing)) {
            return Ok(None);
        }
        let Some((h, hidden)) = self.norm_add_gate_up_of(&dense, unit.gate_up.each_ref(), unit.activation)?
        else {
            return Ok(None);
        };
        let besides = Besides { digits: Some(Self::digits_for(experts, moe_norm.w)), ..Besides::default() };
        let rows = router.first..router.first + router.rows;
        let logits = self.rounded_product(&routed, &router.stack, rows, &besides)?;
        let dense = self.product(&self.input(&hidden)?, &unit.down, None)?;
        let up = self.experts_step_up(&logits, weights)?;
        let routed = self.experts_step_down(&up, experts, None)?;
        Ok(Some([h, dense, routed]))
    }

    /// Rows of a gate and its up that are one product; filled up, the first half would be longer than the second.
    pub(crate) fn gate_up_rows([gate, up]: [&Matrix; 2]) -> Option<Range<usize>> {
        let whole = |rows: &Range<usize>| rows.len() == 2 * gate.rows && gate.stack.parts.len() == 1;
        neighbours([gate, up]).filter(whole)
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
            && !matches!(weights.shared, SharedExpert::Apart(_))
            && weights.slots.is_none()
    }

    /// The digits that such experts take of a norm with `w`.
    pub(crate) fn digits_for<'a>(experts: &Experts, w: &'a Tensor) -> Digits<'a> {
        let UpStacks::Alternating(up) = &experts.up else { unreachable!("asked before") };
        Digits { w, bits: bits_of(up.format) }
    }

    /// What the experts of one token have before their last product, from its logits `[1, experts]`, or `[1, experts + 1]` with that of the
    /// shared expert's weight, and the [digits](Digits) of their input behind them.
    pub(crate) fn experts_step_up(&self, logits: &Tensor, weights: &MoeWeights<Gpu>) -> Result<StepHidden> {
        let MoeWeights { routing, experts: weights, activation, .. } = weights;
        let UpStacks::Alternating(up) = &weights.up else { unreachable!("asked before") };
        let (kind, top_k, renormalise, scaling, per_expert) = match routing {
            Routing::Softmax { top_k, renormalise } => (0, *top_k, *renormalise, 1.0, logits),
            Routing::SoftmaxScaled { top_k, scale } => (2, *top_k, true, 1.0, scale),
            Routing::GroupedSigmoid { spec, bias } => (1, spec.top_k, spec.renormalise, spec.scaling, bias),
        };
        let slots = top_k + usize::from(matches!(weights.shared, SharedExpert::Behind));
        let gated = usize::from(logits.shape().cols > weights.count);
        // Two digits for each value, a scale and a sum for every sixteen.
        let hidden = self.pool.take((slots * weights.width / 16 * 40) as u64)?;
        let routes = self.pool.take(8 * slots as u64)?;
        let rows = 2 * weights.width;
        // Room for what choosing needs.
        let steps = Self::team(up.cols / GROUP)[1].max(2);
        let keys = keys_for(weights.count).expect("asked before");
        // As many rows in a workgroup, whatever its threads.
        let up_rows = if self.wide(up) { UP_ROWS / 2 } else { UP_ROWS };
        let long = up.cols / GROUP > 32 * steps;
        let groups = rows.div_ceil(UP_ROWS * THREADS / 32);
        let blocks = if self.wide(up) && !long && groups * slots > MANY { 2 } else { 1 };
        let groups = groups.div_ceil(blocks);
        let variant = Variant::new(&kernels::EXPERTS_UP_ROUNDED, (UP_ROWS / up_rows * THREADS) as u32)
            .format(up.format)
            .with("LANES", 32)
            .with("STEPS", steps as u32)
            .with("ROWS", up_rows as u32)
            .with("KEYS", keys)
            .with("LONG", u32::from(long))
            .with("BLOCKS", blocks as u32)
            .with("ACTIVATION", number(*activation))
            .with("DOWN", bits_of(weights.down.format));
        let rest = [rows, weights.count, top_k, slots, kind, usize::from(renormalise)].map(|n| n as u32);
        let mut numbers: Vec<u32> = up.numbers().into_iter().chain(rest).collect();
        numbers.extend([scaling.to_bits(), gated as u32, weights.count as u32]);
        // One more in each slot, of which the first slot's writes the routes.
        numbers.push(groups as u32);
        let part = &up.parts[0];
        let x = logits.buffer().behind(4 * digits_at(logits.shape().cols) as u64);
        let [logits, per_expert] = [logits, per_expert].map(Tensor::buffer);
        let buffers = [&part.codes, &part.scales, &x, logits, per_expert, &hidden, &routes];
        self.run(&variant, &buffers, &numbers, by_item(groups + 1, slots));
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
        let groups = *slots * down.cols / GROUP;
        // A group for each thread, where there may be as many.
        let mut threads = kernels::EXPERTS_DOWN_ROUNDED.threads.iter().copied();
        let threads = threads.find(|t| groups <= *t as usize && *t <= self.device.most_threads);
        let variant = Variant::new(&kernels::EXPERTS_DOWN_ROUNDED, threads.unwrap_or(THREADS as u32))
            .format(down.format)
            .with("ROWS", DOWN_ROWS as u32)
            .with("LONG", u32::from(threads.is_none()));
        let rest = [weights.hidden, *slots, usize::from(residual.is_some())].map(|n| n as u32);
        let numbers: Vec<u32> = down.numbers().into_iter().chain(rest).collect();
        let part = &down.parts[0];
        // What nobody writes stands for no residual.
        let residual = residual.map_or(&part.scales, Tensor::buffer);
        let buffers = [&part.codes, &part.scales, hidden, routes, residual, y.buffer()];
        self.run(&variant, &buffers, &numbers, folded(weights.hidden.div_ceil(DOWN_ROWS)));
        Ok(y)
    }
}
