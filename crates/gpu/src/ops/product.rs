//! Products with weights.

use std::ops::Range;

use ::backend::{Activation, Batch, Handle, HeadShape, Norm, Result, Shape};

use super::rounded::{Besides, Digits, NormRef, Prologue, digits_at};
use super::route::Routes;
use super::{by_item, folded, word};
use crate::kernels::attention_step::heads_turned;
use crate::kernels::elementwise::weighted_sum;
use crate::kernels::product::{
    self as kernels, ExpertTiles, FormatOnly, GatedInput, HALVES, NORM_ROWS, ROWS, RowProduct, THREADS,
    TileProduct, embed, expert_lists, expert_share, expert_tiles, experts_down, experts_tiled, experts_up,
    halves, head_tiles, heads, matmul, matvec, norm_matvec, share, tile_rows,
};
use crate::pool::Buffer;
use crate::weights::{Experts, HeadMatrices, Linear, Matrix, Stack, UpStacks};
use crate::{Gpu, Tensor};

impl Gpu {
    /// An input of one or several products.
    pub(crate) fn input<'a>(&self, x: &'a Tensor) -> Result<Input<'a>> {
        if x.shape().rows <= self.device.profile.row_product_tokens {
            return Ok(Input { x, halves: None });
        }
        self.input_of_tiles(x)
    }

    fn input_of_tiles<'a>(&self, x: &'a Tensor) -> Result<Input<'a>> {
        let halves = match self.device.profile.limits.matrices {
            true => Some(self.halves((x, None), 0..x.shape().rows, (1, 1))?),
            false => None,
        };
        Ok(Input { x, halves })
    }

    /// Rows `tokens` of `[a | b]`, of each of some heads, as halves; those of neighbouring heads of a group come together.
    pub(crate) fn halves(
        &self,
        (a, b): (&Tensor, Option<&Tensor>),
        tokens: Range<usize>,
        (heads, group): (usize, usize),
    ) -> Result<Halves> {
        let [width_a, width_b] = [Some(a), b].map(|x| x.map_or(0, |x| x.shape().cols / heads));
        let eights = (width_a + width_b).next_multiple_of(HALVES) / 8;
        let rows = tokens.len() * heads;
        let halves = Halves {
            words: self.pool.take(16 * (rows * eights) as u64)?,
            factors: self.pool.take(4 * rows as u64)?,
            eights,
        };
        let params = halves::Params {
            tokens: word(tokens.len()),
            first: word(tokens.start),
            heads: word(heads),
            group: word(group),
            width_a: word(width_a),
            width_b: word(width_b),
            pairs: word(4 * eights),
        };
        let (a, b) = (a.buffer(), b.map(Tensor::buffer));
        let bindings = halves::Bindings { a, b, halves: &halves.words, factors: &halves.factors };
        self.run(halves::call(params, bindings), folded(rows.div_ceil(8)));
        Ok(halves)
    }

    pub(crate) fn embed_of(&self, table: &Matrix, batch: &Batch<Self>, factor: f32) -> Result<Tensor> {
        let stack = &table.stack;
        let (rows, data) = (batch.rows(), batch.data());
        let y = self.tensor(rows, stack.cols)?;
        for part in &stack.parts {
            let params = embed::Params {
                weight: stack.params(),
                first: word(part.rows.start),
                end: word(part.rows.end),
                tokens: word(rows),
                tokens_at: word(data.tokens_at),
                factor,
            };
            let (steps, last) = (&data.steps, &data.last);
            let (codes, scales) = (&part.codes, &part.scales);
            let bindings = embed::Bindings { codes, scales, steps, last, y: y.buffer() };
            let consts = FormatOnly { format: stack.format };
            self.run_each(embed::call(consts, params, bindings), rows * stack.eights());
        }
        Ok(y)
    }

    /// `y[t] = W x[t] (+ residual[t])`
    pub(crate) fn product(
        &self,
        input: &Input<'_>,
        weight: &Matrix,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.product_with(input, &weight.stack, weight.rows_of_stack(), weight.bias.as_ref(), residual)
    }

    /// The product with rows `rows` of a stack.
    pub(crate) fn product_with(
        &self,
        input: &Input<'_>,
        stack: &Stack,
        rows: Range<usize>,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let x = input.x;
        if self.rounds(x.shape().rows, stack) {
            let besides = Besides { bias, residual, ..Besides::default() };
            return self.rounded_product(&Prologue::Plain(x), stack, rows, &besides);
        }
        let (n, out) = (x.shape().rows, rows.len());
        let y = self.tensor(n, out)?;
        let profile = &self.device.profile;
        let [bias, residual] = [bias, residual].map(|added| added.map(Tensor::buffer));
        for part in &stack.parts {
            let here = rows.start.max(part.rows.start)..rows.end.min(part.rows.end);
            if here.is_empty() {
                continue;
            }
            let params = kernels::Linear {
                weight: stack.params(),
                rows: word(here.len()),
                first: word(here.start - rows.start),
                tokens: word(n),
                out_cols: word(out),
                has_bias: bias.is_some().into(),
                has_residual: residual.is_some().into(),
                skip: word(here.start - part.rows.start),
            };
            let (codes, scales, y) = (&part.codes, &part.scales, y.buffer());
            let grid = |rows: usize, tokens: usize| {
                let [across, down, _] = folded(here.len().div_ceil(rows));
                [across, down, n.div_ceil(tokens) as u32]
            };
            if n <= profile.row_product_tokens {
                let consts = RowProduct::choose(profile, stack.format, [out, stack.cols], n);
                let bindings = matvec::Bindings { codes, scales, x: x.buffer(), bias, residual, y };
                let grid = grid(ROWS, consts.tokens as usize);
                self.run(matvec::call(consts, params, bindings), grid);
            } else {
                let consts = TileProduct::choose(profile, stack.format, [here.len(), stack.cols], n);
                let (x, factors) = (input.rows(), input.factors());
                let bindings = matmul::Bindings { codes, scales, x, bias, residual, factors, y };
                let grid = grid(tile_rows(profile), 16 * consts.share as usize);
                self.run(matmul::call(consts, params, bindings), grid);
            }
        }
        Ok(y)
    }

    /// What several matrices make of one input.
    pub(crate) fn products(&self, input: &Prologue<'_>, weights: &Linear) -> Result<Projections> {
        let (x, norm) = match input {
            Prologue::Plain(x) => (*x, None),
            Prologue::Norm(x, norm) => (*x, Some(norm)),
            Prologue::GatedNorm(..) | Prologue::NormAdd { .. } | Prologue::Splits(_) | Prologue::End(..) => {
                unreachable!("leads to one product")
            }
        };
        let together = weights.rows_of_stack().filter(|_| x.shape().rows == 1);
        let (stack, bias) = (weights.stack(), weights.only().bias.as_ref());
        if let Some(rows) = &together
            && self.prepares(input, stack)
        {
            let besides = Besides { bias, ..Besides::default() };
            return Ok(Projections::of(
                &self.rounded_product(input, stack, rows.clone(), &besides)?,
                weights,
            ));
        }
        let normed =
            norm.map(|norm| self.rms_norm_of(x, Some(norm.w), x.shape().cols, norm.eps)).transpose()?;
        let input = self.input(normed.as_ref().unwrap_or(x))?;
        if let Some(rows) = together {
            return Ok(Projections::of(&self.product_with(&input, stack, rows, bias, None)?, weights));
        }
        let parts =
            weights.matrices().iter().map(|w| self.product(&input, w, None)).collect::<Result<_>>()?;
        Ok(Projections { parts, joined: false })
    }

    /// What several matrices make of `rms(h) * w` of several tokens as one product, a row for each token with
    /// all results; `None` where they are not one stack, or results do not fit a binding.
    pub(crate) fn joined_products(
        &self,
        h: &Tensor,
        norm: &Norm<Tensor>,
        weights: &Linear,
    ) -> Result<Option<Tensor>> {
        let largest = self.device.largest_binding;
        let fits = |rows: &Range<usize>| (4 * h.shape().rows * rows.len()) as u64 <= largest;
        let Some(rows) = weights.rows_of_stack().filter(fits) else { return Ok(None) };
        let x = self.rms_norm_of(h, Some(&norm.w), h.shape().cols, norm.eps)?;
        let bias = weights.only().bias.as_ref();
        self.product_with(&self.input(&x)?, weights.stack(), rows, bias, None).map(Some)
    }

    pub(crate) fn head_product(&self, x: &Tensor, weights: &HeadMatrices) -> Result<Tensor> {
        let HeadMatrices { count, rows, stack, transposed } = weights;
        let HeadShape { heads, matrix } = weights.shape();
        let shape = Shape { rows: x.shape().rows, cols: heads * matrix.rows };
        let y = self.tensor(shape.rows, shape.cols)?;
        let items = shape.rows * count;
        let few = shape.rows <= self.device.profile.row_product_tokens;
        if !transposed && !few && self.device.profile.limits.matrices {
            let groups = self.groups_of_heads(shape.rows, *count)?;
            // A head's input is a row of its own.
            let x = x.clone().with_shape(Shape { rows: items, cols: stack.cols });
            let result = y.clone().with_shape(Shape { rows: items, cols: *rows });
            self.tiled(&self.input_of_tiles(&x)?, stack, 1, None, &groups, &result);
            return Ok(y);
        }
        for (i, part) in stack.parts.iter().enumerate() {
            let (codes, scales, x, y) = (&part.codes, &part.scales, x.buffer(), y.buffer());
            let (weight, [first, end]) = (stack.params(), [part.rows.start, part.rows.end].map(word));
            let [head_rows, tokens, heads] = [*rows, shape.rows, *count].map(word);
            if *transposed {
                let add = (i > 0).into();
                let params = heads_turned::Params { weight, first, end, head_rows, tokens, heads, add };
                let bindings = heads_turned::Bindings { codes, scales, x, y };
                let grid = by_item(stack.eights().div_ceil(THREADS), items);
                self.run(heads_turned::call(FormatOnly { format: stack.format }, params, bindings), grid);
            } else {
                let consts = kernels::Input::choose(stack.format, stack.cols);
                let params = heads::Params { weight, first, end, head_rows, tokens, heads };
                let bindings = heads::Bindings { codes, scales, x, y };
                self.run(heads::call(consts, params, bindings), by_item(rows.div_ceil(ROWS), items));
            }
        }
        Ok(y)
    }

    /// The product of one token's `rms(x) * w` with rows `rows` of a stack of one part, in full precision, and what experts take beside it.
    pub(crate) fn norm_product(
        &self,
        x: &Tensor,
        norm: NormRef<'_>,
        stack: &Stack,
        rows: Range<usize>,
        bias: Option<&Tensor>,
        digits: Digits<'_>,
    ) -> Result<Tensor> {
        let y = self.tensor_with_digits(rows.len(), stack.cols)?;
        let workgroups = rows.len().div_ceil(NORM_ROWS);
        let params = norm_matvec::Params {
            weight: stack.params(),
            rows: word(rows.len()),
            skip: word(rows.start),
            has_bias: bias.is_some().into(),
            eps: norm.eps,
            groups: word(workgroups),
            digits_at: word(digits_at(rows.len())),
            digit_bits: digits.bits,
        };
        let part = &stack.parts[0];
        let bindings = norm_matvec::Bindings {
            codes: &part.codes,
            scales: &part.scales,
            x: x.buffer(),
            norm: norm.w.buffer(),
            expert_norm: digits.w.buffer(),
            bias: bias.map(Tensor::buffer),
            y: y.buffer(),
        };
        let consts = FormatOnly { format: stack.format };
        self.run(norm_matvec::call(consts, params, bindings), folded(workgroups + 1));
        Ok(y)
    }

    /// Every head's tokens together.
    fn groups_of_heads(&self, tokens: usize, heads: usize) -> Result<Groups> {
        let share = share(&self.device.profile, tokens);
        let tiles = heads * tokens.div_ceil(16 * share);
        let (list, table) =
            (self.pool.take(4 * (tokens * heads) as u64)?, self.pool.take(16 * tiles as u64)?);
        let [of_tokens, of_heads, tile_tokens] = [tokens, heads, 16 * share].map(word);
        let params = head_tiles::Params { tokens: of_tokens, heads: of_heads, tile_tokens };
        let bindings = head_tiles::Bindings { list: &list, tiles: &table };
        self.run_each(head_tiles::call(params, bindings), tokens * heads);
        Ok(Groups { list, table, tiles, share })
    }

    /// `h[t, k] = W_e x[t]` for every chosen expert e; with an activation, rows of gate and up alternate and come out as
    /// one.
    fn experts_up(
        &self,
        x: &Tensor,
        routes: &Routes,
        stack: &Stack,
        width: usize,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let pairs = routes.tokens * routes.top_k;
        let rows = if activation.is_some() { 2 * width } else { width };
        let hidden = self.tensor(pairs, width)?;
        let consts = GatedInput::choose(stack.format, stack.cols, activation);
        for part in &stack.parts {
            let params = experts_up::Params {
                weight: stack.params(),
                first: word(part.rows.start),
                end: word(part.rows.end),
                expert_rows: word(rows),
                pairs: word(pairs),
                top_k: word(routes.top_k),
            };
            let bindings = experts_up::Bindings {
                codes: &part.codes,
                scales: &part.scales,
                x: x.buffer(),
                ids: &routes.ids,
                h: hidden.buffer(),
            };
            let grid = by_item(rows.div_ceil(ROWS), pairs);
            self.run(experts_up::call(consts, params, bindings), grid);
        }
        Ok(hidden)
    }

    pub(crate) fn experts_of(
        &self,
        x: &Input<'_>,
        routes: &Routes,
        weights: &Experts,
        activation: Activation,
    ) -> Result<Tensor> {
        let (tokens, pairs, rows) = (routes.tokens, routes.tokens * routes.top_k, weights.hidden);
        let y = self.tensor(tokens, rows)?;
        // Tiles pay once an expert has several tokens.
        let many = tokens > self.device.profile.row_product_tokens && pairs >= 2 * weights.count;
        let results = if many { Some(self.tensor(pairs, rows)?) } else { None };
        let mut add = false;
        let mut step = |routes: &Routes| match &results {
            Some(results) => self.results_of_many(x, routes, weights, activation, results),
            None => {
                self.sums_of_few(x.x, routes, weights, activation, (&y, add))?;
                add = true;
                Ok(())
            }
        };
        match &weights.slots {
            Some(slots) => self.in_waves(routes, weights, slots, step)?,
            None => step(routes)?,
        }
        if let Some(results) = results {
            let [len, width, top_k] = [tokens * rows, rows, routes.top_k].map(word);
            let params = weighted_sum::Params { len, width, top_k };
            let (values, weights) = (results.buffer(), &routes.weights);
            let bindings = weighted_sum::Bindings { values, weights, y: y.buffer() };
            self.run_each(weighted_sum::call(params, bindings), tokens * rows);
        }
        Ok(y)
    }

    /// The weighted sums of the experts that there are, written to `y` or added to what is there.
    fn sums_of_few(
        &self,
        x: &Tensor,
        routes: &Routes,
        weights: &Experts,
        activation: Activation,
        (y, add): (&Tensor, bool),
    ) -> Result<()> {
        let hidden = match &weights.up {
            UpStacks::Alternating(stack) => {
                self.experts_up(x, routes, stack, weights.width, Some(activation))?
            }
            UpStacks::Apart { gate, up } => {
                let gate = self.experts_up(x, routes, gate, weights.width, None)?;
                let up = self.experts_up(x, routes, up, weights.width, None)?;
                self.glu_of(&gate, &up, activation)?
            }
        };
        let (down, rows, tokens) = (&weights.down, weights.hidden, routes.tokens);
        let consts = kernels::Input::choose(down.format, down.cols);
        for (i, part) in down.parts.iter().enumerate() {
            let params = experts_down::Params {
                weight: down.params(),
                first: word(part.rows.start),
                end: word(part.rows.end),
                expert_rows: word(rows),
                tokens: word(tokens),
                top_k: word(routes.top_k),
                add: (add || i > 0).into(),
            };
            let bindings = experts_down::Bindings {
                codes: &part.codes,
                scales: &part.scales,
                x: hidden.buffer(),
                ids: &routes.ids,
                weights: &routes.weights,
                y: y.buffer(),
            };
            let grid = by_item(rows.div_ceil(ROWS), tokens);
            self.run(experts_down::call(consts, params, bindings), grid);
        }
        Ok(())
    }

    /// The results of every pair of a token and an expert, where there are many tokens: pairs are sorted by expert, and each
    /// expert's tokens go together.
    fn results_of_many(
        &self,
        x: &Input<'_>,
        routes: &Routes,
        weights: &Experts,
        activation: Activation,
        results: &Tensor,
    ) -> Result<()> {
        let (pairs, experts) = (routes.tokens * routes.top_k, weights.matrices());
        let share = expert_share(&self.device.profile, pairs.div_ceil(experts));
        // Every expert may leave a tile that is not full.
        let tiles = pairs / (16 * share) + experts;
        let (list, table) = (self.pool.take(4 * pairs as u64)?, self.pool.take(16 * tiles as u64)?);
        let groups = Groups { list, table, tiles, share };
        let spans = self.pool.take(8 * experts as u64)?;
        let params = expert_lists::Params { pairs: word(pairs), experts: word(experts) };
        let bindings = expert_lists::Bindings { ids: &routes.ids, list: &groups.list, spans: &spans };
        self.run(expert_lists::call(params, bindings), folded(experts));
        let [of_experts, tiles, tile_tokens] = [experts, groups.tiles, 16 * share].map(word);
        let params = expert_tiles::Params { experts: of_experts, tiles, tile_tokens };
        let bindings = expert_tiles::Bindings { spans: &spans, tiles: &groups.table };
        self.run(expert_tiles::call(params, bindings), [1, 1, 1]);

        let (width, k) = (weights.width, routes.top_k);
        let hidden = match &weights.up {
            UpStacks::Alternating(stack) => {
                let hidden = self.tensor(pairs, width)?;
                self.tiled(x, stack, k, Some(activation), &groups, &hidden);
                hidden
            }
            UpStacks::Apart { gate, up } => {
                let halves = [self.tensor(pairs, width)?, self.tensor(pairs, width)?];
                self.tiled(x, gate, k, None, &groups, &halves[0]);
                self.tiled(x, up, k, None, &groups, &halves[1]);
                self.glu_of(&halves[0], &halves[1], activation)?
            }
        };
        let hidden = self.input_of_tiles(&hidden)?;
        self.tiled(&hidden, &weights.down, 1, None, &groups, results);
        Ok(())
    }

    /// `h[p] = W_e x[p / per]` for every pair, its expert being e.
    fn tiled(
        &self,
        input: &Input<'_>,
        stack: &Stack,
        per: usize,
        activation: Option<Activation>,
        groups: &Groups,
        h: &Tensor,
    ) {
        let profile = &self.device.profile;
        let rows = h.shape().cols * if activation.is_some() { 2 } else { 1 };
        let consts = ExpertTiles::choose(profile, stack.format, stack.cols, (groups.share, activation));
        for part in &stack.parts {
            let params = experts_tiled::Params {
                weight: stack.params(),
                first: word(part.rows.start),
                end: word(part.rows.end),
                expert_rows: word(rows),
                share: word(per),
            };
            let bindings = experts_tiled::Bindings {
                codes: &part.codes,
                scales: &part.scales,
                x: input.rows(),
                list: &groups.list,
                tiles: &groups.table,
                factors: input.factors(),
                h: h.buffer(),
            };
            let grid = by_item(rows.div_ceil(tile_rows(profile)), groups.tiles);
            self.run(experts_tiled::call(consts, params, bindings), grid);
        }
    }
}

/// What several matrices have made of one input.
pub(crate) struct Projections {
    pub parts: Vec<Tensor>,
    /// Whether all are parts of one buffer, as far behind the first as their matrices are.
    pub joined: bool,
}

impl Projections {
    /// One token's product with neighbours in one stack.
    pub fn of(y: &Tensor, weights: &Linear) -> Self {
        let first = weights.only().first;
        let part = |w: &Matrix| {
            let buffer = y.buffer().behind(4 * (w.first - first) as u64);
            Tensor::new(Shape { rows: 1, cols: w.rows }, buffer)
        };
        Self { parts: weights.matrices().iter().map(part).collect(), joined: true }
    }
}

/// Rows of inputs, and the same as halves for matrix units, where these multiply.
pub(crate) struct Input<'a> {
    x: &'a Tensor,
    halves: Option<Halves>,
}

impl Input<'_> {
    /// What kernels read.
    fn rows(&self) -> &Buffer {
        self.halves.as_ref().map_or(self.x.buffer(), |halves| &halves.words)
    }

    /// What halves were divided by.
    fn factors(&self) -> Option<&Buffer> {
        self.halves.as_ref().map(|halves| &halves.factors)
    }
}

/// Rows of halves, and what they were divided by.
pub(crate) struct Halves {
    pub words: Buffer,
    pub factors: Buffer,
    /// Eights of a row.
    pub eights: usize,
}

/// Pairs of tokens and experts, sorted by expert and cut into tiles.
struct Groups {
    list: Buffer,
    table: Buffer,
    /// Tiles there can be at most.
    tiles: usize,
    /// Tokens of a tile, by sixteens.
    share: usize,
}
