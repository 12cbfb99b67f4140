//! How fast the scheduler writes one answer and many, and what a form costs, without a network: `pace FOLDER [gpu] [ANSWERS] [ROUNDS]`.
//!
//! `cargo run --release -p pleiad-conformance --example pace -- box/model`
//!
//! Answers have 200 tokens. Kinds take turns, so that a machine that is busy elsewhere for a while is so for all of them.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use backend::Backend;
use checkpoint::Checkpoint;
use cpu::Cpu;
use engine::{
    Constraint, Engine, EngineOptions, Grammar, Grammars, Job, SamplingParams, Scheduler, SchedulerOptions,
    TemplateInput, Tokenizer, Update, Updates,
};
use gpu::Gpu;
use models::Model;
use serde_json::json;

const TOKENS: usize = 200;

struct Pace {
    scheduler: Scheduler,
    prompt: Vec<u32>,
    sampling: SamplingParams,
}

impl Pace {
    fn start(&self, seed: u64, constraint: Option<Constraint>) -> Result<Updates, Box<dyn Error>> {
        let (listener, updates) = Updates::new();
        self.scheduler.submit(Job {
            max_tokens: Some(TOKENS),
            sampling: SamplingParams { seed: Some(seed), ..self.sampling.clone() },
            constraint,
            ..Job::new(self.prompt.clone(), listener)
        })?;
        Ok(updates)
    }

    /// Tokens of an answer, and the time from its first to its last.
    fn wait(updates: &Updates) -> Result<(usize, Duration), Box<dyn Error>> {
        let mut tokens = 0;
        loop {
            match updates.wait().ok_or("the answer has no end")? {
                Update::Token(_) => tokens += 1,
                Update::Finished(_, timing) => return Ok((tokens, timing.decode)),
                Update::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
    }

    /// Microseconds per token of one answer alone.
    fn alone(&self, seed: u64, constraint: Option<Constraint>) -> Result<f64, Box<dyn Error>> {
        let (tokens, time) = Self::wait(&self.start(seed, constraint)?)?;
        Ok(time.as_secs_f64() * 1e6 / (tokens - 1) as f64)
    }

    /// Microseconds per token of so many at once, prompts included.
    fn together(&self, answers: usize) -> Result<f64, Box<dyn Error>> {
        let started = Instant::now();
        let all: Vec<_> = (0..answers as u64).map(|seed| self.start(seed, None)).collect::<Result<_, _>>()?;
        let mut tokens = 0;
        for updates in &all {
            tokens += Self::wait(updates)?.0;
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / tokens as f64)
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1).peekable();
    let folder = words.next().ok_or("pace FOLDER [gpu] [ANSWERS] [ROUNDS]")?;
    let on_gpu = words.next_if(|word| word == "gpu").is_some();
    let mut number = |default| words.next().map_or(Ok(default), |word| word.parse());
    let counts = (number(64)?, number(40)?);
    match on_gpu {
        true => measure(Path::new(&folder), counts, Gpu::new(&gpu::Options::default())?),
        false => measure(Path::new(&folder), counts, Cpu::new(cpu::Options::default())?),
    }
}

fn measure<B: Backend + Send>(
    folder: &Path,
    (answers, rounds): (usize, usize),
    backend: B,
) -> Result<(), Box<dyn Error>> {
    let tokenizer = Tokenizer::open(folder)?;
    let model = Model::load(&Checkpoint::open(folder)?, backend)?;
    let grammars = Grammars::new(&tokenizer, model.summary().vocabulary);
    let engine = Engine::new(model, &EngineOptions::default())?;
    // Guesses would help text that repeats itself, which is a matter of the text.
    let options = SchedulerOptions { speculate: false, prefix_memory: 0, ..SchedulerOptions::default() };
    let message = json!({"role": "user", "content": "Tell me a story about a fox in a forest."});
    let text = tokenizer.render(TemplateInput {
        messages: vec![message],
        add_generation_prompt: true,
        ..Default::default()
    })?;
    let mut sampling = SamplingParams::default();
    tokenizer.generation_defaults().apply(&mut sampling);
    let prompt = tokenizer.encode(&text, false)?;
    let pace = Pace { scheduler: Scheduler::start(engine, options)?, prompt, sampling };

    let animal = json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "kind"], "properties": {
        "name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["bird", "fish", "cat"]}}});
    let kinds = [
        ("free", None),
        ("free again", None),
        (
            "a list of objects",
            Some(Grammar::JsonSchema(json!({"type": "array", "minItems": 50, "items": animal}))),
        ),
        ("any JSON object", Some(Grammar::JsonObject)),
        ("a text of letters", Some(Grammar::Regex("[A-Za-z ,.]{2000}".into()))),
    ];
    let mut many = Vec::new();
    let mut times = vec![Vec::new(); kinds.len()];
    for round in 0..rounds {
        if round % 3 == 0 {
            many.push(pace.together(answers)?);
            // What follows them finds other things in the caches.
            pace.alone(0, None)?;
        }
        for i in 0..kinds.len() {
            let kind = (i + round) % kinds.len();
            let constraint = kinds[kind].1.as_ref().map(|form| grammars.constraint(form)).transpose()?;
            times[kind].push(pace.alone(round as u64, constraint)?);
        }
    }
    let times: Vec<f64> = times.into_iter().map(median).collect();
    let (plain, many) = (times[0], median(many));
    println!("one answer: {plain:.1} us per token, {:.0} tokens/s", 1e6 / plain);
    println!(
        "{answers} answers: {many:.1} us per token, {:.0} tokens/s, {:.2} times",
        1e6 / many,
        plain / many
    );
    for ((name, _), time) in kinds.iter().zip(times).skip(1) {
        println!(
            "{name}: {time:.1} us per token, {:+.1} us, {:+.1}%",
            time - plain,
            100.0 * (time / plain - 1.0)
        );
    }
    // The device is not to be left while another thread still holds it.
    pace.scheduler.finish();
    Ok(())
}
