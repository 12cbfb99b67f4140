//! The scheduler on the test models: many answers at once, and each the one it would be alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::common::{job, run, step_by_step, wait};
use backend::{Backend, CacheFloat};
use checkpoint::{Checkpoint, TensorSpec};
use conformance::models::{Fixture, fixtures_folder};
use cpu::{Cpu, Numerics, Options};
use engine::{
    Engine, EngineOptions, Finish, Job, Loop, Phase, Refused, SamplingParams, Scheduler, SchedulerOptions,
    StepEvent, Trace, Update, Updates,
};
use models::Model;

use crate::devices;

/// One of each kind: attention alone, a sliding window, a latent cache, recurrent layers; and heads that guess, of random weights, so
/// that they are nearly always wrong.
const FIXTURES: [&str; 6] = [
    "qwen3_moe-bf16",
    "gemma4-moe-bf16",
    "deepseek_v3-4bit",
    "qwen3_5_moe-4bit",
    "qwen3_5_moe-mtp-bf16",
    "deepseek_v3-mtp-bf16",
];

fn engine(name: &str, options: &EngineOptions) -> Engine<Cpu> {
    engine_of(&Fixture::open(&fixtures_folder().join(name)).checkpoint, options)
}

fn engine_of(checkpoint: &Checkpoint, options: &EngineOptions) -> Engine<Cpu> {
    let cpu = Cpu::new(Options { threads: Some(1), numerics: Numerics::Exact, ..Options::default() })
        .expect("a CPU");
    Engine::new(Model::load_drafting(checkpoint, cpu).expect("a model"), options).expect("an engine")
}

fn exact() -> EngineOptions {
    EngineOptions { cache: CacheFloat::F32, chunk: 32, ..EngineOptions::default() }
}

fn ask(scheduler: &Scheduler, prompt: &[u32], max_tokens: usize, sampling: SamplingParams) -> Updates {
    let (job, answer) = job(prompt, max_tokens, sampling);
    scheduler.submit(job).expect("room for a job");
    answer
}

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams { seed: Some(seed), temperature: 1.0, top_k: 0, ..SamplingParams::default() }
}

/// Prompts of several lengths; some repeat themselves, so that there is something to guess.
fn prompts(vocabulary: u32) -> Vec<Vec<u32>> {
    let number = |i: u32, j: u32| (i * 31 + j * 17 + j * j * 7) % vocabulary;
    let mut prompts: Vec<Vec<u32>> =
        (0..9).map(|i| (0..1 + i * 13).map(|j| number(i, j)).collect()).collect();
    prompts.push([5, 6, 7, 8, 9, 10].repeat(8));
    prompts.push(vec![3; 70]);
    prompts
}

#[test]
fn answers_together_are_the_answers_alone() {
    for name in FIXTURES {
        let single = engine(name, &exact());
        let vocabulary = single.model().summary().vocabulary as u32;
        let scheduler =
            Scheduler::start(engine(name, &exact()), SchedulerOptions::default()).expect("a thread");
        let settings =
            |i: usize| if i.is_multiple_of(2) { SamplingParams::greedy() } else { seeded(i as u64) };
        let prompts = prompts(vocabulary);
        let answers: Vec<_> =
            prompts.iter().enumerate().map(|(i, p)| ask(&scheduler, p, 20 + i, settings(i))).collect();
        for (i, (prompt, answer)) in prompts.iter().zip(answers).enumerate() {
            let heard = wait(&answer);
            assert_eq!(
                heard.ids,
                step_by_step(single.model(), prompt, 20 + i, settings(i)),
                "{name}, prompt {i}"
            );
            assert_eq!(heard.finish, Finish::Length);
        }
        scheduler.finish();
        let stats = scheduler.stats();
        assert_eq!((stats.waiting, stats.running, stats.finished, stats.failed), (0, 0, 11, 0), "{name}");
    }
}

#[test]
fn guesses_change_nothing_and_save_steps() {
    for name in FIXTURES {
        let single = engine(name, &exact());
        // A greedy model of random weights soon repeats itself.
        for sampling in [SamplingParams::greedy(), seeded(7)] {
            let prompt = [5, 6, 7, 8, 9, 10].repeat(6);
            let expected = step_by_step(single.model(), &prompt, 150, sampling.clone());
            let mut steps = [0; 2];
            for speculate in [false, true] {
                let options = SchedulerOptions { speculate, ..SchedulerOptions::default() };
                let scheduler = Scheduler::start(engine(name, &exact()), options).expect("a thread");
                assert_eq!(wait(&ask(&scheduler, &prompt, 150, sampling.clone())).ids, expected, "{name}");
                scheduler.finish();
                let stats = scheduler.stats();
                assert_eq!(stats.tokens, 150);
                assert!(stats.accepted <= stats.drafted);
                steps[usize::from(speculate)] = stats.steps;
            }
            println!("{name}: {steps:?} steps for 150 tokens");
            assert!(steps[1] <= steps[0], "{name}: {steps:?}");
        }
    }
}

/// What the drafting head of a [`chain`] goes by.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Head {
    /// The token that follows.
    Token,
    /// The model's hidden state.
    Hidden,
    /// The token that follows, but it takes the least probable token for the most probable one.
    Wrong,
}

/// A fixture's model with the vocabulary in a ring: most probably the token after `t` is `t + 1`, whatever came before. A token is points
/// on circles, each of a frequency of its own, so that going on by one is a rotation; layers add nothing.
fn chain(name: &str, head: Head) -> (tempfile::TempDir, Checkpoint) {
    let (from, to) = (fixtures_folder().join(name), tempfile::tempdir().expect("a folder"));
    let mut tensors = checkpoint::read_file(&from.join("model.safetensors")).expect("weights");
    tensors.extend(checkpoint::read_file(&from.join("mtp.safetensors")).expect("a head"));
    let table =
        &tensors.iter().find(|(name, _)| name.ends_with("embed_tokens.weight")).expect("a table").1.shape;
    let &[vocabulary, hidden] = table.as_slice() else { panic!("{table:?}") };
    let angle = |circle: usize, t: usize| {
        let frequency = (5 * circle * circle + 3 * circle + 1) % vocabulary;
        std::f64::consts::TAU * (frequency * t % vocabulary) as f64 / vocabulary as f64
    };
    let point = |i: usize, t: usize| {
        let angle = angle(i / 2, t);
        if i.is_multiple_of(2) { angle.cos() } else { angle.sin() }
    };
    let rotation = |row: usize, col: usize| match (row / 2 == col / 2, row % 2, col % 2) {
        (false, ..) => 0.0,
        (_, 0, 1) => -angle(row / 2, 1).sin(),
        (_, 1, 0) => angle(row / 2, 1).sin(),
        _ => angle(row / 2, 1).cos(),
    };
    let join = |row: usize, col: usize| match (head, col < hidden) {
        (Head::Token, true) => f64::from(u8::from(row == col)),
        (Head::Wrong, true) => -f64::from(u8::from(row == col)),
        (Head::Hidden, false) => rotation(row, col - hidden),
        _ => 0.0,
    };
    let contents = |name: &str, tensor: &checkpoint::Tensor| {
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        let bf16 = |value: &dyn Fn(usize, usize) -> f64| {
            let cols = *tensor.shape.last().expect("a shape");
            let values = (0..tensor.shape.iter().product()).map(|i: usize| value(i / cols, i % cols));
            // Near enough without rounding.
            values.flat_map(|v| ((v as f32).to_bits() >> 16).to_le_bytes().into_iter().take(2)).collect()
        };
        if ends(&["o_proj.weight", "out_proj.weight", "down_proj.weight"]) {
            bf16(&|_, _| 0.0)
        } else if ends(&["embed_tokens.weight"]) {
            bf16(&|t, i| point(i, t))
        } else if ends(&["lm_head.weight"]) {
            bf16(&|t, i| 0.15 * point(i, (t + vocabulary - 1) % vocabulary))
        } else if ends(&["mtp.fc.weight", "eh_proj.weight"]) {
            bf16(&join)
        } else if ends(&["norm.weight", "norm_embedding.weight", "norm_hidden.weight"]) {
            bf16(&|_, _| 1.0)
        } else {
            tensor.bytes.to_vec()
        }
    };
    let written: Vec<Vec<u8>> = tensors.iter().map(|(name, tensor)| contents(name, tensor)).collect();
    let specs = tensors.into_values().map(|t| TensorSpec { name: t.name, dtype: t.dtype, shape: t.shape });
    let parts: Vec<_> = specs.zip(&written).map(|(spec, bytes)| (spec, bytes.as_slice())).collect();
    checkpoint::write_file(&to.path().join("model.safetensors"), &parts).expect("a file");
    std::fs::copy(from.join("config.json"), to.path().join("config.json")).expect("a config");
    let checkpoint = Checkpoint::open(to.path()).expect("a checkpoint");
    (to, checkpoint)
}

#[test]
fn a_drafting_head_saves_steps_when_it_is_right_and_changes_nothing_when_it_is_wrong() {
    for name in ["qwen3_5_moe-mtp-bf16", "deepseek_v3-mtp-bf16"] {
        for head in [Head::Token, Head::Hidden, Head::Wrong] {
            let (_folder, checkpoint) = chain(name, head);
            let run = |speculate: bool| {
                let options = SchedulerOptions { speculate, ..SchedulerOptions::default() };
                let engine = engine_of(&checkpoint, &exact());
                let scheduler = Scheduler::start(engine, options).expect("a thread");
                let heard = wait(&ask(&scheduler, &[90, 3, 77, 5], 60, SamplingParams::greedy()));
                assert_eq!(heard.ids, (6..66).collect::<Vec<_>>(), "{name}, {head:?}");
                scheduler.finish();
                scheduler.stats()
            };
            let stats = run(true);
            println!("{name}, {head:?}: {} of {} right", stats.accepted, stats.drafted);
            assert!(stats.drafted > 0, "{name}, {head:?}");
            let right = if head == Head::Wrong { 0 } else { stats.drafted };
            assert_eq!(stats.accepted, right, "{name}, {head:?}");
            let plain = run(false);
            assert_eq!((plain.drafted, plain.steps), (0, stats.steps + right), "{name}, {head:?}");
        }
    }
}

/// Answers of different lengths: when one ends, the head sees only some rows of a step.
#[test]
fn a_drafting_head_tells_answers_apart() {
    for name in ["qwen3_5_moe-mtp-bf16", "deepseek_v3-mtp-bf16"] {
        let (_folder, checkpoint) = chain(name, Head::Hidden);
        let engine = engine_of(&checkpoint, &exact());
        let scheduler = Scheduler::start(engine, SchedulerOptions::default()).expect("a thread");
        let asked = [(40, 60), (100, 17), (0, 33), (70, 44)];
        let answers = asked.map(|(first, n)| ask(&scheduler, &[9, 4, first], n, SamplingParams::greedy()));
        for ((first, n), answer) in asked.into_iter().zip(answers) {
            let expected: Vec<u32> = (first + 1..=first + n as u32).collect();
            assert_eq!(wait(&answer).ids, expected, "{name}");
        }
        scheduler.finish();
        let stats = scheduler.stats();
        println!("{name}: {} of {} right", stats.accepted, stats.drafted);
        assert!(stats.drafted > 0 && stats.accepted == stats.drafted, "{name}: {stats:?}");
    }
}

#[test]
fn a_drafting_head_goes_on_with_its_sequence() {
    for name in ["qwen3_5_moe-mtp-bf16", "deepseek_v3-mtp-bf16"] {
        let (_folder, checkpoint) = chain(name, Head::Hidden);
        let single = engine_of(&checkpoint, &exact());
        let folder = tempfile::tempdir().expect("a folder");
        let options =
            SchedulerOptions { prefix_folder: Some(folder.path().into()), ..SchedulerOptions::default() };
        // Four at once, some of them sampled; then further turns of them, one that begins alike and goes on otherwise, and all again
        // from what was saved.
        let start: Vec<u32> = (0..40).map(|i| i * 7 % 61).collect();
        let settings = |i: usize| if i < 2 { SamplingParams::greedy() } else { seeded(i as u64) };
        let mut prompts: Vec<Vec<u32>> = (0..4).map(|i| start[..20 + 5 * i].to_vec()).collect();
        for run in 0..2 {
            let engine = engine_of(&checkpoint, &exact());
            let scheduler = Scheduler::start(engine, options.clone()).expect("a thread");
            for turn in 0..3 {
                let answers: Vec<_> =
                    prompts.iter().enumerate().map(|(i, p)| ask(&scheduler, p, 30, settings(i))).collect();
                for (i, answer) in answers.into_iter().enumerate() {
                    let heard = wait(&answer);
                    let expected = step_by_step(single.model(), &prompts[i], 30, settings(i));
                    assert_eq!(heard.ids, expected, "{name}, run {run}, turn {turn}, prompt {i}");
                    prompts[i].extend(&heard.ids);
                    prompts[i].extend([i as u32, 70 + 9 * turn]);
                }
                let shared = prompts[1].len() - 8;
                prompts[1].truncate(shared);
                prompts[1].extend([9, 9, 100]);
            }
            scheduler.finish();
            let stats = scheduler.stats();
            println!("{name}: {} of {} right", stats.accepted, stats.drafted);
            assert!(stats.accepted > 0 && stats.reused_tokens > 0, "{name}, run {run}: {stats:?}");
        }
    }
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    for name in FIXTURES {
        let single = engine(name, &exact());
        let scheduler =
            Scheduler::start(engine(name, &exact()), SchedulerOptions::default()).expect("a thread");
        let first: Vec<u32> = (0..90).map(|i| i * 7 % 61).collect();
        let answer = wait(&ask(&scheduler, &first, 12, SamplingParams::greedy()));
        assert_eq!(answer.reused, 0);
        // The whole first turn, answer included.
        let second = [&first[..], &answer.ids, &[1, 2, 3, 4, 5]].concat();
        let heard = wait(&ask(&scheduler, &second, 10, SamplingParams::greedy()));
        assert!(heard.reused >= first.len() + answer.ids.len() - 1, "{name}: {}", heard.reused);
        assert_eq!(heard.ids, step_by_step(single.model(), &second, 10, SamplingParams::greedy()), "{name}");
        // The same beginning up to where the first answer began, and another end.
        let other = [&first[..first.len() - 3], &[9, 9, 9, 9]].concat();
        let heard = wait(&ask(&scheduler, &other, 10, SamplingParams::greedy()));
        assert!(heard.reused >= first.len() - 3, "{name}: {}", heard.reused);
        assert_eq!(heard.ids, step_by_step(single.model(), &other, 10, SamplingParams::greedy()), "{name}");
        scheduler.finish();
    }
}

#[test]
fn a_shared_beginning_is_copied_and_a_longer_chat_kept() {
    let name = "qwen3_moe-bf16";
    let single = engine(name, &exact());
    let scheduler = Scheduler::start(engine(name, &exact()), SchedulerOptions::default()).expect("a thread");
    let system: Vec<u32> = (0..40).map(|i| i * 11 % 61).collect();
    let long = [&system[..], &(0..400).map(|i| i * 13 % 59).collect::<Vec<u32>>()].concat();
    wait(&ask(&scheduler, &long, 4, SamplingParams::greedy()));
    let short = [&system[..], &[60, 60, 60]].concat();
    let heard = wait(&ask(&scheduler, &short, 8, SamplingParams::greedy()));
    assert_eq!(heard.reused, system.len());
    assert_eq!(heard.ids, step_by_step(single.model(), &short, 8, SamplingParams::greedy()));
    let heard = wait(&ask(&scheduler, &[&long[..], &[1]].concat(), 1, SamplingParams::greedy()));
    assert!(heard.reused >= long.len(), "{}", heard.reused);
    scheduler.finish();
}

#[test]
fn memory_for_two_serves_many_one_after_the_other() {
    for name in FIXTURES {
        let single = engine(name, &exact());
        // For two while they are short, with the margin that each is granted.
        let memory = 2 * (single.state_bytes(276) + single.recurrent_bytes());
        let options = EngineOptions { cache_memory: Some(memory), context: Some(400), ..exact() };
        let scheduler =
            Scheduler::start(engine(name, &options), SchedulerOptions::default()).expect("a thread");
        let prompts: Vec<Vec<u32>> =
            (0..4u32).map(|i| (0..20 + i).map(|j| (i * 5 + j * 3) % 60).collect()).collect();
        let answers: Vec<_> =
            prompts.iter().map(|p| ask(&scheduler, p, 340, SamplingParams::greedy())).collect();
        for (prompt, answer) in prompts.iter().zip(answers) {
            assert_eq!(
                wait(&answer).ids,
                step_by_step(single.model(), prompt, 340, SamplingParams::greedy()),
                "{name}"
            );
        }
        scheduler.finish();
        // Elsewhere a window does not grow, a place to return to is given up first, or a drafting head needs less.
        let grows = name.starts_with("qwen3_moe");
        assert!(!grows || scheduler.stats().preempted > 0, "{name}");
    }
}

#[test]
fn who_goes_away_stops_costing_and_who_comes_too_late_hears_so() {
    let options = SchedulerOptions { slots: 1, queue: 1, ..SchedulerOptions::default() };
    let scheduler = Scheduler::start(engine("qwen3_5_moe-4bit", &exact()), options).expect("a thread");
    let endless = ask(&scheduler, &[1, 2, 3], 1_000_000, seeded(1));
    while !matches!(endless.wait().expect("a start"), Update::Started { .. }) {}
    let (queued, queued_answer) = job(&[1], 3, SamplingParams::greedy());
    scheduler.submit(queued).expect("one may wait");
    let (refused, _) = job(&[1], 3, SamplingParams::greedy());
    assert!(matches!(scheduler.submit(refused), Err(Refused::Busy { waiting: 1, .. })));
    endless.cancel();
    assert_eq!(wait(&queued_answer).ids.len(), 3);
    scheduler.finish();
    assert_eq!(scheduler.stats().cancelled, 1);
    let (late, _) = job(&[1], 3, SamplingParams::greedy());
    assert!(matches!(scheduler.submit(late), Err(Refused::Ending)));
}

/// A GPU has the next step of an answer that is alone recorded before its token is known: others join it, it is left, it ends, and a
/// later turn goes on from there. A machine without any adapter skips this.
#[test]
fn steps_recorded_ahead_change_nothing() {
    let Some(gpu) = devices::exact() else { return };
    // Greedy tokens are chosen by the device. On software a fixture meets two of the four, and its
    // neighbour the others.
    let all = FIXTURES.into_iter().enumerate().flat_map(|(i, name)| (0..4).map(move |both| (i, name, both)));
    let chosen = all.filter(|(i, _, both)| devices::thorough(&gpu) || (i + both / 2 + both) % 2 == 0);
    for (name, speculate, greedy) in chosen.map(|(_, name, both)| (name, both / 2 == 1, both % 2 == 1)) {
        let sampling = |seed| if greedy { SamplingParams::greedy() } else { seeded(seed) };
        // From where on an answer has something new that may end it.
        let late = if greedy { 1 } else { 10 };
        let open = || {
            let checkpoint = Fixture::open(&fixtures_folder().join(name)).checkpoint;
            let model = Model::load_drafting(&checkpoint, gpu.clone()).expect("a model");
            Engine::new(model, &exact()).expect("an engine")
        };
        let single = open();
        let options = SchedulerOptions { speculate, ..SchedulerOptions::default() };
        let scheduler = Scheduler::start(open(), options).expect("a thread");
        let prompts = [30, 17].map(|n| (0..n).map(|i| i * i * 7 % 61).collect::<Vec<u32>>());
        let [first, second] = &prompts;
        let answer = step_by_step(single.model(), first, 60, sampling(5));
        let hear = |answer: &Updates, count: usize| -> Vec<u32> {
            let updates = std::iter::from_fn(|| answer.wait()).filter_map(|update| match update {
                Update::Token(token) => Some(token.id),
                _ => None,
            });
            updates.take(count).collect()
        };

        // Another one joins, and goes away again.
        let asked = ask(&scheduler, first, 60, sampling(5));
        assert_eq!(hear(&asked, 8), answer[..8], "{name}");
        let other = ask(&scheduler, second, 1_000_000, sampling(6));
        assert_eq!(hear(&other, 12), step_by_step(single.model(), second, 12, sampling(6)), "{name}");
        other.cancel();
        assert_eq!(wait(&asked).ids, answer[8..], "{name}");

        // Left alone: what it has seen serves the next prompt, whatever that shares with it.
        let asked = ask(&scheduler, second, 1_000_000, sampling(6));
        let heard = hear(&asked, 12);
        asked.cancel();
        for more in [&heard[..], &heard[..7], &[60, 60]] {
            let prompt = [&second[..], more, &[3, 1]].concat();
            let heard = wait(&ask(&scheduler, &prompt, 10, SamplingParams::greedy()));
            assert_eq!(
                heard.ids,
                step_by_step(single.model(), &prompt, 10, SamplingParams::greedy()),
                "{name}"
            );
        }

        // An end that has not been there before.
        let end = (late..60).find(|i| !answer[..*i].contains(&answer[*i])).expect("something new");
        let (mut ending, asked) = job(first, 60, sampling(5));
        ending.end_ids = vec![0, answer[end]];
        let end = end.min(answer.iter().position(|id| *id == 0).unwrap_or(end));
        scheduler.submit(ending).expect("room for a job");
        let heard = wait(&asked);
        assert_eq!((&heard.ids[..], heard.finish), (&answer[..end], Finish::End), "{name}");
        let next = [&first[..], &answer[..=end], &[7, 8, 9]].concat();
        let heard = wait(&ask(&scheduler, &next, 10, SamplingParams::greedy()));
        assert_eq!(heard.ids, step_by_step(single.model(), &next, 10, SamplingParams::greedy()), "{name}");
        // What ended it has been seen too, unless there was something to guess: then it may be taken back to where the last step began. How much is guessed depends
        // on how long steps take.
        let seen = first.len() + end;
        let guessed = speculate && (first.len()..=seen).contains(&heard.reused);
        assert!(heard.reused == seen + 1 || guessed, "{name}: {}", heard.reused);

        // A prompt of which one token is new, and whose end is a place to return to: no step may be on its way when that is remembered, and none that is
        // asked for behind it is.
        let third: Vec<u32> = (0..23).map(|i| (i * i * 11 + 5) % 61).collect();
        let mut answer = Vec::new();
        for prompt in [&third[..22], &third] {
            let (mut remembered, asked) = job(prompt, 12, sampling(7));
            remembered.stable = prompt.len() + 4;
            scheduler.submit(remembered).expect("room for a job");
            answer = wait(&asked).ids;
            assert_eq!(answer, step_by_step(single.model(), prompt, 12, sampling(7)), "{name}");
        }
        for more in [[(answer[0] + 1) % 61, 60], [answer[0], (answer[1] + 1) % 61]] {
            let prompt = [&third[..], &more].concat();
            let heard = wait(&ask(&scheduler, &prompt, 10, SamplingParams::greedy()));
            assert_eq!(
                heard.ids,
                step_by_step(single.model(), &prompt, 10, SamplingParams::greedy()),
                "{name}"
            );
            assert!(heard.reused >= third.len(), "{name}: {}", heard.reused);
        }
        scheduler.finish();
        assert_eq!((scheduler.stats().failed, scheduler.stats().cancelled), (0, 2), "{name}");
    }
}

#[test]
fn jobs_that_cannot_be_done_are_refused() {
    let options = EngineOptions { context: Some(50), ..exact() };
    let scheduler =
        Scheduler::start(engine("qwen3_moe-bf16", &options), SchedulerOptions::default()).expect("a thread");
    for (prompt, words) in [
        (vec![], "the prompt is empty"),
        (vec![1; 51], "the context holds 50"),
        (vec![1_000_000], "vocabulary"),
    ] {
        let (job, _) = job(&prompt, 3, SamplingParams::greedy());
        let error = scheduler.submit(job).expect_err("a refusal").to_string();
        assert!(error.contains(words), "{error}");
    }
    let (hot, _) = job(&[1], 3, SamplingParams { temperature: f32::NAN, ..SamplingParams::default() });
    assert!(matches!(scheduler.submit(hot), Err(Refused::Invalid(_))));
    // A full context is an end like others.
    let heard = wait(&ask(&scheduler, &[1; 45], 1000, SamplingParams::greedy()));
    assert_eq!((heard.ids.len(), heard.finish), (6, Finish::Context));
    assert!(wait(&ask(&scheduler, &[1; 45], 0, SamplingParams::greedy())).ids.is_empty());
    scheduler.finish();
}

#[test]
fn a_restart_goes_on_where_the_last_run_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let options =
        SchedulerOptions { prefix_folder: Some(folder.path().join("states")), ..SchedulerOptions::default() };
    let prompt: Vec<u32> = (0..80).map(|i| i * 7 % 61).collect();
    for name in FIXTURES {
        let single = engine(name, &exact());
        let scheduler = Scheduler::start(engine(name, &exact()), options.clone()).expect("a thread");
        let answer = wait(&ask(&scheduler, &prompt, 6, SamplingParams::greedy()));
        scheduler.finish();
        let scheduler = Scheduler::start(engine(name, &exact()), options.clone()).expect("a thread");
        let second = [&prompt[..], &answer.ids, &[1, 2]].concat();
        let heard = wait(&ask(&scheduler, &second, 6, SamplingParams::greedy()));
        assert!(heard.reused >= prompt.len(), "{name}: {}", heard.reused);
        assert_eq!(heard.ids, step_by_step(single.model(), &second, 6, SamplingParams::greedy()), "{name}");
        scheduler.finish();
    }
}

#[test]
fn the_folder_of_states_keeps_the_latest_and_not_too_many() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = folder.path().join("of-somebody-else.safetensors");
    std::fs::write(&other, "not ours").expect("a file");
    let name = "qwen3_5_moe-4bit";
    let bytes = engine(name, &exact()).state_bytes(40);
    let options = SchedulerOptions {
        // Files hold tokens, memory whole blocks of them.
        prefix_memory: 3 * bytes,
        prefix_folder: Some(folder.path().into()),
        ..SchedulerOptions::default()
    };
    let prompt = |run: u32| (0..30).map(|i| (i * 7 + run * 13 + 1) % 61).collect::<Vec<_>>();
    for run in 0..8 {
        let scheduler = Scheduler::start(engine(name, &exact()), options.clone()).expect("a thread");
        wait(&ask(&scheduler, &prompt(run), 4, SamplingParams::greedy()));
        scheduler.finish();
    }
    let files = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert!(other.exists() && (2..=6).contains(&files), "{files} files");
    let scheduler = Scheduler::start(engine(name, &exact()), options).expect("a thread");
    let again = wait(&ask(&scheduler, &prompt(7), 4, SamplingParams::greedy()));
    scheduler.finish();
    // The very same prompt needs its last token again, which a recurrent state cannot take back.
    assert_eq!(again.ids.len(), 4);
}

/// Everything that a loop does in its steps.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<StepEvent>>>);

impl Steps {
    fn trace(&self) -> Trace {
        let events = self.0.clone();
        Trace::to(move |event| events.lock().expect("the events").push(event))
    }

    fn take(&self) -> Vec<StepEvent> {
        std::mem::take(&mut self.0.lock().expect("the events"))
    }
}

/// Runs one and `many` requests over a traced loop; every step must be planned, submitted, collected
/// and committed once, in this order, with at most `depth` steps under way.
fn trace_steps<B: Backend>(engine: Engine<B>, many: u32, depth: usize, speculate: bool) {
    let steps = Steps::default();
    let options = SchedulerOptions { speculate, trace: steps.trace(), ..SchedulerOptions::default() };
    let mut requests = Loop::new(engine, options);
    let kinds = [1, many].into_iter().flat_map(|n| [(n, SamplingParams::greedy()), (n, seeded(3))]);
    // Each again with an end token: a step that looked ahead beyond it is collected too.
    let mut end_ids = Vec::new();
    for (ends, (count, sampling)) in kinds.flat_map(|kind| [(false, kind.clone()), (true, kind)]) {
        requests.clear();
        let first = requests.stats().steps;
        let mut answers = Vec::new();
        for i in 0..count {
            let prompt: Vec<u32> = (0..40 + i).map(|j| (i * 31 + j * 7) % 61).collect();
            let (mut job, updates) = job(&prompt, 12, sampling.clone());
            job.end_ids = if ends { end_ids.clone() } else { Vec::new() };
            requests.push(job).expect("a job");
            answers.push(updates);
        }
        requests.run_until_idle();
        let stats = requests.stats();
        let (mut phases, mut under_way, mut most) = (HashMap::<u64, Vec<Phase>>::new(), 0, 0);
        for event in steps.take() {
            phases.entry(event.step).or_default().push(event.phase);
            match event.phase {
                Phase::Submit => under_way += 1,
                Phase::Collect => under_way -= 1,
                Phase::Plan | Phase::Commit => assert!(event.sequences > 0 && event.tokens > 0, "{event}"),
            }
            most = under_way.max(most);
        }
        let all = [Phase::Plan, Phase::Submit, Phase::Collect, Phase::Commit];
        for step in first + 1..=stats.steps {
            assert_eq!(phases.remove(&step).as_deref(), Some(&all[..]), "step {step}");
        }
        assert!(phases.is_empty(), "{phases:?}");
        let ids: Vec<_> = answers.iter().map(|answer| wait(answer).ids).collect();
        if ends {
            assert!(ids[0].len() < 12 && !ids[0].contains(&end_ids[0]), "{ids:?}");
        } else {
            assert!(ids.iter().all(|ids| ids.len() == 12), "{ids:?}");
            assert_eq!(most, depth, "{count} requests");
            end_ids = vec![ids[0][9]];
        }
    }
}

#[test]
fn every_step_is_planned_submitted_collected_and_committed_once() {
    for name in ["qwen3_moe-bf16", "qwen3_5_moe-mtp-bf16"] {
        for speculate in [false, true] {
            trace_steps(engine(name, &exact()), 64, 1, speculate);
        }
    }
    let Some(gpu) = devices::chained() else { return };
    let checkpoint = Fixture::open(&fixtures_folder().join("qwen3_moe-bf16")).checkpoint;
    let many = if devices::thorough(&gpu) { 64 } else { 5 };
    let model = Model::load(&checkpoint, gpu).expect("a model");
    trace_steps(Engine::new(model, &exact()).expect("an engine"), many, 2, false);
}

/// Places to return to are memory too: those that a prompt leaves, and those before draft tokens.
#[test]
fn recurrent_states_count_as_memory() {
    let name = "qwen3_5_moe-4bit";
    let single = engine(name, &exact());
    // Prompts of 20 tokens with the margin that each is granted, and a place to return to.
    let both = 2 * (single.state_bytes(276) + single.recurrent_bytes());
    for (memory, expected) in [(both, 2), (both - 1, 1)] {
        let steps = Steps::default();
        let options = SchedulerOptions { trace: steps.trace(), ..SchedulerOptions::default() };
        let engine_options = EngineOptions { cache_memory: Some(memory), context: Some(400), ..exact() };
        let mut requests = Loop::new(engine(name, &engine_options), options);
        let mut answers = Vec::new();
        for first in [1, 2] {
            let prompt: Vec<u32> = (0..20).map(|i| (first + i * 3) % 60).collect();
            let (job, updates) = job(&prompt, 60, SamplingParams::greedy());
            requests.push(job).expect("a job");
            answers.push(updates);
        }
        let mut most_bytes = 0;
        while !requests.is_idle() {
            requests.step();
            most_bytes = most_bytes.max(requests.stats().cache_bytes);
        }
        assert!(most_bytes <= memory, "{most_bytes} of {memory} bytes");
        let most = steps.take().iter().map(|event| event.sequences).max();
        assert_eq!(most, Some(expected), "{memory} bytes");
        assert_eq!(requests.stats().preempted, 0);
        answers.iter().for_each(|answer| assert_eq!(wait(answer).ids.len(), 60));
        // Nothing is lost when nobody holds anything.
        requests.clear();
        assert_eq!(requests.stats().cache_bytes, 0);
    }
}

/// What prompts have in common lies in memory once, while they run and when they are kept.
#[test]
fn a_prefix_shared_by_many_is_stored_once() {
    for name in FIXTURES {
        let single = engine(name, &exact());
        let system: Vec<u32> = (0..256).map(|i| i * 7 % 61).collect();
        let mut requests = Loop::new(engine(name, &exact()), SchedulerOptions::default());
        let begin = |requests: &mut Loop<Cpu>, prompt: &[u32]| {
            let (answer, updates) = job(prompt, 20, SamplingParams::greedy());
            requests.push(Job { stable: system.len(), ..answer }).expect("a job");
            updates
        };
        let first = begin(&mut requests, &[&system[..], &[1, 2]].concat());
        while requests.stats().tokens == 0 {
            requests.step();
        }
        let alone = requests.stats().cache_bytes;
        let prompts: Vec<Vec<u32>> = (0..31).map(|i| [&system[..], &[i, 3]].concat()).collect();
        let answers: Vec<_> = prompts.iter().map(|prompt| begin(&mut requests, prompt)).collect();
        requests.step();
        requests.step();
        let (all, each) = (requests.stats().cache_bytes, single.state_bytes(258));
        println!("{name}: 32 sequences of {each} bytes take {all} together, one of them {alone}");
        // A block of its own, and a state with two places to return to.
        let own = single.state_bytes(64) + 2 * single.recurrent_bytes();
        assert!(all <= alone + 31 * own, "{name}: {all} bytes");
        requests.run_until_idle();
        assert!(requests.stats().reused_tokens >= 31 * 256, "{name}");
        wait(&first);
        for (prompt, answer) in prompts.iter().zip(answers) {
            let expected = step_by_step(single.model(), prompt, 20, SamplingParams::greedy());
            assert_eq!(wait(&answer).ids, expected, "{name}");
        }
    }
}

#[test]
fn a_loop_of_one_keeps_one_sequence_and_returns_in_it() {
    let name = "qwen3_moe-bf16";
    let single = engine(name, &exact());
    let options =
        SchedulerOptions { slots: 1, prefixes: 1, prefix_memory: u64::MAX, ..SchedulerOptions::default() };
    // Memory for one sequence: what is kept is what the next prompt goes on with.
    let memory = single.state_bytes(800);
    let engine_options = EngineOptions { cache_memory: Some(memory), context: Some(800), ..exact() };
    let mut requests = Loop::new(engine(name, &engine_options), options);
    let long: Vec<u32> = (0..700).map(|i| i * 13 % 59).collect();
    assert_eq!(run(&mut requests, job(&long, 4, SamplingParams::greedy())).reused, 0);
    for shared in [690, 100] {
        let prompt = [&long[..shared], &[60, 60]].concat();
        let heard = run(&mut requests, job(&prompt, 4, SamplingParams::greedy()));
        assert_eq!(heard.reused, shared);
        let expected = step_by_step(single.model(), &prompt, 4, SamplingParams::greedy());
        assert_eq!(heard.ids, expected);
        assert!(requests.stats().prefix_bytes <= memory);
    }
}

/// `cargo test --release -p pleiad-conformance --test all throughput -- --ignored --nocapture`: tokens per second of the
/// model in the box for more and more answers at once.
#[test]
#[ignore = "a measurement"]
fn throughput() {
    let open = || {
        let folder = fixtures_folder().join("../box/model");
        let checkpoint = checkpoint::Checkpoint::open(&folder).expect("the model in the box");
        let cpu = Cpu::new(Options::default()).expect("a CPU");
        Engine::new(Model::load(&checkpoint, cpu).expect("a model"), &EngineOptions::default())
            .expect("an engine")
    };
    for clients in [1, 2, 4, 8, 16, 32, 64] {
        let scheduler =
            Scheduler::start(open(), SchedulerOptions { speculate: false, ..SchedulerOptions::default() });
        let scheduler = scheduler.expect("a thread");
        let prompts: Vec<Vec<u32>> =
            (0..clients).map(|i| (0..32).map(|j| (i * 97 + j * 31) % 4000).collect()).collect();
        let begun = std::time::Instant::now();
        let answers: Vec<_> = prompts.iter().map(|p| ask(&scheduler, p, 200, seeded(1))).collect();
        let tokens: usize = answers.iter().map(|answer| wait(answer).ids.len()).sum();
        println!("{clients} at once: {:.0} tokens/s", tokens as f64 / begun.elapsed().as_secs_f64());
        scheduler.finish();
    }
}
