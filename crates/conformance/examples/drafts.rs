//! What guesses of a drafting head cost, and how many of them must be right to be worth it.
//!
//!     pleiad synth qwen3.6-35b-a3b FOLDER --layers 4 --drafter
//!     cargo run --release -p pleiad-conformance --example drafts -- FOLDER [gpu]
//!
//! Weights may be random: a step takes as long whatever it says, but for experts, which random routers spread more evenly.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use backend::{Backend, CacheFloat};
use checkpoint::Checkpoint;
use cpu::Cpu;
use gpu::Gpu;
use models::{Logits, Model, Request, State};

const PROMPT: usize = 200;
const ROUNDS: u32 = 40;

/// A sequence and what a head has seen of it.
struct Place<B: Backend> {
    model: Model<B>,
    state: State<B>,
    draft: State<B>,
    next: u32,
}

impl<B: Backend> Place<B> {
    fn token(&mut self) -> u32 {
        self.next = (self.next * 7919 + 104_729) % self.model.summary().vocabulary as u32;
        self.next
    }

    /// A step as the scheduler runs it: with `guesses` to check, as many for the next one; all are taken to be wrong, so that time is
    /// what it is with a sequence that grows by one token.
    fn step(&mut self, guesses: usize, follow: bool) -> Result<(), Box<dyn Error>> {
        let tokens: Vec<u32> = (0..=guesses).map(|_| self.token()).collect();
        let Self { model, state, draft, .. } = self;
        let (b, len) = (model.backend(), state.len());
        let before = (guesses > 0 && state.is_recurrent()).then(|| state.snapshot(b)).transpose()?;
        let request = Request { tokens: &tokens, state, logits: Logits::All };
        if !follow {
            b.read_top(&model.step(&mut [request])?.ok_or("no logits")?, 1, &[])?;
            return Ok(());
        }
        let stepped = model.step_with_hidden(&mut [request])?;
        b.read_top(&stepped.logits.ok_or("no logits")?, 1, &[])?;
        match before {
            // What this loses is computed again in the next step, beside its own tokens.
            Some(snapshot) => state.restore(b, &snapshot)?,
            None => state.truncate(b, len + 1)?,
        };
        let mut hidden = b.select_rows(&stepped.hidden.ok_or("no head")?, &[0])?;
        let seen = draft.len() + 1;
        if guesses == 0 {
            model.draft(&hidden, &mut [Request { tokens: &tokens, state: draft, logits: Logits::None }])?;
        }
        for token in &tokens[..guesses] {
            let mut request = [Request { tokens: &[*token], state: draft, logits: Logits::Last }];
            let drafted = model.draft(&hidden, &mut request)?.ok_or("no head")?;
            b.read_top(&drafted.logits, 1, &[])?;
            hidden = drafted.hidden;
        }
        draft.truncate(b, seen)?;
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or("give the folder of a model with a drafting head")?;
    let checkpoint = Checkpoint::open(Path::new(&folder))?;
    match args.next().as_deref() {
        Some("gpu") => measure(&checkpoint, Gpu::new(&gpu::Options::default())?),
        _ => measure(&checkpoint, Cpu::new(cpu::Options::default())?),
    }
}

fn measure<B: Backend>(checkpoint: &Checkpoint, backend: B) -> Result<(), Box<dyn Error>> {
    let model = Model::load_drafting(checkpoint, backend)?;
    let state = model.state(CacheFloat::F16)?;
    let draft = model.draft_state(CacheFloat::F16)?.ok_or("this model has no drafting head")?;
    let mut place = Place { model, state, draft, next: 1 };
    let prompt: Vec<u32> = (0..PROMPT).map(|_| place.token()).collect();
    place.model.step(&mut [Request { tokens: &prompt, state: &mut place.state, logits: Logits::None }])?;
    let kinds = [(0, false), (0, true), (1, true), (2, true), (3, true)];
    let mut times = [Duration::ZERO; 5];
    // In turns, so that what else the machine does falls on all alike; the first round warms up.
    for round in 0..=ROUNDS {
        for ((guesses, follow), time) in kinds.into_iter().zip(&mut times) {
            let begun = Instant::now();
            place.step(guesses, follow)?;
            *time += if round == 0 { Duration::ZERO } else { begun.elapsed() };
        }
    }
    let plain = times[0].as_secs_f64();
    let ms = 1e3 * plain / f64::from(ROUNDS);
    println!("{}: {ms:.2} ms a step without a head", place.model.backend().description());
    for ((guesses, _), time) in kinds.into_iter().zip(times).skip(1) {
        let ratio = time.as_secs_f64() / plain;
        let tokens = |rate: f64| (0..=guesses as i32).map(|i| rate.powi(i)).sum::<f64>();
        let pays = (0..=100).find(|percent| tokens(f64::from(*percent) / 100.0) >= ratio);
        let pays = pays.map_or("never".into(), |percent| format!("when {percent}% are right"));
        println!("{guesses} guesses: {ratio:.2} times as long; pays {pays}");
    }
    Ok(())
}
