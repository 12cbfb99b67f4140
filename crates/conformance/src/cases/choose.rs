//! Tokens chosen from logits, against the contract's own choice.

use backend::pool::{Pool, Slot};
use backend::sampling::counting;
use backend::{Adjusted, Backend, Checked, Choice, Error, Result, Sampled, Sampling, choose};

use super::test_pool::BUDGET;
use crate::host::Host;
use crate::random::Rng;
use crate::{Bound, Case, CaseResult, Fault, Output};

/// Of log probabilities: sums of many exponentials.
const BOUND: Bound = Bound::l2(1e-5);

/// The likeliest token.
pub(super) const GREEDY: Sampling = Sampling::GREEDY;
/// A draw by the model's own probabilities.
pub(super) const PLAIN: Sampling = Sampling { temperature: 1.0, seed: 7, ..GREEDY };
/// Everything together.
pub(super) const ALL: Sampling = Sampling {
    temperature: 0.8,
    top_k: 20,
    top_p: 0.9,
    min_p: 0.02,
    repetition_penalty: 1.3,
    presence_penalty: 0.4,
    frequency_penalty: 0.3,
    seed: u64::MAX,
};

/// Settings, each alone and some together.
fn settings() -> Vec<Sampling> {
    let temperatures =
        [1e-30, 1e-3, 0.5, 1.5, 100.0, 1e30].map(|temperature| Sampling { temperature, ..PLAIN });
    let top_k = [1, 2, 40, 1_000_000].map(|top_k| Sampling { top_k, ..PLAIN });
    let top_p = [0.0, 0.1, 0.5, 0.9, 0.999].map(|top_p| Sampling { top_p, ..PLAIN });
    let min_p = [0.001, 0.1, 1.0].map(|min_p| Sampling { min_p, ..PLAIN });
    let both = Sampling { top_k: 50, top_p: 0.8, ..PLAIN };
    let hot = Sampling { temperature: 5.0, seed: 1 << 40, ..ALL };
    let penalties = Sampling { temperature: 0.0, ..ALL };
    let reward = Sampling { repetition_penalty: 0.5, presence_penalty: -1.0, ..PLAIN };
    [GREEDY, PLAIN]
        .into_iter()
        .chain(temperatures)
        .chain(top_k)
        .chain(top_p)
        .chain(min_p)
        .chain([both, ALL, hot, penalties, reward])
        .collect()
}

/// A row of logits, and how a token is chosen from it.
struct Row {
    logits: Vec<f32>,
    sampling: Sampling,
    draw: u32,
    adjusted: Vec<Adjusted>,
    allowed: Option<Vec<u32>>,
    logprobs: Option<usize>,
}

impl Row {
    fn new(logits: Vec<f32>, sampling: Sampling) -> Row {
        Row { logits, sampling, draw: 0, adjusted: Vec::new(), allowed: None, logprobs: None }
    }

    fn choice(&self) -> Choice<'_> {
        Choice {
            slot: None,
            sampling: &self.sampling,
            draw: self.draw,
            adjusted: &self.adjusted,
            counts_last: false,
            allowed: self.allowed.as_deref(),
            logprobs: self.logprobs,
        }
    }
}

/// Logits as models give them: a few likely tokens, many that are not.
fn logits(rng: &mut Rng, vocabulary: usize) -> Vec<f32> {
    rng.values(1, vocabulary).values
}

/// Some tokens whose logits are changed, each once and in order, one of them beyond the vocabulary.
fn adjusted(rng: &mut Rng, vocabulary: usize) -> Vec<Adjusted> {
    let mut tokens: Vec<u32> = (0..20).map(|_| rng.below(vocabulary) as u32).collect();
    tokens.push(vocabulary as u32 + 3);
    tokens.sort_unstable();
    tokens.dedup();
    let change = |(i, token): (usize, u32)| Adjusted {
        token,
        seen: i % 3 != 0,
        generated: if i % 2 == 0 { 0 } else { rng.below(5) as u32 },
        bias: if i % 4 == 0 { rng.uniform(-5.0, 5.0) } else { 0.0 },
    };
    tokens.into_iter().enumerate().map(change).collect()
}

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let mut cases = Vec::new();
    for vocabulary in [1, 2, 31, 32, 33, 257, 1000, 5000] {
        cases.push(together(vocabulary, true));
    }
    for vocabulary in [65_537, 151_936] {
        cases.push(together(vocabulary, false));
    }
    for count in [2, 5, 70] {
        cases.push(rows("submit", format!("{count} rows of different settings"), move |rng| {
            let settings = settings();
            let row = |i: usize| {
                let sampling = Sampling { seed: i as u64, ..settings[i % settings.len()].clone() };
                let row = Row::new(logits(rng, 777), sampling);
                let adjusted = adjusted(rng, 777);
                Row { draw: i as u32, adjusted, logprobs: i.is_multiple_of(3).then_some(i), ..row }
            };
            (0..count).map(row).collect()
        }));
    }
    cases.push(rows("submit", "many draws of one row", |rng| {
        let logits = logits(rng, 100);
        let row = |draw| Row { draw, ..Row::new(logits.clone(), PLAIN) };
        (0..200).map(row).collect()
    }));
    cases.push(rows("submit", "ties", |rng| {
        // Of few different values: the lowest token of those that are as likely, and none left out.
        let steps = |rng: &mut Rng| logits(rng, 500).iter().map(|v| v.round()).collect::<Vec<_>>();
        let mut rows: Vec<_> = settings().into_iter().map(|s| Row::new(steps(rng), s)).collect();
        rows.extend(settings().into_iter().map(|sampling| Row::new(vec![-3.5; 500], sampling)));
        rows
    }));
    cases.push(rows("submit", "large and small logits", |rng| {
        let scaled = |rng: &mut Rng, factor: f32| -> Vec<f32> {
            logits(rng, 300).into_iter().map(|v| v * factor).collect()
        };
        let factors = [1e-6, 1e3, 1e20, 1e36].into_iter();
        factors
            .flat_map(|factor| settings().into_iter().map(move |s| (factor, s)))
            .map(|(factor, sampling)| Row::new(scaled(rng, factor), sampling))
            .collect()
    }));
    cases.push(rows("submit", "tokens at minus infinity", |rng| {
        let row = |(i, sampling): (usize, Sampling)| {
            let mut logits = logits(rng, 400);
            let kept = [1, 3, 200][i % 3];
            let order = rng.order(400);
            order.into_iter().skip(kept).for_each(|t| logits[t] = f32::NEG_INFINITY);
            Row { logprobs: Some(5), ..Row::new(logits, sampling) }
        };
        settings().into_iter().enumerate().map(row).collect()
    }));
    for (what, kept) in [("one token", 1), ("few", 7), ("half", 500), ("nearly all", 995)] {
        cases.push(rows("submit", format!("{what} allowed"), move |rng| {
            let row = |(i, sampling): (usize, Sampling)| {
                let mut words = vec![0u32; 1003usize.div_ceil(32)];
                let order = rng.order(1003);
                order.into_iter().take(kept).for_each(|t| words[t / 32] |= 1 << (t % 32));
                // Fewer words than the row has: what they do not say is not allowed.
                if i % 4 == 0 && kept > 100 {
                    words.truncate(20);
                }
                let row = Row::new(logits(rng, 1003), sampling);
                let adjusted = if i % 2 == 0 { adjusted(rng, 1003) } else { Vec::new() };
                Row { adjusted, allowed: Some(words), logprobs: (i % 3 == 0).then_some(4), ..row }
            };
            settings().into_iter().enumerate().map(row).collect()
        }));
    }
    cases.push(rows("submit", "biases that decide", |rng| {
        let row = |sampling| {
            let (forced, banned) = (rng.below(250) as u32, 250 + rng.below(250) as u32);
            let bias = |token, bias| Adjusted { token, seen: false, generated: 0, bias };
            let adjusted = vec![bias(forced, 1000.0), bias(banned, f32::NEG_INFINITY)];
            Row { adjusted, ..Row::new(logits(rng, 500), sampling) }
        };
        settings().into_iter().map(row).collect()
    }));
    cases.push(unsound());
    cases.push(counted());
    cases
}

/// Every setting over a vocabulary, all rows in one call and, unless that takes long, each in its own.
fn together<B: Backend>(vocabulary: usize, singly: bool) -> Case<B> {
    let detail = format!("every setting, {vocabulary} tokens");
    Case::new("submit", detail, BOUND, move |b: &Checked<'_, B>, rng| {
        let row = |(i, sampling): (usize, Sampling)| {
            let row = Row::new(logits(rng, vocabulary), sampling);
            let adjusted = if i % 2 == 0 { Vec::new() } else { adjusted(rng, vocabulary) };
            Row {
                draw: 1000 + i as u32,
                adjusted,
                logprobs: [None, Some(0), Some(3), Some(20)][i % 4],
                ..row
            }
        };
        let rows: Vec<Row> = settings().into_iter().enumerate().map(row).collect();
        let mut outputs = compare(b, &rows)?;
        if singly {
            for row in rows.chunks(1) {
                outputs.extend(compare(b, row)?);
            }
        }
        Ok(outputs)
    })
}

/// Rows that are chosen from in one call.
fn rows<B: Backend>(
    operation: &str,
    detail: impl std::fmt::Display,
    rows: impl Fn(&mut Rng) -> Vec<Row> + Send + Sync + 'static,
) -> Case<B> {
    Case::new(operation, detail, BOUND, move |b: &Checked<'_, B>, rng| compare(b, &rows(rng)))
}

/// Chooses from all rows in one call; must be what the contract's own choice gives.
fn compare<B: Backend>(b: &Checked<'_, B>, rows: &[Row]) -> CaseResult {
    let mut pool = Pool::new(b.0, &[], BUDGET)?;
    let choices: Vec<Choice<'_>> = rows.iter().map(Row::choice).collect();
    let all: Vec<f32> = rows.iter().flat_map(|row| row.logits.iter().copied()).collect();
    let logits = b.upload(rows.len(), rows[0].logits.len(), &all)?;
    let found = b.collect(b.submit(Some(&logits), &choices, pool.slabs_mut())?)?;
    let expected = rows.iter().zip(&choices).map(|(row, choice)| choose(&row.logits, choice));
    judge(&found, &expected.collect::<Vec<_>>())
}

/// The same tokens and logits; log probabilities near to those expected.
fn judge(found: &[Sampled], expected: &[Sampled]) -> CaseResult {
    let tokens = |all: &[Sampled]| -> Vec<u32> {
        all.iter()
            .flat_map(|s| std::iter::once(s.token).chain(s.top.iter().map(|(token, _)| *token)))
            .collect()
    };
    let logprobs = |all: &[Sampled]| -> Vec<f32> {
        all.iter().flat_map(|s| s.logprob.into_iter().chain(s.top.iter().map(|(_, p)| *p))).collect()
    };
    let logits = |all: &[Sampled]| -> Vec<f32> { all.iter().map(|s| s.logit).collect() };
    let ids = tokens(expected).into_iter().map(|id| id as usize);
    let mut outputs = vec![
        Output::ids("tokens", &tokens(found), ids),
        Output::exact("logits", logits(found), logits(expected)).flat(),
    ];
    // A token whose probability is nothing has the logarithm minus infinity.
    let (found, expected) = (logprobs(found), logprobs(expected));
    let nothing = |values: &[f32]| values.iter().map(|p| u32::from(p.is_infinite())).collect::<Vec<_>>();
    let expected_nothing = nothing(&expected).into_iter().map(|n| n as usize);
    outputs.push(Output::ids("log probabilities of nothing", &nothing(&found), expected_nothing));
    let finite = |values: Vec<f32>| values.into_iter().filter(|p| p.is_finite()).collect::<Vec<_>>();
    let expected = Host::vector(finite(expected)).wide();
    outputs.push(Output::close("log probabilities", finite(found), &expected).flat());
    Ok(outputs)
}

/// Rows that hold something that is no number, or nothing that can be chosen: the logit says so, and
/// the rows beside are as they were.
fn unsound<B: Backend>() -> Case<B> {
    Case::new("submit", "rows without a choice among others", BOUND, |b: &Checked<'_, B>, rng| {
        let mut outputs = Vec::new();
        for sampling in settings() {
            let row = |rng: &mut Rng| Row::new(logits(rng, 300), sampling.clone());
            let mut rows: Vec<Row> = (0..7).map(|_| row(rng)).collect();
            rows[1].logits[150] = f32::NAN;
            rows[2].logits[299] = f32::INFINITY;
            rows[4].logits.fill(f32::NEG_INFINITY);
            rows[5].allowed = Some(Vec::new());
            let mut pool = Pool::new(b.0, &[], BUDGET)?;
            let choices: Vec<Choice<'_>> = rows.iter().map(Row::choice).collect();
            let all: Vec<f32> = rows.iter().flat_map(|row| row.logits.iter().copied()).collect();
            let logits = b.upload(7, 300, &all)?;
            let found = b.collect(b.submit(Some(&logits), &choices, pool.slabs_mut())?)?;
            for (i, (row, sampled)) in rows.iter().zip(found).enumerate() {
                if [1, 2, 4, 5].contains(&i) {
                    super::ensure(!sampled.logit.is_finite(), &format!("row {i} gave {sampled:?}"))?;
                } else {
                    outputs.extend(judge(&[sampled], &[choose(&row.logits, &row.choice())])?);
                }
            }
        }
        Ok(outputs)
    })
}

/// Slots in a pool of no layers.
pub(super) fn slots<B: Backend>(
    b: &Checked<'_, B>,
    count: usize,
) -> std::result::Result<(Pool<B>, Vec<Slot>), Fault> {
    let mut pool = Pool::new(b.0, &[], BUDGET)?;
    let full = || Error::OutOfMemory("a sequence of no layers".into());
    let slots = (0..count).map(|_| pool.create(b.0)?.ok_or_else(full)).collect::<Result<_>>()?;
    Ok((pool, slots))
}

/// Penalties on a token that the host does not know yet: several sequences, each of whose tokens
/// is chosen before the last one is collected.
fn counted<B: Backend>() -> Case<B> {
    Case::new(
        "submit",
        "penalties on tokens that only the machine knows",
        BOUND,
        |b: &Checked<'_, B>, rng| {
            const SEQUENCES: usize = 5;
            const STEPS: u32 = 30;
            let penalties = Sampling { repetition_penalty: 2.0, presence_penalty: 1.0, ..ALL };
            let settings = [ALL, penalties.clone(), Sampling { temperature: 0.0, ..penalties }];
            let (mut pool, slots) = slots(b, SEQUENCES)?;
            let (mut tickets, mut expected) = (Vec::new(), Vec::new());
            // What the host knows, which is a token less than what was chosen.
            let (mut known, mut last) = (vec![Vec::new(); SEQUENCES], vec![None; SEQUENCES]);
            for draw in 0..STEPS {
                // Few tokens, so that they come again; other sequences each time.
                let order: Vec<usize> =
                    rng.order(SEQUENCES).into_iter().take(1 + draw as usize % SEQUENCES).collect();
                let rows: Vec<Vec<f32>> = order.iter().map(|_| rng.calm(1, 40).values).collect();
                let choice = |i: &usize| Choice {
                    slot: Some(slots[*i]),
                    sampling: &settings[i % settings.len()],
                    draw,
                    adjusted: &known[*i],
                    counts_last: last[*i].is_some(),
                    allowed: None,
                    logprobs: Some(2),
                };
                let choices: Vec<Choice<'_>> = order.iter().map(choice).collect();
                let logits = b.upload(rows.len(), 40, &rows.concat())?;
                tickets.push(b.submit(Some(&logits), &choices, pool.slabs_mut())?);
                let mut chosen = Vec::new();
                for ((i, row), choice) in order.iter().zip(&rows).zip(&choices) {
                    let all = last[*i].map_or(known[*i].clone(), |last| counting(&known[*i], last));
                    chosen.push((choose(row, &Choice { adjusted: &all, ..*choice }), all));
                }
                for (i, (sampled, all)) in order.iter().zip(chosen) {
                    (known[*i], last[*i]) = (all, Some(sampled.token));
                    expected.push(sampled);
                }
            }
            let found = tickets.into_iter().map(|ticket| b.collect(ticket)).collect::<Result<Vec<_>>>()?;
            judge(&found.concat(), &expected)
        },
    )
}
