//! Jobs and their answers, and what a model answers without any loop.

#![allow(dead_code)] // Each test file uses a part of it.

use std::time::Duration;

use backend::{Backend, CacheFloat, Tokens, choose};
use conformance::models::Sequences;
use engine::{Finish, Job, Loop, Sampler, SamplingParams, Update, Updates};
use models::{Logits, Model, Request};

/// A whole answer.
#[derive(Debug, PartialEq)]
pub struct Heard {
    pub ids: Vec<u32>,
    pub reused: usize,
    pub finish: Finish,
}

pub fn job(prompt: &[u32], max_tokens: usize, sampling: SamplingParams) -> (Job, Updates) {
    let (listener, updates) = Updates::new();
    let stable = prompt.len().saturating_sub(3);
    let prompt = prompt.to_vec();
    let job = Job { stable, max_tokens: Some(max_tokens), sampling, ..Job::new(prompt, listener) };
    (job, updates)
}

fn hear_all(mut next: impl FnMut() -> Option<Update>) -> Heard {
    let mut heard = Heard { ids: Vec::new(), reused: 0, finish: Finish::Stopped };
    loop {
        match next().expect("an update") {
            Update::Started { reused } => heard.reused = reused,
            Update::Token(token) => heard.ids.push(token.id),
            Update::Finished(finish, _) => return Heard { finish, ..heard },
            Update::Failed(error) => panic!("{error}"),
            Update::Prompt { .. } | Update::PromptLogits(_) => {}
        }
    }
}

/// The rest of an answer that another thread generates.
pub fn wait(updates: &Updates) -> Heard {
    hear_all(|| updates.wait_for(Duration::from_secs(60)))
}

/// The answer of a loop that has nothing else to do.
pub fn run<B: Backend>(steps: &mut Loop<B>, (job, updates): (Job, Updates)) -> Heard {
    steps.push(job).expect("a job that can be done");
    steps.run_until_idle();
    hear_all(|| updates.next_ready())
}

/// Steps until a condition holds.
pub fn step_until<B: Backend>(steps: &mut Loop<B>, mut done: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if done() {
            return;
        }
        steps.step();
    }
    panic!("too many steps");
}

/// The answer of a model one token after the other, each chosen from all logits.
pub fn step_by_step<B: Backend>(
    model: &Model<B>,
    prompt: &[u32],
    count: usize,
    sampling: SamplingParams,
) -> Vec<u32> {
    let mut sampler = Sampler::new(sampling, prompt.len()).expect("settings");
    let mut sequences = Sequences::new(model, CacheFloat::F32).expect("a pool");
    let slot = sequences.create().expect("a sequence");
    let (mut tokens, mut seen) = (prompt.to_vec(), 0);
    for _ in 0..count {
        let mut last = None;
        for part in tokens[seen..].chunks(32) {
            let request = Request { slot, tokens: Tokens::Ids(part), logits: Logits::Last };
            last = sequences.step(&[request]).expect("a step");
        }
        let logits = model.backend().read(&last.expect("a token")).expect("logits");
        seen = tokens.len();
        let draw = sampler.next(&tokens);
        tokens.push(choose(&logits, &sampler.choice(&draw, None, None, None)).token);
    }
    tokens.split_off(prompt.len())
}
