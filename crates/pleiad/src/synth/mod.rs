//! `pleiad synth`: a checkpoint with random weights and the shape of a real model, as mlx-lm would
//! have written it.
//!
//! Speed and memory depend on shapes, not on what the weights say; the text such a model writes is
//! noise. Families know the shapes and the list of weights; `presets` finds a shape and makes it
//! shorter, `plan` says what becomes of its weights when they are quantised, `random` what is in
//! them, `write` streams them to disk.

mod error;
mod plan;
mod presets;
mod random;
#[cfg(test)]
mod tests;
mod write;

use std::{
    io::{Write, stdout},
    path::PathBuf,
    time::Instant,
};

use engine::bytes;

pub use error::Error;
pub use presets::names;

use crate::progress::Progress;
use crate::terminal;
use error::Result;
use plan::Plan;

/// Arguments of `pleiad synth`.
#[derive(Clone, Debug, clap::Args)]
pub struct SynthArgs {
    /// The shape to make
    #[arg(value_name = "PRESET", long_help = preset_help())]
    pub preset: String,

    /// The folder to write; must not exist
    #[arg(value_name = "DST")]
    pub dst: PathBuf,

    /// Make only so many layers of it
    #[arg(long, value_name = "N")]
    pub layers: Option<usize>,

    /// Another seed makes other weights
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub seed: u64,

    /// Bits of a weight: 1, 2, 3, 4, 5, 6 or 8
    #[arg(long, default_value_t = 4)]
    pub bits: u32,

    /// Weights that share a scale: 32, 64 or 128
    #[arg(long, default_value_t = 64)]
    pub group: usize,

    /// With a head that guesses tokens; Gemma has none
    #[arg(long)]
    pub drafter: bool,
}

fn preset_help() -> String {
    format!("The shape to make: {}", presets::names().join(", "))
}

/// Makes the checkpoint, with progress on the standard error stream, and returns its size.
pub fn make(args: &SynthArgs) -> Result<u64> {
    let preset = presets::find(&args.preset)?;
    let mut config = presets::config(preset);
    let all = presets::layers(&mut config);
    presets::shorten(preset.name, &mut config, args.layers)?;
    let layers = presets::layers(&mut config);
    let quant = presets::quantization(args.bits, args.group)?;
    let plan = Plan::new(&mut config, quant, args.drafter)?;
    let total = plan.total_bytes();

    eprintln!("{}, {layers} of {all} layers: {} of random weights", preset.name, bytes(total));
    terminal::catch_interrupts();
    let mut progress = Progress::new(total);
    write::write(&args.dst, &config, plan, preset.files, args.seed, |done| progress.add(done))?;
    Ok(total)
}

/// Makes the checkpoint: progress on the standard error stream, what was made on the standard
/// output.
pub fn run(args: &SynthArgs) -> Result<()> {
    let start = Instant::now();
    let total = make(args)?;
    let note = match presets::find(&args.preset)?.files.is_empty() {
        true => "Its weights are random and it has no tokenizer: for measuring, not for talking to.",
        false => "Its weights are random: it runs like a model, but what it says means nothing.",
    };
    let seconds = start.elapsed().as_secs_f64();
    // Nobody reading is no reason to fail: the checkpoint is there.
    let _ = writeln!(stdout(), "{note}\nWrote {} in {seconds:.1} s: {}", bytes(total), args.dst.display());
    Ok(())
}
