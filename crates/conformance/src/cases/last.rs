//! Steps that go on with tokens which only the machine knows.

use backend::pool::{Pool, Slot};
use backend::{Backend, Batch, Checked, Choice, Result, Sampling, Tokens};

use super::choose::{ALL, GREEDY, PLAIN, slots};
use super::ensure;
use crate::host::Rows;
use crate::random::Rng;
use crate::weights::{BF16, F32, Q4, Recipe, format_name};
use crate::{Bound, Case, CaseResult, Output};

/// Tokens of the vocabulary.
const TOKENS: usize = 61;
const HIDDEN: usize = 64;

/// The likeliest or a drawn token for a slot.
fn choice(slot: Slot, sampling: &Sampling, draw: u32) -> Choice<'_> {
    Choice {
        slot: Some(slot),
        sampling,
        draw,
        adjusted: &[],
        counts_last: false,
        allowed: None,
        logprobs: None,
    }
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for format in [F32, BF16, Q4] {
        for count in [1, 2, 5, 70] {
            let detail = format!("tokens that were chosen, {} table, {count} sequences", format_name(format));
            cases.push(Case::new("embed", detail, Bound::l2(3e-7), move |b: &Checked<'_, B>, rng| {
                embedded(b, rng, Recipe::new(format, TOKENS, HIDDEN), count)
            }));
        }
    }
    for count in [1, 2, 5, 70] {
        for (name, sampling) in [("greedy", GREEDY), ("drawn", PLAIN), ("all settings", ALL)] {
            let detail = format!("{name}, two steps under way, {count} sequences");
            cases.push(Case::new("submit", detail, Bound::EXACT, move |b: &Checked<'_, B>, rng| {
                ahead(b, rng, count, &sampling)
            }));
        }
    }
    cases
}

/// Chooses a token that is known beforehand for each slot: all others are minus infinity.
fn choose_these<B: Backend>(
    b: &Checked<'_, B>,
    pool: &mut Pool<B>,
    these: &[(Option<Slot>, u32)],
) -> Result<()> {
    let mut logits = vec![f32::NEG_INFINITY; these.len() * TOKENS];
    these.iter().enumerate().for_each(|(row, (_, token))| logits[row * TOKENS + *token as usize] = 1.0);
    let logits = b.upload(these.len(), TOKENS, &logits)?;
    let choice = |(slot, _): &(Option<Slot>, u32)| Choice {
        slot: *slot,
        sampling: &PLAIN,
        draw: 0,
        adjusted: &[],
        counts_last: false,
        allowed: None,
        logprobs: None,
    };
    let choices: Vec<_> = these.iter().map(choice).collect();
    let ticket = b.submit(Some(&logits), &choices, pool.slabs_mut())?;
    b.collect(ticket).map(|_| ())
}

/// Embeddings of chosen tokens beside given ones: each slot has its own, the last that was chosen.
fn embedded<B: Backend>(b: &Checked<'_, B>, rng: &mut Rng, recipe: Recipe, count: usize) -> CaseResult {
    let table = recipe.build(rng);
    let linear = b.linear(&[&table.weight])?;
    let (mut pool, slots) = slots(b, count)?;
    let mut last: Vec<u32> = rng.tokens(count, TOKENS);
    let all: Vec<_> = slots.iter().zip(&last).map(|(slot, token)| (Some(*slot), *token)).collect();
    choose_these(b, &mut pool, &all)?;
    let mut outputs = Vec::new();
    for step in 0..6 {
        // Some of them again, in another order; of several for one slot the last counts, and those
        // for none count for nobody.
        let mut again = vec![(None, rng.below(TOKENS) as u32)];
        for i in rng.order(count).into_iter().take(step) {
            for token in rng.tokens(1 + step % 2, TOKENS) {
                again.push((Some(slots[i]), token));
                last[i] = token;
            }
        }
        choose_these(b, &mut pool, &again)?;
        let ids = rng.tokens(3, TOKENS);
        let (mut spans, mut expected): (Vec<_>, Vec<u32>) = (Vec::new(), Vec::new());
        for i in rng.order(count) {
            if (i + step) % 4 == 3 {
                spans.push((slots[i], Tokens::Ids(&ids)));
                expected.extend(&ids);
            } else {
                spans.push((slots[i], Tokens::Last));
                expected.push(last[i]);
            }
        }
        let batch = Batch::new(b.0, &pool, &spans)?;
        let out = b.read(&b.embed(&linear, &batch, 1.0)?)?;
        let rows: Rows = expected.iter().map(|id| table.matrices[0][*id as usize].clone()).collect();
        outputs.push(Output::close(format!("step {step}"), out, &rows));
        spans.iter().zip(batch.spans()).for_each(|((slot, _), span)| pool.advance(*slot, span.len));
    }
    Ok(outputs)
}

/// A model of one table and one matrix that goes on by its own tokens: the same tokens whether each
/// is collected before the next step or a step later.
fn ahead<B: Backend>(b: &Checked<'_, B>, rng: &mut Rng, count: usize, sampling: &Sampling) -> CaseResult {
    const STEPS: u32 = 12;
    let [table, head] =
        [Recipe::new(F32, TOKENS, HIDDEN), Recipe::new(F32, TOKENS, HIDDEN)].map(|recipe| recipe.build(rng));
    let (table, head) = (b.linear(&[&table.weight])?, b.linear(&[&head.weight])?);
    let first = rng.tokens(count, TOKENS);
    let run = |ahead: bool| -> std::result::Result<Vec<u32>, crate::Fault> {
        let (mut pool, slots) = slots(b, count)?;
        let mut known: Vec<[u32; 1]> = first.iter().map(|token| [*token]).collect();
        let (mut tickets, mut chosen) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            let spans = slots.iter().zip(&known).map(|(slot, token)| {
                (*slot, if ahead && step > 0 { Tokens::Last } else { Tokens::Ids(token) })
            });
            let spans: Vec<_> = spans.collect();
            let batch = Batch::new(b.0, &pool, &spans)?;
            let logits = b.matmul(&b.embed(&table, &batch, 1.0)?, &head)?;
            slots.iter().for_each(|slot| pool.advance(*slot, 1));
            let choices: Vec<_> = slots.iter().map(|slot| choice(*slot, sampling, step)).collect();
            tickets.push(b.submit(Some(&logits), &choices, pool.slabs_mut())?);
            let under_way = usize::from(ahead && step + 1 < STEPS);
            while tickets.len() > under_way {
                let sampled = b.collect(tickets.remove(0))?;
                known = sampled.iter().map(|sampled| [sampled.token]).collect();
                chosen.extend(sampled.iter().map(|sampled| sampled.token));
            }
        }
        Ok(chosen)
    };
    let expected = run(false)?;
    ensure(expected.len() == STEPS as usize * count, "tokens are missing")?;
    ensure(expected.windows(2).any(|two| two[0] != two[1]), "one token again and again: mend the case")?;
    Ok(vec![Output::ids("tokens", &run(true)?, expected.into_iter().map(|id| id as usize))])
}
