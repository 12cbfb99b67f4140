//! What a token costs more behind a long context than behind a short one.
//!
//!     pleiad synth qwen3.6-35b-a3b FOLDER --layers 4
//!     cargo run --release -p pleiad-conformance --example contexts -- FOLDER 1 16,2048,16384
//!
//! The second number is that of the threads. Sequences of all lengths take turns, token by token, and each token is compared with that of the
//! first sequence in the same turn: a machine that drifts, drifts for all.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use backend::pool::Slot;
use backend::{CacheFloat, Tokens};
use checkpoint::Checkpoint;
use conformance::models::{Sequences, likeliest};
use cpu::{Cpu, Options};
use models::{Logits, Model, Request};

const TURNS: u32 = 80;
const CHUNK: usize = 2048;

/// Runs some tokens, of which nobody wants to know the logits, or the largest of the last one's.
fn step(
    sequences: &mut Sequences<'_, Cpu>,
    slot: Slot,
    tokens: &[u32],
    logits: Logits,
) -> Result<(), Box<dyn Error>> {
    if let Some(rows) = sequences.step(&[Request { slot, tokens: Tokens::Ids(tokens), logits }])? {
        likeliest(sequences.model.backend(), &rows, &mut sequences.pool)?;
    }
    Ok(())
}

/// The value below which so many percent of the sorted ones lie.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, threads, contexts] = &args[..] else {
        return Err("contexts FOLDER THREADS CONTEXT,CONTEXT,...".into());
    };
    let cpu = Cpu::new(Options { threads: Some(threads.parse()?), ..Options::default() })?;
    let model = Model::load(&Checkpoint::open(Path::new(folder))?, cpu)?;
    let vocabulary = model.summary().vocabulary as u32;
    let contexts = contexts.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let mut sequences = Sequences::new(&model, CacheFloat::F16)?;
    let mut slots = Vec::new();
    for context in &contexts {
        let slot = sequences.create()?;
        let tokens: Vec<u32> = (0..*context).map(|i| i * 7919 % vocabulary).collect();
        tokens.chunks(CHUNK).try_for_each(|chunk| step(&mut sequences, slot, chunk, Logits::None))?;
        slots.push(slot);
    }
    let mut times = vec![Vec::new(); contexts.len()];
    for turn in 0..TURNS {
        for (slot, times) in slots.iter().zip(&mut times) {
            let started = Instant::now();
            step(&mut sequences, *slot, &[turn * 104_729 % vocabulary], Logits::Last)?;
            times.push(1e3 * started.elapsed().as_secs_f64());
        }
    }
    println!("context   ms/token   more than the first: median   25%   75%");
    for (context, own) in contexts.iter().zip(&times) {
        let mut more: Vec<f64> = own.iter().zip(&times[0]).map(|(own, first)| own - first).collect();
        let mut own = own.clone();
        [&mut own, &mut more].into_iter().for_each(|values| values.sort_by(f64::total_cmp));
        let [quarter, median, three] = [25, 50, 75].map(|percent| percentile(&more, percent));
        println!("{context:7} {:10.2} {median:29.2} {quarter:5.2} {three:5.2}", percentile(&own, 50));
    }
    Ok(())
}
