//! Products with weights.

use std::ops::Range;
use std::sync::Arc;

use ::backend::{Activation, Batch, Handle, Norm, Result, Shape};

use super::elementwise::number;
use super::rounded::{Besides, Digits, Prepared, digits_at};
use super::route::Routes;
use super::{TILES_BUSY, by_item, each, folded};
use crate::pool::Buffer;
use crate::shader::{Kernel, Variant, kernels};
use crate::weights::{Experts, HeadMatrices, Matrix, Stack, UpStacks};
use crate::{Gpu, Tensor};

/// Threads of a workgroup of a product with few tokens, and its rows.
const THREADS: u32 = 64;
const ROWS: usize = 4;

/// Rows of a workgroup that norms its input.
const NORM_ROWS: usize = 2;

/// Most tokens for which a product goes row by row.
const FEW: usize = 8;

/// Columns of rows of halves are filled up to so many, which kernels take at a time.
const HALVES: usize = 64;

/// Threads that share a row of a product of few tokens. Of few rows each must come quickly; of many, more are at work at once
/// the fewer threads each takes. Measured on an H200 (docs/performance.md).
fn threads_for(rows: usize, eights: usize) -> u32 {
    match rows {
        16384.. => 32,
        0..=4096 if eights >= 256 => 256,
        _ => 128,
    }
}

fn rows_of(kernel: &'static Kernel, stack: &Stack, threads: u32) -> Variant {
    Variant::new(kernel, threads)
        .format(stack.format)
        .with("ROWS", ROWS as u32)
        .with("ALIGNED", stack.aligned())
}

fn chain<const N: usize>(stack: &Stack, numbers: [usize; N]) -> Vec<u32> {
    stack.numbers().into_iter().chain(numbers.map(|n| n as u32)).collect()
}

impl Gpu {
    /// Tokens of a tile, by sixteens: no more than are needed.
    fn share(&self, tokens: usize) -> usize {
        let most = if self.device.matrices { 8 } else { 4 };
        [1, 2, 4].into_iter().find(|share| tokens <= 16 * share).unwrap_or(most)
    }

    /// The same for a product with so many rows: rather small tiles than too few to keep a large device busy.
    fn share_for(&self, rows: usize, tokens: usize) -> usize {
        let mut share = self.share(tokens);
        let tiles = |share: usize| rows.div_ceil(self.tile_rows()) * tokens.div_ceil(16 * share);
        while self.device.matrices && share > 2 && tiles(share) < TILES_BUSY {
            share /= 2;
        }
        share
    }

    /// Rows of a tile.
    fn tile_rows(&self) -> usize {
        if self.device.matrices { 128 } else { 64 }
    }

    fn tiles_of(&self, kernel: &'static Kernel, stack: &Stack, share: usize) -> Variant {
        Variant::new(kernel, 256)
            .format(stack.format)
            .with("SHARE", share as u32)
            .with("MATRICES", u32::from(self.device.matrices))
            .with("ALIGNED", stack.aligned())
    }

    /// An input of one or several products.
    pub(crate) fn input<'a>(&self, x: &'a Tensor) -> Result<Input<'a>> {
        if x.shape().rows <= FEW {
            return Ok(Input { x, halves: None });
        }
        self.input_of_tiles(x)
    }

    fn input_of_tiles<'a>(&self, x: &'a Tensor) -> Result<Input<'a>> {
        let halves = match self.device.matrices {
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
        let numbers =
            [tokens.len(), tokens.start, heads, group, width_a, width_b, 4 * eights].map(|n| n as u32);
        let buffers = [a.buffer(), b.unwrap_or(a).buffer(), &halves.words, &halves.factors];
        let variant = Variant::new(&kernels::HALVES, 256).with("MATRICES", 1);
        self.run(&variant, &buffers, &numbers, folded(rows.div_ceil(8)));
        Ok(halves)
    }

    pub(crate) fn embed_of(&self, table: &Matrix, batch: &Batch<Self>, factor: f32) -> Result<Tensor> {
        let stack = &table.stack;
        let (rows, tokens) = (batch.rows(), &batch.data().tokens);
        let y = self.tensor(rows, stack.cols)?;
        for part in &stack.parts {
            let mut numbers = chain(stack, [part.rows.start, part.rows.end, rows]);
            numbers.push(factor.to_bits());
            let buffers = [&part.codes, &part.scales, tokens, y.buffer()];
            self.run_each(
                &each(&kernels::EMBED).format(stack.format),
                &buffers,
                &numbers,
                rows * stack.eights(),
            );
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
        let rows = weight.first..weight.first + weight.rows;
        self.product_with(input, &weight.stack, rows, weight.bias.as_ref(), residual)
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
            return self.rounded_product(&Prepared::Plain(x), stack, rows, &besides);
        }
        let (n, out) = (x.shape().rows, rows.len());
        let y = self.tensor(n, out)?;
        let has = [bias.is_some(), residual.is_some()].map(usize::from);
        let bias = bias.unwrap_or(x).buffer();
        let residual = residual.unwrap_or(x).buffer();
        for part in &stack.parts {
            let here = rows.start.max(part.rows.start)..rows.end.min(part.rows.end);
            if here.is_empty() {
                continue;
            }
            let (first, skip) = (here.start - rows.start, here.start - part.rows.start);
            let numbers = chain(stack, [here.len(), first, n, out, has[0], has[1], skip]);
            let inputs = [&part.codes, &part.scales, x.buffer(), bias, residual];
            let [codes, scales, x, bias, residual] = inputs;
            let grid = |rows: usize, tokens: usize| {
                let [across, down, _] = folded(here.len().div_ceil(rows));
                [across, down, n.div_ceil(tokens) as u32]
            };
            if n <= FEW {
                let tokens = [1, 2, 4].into_iter().find(|t| n <= *t).unwrap_or(8);
                let variant = rows_of(&kernels::MATVEC, stack, threads_for(out, stack.eights()))
                    .with("TOKENS", tokens as u32);
                let buffers = [codes, scales, x, bias, residual, y.buffer()];
                self.run(&variant, &buffers, &numbers, grid(ROWS, tokens));
            } else {
                let share = self.share_for(here.len(), n);
                let variant = self.tiles_of(&kernels::MATMUL, stack, share);
                let buffers = [codes, scales, input.rows(), bias, residual, input.factors(), y.buffer()];
                self.run(&variant, &buffers, &numbers, grid(self.tile_rows(), 16 * share));
            }
        }
        Ok(y)
    }

    /// `y_m[t] = W_m x[t]`, one token's products with neighbours in a stack in one go.
    pub(crate) fn products<const N: usize>(
        &self,
        input: &Prepared<'_>,
        weights: [&Matrix; N],
    ) -> Result<[Tensor; N]> {
        let (x, norm) = match input {
            Prepared::Plain(x) => (*x, None),
            Prepared::Norm(x, norm) => (*x, Some(norm)),
            Prepared::GatedNorm(..) | Prepared::NormAdd { .. } | Prepared::Splits(_) | Prepared::End(..) => {
                unreachable!("leads to one product")
            }
        };
        let together = neighbours(weights).filter(|_| x.shape().rows == 1);
        let [first, ..] = weights.as_slice() else { unreachable!("at least one matrix") };
        if let Some(rows) = &together
            && self.prepares(input, &first.stack)
        {
            let besides = Besides { bias: first.bias.as_ref(), ..Besides::default() };
            let y = self.rounded_product(input, &first.stack, rows.clone(), &besides)?;
            return Ok(parts_of(&y, weights));
        }
        let normed =
            norm.map(|norm| self.rms_norm_of(x, Some(norm.w), x.shape().cols, norm.eps)).transpose()?;
        let input = self.input(normed.as_ref().unwrap_or(x))?;
        if let Some(rows) = together {
            let y = self.product_with(&input, &first.stack, rows, first.bias.as_ref(), None)?;
            return Ok(parts_of(&y, weights));
        }
        let mut products = Vec::with_capacity(N);
        for w in weights {
            products.push(self.product(&input, w, None)?);
        }
        products.try_into().map_err(|_| unreachable!("as many products as weights"))
    }

    pub(crate) fn head_product(&self, x: &Tensor, weights: &HeadMatrices, shape: Shape) -> Result<Tensor> {
        let HeadMatrices { count, rows, stack, transposed } = weights;
        let y = self.tensor(shape.rows, shape.cols)?;
        let items = shape.rows * count;
        if !transposed && shape.rows > FEW && self.device.matrices {
            let groups = self.groups_of_heads(shape.rows, *count)?;
            // A head's input is a row of its own.
            let x = x.clone().with_shape(Shape { rows: items, cols: stack.cols });
            let result = y.clone().with_shape(Shape { rows: items, cols: *rows });
            self.tiled(&self.input_of_tiles(&x)?, stack, 1, None, &groups, &result);
            return Ok(y);
        }
        for (i, part) in stack.parts.iter().enumerate() {
            let add = usize::from(i > 0);
            let numbers = chain(stack, [part.rows.start, part.rows.end, *rows, shape.rows, *count, add]);
            let buffers = [&part.codes, &part.scales, x.buffer(), y.buffer()];
            if *transposed {
                let variant = Variant::new(&kernels::HEADS_TURNED, THREADS).format(stack.format);
                let grid = by_item(stack.eights().div_ceil(THREADS as usize), items);
                self.run(&variant, &buffers, &numbers, grid);
            } else {
                let grid = by_item(rows.div_ceil(ROWS), items);
                self.run(
                    &rows_of(&kernels::HEADS, stack, THREADS),
                    &buffers,
                    &numbers[..numbers.len() - 1],
                    grid,
                );
            }
        }
        Ok(y)
    }

    /// The product of one token's `rms(x) * w` with rows `rows` of a stack of one part, in full precision, and what experts take beside it.
    pub(crate) fn norm_product(
        &self,
        x: &Tensor,
        norm: Norm<'_, Tensor>,
        stack: &Stack,
        rows: Range<usize>,
        bias: Option<&Tensor>,
        digits: Digits<'_>,
    ) -> Result<Tensor> {
        let y = self.tensor_with_digits(rows.len(), stack.cols)?;
        let variant =
            Variant::new(&kernels::NORM_MATVEC, 256).format(stack.format).with("ROWS", NORM_ROWS as u32);
        let rest = [rows.len(), rows.start, usize::from(bias.is_some())].map(|n| n as u32);
        let mut numbers: Vec<u32> = stack.numbers().into_iter().chain(rest).collect();
        let workgroups = rows.len().div_ceil(NORM_ROWS);
        numbers.extend([norm.eps.to_bits(), workgroups as u32, digits_at(rows.len()) as u32, digits.bits]);
        let [x, w, w2, bias, out] = [x, norm.w, digits.w, bias.unwrap_or(x), &y].map(Tensor::buffer);
        let part = &stack.parts[0];
        let buffers = [&part.codes, &part.scales, x, w, w2, bias, out];
        self.run(&variant, &buffers, &numbers, folded(workgroups + 1));
        Ok(y)
    }

    /// Every head's tokens together.
    fn groups_of_heads(&self, tokens: usize, heads: usize) -> Result<Groups> {
        let share = self.share(tokens);
        let tiles = heads * tokens.div_ceil(16 * share);
        let (list, table) =
            (self.pool.take(4 * (tokens * heads) as u64)?, self.pool.take(16 * tiles as u64)?);
        let numbers = [tokens, heads, 16 * share].map(|n| n as u32);
        self.run_each(&each(&kernels::HEAD_TILES), &[&list, &table], &numbers, tokens * heads);
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
        let variant = rows_of(&kernels::EXPERTS_UP, stack, THREADS)
            .with("ACTIVATION", activation.map_or(0, number))
            .with("GATED", u32::from(activation.is_some()));
        for part in &stack.parts {
            let numbers = chain(stack, [part.rows.start, part.rows.end, rows, pairs, routes.top_k]);
            let buffers: [&Buffer; 5] = [&part.codes, &part.scales, x.buffer(), &routes.ids, hidden.buffer()];
            self.run(&variant, &buffers, &numbers, by_item(rows.div_ceil(ROWS), pairs));
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
        let many = tokens > FEW && pairs >= 2 * weights.count;
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
            let numbers = [tokens * rows, rows, routes.top_k].map(|n| n as u32);
            let buffers = [results.buffer(), &routes.weights, y.buffer()];
            self.run_each(&each(&kernels::WEIGHTED_SUM), &buffers, &numbers, tokens * rows);
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
        for (i, part) in down.parts.iter().enumerate() {
            let add = usize::from(add || i > 0);
            let numbers = chain(down, [part.rows.start, part.rows.end, rows, tokens, routes.top_k, add]);
            let buffers: [&Buffer; 6] =
                [&part.codes, &part.scales, hidden.buffer(), &routes.ids, &routes.weights, y.buffer()];
            self.run(
                &rows_of(&kernels::EXPERTS_DOWN, down, 128),
                &buffers,
                &numbers,
                by_item(rows.div_ceil(ROWS), tokens),
            );
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
        // Experts rarely have as many tokens as fill several wide tiles.
        let share = self.share(pairs.div_ceil(experts)).min(4);
        // Every expert may leave a tile that is not full.
        let tiles = pairs / (16 * share) + experts;
        let (list, table) = (self.pool.take(4 * pairs as u64)?, self.pool.take(16 * tiles as u64)?);
        let groups = Groups { list, table, tiles, share };
        let spans = self.pool.take(8 * experts as u64)?;
        let variant = Variant::new(&kernels::EXPERT_LISTS, 64);
        let numbers = [pairs as u32, experts as u32];
        self.run(&variant, &[&routes.ids, &groups.list, &spans], &numbers, folded(experts));
        let variant = Variant::new(&kernels::EXPERT_TILES, 256);
        let numbers = [experts, groups.tiles, 16 * share].map(|n| n as u32);
        self.run(&variant, &[&spans, &groups.table], &numbers, [1, 1, 1]);

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
        let gated = usize::from(activation.is_some());
        let rows = h.shape().cols * (1 + gated);
        let variant = self
            .tiles_of(&kernels::EXPERTS_TILED, stack, groups.share)
            .with("ACTIVATION", activation.map_or(0, number))
            .with("GATED", gated as u32);
        for part in &stack.parts {
            let numbers = chain(stack, [part.rows.start, part.rows.end, rows, per]);
            let inputs =
                [&part.codes, &part.scales, input.rows(), &groups.list, &groups.table, input.factors()];
            let [codes, scales, x, list, table, factors] = inputs;
            let buffers = [codes, scales, x, list, table, factors, h.buffer()];
            self.run(&variant, &buffers, &numbers, by_item(rows.div_ceil(self.tile_rows()), groups.tiles));
        }
    }
}

/// The rows of a stack that some matrices are, if they are neighbours in one.
pub(crate) fn neighbours<const N: usize>(weights: [&Matrix; N]) -> Option<Range<usize>> {
    let (first, last) = (weights.first()?, weights.last()?);
    let follow =
        |pair: &[&Matrix]| Arc::ptr_eq(&pair[0].stack, &pair[1].stack) && pair[0].first < pair[1].first;
    weights.windows(2).all(follow).then(|| first.first..last.first + last.rows)
}

/// What of one token's product with neighbours is each one's.
pub(crate) fn parts_of<const N: usize>(y: &Tensor, weights: [&Matrix; N]) -> [Tensor; N] {
    let first = weights.first().map_or(0, |w| w.first);
    weights.map(|w| {
        let shape = Shape { rows: 1, cols: w.rows };
        Tensor::new(shape, y.buffer().behind(4 * (w.first - first) as u64))
    })
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

    /// What halves were divided by; where there are none, nobody reads what stands in for them.
    fn factors(&self) -> &Buffer {
        self.halves.as_ref().map_or(self.x.buffer(), |halves| &halves.factors)
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
