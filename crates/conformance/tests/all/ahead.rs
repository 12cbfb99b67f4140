//! Look-ahead on a GPU: answers are those of one step after the other, whatever becomes of the steps under way. A machine
//! without any adapter skips these tests, and says so.

use crate::common::{job, run, step_by_step, step_until};
use backend::{CacheFloat, Run};
use conformance::models::{Fixture, fixtures_folder};
use engine::{Engine, EngineOptions, Finish, Job, Loop, SamplingParams, SchedulerOptions, Update};
use gpu::Gpu;
use models::Model;

use crate::devices::exact;

/// One of each kind: attention alone, a sliding window, a latent cache, recurrent layers.
const FIXTURES: [&str; 4] = ["qwen3_moe-bf16", "gemma4-moe-4bit", "deepseek_v3-4bit", "qwen3_5_moe-4bit"];

fn engine(gpu: &Gpu, name: &str, context: Option<usize>) -> Engine<Gpu> {
    let model = Model::load(&Fixture::open(&fixtures_folder().join(name)).checkpoint, gpu.clone()).unwrap();
    assert!(model.embeds_all() && gpu.depth() == 2, "{name}");
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

fn steps(gpu: &Gpu, name: &str, context: Option<usize>) -> Loop<Gpu> {
    let options = SchedulerOptions { prefixes: 1, speculate: false, ..SchedulerOptions::default() };
    Loop::new(engine(gpu, name, context), options)
}

#[test]
fn answers_are_those_of_one_step_after_the_other() {
    let Some(gpu) = exact() else { return };
    for name in FIXTURES {
        let mut steps = steps(&gpu, name, None);
        for (len, sampling) in [(1, greedy()), (20, seeded()), (240, greedy()), (250, seeded())] {
            steps.clear();
            let prompt = prompt(len);
            let found = run(&mut steps, job(&prompt, 20, sampling.clone()));
            let expected = step_by_step(steps.engine().model(), &prompt, 20, sampling);
            assert_eq!((&found.ids, found.finish), (&expected, Finish::Length), "{name}, {len} tokens");
            // All but the last token have been seen.
            let next = [&prompt[..], &expected].concat();
            let found = run(&mut steps, job(&next, 1, greedy()));
            assert_eq!(found.reused, next.len() - 1, "{name}, {len} tokens");
        }
    }
}

/// Ways for an answer to end early: the token that ended it has been seen then, and later prompts do not suffer from that.
#[test]
fn a_sequence_goes_on_after_every_end() {
    let Some(gpu) = exact() else { return };
    for name in FIXTURES {
        let prompt = prompt(50);
        let mut whole = steps(&gpu, name, Some(100));
        let mut short = steps(&gpu, name, Some(60));
        let model = engine(&gpu, name, Some(100));
        let answer = step_by_step(model.model(), &prompt, 11, seeded());
        // An end that has not been there before.
        let Some(end) = (4..9).rev().find(|i| !answer[..*i].contains(&answer[*i])) else {
            panic!("{name} repeats itself: {answer:?}")
        };
        let ends = [
            (false, 100, vec![answer[end]], None, Finish::End, end),
            (false, 100, vec![], Some(5), Finish::Stopped, 5),
            (false, 7, vec![], None, Finish::Length, 7),
            (false, 1, vec![], None, Finish::Length, 1),
            (false, 0, vec![], None, Finish::Length, 0),
            (true, 100, vec![], None, Finish::Context, 11),
        ];
        for (i, (is_short, max_tokens, end_ids, stop_after, finish, count)) in ends.into_iter().enumerate() {
            let steps = if is_short { &mut short } else { &mut whole };
            // Two of what may come next: straight on, all but the last, less than the first prompt, or that again.
            for next in [i % 4, (i + 1) % 4] {
                steps.clear();
                let (job_, updates) = job(&prompt, max_tokens, seeded());
                steps.push(Job { stable: 40, end_ids: end_ids.clone(), ..job_ }).unwrap();
                let (mut ids, mut ended) = (Vec::new(), None);
                step_until(steps, || {
                    while let Some(update) = updates.next_ready() {
                        match update {
                            Update::Token(token) => ids.push(token.id),
                            Update::Finished(finish, _) => ended = Some(finish),
                            Update::Failed(error) => panic!("{error}"),
                            _ => {}
                        }
                    }
                    if Some(ids.len()) == stop_after {
                        updates.cancel();
                    }
                    ended.is_some()
                });
                let what = format!("{name}, {finish:?} after {count}, then {next}");
                assert_eq!((&ids[..], ended), (&answer[..count], Some(finish)), "{what}");
                let known = if end_ids.is_empty() { count } else { count + 1 };
                let mut second = [&prompt[..], &answer[..known]].concat();
                match next {
                    0 => second.extend([1, 2]),
                    1 => second.truncate(prompt.len() + count.saturating_sub(1)),
                    2 => second.truncate(45),
                    _ => second.truncate(prompt.len()),
                }
                second.truncate(steps.engine().context() - 4);
                let expected = step_by_step(model.model(), &second, 4, greedy());
                let found = run(steps, job(&second, 4, greedy()));
                assert_eq!(found.ids, expected, "{what}");
                let seen = (prompt.len() + count).saturating_sub(1);
                assert!(next != 0 || is_short || found.reused >= seen, "{what}: {}", found.reused);
            }
        }
    }
}
