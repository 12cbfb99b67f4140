//! Many clients at once for a while, against a server that runs.
//!
//! `cargo run --release -p pleiad-server --example soak -- http://127.0.0.1:8000 --clients 64 --seconds 300`
//!
//! Every answer is checked: that it is complete, that its usage fits what came, that it has the form that was asked for. One
//! client alone goes first, for comparison. The last line is JSON; the exit code is 1 if an answer was wrong, missing or stuck,
//! or if the server's memory grew. With `--turns TOKENS` it measures instead what the second turn of a long chat costs beside a
//! fresh chat of the same length; with `--forms`, what the form of an answer costs beside free answers as long (to a server with
//! `--no-speculation`: guesses help text that repeats itself, which is a matter of the text).

mod answer;
mod ask;
mod client;
mod exercise;
mod forms;
mod host;
mod http;
mod memory;
mod numbers;
mod options;
mod problem;
mod random;
mod soak;
mod turns;

use std::process::ExitCode;
use std::rc::Rc;

use options::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let outcome = match options.turns {
        Some(tokens) => turns::turns(&options, tokens).await,
        None if options.forms => forms::forms(&options).await,
        None => soak::soak(Rc::new(options)).await,
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}
