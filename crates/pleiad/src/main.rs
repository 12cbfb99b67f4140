//! The `pleiad` command.

mod bench;
mod commands;
mod error;
mod form;
mod generate;
mod gpus;
mod hub;
mod machine;
mod model_box;
mod options;
mod plan;
mod progress;
mod quantize;
mod sampling;
mod source;
mod streamed;
mod synth;
mod talk;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs mixture-of-experts language models in MLX format on the machine at hand.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answer a prompt, or chat when none is given
    Run(commands::run::RunArgs),
    /// Serve a model to programs and in a browser
    Serve(commands::serve::ServeArgs),
    /// Say what a model is and what it takes to run it here
    Inspect(commands::inspect::InspectArgs),
    /// Write the logits of some token ids to a file, for checking a conversion
    Logits(commands::logits::LogitsArgs),
    /// Fetch a model from the Hugging Face hub
    Pull(commands::pull::PullArgs),
    /// Quantise a plain checkpoint, as mlx-lm would
    Quantize(commands::quantize::QuantizeArgs),
    /// Measure how well a model predicts a text, or how far it is from another
    Eval(commands::eval::EvalArgs),
    /// Measure how fast a model runs here, and how fast it could
    Bench(commands::bench::BenchArgs),
    /// Write a checkpoint of a real shape with random weights, for measuring
    Synth(synth::SynthArgs),
}

fn main() -> ExitCode {
    gpus::keep_drivers_quiet();
    let result = match Cli::parse().command {
        Command::Run(args) => commands::run::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Logits(args) => commands::logits::run(&args),
        Command::Pull(args) => commands::pull::run(&args),
        Command::Quantize(args) => commands::quantize::run(&args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Synth(args) => synth::run(&args).map_err(error::Error::from).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| error.report())
}
