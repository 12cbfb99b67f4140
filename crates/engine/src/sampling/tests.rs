use super::*;
use proptest::prelude::*;

fn open() -> SamplingParams {
    SamplingParams { seed: Some(1), ..SamplingParams::unfiltered() }
}

fn draw(params: SamplingParams, logits: &[f32], history: &[u32]) -> u32 {
    Sampler::new(params).unwrap().sample(logits, history).unwrap().id
}

/// Ids that survive the filters, ascending.
fn survivors(params: SamplingParams, logits: &[f32]) -> Vec<u32> {
    let mut sampler = Sampler::new(params).unwrap();
    let max = logits[argmax(logits).unwrap() as usize];
    sampler.filter(logits, max);
    assert_eq!(sampler.candidates.len(), sampler.weights.len());
    let mut ids: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
    ids.sort_unstable();
    ids
}

fn from_probabilities(p: &[f64]) -> Vec<f32> {
    p.iter().map(|p| p.ln() as f32).collect()
}

/// Pearson's statistic of `draws` draws against the expected probabilities.
fn chi_square(params: SamplingParams, logits: &[f32], expected: &[f64], draws: usize) -> f64 {
    let mut sampler = Sampler::new(params).unwrap();
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(logits, &[]).unwrap().id as usize] += 1.0;
    }
    let mut statistic = 0.0;
    for (count, p) in counts.iter().zip(expected) {
        if *p == 0.0 {
            assert_eq!(*count, 0.0, "a filtered token was drawn");
        } else {
            let mean = p * draws as f64;
            statistic += (count - mean) * (count - mean) / mean;
        }
    }
    statistic
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_of_equals() {
    assert_eq!(draw(SamplingParams::greedy(), &[0.0, 3.0, 1.0, 3.0], &[]), 1);
    assert_eq!(draw(SamplingParams::greedy(), &[-5.0], &[]), 0);
    assert_eq!(draw(SamplingParams::greedy(), &[f32::NEG_INFINITY, -1e30], &[]), 1);
    assert_eq!(draw(SamplingParams::greedy(), &[2.0, 2.0, 2.0], &[]), 0);
}

#[test]
fn unusable_logits_are_errors() {
    let inf = f32::NEG_INFINITY;
    for logits in [&[][..], &[f32::NAN], &[1.0, f32::NAN, 2.0], &[0.0, f32::INFINITY], &[inf, inf]] {
        for params in [SamplingParams::greedy(), open()] {
            let result = Sampler::new(params).unwrap().sample(logits, &[]);
            assert!(matches!(result, Err(Error::InvalidLogits { .. })), "{logits:?} gave {result:?}");
        }
        assert!(top_logprobs(logits, 3).is_err());
    }
    let banned = SamplingParams { logit_bias: [(0, inf)].into(), ..open() };
    assert!(Sampler::new(banned).unwrap().sample(&[1.0], &[]).is_err());
}

#[test]
fn draws_follow_the_distribution() {
    let p = [0.5, 0.25, 0.15, 0.07, 0.03];
    let logits = from_probabilities(&p);
    // 4 degrees of freedom: 18.5 is exceeded once in a thousand, and the seed is fixed.
    assert!(chi_square(open(), &logits, &p, 20_000) < 18.5);

    // Temperature 0.5 squares the probabilities.
    let squares: f64 = p.iter().map(|p| p * p).sum();
    let sharper: Vec<f64> = p.iter().map(|p| p * p / squares).collect();
    let params = SamplingParams { temperature: 0.5, ..open() };
    assert!(chi_square(params.clone(), &logits, &sharper, 20_000) < 18.5);
    assert!(chi_square(params, &logits, &p, 20_000) > 100.0, "the test itself must tell them apart");

    let top_two = [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0, 0.0];
    for params in [
        SamplingParams { top_k: 2, ..open() },
        SamplingParams { top_p: 0.7, ..open() },
        SamplingParams { min_p: 0.4, ..open() },
    ] {
        assert!(chi_square(params, &logits, &top_two, 20_000) < 10.8);
    }
}

#[test]
fn filters_keep_exactly_the_defined_set() {
    let logits = from_probabilities(&[0.1, 0.4, 0.05, 0.3, 0.15]);
    let keep = |params| survivors(params, &logits);
    assert_eq!(keep(open()), [0, 1, 2, 3, 4]);

    assert_eq!(keep(SamplingParams { top_k: 1, ..open() }), [1]);
    assert_eq!(keep(SamplingParams { top_k: 3, ..open() }), [1, 3, 4]);
    assert_eq!(keep(SamplingParams { top_k: 5, ..open() }), [0, 1, 2, 3, 4]);
    assert_eq!(keep(SamplingParams { top_k: 500, ..open() }), [0, 1, 2, 3, 4]);

    assert_eq!(keep(SamplingParams { top_p: 0.01, ..open() }), [1]);
    assert_eq!(keep(SamplingParams { top_p: 0.39, ..open() }), [1]);
    assert_eq!(keep(SamplingParams { top_p: 0.41, ..open() }), [1, 3]);
    assert_eq!(keep(SamplingParams { top_p: 0.69, ..open() }), [1, 3]);
    assert_eq!(keep(SamplingParams { top_p: 0.71, ..open() }), [1, 3, 4]);
    assert_eq!(keep(SamplingParams { top_p: 0.96, ..open() }), [0, 1, 2, 3, 4]);

    assert_eq!(keep(SamplingParams { min_p: 1.0, ..open() }), [1]);
    assert_eq!(keep(SamplingParams { min_p: 0.74, ..open() }), [1, 3]);
    assert_eq!(keep(SamplingParams { min_p: 0.76, ..open() }), [1]);
    assert_eq!(keep(SamplingParams { min_p: 0.2, ..open() }), [0, 1, 3, 4]);

    // Top-p counts within what top-k left: 0.4 of 0.7 is 0.57.
    assert_eq!(keep(SamplingParams { top_k: 2, top_p: 0.56, ..open() }), [1]);
    assert_eq!(keep(SamplingParams { top_k: 2, top_p: 0.58, ..open() }), [1, 3]);
    // Temperature acts before top-p: squared, the first holds 0.16 of 0.285.
    assert_eq!(keep(SamplingParams { temperature: 0.5, top_p: 0.55, ..open() }), [1]);
    assert_eq!(keep(SamplingParams { top_p: 0.96, min_p: 0.3, ..open() }), [1, 3, 4]);
}

#[test]
fn ties_go_to_the_lowest_ids() {
    let logits = [1.0; 300];
    assert_eq!(survivors(SamplingParams { top_k: 3, ..open() }, &logits), [0, 1, 2]);
    assert_eq!(survivors(SamplingParams { top_p: 0.01, ..open() }, &logits), [0, 1, 2]);
    assert_eq!(survivors(SamplingParams { min_p: 1.0, ..open() }, &logits).len(), 300);
}

#[test]
fn penalties_by_hand() {
    let logits = [2.0, -2.0, 0.0, 1.0];
    let adjusted = |params: SamplingParams, prompt_len: usize, history: &[u32]| {
        let mut adjusted = logits;
        let mut sampler = Sampler::new(params).unwrap();
        sampler.set_prompt_len(prompt_len);
        sampler.adjust(&mut adjusted, history);
        adjusted
    };
    let repetition = SamplingParams { repetition_penalty: 2.0, ..open() };
    assert_eq!(adjusted(repetition.clone(), 0, &[0, 1, 2, 0, 0]), [1.0, -4.0, 0.0, 1.0]);
    assert_eq!(adjusted(repetition.clone(), 5, &[0, 1, 2, 0, 0]), [1.0, -4.0, 0.0, 1.0]);
    assert_eq!(adjusted(repetition.clone(), 0, &[]), logits);
    assert_eq!(adjusted(repetition.clone(), 0, &[99]), logits);
    let windowed = SamplingParams { repetition_window: 2, ..repetition };
    assert_eq!(adjusted(windowed, 0, &[0, 1, 3]), [2.0, -4.0, 0.0, 0.5]);

    let presence = SamplingParams { presence_penalty: 0.5, ..open() };
    assert_eq!(adjusted(presence.clone(), 0, &[0, 0, 3]), [1.5, -2.0, 0.0, 0.5]);
    assert_eq!(adjusted(presence, 2, &[0, 0, 3]), [2.0, -2.0, 0.0, 0.5]);
    let frequency = SamplingParams { frequency_penalty: 0.5, ..open() };
    assert_eq!(adjusted(frequency, 0, &[0, 0, 3]), [1.0, -2.0, 0.0, 0.5]);
    // Repetition first: 2 / 2 - (0.5 + 2 * 0.25).
    let all = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        logit_bias: [(0, 4.0), (77, 1.0)].into(),
        ..open()
    };
    assert_eq!(adjusted(all, 0, &[0, 0]), [4.0, -2.0, 0.0, 1.0]);

    let params = SamplingParams { logit_bias: [(3, 1.5)].into(), ..SamplingParams::greedy() };
    assert_eq!(draw(params, &logits, &[]), 3);
}

#[test]
fn same_seed_same_tokens() {
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 997) as f32 / 200.0).collect();
    let run = |seed| {
        let mut sampler = Sampler::new(SamplingParams { seed: Some(seed), ..open() }).unwrap();
        (0..20).map(|_| sampler.sample(&logits, &[]).unwrap().id).collect::<Vec<_>>()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
    // Written down once: a change here changes what every user's seed means.
    assert_eq!(run(5)[..5], FIRST_FIVE_OF_SEED_5);

    let unseeded = || Sampler::new(SamplingParams { seed: None, ..open() }).unwrap();
    assert_ne!(unseeded().seed(), unseeded().seed());
}

const FIRST_FIVE_OF_SEED_5: [u32; 5] = [369, 737, 215, 90, 176];

#[test]
fn degenerate_vocabularies() {
    for params in
        [SamplingParams::greedy(), open(), SamplingParams { top_k: 5, top_p: 0.5, min_p: 0.5, ..open() }]
    {
        assert_eq!(draw(params.clone(), &[-3.0], &[]), 0);
        let mut one = [f32::NEG_INFINITY; 500];
        one[321] = -40.0;
        for seed in 0..50 {
            assert_eq!(draw(SamplingParams { seed: Some(seed), ..params.clone() }, &one, &[]), 321);
        }
    }
    // A temperature so low that all but the best underflow.
    let cold = SamplingParams { temperature: 1e-30, ..open() };
    assert_eq!(draw(cold, &[1.0, 1.5, -1.0], &[]), 1);
}

#[test]
fn logprobs_are_those_of_the_raw_distribution() {
    let p = [0.1, 0.4, 0.05, 0.3, 0.15];
    let logits: Vec<f32> = from_probabilities(&p).iter().map(|x| x + 3.0).collect();
    let params = SamplingParams { logprobs: true, temperature: 0.1, repetition_penalty: 3.0, ..open() };
    let sampled = Sampler::new(params).unwrap().sample(&logits, &[0, 1, 2]).unwrap();
    assert!((f64::from(sampled.logprob.unwrap()) - p[sampled.id as usize].ln()).abs() < 1e-6);
    assert_eq!(Sampler::new(open()).unwrap().sample(&logits, &[]).unwrap().logprob, None);

    let top = top_logprobs(&logits, 3).unwrap();
    assert_eq!(top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 4]);
    for (id, logprob) in top {
        assert!((f64::from(logprob) - p[id as usize].ln()).abs() < 1e-6);
    }
    assert_eq!(top_logprobs(&logits, 50).unwrap().len(), 5);
    assert!(top_logprobs(&logits, 0).unwrap().is_empty());
}

proptest! {
    #[test]
    fn largest_agrees_with_a_full_sort(
        // Few distinct values, so that ties are common.
        logits in prop::collection::vec((-20i8..20).prop_map(|v| f32::from(v) / 4.0), 1..700),
        k in 1usize..120,
    ) {
        let got: Vec<u32> = largest(&logits, k).into_iter().map(|(id, _)| id).collect();
        let mut want: Vec<Candidate> =
            logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit }).collect();
        want.sort_by(likelier_first);
        want.truncate(k);
        prop_assert_eq!(got, want.iter().map(|c| c.id).collect::<Vec<_>>());
    }

    #[test]
    fn top_p_agrees_with_a_full_sort(
        logits in prop::collection::vec(-30.0f32..5.0, 1..400),
        top_p in 0.01f32..1.0,
    ) {
        let max = logits.iter().copied().fold(f32::MIN, f32::max);
        let mut all: Vec<Candidate> = logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit }).collect();
        all.sort_by(likelier_first);
        let weight = |c: &Candidate| math::exp(f64::from(c.logit) - f64::from(max));
        let total: f64 = all.iter().map(weight).sum();
        let got = survivors(SamplingParams { top_p, ..open() }, &logits);
        let sum = |n: usize| all[..n].iter().map(weight).sum::<f64>() / total;
        let p = f64::from(top_p);
        // Smallest set that reaches p, to rounding.
        prop_assert!(sum(got.len()) >= p - 1e-9);
        prop_assert!(sum(got.len() - 1) < p + 1e-9);
        let mut want: Vec<u32> = all[..got.len()].iter().map(|c| c.id).collect();
        want.sort_unstable();
        prop_assert_eq!(got, want);
    }
}

#[test]
fn the_largest_logits_suffice() {
    let mut state = 1u64;
    for (temperature, top_k, top_p, min_p) in [
        (0.0, 20, 0.9, 0.0),
        (0.7, 20, 0.95, 0.0),
        (1.0, 1, 1.0, 0.0),
        (1.3, 40, 0.8, 0.05),
        (0.6, 128, 1.0, 0.1),
    ] {
        let params =
            SamplingParams { temperature, top_k, top_p, min_p, seed: Some(7), ..SamplingParams::default() };
        let mut all = Sampler::new(params.clone()).unwrap();
        let mut few = Sampler::new(params).unwrap();
        for _ in 0..200 {
            let logits: Vec<f32> = (0..1000)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // Few enough values for ties.
                    (state >> 58) as f32 / 4.0
                })
                .collect();
            let k = few.needed().unwrap();
            let expected = all.sample(&logits, &[]).unwrap();
            assert_eq!(few.sample_largest(&backend::largest(&logits, k)).unwrap(), expected);
        }
    }
    let penalised = SamplingParams { presence_penalty: 1.0, ..SamplingParams::greedy() };
    assert_eq!(Sampler::new(penalised).unwrap().needed(), None);
    let mut greedy = Sampler::new(SamplingParams::greedy()).unwrap();
    for (logit, text) in
        [(f32::NAN, "token 3 is NaN"), (f32::INFINITY, "token 3 is inf"), (f32::NEG_INFINITY, "all")]
    {
        let error = greedy.sample_largest(&[(3, logit)]).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert!(greedy.sample_largest(&[]).is_err());
}
