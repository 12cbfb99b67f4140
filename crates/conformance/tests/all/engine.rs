//! The loop with one request at a time on real fixtures: generation, returning to common prefixes, state
//! files, limits.

use crate::common::{Heard, job, run, step_by_step, step_until};
use backend::{Backend, CacheFloat};
use conformance::models::{Fixture, fixtures, fixtures_folder, relative_error};
use cpu::{Cpu, Numerics, Options};
use engine::{
    Engine, EngineOptions, Error, Finish, Job, Loop, SamplingParams, SchedulerOptions, Update, Updates,
};
use models::Model;

fn engine_with(fixture: &Fixture, options: EngineOptions) -> Result<Engine<Cpu>, Error> {
    let cpu =
        Cpu::new(Options { threads: Some(2), numerics: Numerics::Exact, ..Options::default() }).unwrap();
    Engine::new(Model::load(&fixture.checkpoint, cpu).unwrap(), &options)
}

fn steps_with(fixture: &Fixture, options: EngineOptions) -> Result<Loop<Cpu>, Error> {
    let one = SchedulerOptions {
        slots: 1,
        prefixes: 1,
        prefix_memory: u64::MAX,
        speculate: false,
        ..SchedulerOptions::default()
    };
    Ok(Loop::new(engine_with(fixture, options)?, one))
}

fn exact() -> EngineOptions {
    EngineOptions { cache: CacheFloat::F32, chunk: 16, ..EngineOptions::default() }
}

fn steps(fixture: &Fixture) -> Loop<Cpu> {
    steps_with(fixture, exact()).unwrap()
}

fn fixture(name: &str) -> Fixture {
    Fixture::open(&fixtures_folder().join(name))
}

fn greedy<B: Backend>(steps: &mut Loop<B>, prompt: &[u32], stable: usize, count: usize) -> Heard {
    let (job, updates) = job(prompt, count, SamplingParams::greedy());
    run(steps, (Job { stable, ..job }, updates))
}

#[test]
fn generation_equals_mlx_lm() {
    for fixture in fixtures() {
        let heard = greedy(&mut steps(&fixture), &fixture.ids, fixture.ids.len(), fixture.greedy.len());
        assert_eq!(heard.ids, fixture.greedy, "{}", fixture.name);
        assert_eq!((heard.finish, heard.reused), (Finish::Length, 0));
    }
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    for fixture in fixtures() {
        let mut steps = steps(&fixture);
        let stable = 20;
        greedy(&mut steps, &fixture.ids[..24], stable, 5);
        let alone = |steps: &Loop<Cpu>, prompt: &[u32]| {
            step_by_step(steps.engine().model(), prompt, 8, SamplingParams::greedy())
        };

        // The next prompt leaves the old one after its stable part, as a chat template that drops thinking does.
        let next = [&fixture.ids[..stable], &fixture.ids[30..]].concat();
        let fresh = alone(&steps, &next);
        let again = greedy(&mut steps, &next, next.len(), 8);
        assert_eq!(again.ids, fresh, "{}", fixture.name);
        assert!(again.reused >= stable, "{}: {} tokens reused", fixture.name, again.reused);

        // Continuing exactly where the sequence stands computes one token: the one that was chosen last.
        let next = [&next[..], &again.ids].concat();
        let more = greedy(&mut steps, &next, 0, 1);
        assert_eq!(more.reused, next.len() - 1, "{}", fixture.name);

        // A prompt that shares nothing begins anew.
        let other: Vec<u32> = fixture.ids.iter().rev().copied().collect();
        let fresh = alone(&steps, &other);
        let again = greedy(&mut steps, &other, 0, 8);
        assert_eq!((again.ids, again.reused), (fresh, 0), "{}", fixture.name);
    }
}

#[test]
fn the_same_prompt_again_needs_its_last_token() {
    for fixture in fixtures() {
        let (mut steps, stable) = (steps(&fixture), fixture.ids.len() - 1);
        let first = greedy(&mut steps, &fixture.ids, stable, 1);
        let again = greedy(&mut steps, &fixture.ids, stable, 1);
        assert_eq!((again.ids, again.reused), (first.ids, stable), "{}", fixture.name);
    }
}

#[test]
fn a_stopped_prompt_goes_on_later() {
    let fixture = fixture("qwen3_5_moe-4bit");
    let mut steps = steps(&fixture);
    let (job, updates) = job(&fixture.ids, 1, SamplingParams::greedy());
    steps.push(Job { stable: 0, ..job }).unwrap();
    steps.step();
    steps.step();
    updates.cancel();
    steps.run_until_idle();
    let told: Vec<_> = std::iter::from_fn(|| updates.next_ready()).collect();
    let of = fixture.ids.len();
    for (update, expected) in told.iter().zip([0, 16]) {
        assert!(
            matches!(update, Update::Prompt { done, of: n } if (*done, *n) == (expected, of)),
            "{update:?}"
        );
    }
    assert!(matches!(told[2..], [Update::Finished(Finish::Stopped, _)]), "{told:?}");
    let heard = greedy(&mut steps, &fixture.ids, 0, fixture.greedy.len());
    assert_eq!((heard.ids, heard.reused), (fixture.greedy, 32));
}

#[test]
fn states_survive_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for fixture in fixtures() {
        let path = folder.path().join(&fixture.name);
        let mut saved = steps(&fixture);
        greedy(&mut saved, &fixture.ids[..30], 0, 0);
        saved.save(&path).unwrap();

        // With the same prompt, whose last token is asked for again.
        let mut loaded = steps(&fixture);
        assert_eq!(loaded.load(&path).unwrap(), 30);
        let expected = greedy(&mut saved, &fixture.ids[..30], 0, 8);
        let found = greedy(&mut loaded, &fixture.ids[..30], 0, 8);
        assert_eq!(found.ids, expected.ids, "{}", fixture.name);

        // And with the rest of the prompt.
        let mut loaded = steps(&fixture);
        assert_eq!(loaded.load(&path).unwrap(), 30);
        let found = greedy(&mut loaded, &fixture.ids, 0, fixture.greedy.len());
        assert_eq!((found.ids, found.reused), (fixture.greedy, 30), "{}", fixture.name);
    }
}

#[test]
fn states_of_codes_survive_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for fixture in fixtures() {
        let options = EngineOptions { cache: CacheFloat::Q8, ..exact() };
        let [path, again] = ["", " again"].map(|name| folder.path().join(fixture.name.clone() + name));
        let mut saved = steps_with(&fixture, options.clone()).unwrap();
        greedy(&mut saved, &fixture.ids[..30], 0, 0);
        saved.save(&path).unwrap();
        let mut loaded = steps_with(&fixture, options).unwrap();
        loaded.load(&path).unwrap();
        loaded.save(&again).unwrap();
        assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap(), "{}", fixture.name);
        let expected = greedy(&mut saved, &fixture.ids, 0, fixture.greedy.len());
        let found = greedy(&mut loaded, &fixture.ids, 0, fixture.greedy.len());
        assert_eq!((found.ids, found.reused), (expected.ids, 30), "{}", fixture.name);
    }
}

#[test]
fn state_files_of_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let fixture_a = fixture("qwen3-2bit");
    let mut steps_a = steps(&fixture_a);
    greedy(&mut steps_a, &fixture_a.ids, 0, 0);
    steps_a.save(&path).unwrap();
    let refusal = |mut steps: Loop<Cpu>| steps.load(&path).err().unwrap();

    let error = refusal(steps(&fixture("qwen3-5bit"))).to_string();
    assert!(error.contains("another model"), "{error}");
    for (cache, expected) in [(CacheFloat::F16, "F32, expected F16"), (CacheFloat::Q8, "F32, expected U8")] {
        let options = EngineOptions { cache, ..EngineOptions::default() };
        let error = refusal(steps_with(&fixture_a, options).unwrap()).to_string();
        assert!(error.contains(expected), "{error}");
    }
    let short = EngineOptions { context: Some(10), ..exact() };
    assert!(matches!(refusal(steps_with(&fixture_a, short).unwrap()), Error::PromptTooLong { .. }));

    let bytes = std::fs::read(&path).unwrap();
    for cut in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert!(steps_a.load(&path).is_err(), "cut to {cut} bytes");
    }
    let weights = fixtures_folder().join("qwen3-2bit/model.safetensors");
    let error = steps_a.load(&weights).err().unwrap().to_string();
    assert!(error.contains("no tensor `header`"), "{error}");
    assert!(steps_a.load(&folder.path().join("nothing")).is_err());
}

#[test]
fn limits_are_errors_or_ends() {
    let fixture = fixture("qwen3_moe-3bit");
    let with_context = |context| steps_with(&fixture, EngineOptions { context: Some(context), ..exact() });
    let mut small = with_context(fixture.ids.len() + 3).unwrap();
    let heard = greedy(&mut small, &fixture.ids, 0, 100);
    assert_eq!((heard.finish, heard.ids.len()), (Finish::Context, 4));
    assert_eq!(heard.ids[..], fixture.greedy[..4]);

    let mut tight = with_context(10).unwrap();
    let mut refusal = |ids: &[u32]| tight.push(job(ids, 1, SamplingParams::greedy()).0).unwrap_err();
    assert!(matches!(refusal(&fixture.ids), Error::PromptTooLong { context: 10, .. }));
    assert!(matches!(refusal(&[]), Error::EmptyPrompt));
    let error = refusal(&[3, 100_000]).to_string();
    assert!(error.contains("100000") && error.contains("vocabulary"), "{error}");

    let error = with_context(1 << 50).err().unwrap();
    assert!(matches!(error, Error::ContextTooLarge { .. }), "{error}");
    let options = EngineOptions { cache_memory: Some(1), ..EngineOptions::default() };
    assert!(matches!(engine_with(&fixture, options).err().unwrap(), Error::ContextTooLarge { fits: 0, .. }));
}

#[test]
fn end_tokens_and_callers_stop() {
    let fixture = fixture("qwen3_moe-6bit");
    let mut steps = steps(&fixture);
    let end = fixture.greedy[5];
    let before: Vec<u32> = fixture.greedy.iter().copied().take_while(|id| *id != end).collect();
    let (listener, updates) = Updates::new();
    let job = Job { end_ids: vec![end], ..Job::new(fixture.ids.clone(), listener) };
    let heard = run(&mut steps, (job, updates));
    assert_eq!((heard.ids, heard.finish), (before, Finish::End));

    let (listener, updates) = Updates::new();
    steps.push(Job::new(fixture.ids.clone(), listener)).unwrap();
    let mut ids = Vec::new();
    step_until(&mut steps, || {
        while let Some(update) = updates.next_ready() {
            if let Update::Token(token) = update {
                ids.push(token.id);
            }
        }
        ids.len() == 3
    });
    updates.cancel();
    steps.run_until_idle();
    assert!(matches!(updates.next_ready(), Some(Update::Finished(Finish::Stopped, _))));
    assert_eq!(ids, fixture.greedy[..3]);
}

/// Logits of every token of a prompt, whatever the chunk, and beside other requests.
#[test]
fn prompts_are_scored() {
    let fixture = fixture("qwen3_next-4bit");
    for chunk in [7, 512] {
        let options = EngineOptions { chunk, ..exact() };
        let mut steps = Loop::new(engine_with(&fixture, options).unwrap(), SchedulerOptions::default());
        // A kept sequence must not stand in for a part of the prompt.
        greedy(&mut steps, &fixture.ids, 0, 1);
        let (other, others) = job(&fixture.ids[..20], 30, SamplingParams::greedy());
        steps.push(other).unwrap();
        let (scored, updates) = job(&fixture.ids, 2, SamplingParams::greedy());
        steps.push(Job { prompt_logits: true, ..scored }).unwrap();
        steps.run_until_idle();
        let (mut logits, mut ids) = (Vec::new(), Vec::new());
        while let Some(update) = updates.next_ready() {
            match update {
                Update::PromptLogits(rows) => logits.extend(rows),
                Update::Token(token) => ids.push(token.id),
                Update::Started { reused } => assert_eq!(reused, 0),
                _ => {}
            }
        }
        assert!(relative_error(&logits, &fixture.logits) < 1e-4);
        assert_eq!(ids, fixture.greedy[..2]);
        assert_eq!(crate::common::wait(&others).ids.len(), 30);
    }
}
