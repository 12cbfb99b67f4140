use super::*;

fn open() -> Sampling {
    Sampling { temperature: 1.0, seed: 1, ..Sampling::GREEDY }
}

fn plain(sampling: &Sampling) -> Choice<'_> {
    Choice { sampling, ..Choice::LIKELIEST }
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..open() }
}

fn logits_of(p: &[f64]) -> Vec<f32> {
    p.iter().map(|p| p.ln() as f32).collect()
}

/// How often each token comes in so many draws.
fn counts(sampling: &Sampling, logits: &[f32], draws: u32) -> Vec<f64> {
    let mut counts = vec![0.0; logits.len()];
    for draw in 0..draws {
        counts[choose(logits, &Choice { draw, ..plain(sampling) }).token as usize] += 1.0;
    }
    counts
}

/// Pearson's statistic of draws against the expected probabilities.
fn chi_square(sampling: &Sampling, logits: &[f32], expected: &[f64], draws: u32) -> f64 {
    let counts = counts(sampling, logits, draws);
    let term = |(count, p): (&f64, &f64)| {
        if *p == 0.0 {
            assert_eq!(*count, 0.0, "a token was drawn that filters take away");
            return 0.0;
        }
        let mean = p * f64::from(draws);
        (count - mean).powi(2) / mean
    };
    counts.iter().zip(expected).map(term).sum()
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_of_equals() {
    for sampling in [greedy(), Sampling { top_k: 1, ..open() }] {
        let token = |logits: &[f32]| choose(logits, &plain(&sampling)).token;
        assert_eq!(token(&[0.0, 3.0, 1.0, 3.0]), 1);
        assert_eq!(token(&[-5.0]), 0);
        assert_eq!(token(&[f32::NEG_INFINITY, -1e30]), 1);
        assert_eq!(token(&[2.0; 40]), 0);
    }
}

#[test]
fn logits_that_are_no_numbers_are_told() {
    for sampling in [greedy(), open()] {
        let found = |logits: &[f32]| choose(logits, &Choice { logprobs: Some(2), ..plain(&sampling) });
        let nan = found(&[1.0, f32::NAN, f32::INFINITY]);
        assert!(nan.token == 1 && nan.logit.is_nan() && nan.logprob.is_none() && nan.top.is_empty());
        assert_eq!(found(&[1.0, 2.0, f32::INFINITY]).logit, f32::INFINITY);
        assert_eq!(found(&[f32::NEG_INFINITY; 3]).logit, f32::NEG_INFINITY);
        assert_eq!(found(&[]).logit, f32::NEG_INFINITY);
        // All of them are out.
        let none = choose(&[1.0, 2.0], &Choice { allowed: Some(&[0]), ..plain(&sampling) });
        assert_eq!(none.logit, f32::NEG_INFINITY);
    }
}

#[test]
fn draws_follow_the_probabilities() {
    // 30 degrees of freedom at most: 60 is exceeded once in a thousand.
    let p = [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.03125];
    let logits = logits_of(&p);
    let renormed = |kept: &[f64]| {
        let sum: f64 = kept.iter().sum();
        p.iter().enumerate().map(|(i, p)| if i < kept.len() { p / sum } else { 0.0 }).collect::<Vec<_>>()
    };
    let squares: f64 = p.iter().map(|p| p * p).sum();
    let hotter: Vec<f64> = p.iter().map(|p| p * p / squares).collect();
    for (sampling, expected) in [
        (open(), p.to_vec()),
        (Sampling { temperature: 0.5, ..open() }, hotter),
        (Sampling { top_k: 3, ..open() }, renormed(&p[..3])),
        // The last two are equally likely: both are kept.
        (Sampling { top_k: 5, ..open() }, p.to_vec()),
        (Sampling { top_p: 0.7, ..open() }, renormed(&p[..2])),
        (Sampling { top_p: 0.8, ..open() }, renormed(&p[..3])),
        // Of what top-k leaves, 0.5 / 0.75 is not enough, and 1 is.
        (Sampling { top_k: 2, top_p: 0.7, ..open() }, renormed(&p[..2])),
        (Sampling { top_k: 2, top_p: 0.6, ..open() }, renormed(&p[..1])),
        (Sampling { min_p: 0.2, ..open() }, renormed(&p[..3])),
        (Sampling { top_p: 0.8, min_p: 0.4, ..open() }, renormed(&p[..2])),
    ] {
        let statistic = chi_square(&sampling, &logits, &expected, 20_000);
        assert!(statistic < 30.0, "{sampling:?}: {statistic}");
    }
}

#[test]
fn wide_rows_are_drawn_by_probability_too() {
    // 1,000 tokens in ten classes.
    let logits: Vec<f32> = (0..1000).map(|i| -(i % 10) as f32 / 3.0).collect();
    let mut classes = [0.0; 10];
    let counts = counts(&open(), &logits, 20_000);
    counts.iter().enumerate().for_each(|(i, count)| classes[i % 10] += count);
    let weights: Vec<f64> = (0..10).map(|i| (-f64::from(i) / 3.0).exp()).collect();
    let total: f64 = weights.iter().sum();
    let term = |(count, weight): (&f64, &f64)| {
        let mean = weight / total * 20_000.0;
        (count - mean).powi(2) / mean
    };
    let statistic: f64 = classes.iter().zip(&weights).map(term).sum();
    assert!(statistic < 28.0, "{statistic}");
}

#[test]
fn penalties_and_bias_change_logits() {
    let sampling =
        Sampling { repetition_penalty: 2.0, presence_penalty: 0.5, frequency_penalty: 0.25, ..greedy() };
    let adjusted = |seen, generated, bias| Adjusted { token: 0, seen, generated, bias };
    for (logit, adjusted, expected) in [
        (4.0, adjusted(true, 0, 0.0), 2.0),
        (-4.0, adjusted(true, 0, 0.0), -8.0),
        (4.0, adjusted(false, 3, 0.0), 2.75),
        (4.0, adjusted(true, 1, 10.0), 11.25),
        (1.0, adjusted(false, 0, f32::MAX), f32::MAX),
    ] {
        assert_eq!(sampling.adjust(logit, &adjusted), expected);
    }
    let changes =
        [Adjusted { token: 1, ..adjusted(true, 2, 0.0) }, Adjusted { token: 9, ..adjusted(true, 0, 0.0) }];
    let chosen =
        choose(&[1.0, 3.0, 0.75], &Choice { adjusted: &changes, logprobs: Some(0), ..plain(&sampling) });
    assert_eq!(
        (chosen.token, chosen.logit),
        (0, 1.0),
        "3 becomes 0.5; tokens beyond the vocabulary change nothing"
    );
    let log_sum = (1f64.exp() + 3f64.exp() + 0.75f64.exp()).ln();
    assert!(
        (f64::from(chosen.logprob.unwrap_or_default()) - (1.0 - log_sum)).abs() < 1e-6,
        "by the model itself"
    );
}

#[test]
fn the_last_token_counts_too() {
    let one = Adjusted { token: 5, seen: true, generated: 0, bias: 0.5 };
    assert_eq!(counting(&[one], 5), [Adjusted { generated: 1, ..one }]);
    let other = Adjusted { token: 3, seen: true, generated: 1, bias: 0.0 };
    assert_eq!(counting(&[one], 3), [other, one]);
    assert_eq!(counting(&[], 3), [other]);
}

#[test]
fn masks_leave_what_they_allow() {
    let logits: Vec<f32> = (0..100).map(|i| i as f32 / 10.0).collect();
    let words = [1u32 << 7, 1 << 3 | 1 << 4, u32::MAX];
    let greedy = greedy();
    let choice = |sampling| Choice { allowed: Some(&words), ..plain(sampling) };
    assert_eq!(choose(&logits, &choice(&greedy)).token, 95, "bits beyond the last word are not set");
    let sampling = Sampling { temperature: 100.0, ..open() };
    for draw in 0..200 {
        let token = choose(&logits, &Choice { draw, ..choice(&sampling) }).token;
        assert!(words[token as usize / 32] >> (token % 32) & 1 == 1, "{token}");
    }
}

#[test]
fn log_probabilities_are_the_models_own() {
    let p = [0.25, 0.5, 0.125, 0.125];
    let sampling = Sampling { temperature: 0.3, ..open() };
    let chosen = choose(&logits_of(&p), &Choice { logprobs: Some(2), ..plain(&sampling) });
    let close = |logprob: f32, p: f64| (f64::from(logprob) - p.ln()).abs() < 1e-6;
    assert!(chosen.logprob.is_some_and(|logprob| close(logprob, p[chosen.token as usize])));
    assert_eq!(chosen.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 0]);
    assert!(chosen.top.iter().all(|(id, logprob)| close(*logprob, p[*id as usize])));
}

/// The same choice by sorting everything.
fn chosen_by_sorting(logits: &[f32], sampling: &Sampling, draw: u32) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let z = |id: usize| (logits[id] - max) * sampling.scale();
    let step =
        |id: usize| ((-z(id) * LIKELIHOOD_STEPS as f32) as u32).min(LIKELIHOOD_REACH * LIKELIHOOD_STEPS);
    let mut kept: Vec<usize> = (0..logits.len()).filter(|id| logits[*id] > f32::NEG_INFINITY).collect();
    kept.sort_by_key(|id| step(*id));
    if sampling.top_k > 0 && sampling.top_k < kept.len() {
        let last = step(kept[sampling.top_k - 1]);
        kept.retain(|id| step(*id) <= last);
    }
    if sampling.top_p < 1.0 {
        let weights: Vec<f64> = kept.iter().map(|id| f64::from(z(*id)).exp()).collect();
        let (mut sum, target) = (0.0, f64::from(sampling.top_p) * weights.iter().sum::<f64>());
        let reached = weights.iter().position(|weight| {
            sum += weight;
            sum >= target
        });
        let last = reached.map_or(u32::MAX, |at| step(kept[at]));
        kept.retain(|id| step(*id) <= last);
    }
    if sampling.min_p > 0.0 {
        kept.retain(|id| z(*id) >= sampling.min_p.ln());
    }
    let key = plain(sampling).with_draw(draw).noise_key();
    let noisy = |id: &usize| f64::from(z(*id)) + noise::gumbel(noise_bits(key, *id as u32));
    kept.sort_unstable();
    let best = kept.iter().map(noisy).fold(f64::NEG_INFINITY, f64::max);
    kept.iter().find(|id| noisy(id) == best).map_or(0, |id| *id as u32)
}

impl<'a> Choice<'a> {
    fn with_draw(self, draw: u32) -> Self {
        Self { draw, ..self }
    }
}

#[test]
fn shortcuts_change_nothing() {
    for case in 0..3000 {
        let pick = |what: u32, of: usize| noise_bits([case, what], 0) as usize % of;
        let scale = [0.5, 3.0, 30.0][pick(0, 3)];
        let len = [1 + pick(1, 4), 60 + pick(1, 10), 300 + pick(1, 100)][pick(2, 3)];
        let value = |i: u32| {
            let bits = noise_bits([case, 77], i);
            // Some are equal, some are far away, some are out.
            match bits % 16 {
                0 => f32::NEG_INFINITY,
                1 => -1e30,
                2..5 => scale,
                _ => (bits >> 8) as f32 / (1 << 23) as f32 * scale,
            }
        };
        let mut logits: Vec<f32> = (0..len as u32).map(value).collect();
        logits[0] = 0.0;
        let sampling = Sampling {
            temperature: [1.0, 0.3, 0.01, 5.0][pick(3, 4)],
            top_k: [0, 2 + pick(4, 50), 399][pick(5, 3)],
            top_p: [1.0, 0.0, 0.9, 0.999, 0.5][pick(6, 5)],
            min_p: [0.0, 0.05, 1.0][pick(7, 3)],
            seed: u64::from(case),
            ..open()
        };
        for draw in 0..3 {
            let token = choose(&logits, &plain(&sampling).with_draw(draw)).token;
            assert_eq!(token, chosen_by_sorting(&logits, &sampling, draw), "{case}: {sampling:?}");
        }
    }
}
