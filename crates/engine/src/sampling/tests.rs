use backend::choose;
use proptest::prelude::*;

use super::*;

fn open() -> SamplingParams {
    SamplingParams { seed: Some(1), ..SamplingParams::unfiltered() }
}

fn penalised() -> SamplingParams {
    SamplingParams { repetition_penalty: 1.5, presence_penalty: 0.5, frequency_penalty: 0.25, ..open() }
}

fn sampler(params: SamplingParams, prompt_len: usize) -> Sampler {
    Sampler::new(params, prompt_len).unwrap()
}

/// Logits that are different for every text.
fn logits(text: &[u32]) -> Vec<f32> {
    let word = text.iter().fold(7u64, |a, t| (a ^ u64::from(*t)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 3);
    (0..20u64).map(|i| (word.wrapping_mul(i * 2 + 1) >> 40) as f32 / (1 << 22) as f32).collect()
}

fn token(sampler: &Sampler, draw: &Draw, text: &[u32]) -> u32 {
    choose(&logits(text), &sampler.choice(draw, None, None, None)).token
}

#[test]
fn a_seed_repeats_a_text_and_no_seed_does_not() {
    let write = |seed| {
        let mut sampler = sampler(SamplingParams { seed, ..open() }, 0);
        let mut text = Vec::new();
        for _ in 0..50 {
            let draw = sampler.next(&text);
            text.push(token(&sampler, &draw, &text));
        }
        text
    };
    assert_eq!(write(Some(5)), write(Some(5)));
    assert_ne!(write(Some(5)), write(Some(6)));
    assert_ne!(write(None), write(None));
}

/// What penalties and bias change, counted anew.
fn adjusted(params: &SamplingParams, text: &[u32], prompt_len: usize) -> Vec<Adjusted> {
    let begin = match params.repetition_window {
        0 => 0,
        window => text.len().saturating_sub(window),
    };
    let count = |token: u32, from: usize| {
        text.iter().enumerate().filter(|(at, t)| *at >= from.max(begin) && **t == token).count() as u32
    };
    let one = |token| Adjusted {
        token,
        seen: params.has_penalties() && count(token, 0) > 0,
        generated: if params.has_penalties() { count(token, prompt_len) } else { 0 },
        bias: params.logit_bias.get(&token).copied().unwrap_or(0.0),
    };
    let changed = |a: &Adjusted| a.seen || params.logit_bias.contains_key(&a.token);
    (0..20).map(one).filter(changed).collect()
}

proptest! {
    /// However a text is written, token by token, with draft tokens, some of them rejected.
    #[test]
    fn draws_say_what_penalties_are_about(
        text in prop::collection::vec(0u32..20, 1..60),
        steps in prop::collection::vec((1usize..5, 0usize..5), 1..20),
        window in 0usize..12,
        prompt_len in 0usize..10,
        bias in prop::collection::btree_map(0u32..20, -2f32..2.0, 0..3),
        penalties in any::<bool>(),
    ) {
        let params = if penalties { penalised() } else { open() };
        let params = SamplingParams { repetition_window: window, logit_bias: bias, ..params };
        let mut sampler = sampler(params.clone(), prompt_len);
        let mut at = 0;
        for (step, drafts) in steps {
            let (known, end) = (at.min(text.len()), (at + drafts).min(text.len()));
            let draws = sampler.with_drafts(&text[..known], &text[known..end]);
            prop_assert_eq!(draws.len(), end - known + 1);
            for (i, draw) in draws.iter().enumerate() {
                let expected = adjusted(&params, &text[..known + i], prompt_len);
                prop_assert_eq!(&draw.adjusted, &expected, "{} of {} and {:?}", known + i, known, window);
                prop_assert_eq!((draw.place, draw.counts_last), (known + i, false));
            }
            at += step;
        }
    }

    /// A token that only the machine knows is counted there.
    #[test]
    fn what_follows_an_unknown_token_is_drawn_alike(
        text in prop::collection::vec(0u32..20, 1..40),
        last in 0u32..20,
        window in 0usize..12,
        penalties in any::<bool>(),
    ) {
        let params = if penalties { penalised() } else { open() };
        let params = SamplingParams { repetition_window: window, ..params };
        let whole = [&text[..], &[last]].concat();
        let (mut ahead, mut known) = (sampler(params.clone(), 1), sampler(params, 1));
        let (ahead, known) = (ahead.after_next(&text), known.next(&whole));
        let counted = match ahead.counts_last {
            true => backend::sampling::counting(&ahead.adjusted, last),
            false => ahead.adjusted.clone(),
        };
        prop_assert_eq!((ahead.place, counted), (known.place, known.adjusted));
    }
}

#[test]
fn tokens_that_cannot_be_are_errors() {
    let sampled = |logit| Sampled { token: 3, logit, logprob: None, top: Vec::new() };
    assert!(check_sampled(&sampled(-5.0)).is_ok());
    for (logit, text) in
        [(f32::NAN, "token 3 is NaN"), (f32::INFINITY, "token 3 is inf"), (f32::NEG_INFINITY, "all")]
    {
        let error = check_sampled(&sampled(logit)).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}
