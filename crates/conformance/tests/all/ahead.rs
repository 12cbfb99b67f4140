//! Steps that a GPU records before their token is known: answers are those of one step after the other, whatever becomes of them. A
//! machine without any adapter skips these tests, and says so.

use backend::{Backend, CacheFloat, largest};
use conformance::models::{Fixture, fixtures_folder, logits_in_chunks};
use engine::{
    Engine, EngineOptions, Event, Finish, Flow, Generated, Sampler, SamplingParams, Sequence, Task,
};
use gpu::Gpu;
use models::{Logits, Model, Request};

use crate::devices::{barriers, chained, exact, thorough};

/// One of each kind: attention alone, a sliding window, a latent cache, recurrent layers.
const FIXTURES: [&str; 4] = ["qwen3_moe-bf16", "gemma4-moe-4bit", "deepseek_v3-4bit", "qwen3_5_moe-4bit"];

/// Devices with either numerics; on software behind barriers only with `--full`.
fn devices() -> impl Iterator<Item = Gpu> {
    let barriers = exact().filter(thorough).and_then(|_| barriers());
    exact().into_iter().chain(chained()).chain(barriers)
}

fn engine(gpu: &Gpu, name: &str, context: Option<usize>) -> Engine<Gpu> {
    let model = Model::load(&Fixture::open(&fixtures_folder().join(name)).checkpoint, gpu.clone()).unwrap();
    assert!(model.records_ahead(), "{name}");
    let options = EngineOptions { cache: CacheFloat::F32, chunk: 64, context, ..EngineOptions::default() };
    Engine::new(model, &options).unwrap()
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 31 + i * i * 7) % 61).collect()
}

fn greedy() -> SamplingParams {
    SamplingParams::greedy()
}

fn seeded() -> SamplingParams {
    SamplingParams { seed: Some(3), temperature: 1.0, top_k: 0, ..SamplingParams::default() }
}

/// The answer without anything recorded ahead.
fn step_by_step(engine: &Engine<Gpu>, prompt: &[u32], count: usize, sampling: SamplingParams) -> Vec<u32> {
    let mut sampler = Sampler::new(sampling).unwrap();
    sampler.set_prompt_len(prompt.len());
    let mut state = engine.model().state(engine.cache()).unwrap();
    let mut tokens = prompt.to_vec();
    let mut seen = 0;
    for _ in 0..count {
        let mut logits = logits_in_chunks(engine.model(), &mut state, &tokens[seen..], 64).unwrap();
        let last = logits.split_off(logits.len() - engine.model().summary().vocabulary);
        seen = tokens.len();
        tokens.push(sampler.sample(&last, &tokens).unwrap().id);
    }
    tokens.split_off(prompt.len())
}

fn generate(
    engine: &Engine<Gpu>,
    sequence: &mut Sequence<Gpu>,
    task: &Task<'_>,
    sampling: SamplingParams,
    stop_after: usize,
) -> Generated {
    let mut seen = 0;
    let watch = |event| {
        seen += usize::from(matches!(event, Event::Token(_)));
        if seen == stop_after { Flow::Stop } else { Flow::Continue }
    };
    engine.generate(sequence, task, &mut Sampler::new(sampling).unwrap(), watch).unwrap()
}

/// A sequence that begins before its caches grow and ends after that.
#[test]
fn logits_are_the_same_bits() {
    for gpu in devices() {
        for name in FIXTURES {
            let engine = engine(&gpu, name, None);
            let model = engine.model();
            let [mut plain, mut state] = [(); 2].map(|()| model.state(engine.cache()).unwrap());
            let ids = prompt(270);
            let (before, ids) = ids.split_at(250);
            logits_in_chunks(model, &mut plain, before, 64).unwrap();
            logits_in_chunks(model, &mut state, before, 64).unwrap();
            let mut ahead = model.step_ahead(&mut state).unwrap();
            for (i, id) in ids.iter().enumerate() {
                let expected = logits_in_chunks(model, &mut plain, &[*id], 1).unwrap();
                let logits = model.start(ahead, *id).unwrap();
                ahead = model.step_ahead(&mut state).unwrap();
                let found = gpu.read(&logits).unwrap();
                let same = found.iter().map(|v| v.to_bits()).eq(expected.iter().map(|v| v.to_bits()));
                assert!(same, "{name}, {}: token {i} differs", gpu.description());
            }
            assert_eq!(state.len(), plain.len() + 1);
            assert!(model.start(ahead, 1_000_000).is_err());
        }
    }
}

/// The device goes on with tokens that it has chosen itself, one further than the host knows.
#[test]
fn chosen_tokens_are_the_likeliest() {
    for gpu in devices() {
        for name in FIXTURES {
            let engine = engine(&gpu, name, None);
            let model = engine.model();
            let [mut plain, mut state] = [(); 2].map(|()| model.state(engine.cache()).unwrap());
            let before = prompt(250);
            let (before, last) = before.split_at(249);
            logits_in_chunks(model, &mut plain, before, 64).unwrap();
            logits_in_chunks(model, &mut state, before, 64).unwrap();
            let mut expected = logits_in_chunks(model, &mut plain, last, 1).unwrap();
            let request = Request { tokens: last, state: &mut state, logits: Logits::Last };
            let logits = model.step(&mut [request]).unwrap().unwrap();
            let mut chosen = gpu.choose(&logits).unwrap();
            for i in 0..20 {
                let (logits, next) = model.step_chosen(&chosen, &mut state).unwrap();
                let (id, value) = gpu.read_chosen(chosen).unwrap();
                assert_eq!(
                    vec![(id, value)],
                    largest(&expected, 1),
                    "{name}, {}: token {i}",
                    gpu.description()
                );
                expected = logits_in_chunks(model, &mut plain, &[id], 1).unwrap();
                let found = gpu.read(&logits).unwrap();
                let same = found.iter().map(|v| v.to_bits()).eq(expected.iter().map(|v| v.to_bits()));
                assert!(same, "{name}, {}: logits of token {i} differ", gpu.description());
                chosen = next;
            }
        }
    }
}

#[test]
fn answers_are_those_of_one_step_after_the_other() {
    let Some(gpu) = exact() else { return };
    for name in FIXTURES {
        let engine = engine(&gpu, name, None);
        for (len, sampling) in [(1, greedy()), (20, seeded()), (240, greedy()), (250, seeded())] {
            let prompt = prompt(len);
            let task = Task { prompt: &prompt, stable: 0, max_tokens: Some(20), end_ids: &[] };
            let mut sequence = engine.sequence().unwrap();
            let found = generate(&engine, &mut sequence, &task, sampling.clone(), usize::MAX);
            let expected = step_by_step(&engine, &prompt, 20, sampling);
            assert_eq!((&found.ids, found.finish), (&expected, Finish::Length), "{name}, {len} tokens");
            assert_eq!(sequence.tokens(), [&prompt[..], &expected[..19]].concat(), "{name}, {len} tokens");
        }
    }
}

/// Ways for an answer to end early: the token that ended it has been seen then, and later prompts do not suffer from that.
#[test]
fn a_sequence_goes_on_after_every_end() {
    let Some(gpu) = exact() else { return };
    for name in FIXTURES {
        let prompt = prompt(50);
        let whole = engine(&gpu, name, Some(100));
        let short = engine(&gpu, name, Some(60));
        let answer = step_by_step(&whole, &prompt, 11, seeded());
        // An end that has not been there before.
        let Some(end) = (4..9).rev().find(|i| !answer[..*i].contains(&answer[*i])) else {
            panic!("{name} repeats itself: {answer:?}")
        };
        let ends = [
            (&whole, None, vec![answer[end]], usize::MAX, Finish::End, end),
            (&whole, None, vec![], 5, Finish::Stopped, 5),
            (&whole, Some(7), vec![], usize::MAX, Finish::Length, 7),
            (&whole, Some(1), vec![], usize::MAX, Finish::Length, 1),
            (&whole, Some(0), vec![], usize::MAX, Finish::Length, 0),
            (&short, None, vec![], usize::MAX, Finish::Context, 11),
        ];
        for (i, (engine, max_tokens, end_ids, stop_after, finish, count)) in ends.into_iter().enumerate() {
            // Two of what may come next: straight on, all but the last, less than the first prompt, or that again.
            for next in [i % 4, (i + 1) % 4] {
                let mut sequence = engine.sequence().unwrap();
                let task = Task { prompt: &prompt, stable: 40, max_tokens, end_ids: &end_ids };
                let found = generate(engine, &mut sequence, &task, seeded(), stop_after);
                let what = format!("{name}, {finish:?} after {count}, then {next}");
                assert_eq!((&found.ids[..], found.finish), (&answer[..count], finish), "{what}");
                let seen = &sequence.tokens()[prompt.len()..];
                assert!(answer.starts_with(seen), "{what}: {seen:?}");
                let known = if end_ids.is_empty() { count } else { count + 1 };
                let mut second = [&prompt[..], &answer[..known]].concat();
                match next {
                    0 => second.extend([1, 2]),
                    1 => second.truncate(prompt.len() + count.saturating_sub(1)),
                    2 => second.truncate(45),
                    _ => second.truncate(prompt.len()),
                }
                second.truncate(engine.context() - 4);
                let expected = step_by_step(&whole, &second, 4, greedy());
                let task = Task { prompt: &second, stable: 0, max_tokens: Some(4), end_ids: &[] };
                let found = generate(engine, &mut sequence, &task, greedy(), usize::MAX);
                assert_eq!(found.ids, expected, "{what}");
            }
        }
    }
}
