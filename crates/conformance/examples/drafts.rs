//! What drafts of a drafting head cost, and how many of them must be right to be worth it.
//!
//!     pleiad synth qwen3.6-35b-a3b FOLDER --layers 4 --drafter
//!     cargo run --release -p pleiad-conformance --example drafts -- FOLDER [gpu]
//!
//! Weights may be random: a step takes as long whatever it says, but for experts, which random routers spread more evenly.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use backend::pool::{Pool, Slot};
use backend::{Backend, CacheFloat, Tokens};
use checkpoint::Checkpoint;
use conformance::models::{BUDGET, Sequences, likeliest, reserve};
use cpu::Cpu;
use gpu::Gpu;
use models::{Logits, Model, Request};

const PROMPT: usize = 200;
const ROUNDS: u32 = 40;

/// A sequence and what a head has seen of it.
struct Place<'a, B: Backend> {
    sequences: Sequences<'a, B>,
    slot: Slot,
    drafts: Pool<B>,
    draft: Slot,
    next: u32,
}

impl<B: Backend> Place<'_, B> {
    fn token(&mut self) -> u32 {
        self.next = (self.next * 7919 + 104_729) % self.sequences.model.summary().vocabulary as u32;
        self.next
    }

    /// A step as the loop runs it: with `drafts` to check, as many for the next one; all are taken to be wrong, so that
    /// time is what it is with a sequence that grows by one token.
    fn step(&mut self, drafts: usize, follow: bool) -> Result<(), Box<dyn Error>> {
        let tokens: Vec<u32> = (0..=drafts).map(|_| self.token()).collect();
        let Self { sequences, slot, drafts: pool, draft, .. } = self;
        let (model, b) = (sequences.model, sequences.model.backend());
        let len = sequences.pool.len(*slot);
        let recurrent = drafts > 0 && sequences.pool.layers().is_recurrent();
        let before = if recurrent { sequences.pool.fork(b, *slot, len)? } else { None };
        let request = [Request { slot: *slot, tokens: Tokens::Ids(&tokens), logits: Logits::All }];
        if !follow {
            let logits = sequences.step(&request)?.ok_or("no logits")?;
            likeliest(b, &logits, &mut sequences.pool)?;
            return Ok(());
        }
        reserve(b, &mut sequences.pool, &request)?;
        let stepped = model.step_with_hidden(&mut sequences.pool, &request)?;
        likeliest(b, &stepped.logits.ok_or("no logits")?, &mut sequences.pool)?;
        match before {
            // What this loses is computed again in the next step, beside its own tokens.
            Some(before) => sequences.pool.release(std::mem::replace(slot, before)),
            None => _ = sequences.pool.truncate(*slot, len + 1),
        }
        let mut hidden = b.select_rows(&stepped.hidden.ok_or("no head")?, &[0])?;
        let seen = pool.len(*draft) + 1;
        let mut follow = |hidden: &B::Tensor, tokens: &[u32], logits| {
            let request = [Request { slot: *draft, tokens: Tokens::Ids(tokens), logits }];
            reserve(b, pool, &request)?;
            model.draft(pool, hidden, &request)
        };
        if drafts == 0 {
            follow(&hidden, &tokens, Logits::None)?;
        }
        for token in &tokens[..drafts] {
            let drafted = follow(&hidden, &[*token], Logits::Last)?.ok_or("no head")?;
            likeliest(b, &drafted.logits, &mut sequences.pool)?;
            hidden = drafted.hidden;
        }
        pool.truncate(*draft, seen);
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
    let mut drafts = model.draft_pool(CacheFloat::F16, BUDGET)?.ok_or("this model has no drafting head")?;
    let draft = drafts.create(model.backend())?.ok_or("no room")?;
    let mut sequences = Sequences::new(&model, CacheFloat::F16)?;
    let slot = sequences.create()?;
    let mut place = Place { sequences, slot, drafts, draft, next: 1 };
    let prompt: Vec<u32> = (0..PROMPT).map(|_| place.token()).collect();
    place.sequences.step(&[Request { slot, tokens: Tokens::Ids(&prompt), logits: Logits::None }])?;
    let kinds = [(0, false), (0, true), (1, true), (2, true), (3, true)];
    let mut times = [Duration::ZERO; 5];
    // In turns, so that what else the machine does falls on all alike; the first round warms up.
    for round in 0..=ROUNDS {
        for ((drafts, follow), time) in kinds.into_iter().zip(&mut times) {
            let begun = Instant::now();
            place.step(drafts, follow)?;
            *time += if round == 0 { Duration::ZERO } else { begun.elapsed() };
        }
    }
    let plain = times[0].as_secs_f64();
    let ms = 1e3 * plain / f64::from(ROUNDS);
    println!("{}: {ms:.2} ms a step without a head", model.backend().description());
    for ((drafts, _), time) in kinds.into_iter().zip(times).skip(1) {
        let ratio = time.as_secs_f64() / plain;
        let tokens = |rate: f64| (0..=drafts as i32).map(|i| rate.powi(i)).sum::<f64>();
        let pays = (0..=100).find(|percent| tokens(f64::from(*percent) / 100.0) >= ratio);
        let pays = pays.map_or("never".into(), |percent| format!("when {percent}% are right"));
        println!("{drafts} drafts: {ratio:.2} times as long; pays {pays}");
    }
    Ok(())
}
