//! Choosing tokens from logits, for all rows of a step together.
//!
//! Two dispatches where all rows are greedy and unchanged (`top`, `choose_greedy`), else 2 to 4:
//!
//! - `choose_max` applies penalties, bias and mask, and finds the largest logit of each block;
//! - `choose_histogram`, for top-k and top-p, counts tokens by likelihood;
//! - `choose_noisy` finds the best token of each block with its noise, of those that are left for
//!   sure, and lists those of the few bins in which top-k and top-p draw their lines;
//! - `choose_token` puts the blocks and the listed tokens together.
//!
//! The token goes into the slabs' `last`, where the next step finds it. Log probabilities do not
//! decide anything: the host finds them out, from rows that are read back.

use std::collections::HashMap;

use ::backend::{Adjusted, Choice, Error, Handle, Result, Sampled, Shape, check, choose};

use super::{folded, word};
use crate::kernels::choose::{
    BINS, BLOCK, ChooseParams, Draws, LISTED, NOBODY, RowChoice, SEEN, WIDE_BLOCK, choose_greedy,
    choose_histogram, choose_max, choose_noisy, choose_token,
};
use crate::pool::{ALIGNMENT, Buffer};
use crate::recorder::{Copy, Reading};
use crate::slabs::Slabs;
use crate::tensor::{floats, numbers};
use crate::{Gpu, Tensor};

/// Largest factor of missing weights: what an f32 tells apart.
const MOST_SCALE: f64 = (1u32 << 24) as f64;

/// Tokens on their way to the host.
pub struct Ticket {
    /// Of each row the token and the bits of its logit; and rows of logits.
    reading: Reading<2>,
    cols: usize,
    /// Rows whose log probabilities are wanted, and how many of the likeliest.
    logprobs: Vec<(usize, usize)>,
}

/// How rows are chosen from, as kernels take it.
#[derive(Default)]
struct Rows {
    choices: Vec<RowChoice>,
    /// Changed logits and masks.
    lists: Vec<u32>,
    /// Rows whose logits are adjusted.
    adjusted: usize,
    draws: bool,
    filters: bool,
}

impl Rows {
    fn with_room(choices: &[Choice<'_>], cols: usize) -> Self {
        let own = |c: &Choice<'_>| 3 * c.adjusted.len() + c.allowed.map_or(0, <[u32]>::len);
        let begins = choices.len() * (cols.div_ceil(BLOCK) + 1);
        let lists = Vec::with_capacity(begins + choices.iter().map(own).sum::<usize>());
        Self { choices: Vec::with_capacity(choices.len()), lists, ..Self::default() }
    }

    fn push(&mut self, choice: &Choice<'_>, [slot, counted]: [u32; 2], cols: usize) {
        let sampling = choice.sampling;
        let draws = !sampling.is_greedy();
        let top_k = if sampling.top_k < cols { word(sampling.top_k) } else { 0 };
        let adjusted = if choice.is_plain() { NOBODY } else { word(self.adjusted) };
        self.adjusted += usize::from(!choice.is_plain());
        self.draws |= draws;
        self.filters |= draws && (top_k > 0 || sampling.top_p < 1.0);
        let changes_at = self.push_changes(choice, cols);
        let allowed_at = choice.allowed.map_or(NOBODY, |_| word(self.lists.len()));
        self.lists.extend(choice.allowed.unwrap_or_default());
        let [key_first, key_second] = choice.noise_key();
        self.choices.push(RowChoice {
            slot,
            counted,
            adjusted,
            changes_at,
            allowed_at,
            allowed_len: choice.allowed.map_or(0, |words| word(words.len())),
            draws: draws.into(),
            top_k,
            key_first,
            key_second,
            repetition: sampling.repetition_penalty,
            reciprocal: 1.0 / sampling.repetition_penalty,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            // A number that devices do not take for zero.
            factor: sampling.scale().max(f32::MIN_POSITIVE),
            top_p: sampling.top_p,
            floor: if sampling.min_p > 0.0 { sampling.floor() } else { f32::MIN },
        });
    }

    /// Where those of each block begin, then token, count and bias of each.
    fn push_changes(&mut self, choice: &Choice<'_>, cols: usize) -> u32 {
        if choice.adjusted.is_empty() {
            return NOBODY;
        }
        let at = self.lists.len();
        let begins = (0..=cols.div_ceil(BLOCK)).map(|block| (block * BLOCK).min(cols));
        let before = |token: usize| choice.adjusted.partition_point(|a| (a.token as usize) < token);
        self.lists.extend(begins.map(|begin| word(before(begin))));
        let words = |change: &Adjusted| {
            let count = change.generated | if change.seen { SEEN } else { 0 };
            [change.token, count, change.bias.to_bits()]
        };
        self.lists.extend(choice.adjusted.iter().flat_map(words));
        word(at)
    }
}

impl Gpu {
    /// Has a token chosen from each row; starts everything recorded.
    pub(crate) fn choose_rows(
        &self,
        logits: &Tensor,
        choices: &[Choice<'_>],
        slabs: &mut Slabs,
    ) -> Result<Ticket> {
        let Shape { rows, cols } = logits.shape();
        check::equal("submit", "the number of choices", choices.len(), rows)?;
        let counted = choices.iter().map(|choice| counted(choice, slabs)).collect::<Result<Vec<_>>>()?;
        let most = choices.iter().filter_map(|choice| choice.slot).map(|slot| slot.index() + 1).max();
        self.reserve_last(slabs, most.unwrap_or_default())?;
        let chosen = self.pool.take(8 * rows as u64)?;
        let slots = remembered(choices);
        if choices.iter().all(|choice| choice.sampling.is_greedy() && choice.is_plain()) {
            self.choose_greedily(logits, &slots, slabs.last(), &chosen)?;
        } else {
            let mut all = Rows::with_room(choices, cols);
            for ((choice, slot), counted) in choices.iter().zip(&slots).zip(counted) {
                all.push(choice, [*slot, counted], cols);
            }
            self.choose_from(logits, &all, slabs.last(), &chosen)?;
        }
        let wanted = choices.iter().enumerate();
        let logprobs: Vec<_> = wanted.filter_map(|(row, c)| Some((row, c.logprobs?))).collect();
        let beside = self.gathered(logits, &logprobs)?;
        let lens = [8 * rows as u64, 4 * (logprobs.len() * cols) as u64];
        let reading = self.recorder.begin_read([(&chosen, lens[0]), (&beside, lens[1])])?;
        Ok(Ticket { reading, cols, logprobs })
    }

    /// Starts everything recorded; what is read back only says when it is done.
    pub(crate) fn start_only(&self, slabs: &Slabs) -> Result<Ticket> {
        let reading = self.recorder.begin_read([(slabs.last(), 4), (slabs.last(), 0)])?;
        Ok(Ticket { reading, cols: 0, logprobs: Vec::new() })
    }

    /// The likeliest token of each row.
    fn choose_greedily(&self, logits: &Tensor, slots: &[u32], last: &Buffer, chosen: &Buffer) -> Result<()> {
        let rows = slots.len();
        let largest = self.largest_blocks(logits)?;
        // The slot of one row needs no buffer.
        let several = (rows > 1).then(|| self.pool.take(4 * rows as u64)).transpose()?;
        if let Some(buffer) = &several {
            self.recorder.write(buffer, bytemuck::cast_slice(slots));
        }
        let slot = slots.first().copied().unwrap_or(NOBODY);
        let params = choose_greedy::Params { rows: word(rows), blocks: word(largest.blocks), slot };
        let (ids, values) = (&largest.ids, &largest.values);
        let bindings = choose_greedy::Bindings { ids, values, slots: several.as_ref(), last, chosen };
        self.run(choose_greedy::call(params, bindings), folded(rows));
        Ok(())
    }

    /// A token from each row, whatever its settings.
    fn choose_from(&self, logits: &Tensor, all: &Rows, last: &Buffer, chosen: &Buffer) -> Result<()> {
        let Shape { rows, cols } = logits.shape();
        let (blocks, wide_blocks) = (cols.div_ceil(BLOCK), cols.div_ceil(WIDE_BLOCK));
        let stride = 2 * (blocks + wide_blocks + BINS) + 1 + LISTED;
        // All of them in one bin fit a word, each missing less than 1/16.
        let scale = (2f64.powi(32) * 16.0 / cols.max(1) as f64).log2().floor().exp2().min(MOST_SCALE);
        let params = ChooseParams {
            rows: word(rows),
            cols: word(cols),
            blocks: word(blocks),
            wide_blocks: word(wide_blocks),
            stride: word(stride),
            scale: scale as f32,
        };
        let choices = &self.upload_rows(all)?;
        let lists = &choices.behind(lists_at(all));
        let adjusted = &self.pool.take(4 * (all.adjusted * cols) as u64)?;
        let work = &self.pool.take(4 * (rows * stride) as u64)?;
        let x = logits.buffer();
        let bindings = choose_max::Bindings { x, choices, lists, last, adjusted, work };
        self.run(choose_max::call(params, bindings), folded(rows * blocks));
        let wide = folded(rows * wide_blocks);
        if all.filters {
            let bindings = choose_histogram::Bindings { x, choices, adjusted, work };
            self.run(choose_histogram::call(params, bindings), wide);
        }
        if all.draws {
            let bindings = choose_noisy::Bindings { x, choices, adjusted, work };
            self.run(choose_noisy::call(params, bindings), wide);
        }
        let consts = Draws { draws: all.draws };
        let bindings = choose_token::Bindings { x, choices, adjusted, work, last, chosen };
        self.run(choose_token::call(consts, params, bindings), folded(rows));
        Ok(())
    }

    /// How rows are chosen from, and behind that their lists.
    fn upload_rows(&self, all: &Rows) -> Result<Buffer> {
        let at = lists_at(all);
        // What kernels bind has some bytes.
        let buffer = self.pool.take(at + 4 * all.lists.len().max(1) as u64)?;
        self.recorder.write(&buffer, bytemuck::cast_slice(&all.choices));
        if !all.lists.is_empty() {
            self.recorder.write(&buffer.behind(at), bytemuck::cast_slice(&all.lists));
        }
        Ok(buffer)
    }

    /// Some rows of logits, one behind the other.
    fn gathered(&self, logits: &Tensor, rows: &[(usize, usize)]) -> Result<Buffer> {
        let len = 4 * logits.shape().cols as u64;
        if rows.is_empty() || rows.len() == logits.shape().rows {
            return Ok(logits.buffer().clone());
        }
        let all = self.pool.take(len * rows.len() as u64)?;
        let copy =
            |(to, (row, _)): (u64, &(usize, usize))| Copy { from: *row as u64 * len, to: to * len, len };
        self.recorder.copy(logits.buffer(), &all, &(0..).zip(rows).map(copy).collect::<Vec<_>>());
        Ok(all)
    }

    /// Waits for tokens that were chosen.
    pub(crate) fn chosen(&self, ticket: Ticket) -> Result<Vec<Sampled>> {
        let Ticket { reading, cols, logprobs } = ticket;
        let [chosen, beside] = self.recorder.finish_read(reading)?;
        let sampled = |[token, logit]: &[u32; 2]| Sampled {
            token: *token,
            logit: f32::from_bits(*logit),
            logprob: None,
            top: Vec::new(),
        };
        let mut sampled: Vec<Sampled> = numbers(&chosen).as_chunks().0.iter().map(sampled).collect();
        let beside = floats(&beside);
        for ((row, count), logits) in logprobs.into_iter().zip(beside.chunks_exact(cols.max(1))) {
            let Sampled { token, logit, .. } = sampled[row];
            if logit.is_finite() {
                sampled[row] = with_logprobs(logits, token, count);
            }
        }
        Ok(sampled)
    }
}

/// Bytes before the lists.
fn lists_at(all: &Rows) -> u64 {
    (size_of::<RowChoice>() as u64 * all.choices.len() as u64).next_multiple_of(ALIGNMENT)
}

/// The slot whose last token penalties count, too.
fn counted(choice: &Choice<'_>, slabs: &Slabs) -> Result<u32> {
    match choice.slot.filter(|_| choice.counts_last) {
        None => Ok(NOBODY),
        Some(slot) if slot.index() < slabs.slots() => Ok(word(slot.index())),
        Some(_) => Err(Error::Unsupported("a token that was chosen last where none was".into())),
    }
}

/// Where the token of each row is remembered: of several for one slot the last one is.
fn remembered(choices: &[Choice<'_>]) -> Vec<u32> {
    let slot = |choice: &Choice<'_>| choice.slot.map_or(NOBODY, |slot| word(slot.index()));
    let lasts: HashMap<u32, usize> = choices.iter().map(slot).zip(0..).collect();
    choices.iter().map(slot).zip(0..).map(|(s, row)| if lasts[&s] == row { s } else { NOBODY }).collect()
}

/// A token that was chosen, with the log probabilities that the model itself gave it and the likeliest.
fn with_logprobs(logits: &[f32], token: u32, count: usize) -> Sampled {
    // No other one may be chosen.
    let mut allowed = vec![0; logits.len().div_ceil(32)];
    allowed[token as usize / 32] = 1 << (token % 32);
    let this = Choice { allowed: Some(&allowed), logprobs: Some(count), ..Choice::LIKELIEST };
    choose(logits, &this)
}

#[cfg(test)]
mod tests {
    use ::backend::Sampling;

    use super::*;

    #[test]
    fn changes_are_found_by_block() {
        let sampling = Sampling { temperature: 0.5, ..Sampling::GREEDY };
        let change = |token, seen| Adjusted { token, seen, generated: 2, bias: 0.5 };
        let last = BLOCK as u32;
        let changes = [change(3, true), change(last - 1, false), change(last, true), change(9 * last, true)];
        let allowed = [7, 8];
        let plain = Choice { sampling: &sampling, ..Choice::LIKELIEST };
        let changed = Choice { adjusted: &changes, allowed: Some(&allowed), ..plain };
        let mut rows = Rows::default();
        rows.push(&plain, [NOBODY, NOBODY], 2 * BLOCK + 1);
        rows.push(&changed, [5, 6], 2 * BLOCK + 1);
        let bias = 0.5f32.to_bits();
        // The last one is beyond the vocabulary.
        let begins = [0, 2, 3, 3];
        let tokens =
            [[3, SEEN | 2, bias], [last - 1, 2, bias], [last, SEEN | 2, bias], [9 * last, SEEN | 2, bias]];
        assert_eq!(rows.lists, [&begins[..], tokens.as_flattened(), &allowed].concat());
        assert_eq!((rows.adjusted, rows.draws, rows.filters), (1, true, false));
        let places =
            |row: &RowChoice| [row.slot, row.adjusted, row.changes_at, row.allowed_at, row.allowed_len];
        assert_eq!(places(&rows.choices[0]), [NOBODY, NOBODY, NOBODY, NOBODY, 0]);
        assert_eq!(places(&rows.choices[1]), [5, 0, 0, 16, 2]);
    }
}
