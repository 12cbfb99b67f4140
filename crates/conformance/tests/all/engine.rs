//! The engine on real fixtures: generation, returning to common prefixes, state files, limits.

use backend::{Backend, CacheFloat};
use conformance::models::{Fixture, fixtures, fixtures_folder, relative_error};
use cpu::{Cpu, Numerics, Options};
use engine::{
    Engine, EngineOptions, Error, Event, Finish, Flow, Generated, Sampler, SamplingParams, Sequence, Task,
};
use models::Model;

fn engine_with(fixture: &Fixture, options: EngineOptions) -> Result<Engine<Cpu>, Error> {
    let cpu =
        Cpu::new(Options { threads: Some(2), numerics: Numerics::Exact, ..Options::default() }).unwrap();
    Engine::new(Model::load(&fixture.checkpoint, cpu).unwrap(), &options)
}

fn engine(fixture: &Fixture) -> Engine<Cpu> {
    engine_with(fixture, EngineOptions { cache: CacheFloat::F32, chunk: 16, ..EngineOptions::default() })
        .unwrap()
}

fn fixture(name: &str) -> Fixture {
    Fixture::open(&fixtures_folder().join(name))
}

fn greedy<B: Backend>(
    engine: &Engine<B>,
    sequence: &mut Sequence<B>,
    prompt: &[u32],
    stable: usize,
    count: usize,
) -> Generated {
    let task = Task { prompt, stable, max_tokens: Some(count), end_ids: &[] };
    let mut sampler = Sampler::new(SamplingParams::greedy()).unwrap();
    engine.generate(sequence, &task, &mut sampler, |_| Flow::Continue).unwrap()
}

#[test]
fn generation_equals_mlx_lm() {
    for fixture in fixtures() {
        let engine = engine(&fixture);
        let generated = greedy(
            &engine,
            &mut engine.sequence().unwrap(),
            &fixture.ids,
            fixture.ids.len(),
            fixture.greedy.len(),
        );
        assert_eq!(generated.ids, fixture.greedy, "{}", fixture.name);
        assert_eq!((generated.finish, generated.reused_tokens), (Finish::Length, 0));
    }
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    for fixture in fixtures() {
        let engine = engine(&fixture);
        let mut sequence = engine.sequence().unwrap();
        let stable = 20;
        greedy(&engine, &mut sequence, &fixture.ids[..24], stable, 5);

        // The next prompt leaves the old one after its stable part, as a chat template that drops thinking does.
        let next = [&fixture.ids[..stable], &fixture.ids[30..]].concat();
        let fresh = greedy(&engine, &mut engine.sequence().unwrap(), &next, 0, 8);
        let again = greedy(&engine, &mut sequence, &next, next.len(), 8);
        assert_eq!(again.ids, fresh.ids, "{}", fixture.name);
        assert!(again.reused_tokens >= stable, "{}: {} tokens reused", fixture.name, again.reused_tokens);

        // Continuing exactly where the sequence stands computes one token: the one that was chosen last.
        let next = [sequence.tokens(), &again.ids[7..]].concat();
        let more = greedy(&engine, &mut sequence, &next, 0, 1);
        assert_eq!(more.reused_tokens, next.len() - 1, "{}", fixture.name);

        // A prompt that shares nothing begins anew.
        let other: Vec<u32> = fixture.ids.iter().rev().copied().collect();
        let fresh = greedy(&engine, &mut engine.sequence().unwrap(), &other, 0, 8);
        let again = greedy(&engine, &mut sequence, &other, 0, 8);
        assert_eq!((again.ids, again.reused_tokens), (fresh.ids, 0), "{}", fixture.name);
    }
}

#[test]
fn the_same_prompt_again_needs_nothing() {
    for fixture in fixtures() {
        let engine = engine(&fixture);
        let mut sequence = engine.sequence().unwrap();
        engine.prefill(&mut sequence, &fixture.ids, 0, |_| Flow::Continue).unwrap();
        let mut steps = 0;
        let reused = engine.prefill(&mut sequence, &fixture.ids, 0, |_| {
            steps += 1;
            Flow::Continue
        });
        assert_eq!((reused.unwrap(), steps), (fixture.ids.len(), 0), "{}", fixture.name);
    }
}

#[test]
fn a_stopped_prompt_goes_on_later() {
    let fixture = fixture("qwen3_5_moe-4bit");
    let engine = engine(&fixture);
    let mut sequence = engine.sequence().unwrap();
    engine
        .prefill(&mut sequence, &fixture.ids, 0, |done| if done < 32 { Flow::Continue } else { Flow::Stop })
        .unwrap();
    assert_eq!(sequence.tokens(), &fixture.ids[..32]);
    let generated = greedy(&engine, &mut sequence, &fixture.ids, 0, fixture.greedy.len());
    assert_eq!((generated.ids, generated.reused_tokens), (fixture.greedy, 32));
}

#[test]
fn states_survive_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for fixture in fixtures() {
        let engine = engine(&fixture);
        let path = folder.path().join(&fixture.name);
        let mut sequence = engine.sequence().unwrap();
        engine.prefill(&mut sequence, &fixture.ids[..30], 0, |_| Flow::Continue).unwrap();
        engine.save(&sequence, &path).unwrap();
        let mut loaded = engine.load(&path).unwrap();
        assert_eq!(loaded.tokens(), sequence.tokens());

        // Straight on from the file, without a token of its own to compute.
        let expected = greedy(&engine, &mut sequence, &fixture.ids[..30], 0, 8);
        let found = greedy(&engine, &mut loaded, &fixture.ids[..30], 0, 8);
        assert_eq!((found.ids, found.reused_tokens), (expected.ids, 30), "{}", fixture.name);

        // And with the rest of the prompt.
        let mut loaded = engine.load(&path).unwrap();
        let found = greedy(&engine, &mut loaded, &fixture.ids, 0, fixture.greedy.len());
        assert_eq!((found.ids, found.reused_tokens), (fixture.greedy, 30), "{}", fixture.name);
    }
}

#[test]
fn states_of_codes_survive_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for fixture in fixtures() {
        let options = EngineOptions { cache: CacheFloat::Q8, chunk: 16, ..EngineOptions::default() };
        let engine = engine_with(&fixture, options).unwrap();
        let [path, again] = ["", " again"].map(|name| folder.path().join(fixture.name.clone() + name));
        let mut sequence = engine.sequence().unwrap();
        engine.prefill(&mut sequence, &fixture.ids[..30], 0, |_| Flow::Continue).unwrap();
        engine.save(&sequence, &path).unwrap();
        let mut loaded = engine.load(&path).unwrap();
        engine.save(&loaded, &again).unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap(), "{}", fixture.name);
        let expected = greedy(&engine, &mut sequence, &fixture.ids, 0, fixture.greedy.len());
        let found = greedy(&engine, &mut loaded, &fixture.ids, 0, fixture.greedy.len());
        assert_eq!((found.ids, found.reused_tokens), (expected.ids, 30), "{}", fixture.name);
    }
}

#[test]
fn state_files_of_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let fixture_a = fixture("qwen3-2bit");
    let engine_a = engine(&fixture_a);
    let mut sequence = engine_a.sequence().unwrap();
    engine_a.prefill(&mut sequence, &fixture_a.ids, 0, |_| Flow::Continue).unwrap();
    engine_a.save(&sequence, &path).unwrap();

    let error = engine(&fixture("qwen3-5bit")).load(&path).err().unwrap().to_string();
    assert!(error.contains("another model"), "{error}");

    let half = EngineOptions { cache: CacheFloat::F16, ..EngineOptions::default() };
    let error = engine_with(&fixture_a, half).unwrap().load(&path).err().unwrap().to_string();
    assert!(error.contains("F32, expected F16"), "{error}");
    let codes = EngineOptions { cache: CacheFloat::Q8, ..EngineOptions::default() };
    let error = engine_with(&fixture_a, codes).unwrap().load(&path).err().unwrap().to_string();
    assert!(error.contains("F32, expected U8"), "{error}");

    let short = EngineOptions { cache: CacheFloat::F32, context: Some(10), ..EngineOptions::default() };
    assert!(matches!(engine_with(&fixture_a, short).unwrap().load(&path), Err(Error::PromptTooLong { .. })));

    let bytes = std::fs::read(&path).unwrap();
    for cut in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert!(engine_a.load(&path).is_err(), "cut to {cut} bytes");
    }
    let error =
        engine_a.load(&fixtures_folder().join("qwen3-2bit/model.safetensors")).err().unwrap().to_string();
    assert!(error.contains("no tensor `header`"), "{error}");
    assert!(engine_a.load(&folder.path().join("nothing")).is_err());
}

#[test]
fn limits_are_errors_or_ends() {
    let fixture = fixture("qwen3_moe-3bit");
    let with_context = |context| {
        let options =
            EngineOptions { cache: CacheFloat::F32, context: Some(context), ..EngineOptions::default() };
        engine_with(&fixture, options)
    };
    let small = with_context(fixture.ids.len() + 3).unwrap();
    let mut sequence = small.sequence().unwrap();
    let generated = greedy(&small, &mut sequence, &fixture.ids, 0, 100);
    assert_eq!((generated.finish, generated.ids.len()), (Finish::Context, 4));
    assert_eq!(generated.ids[..], fixture.greedy[..4]);

    let prefill = |engine: &Engine<Cpu>, ids: &[u32]| {
        engine.prefill(&mut engine.sequence().unwrap(), ids, 0, |_| Flow::Continue).err().unwrap()
    };
    let tight = with_context(10).unwrap();
    assert!(matches!(prefill(&tight, &fixture.ids), Error::PromptTooLong { context: 10, .. }));
    assert!(matches!(prefill(&tight, &[]), Error::EmptyPrompt));
    let error = prefill(&tight, &[3, 100_000]).to_string();
    assert!(error.contains("100000") && error.contains("vocabulary"), "{error}");

    let error = with_context(1 << 50).err().unwrap();
    assert!(matches!(error, Error::ContextTooLarge { .. }), "{error}");
    let options = EngineOptions { cache_memory: Some(1), ..EngineOptions::default() };
    assert!(matches!(engine_with(&fixture, options).err().unwrap(), Error::ContextTooLarge { fits: 0, .. }));
}

#[test]
fn end_tokens_and_callers_stop() {
    let fixture = fixture("qwen3_moe-6bit");
    let engine = engine(&fixture);
    let mut sampler = Sampler::new(SamplingParams::greedy()).unwrap();
    let end = fixture.greedy[5];
    let before: Vec<u32> = fixture.greedy.iter().copied().take_while(|id| *id != end).collect();
    let task = Task { prompt: &fixture.ids, stable: 0, max_tokens: None, end_ids: &[end] };
    let mut sequence = engine.sequence().unwrap();
    let generated = engine.generate(&mut sequence, &task, &mut sampler, |_| Flow::Continue).unwrap();
    assert_eq!((generated.ids, generated.finish), (before, Finish::End));

    let mut seen = 0;
    let task = Task { end_ids: &[], ..task };
    let generated = engine.generate(&mut sequence, &task, &mut sampler, |event| {
        seen += usize::from(matches!(event, Event::Token(_)));
        if seen == 3 { Flow::Stop } else { Flow::Continue }
    });
    let generated = generated.unwrap();
    assert_eq!((&generated.ids[..], generated.finish), (&fixture.greedy[..3], Finish::Stopped));
}

#[test]
fn logits_do_not_depend_on_the_chunk() {
    let fixture = fixture("qwen3_next-4bit");
    let logits = engine(&fixture).logits(&fixture.ids).unwrap();
    assert!(relative_error(&logits, &fixture.logits) < 1e-4);
}
