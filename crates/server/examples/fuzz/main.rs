//! Malformed requests against a server that runs.
//!
//! `cargo run --release -p pleiad-server --example fuzz -- http://127.0.0.1:8000 --requests 10000 --seed 1`
//!
//! Each must be refused with a status of 4xx and, where it was HTTP at all, an error in the shape of its API; answered, where
//! it happened to stay valid; or, if it was not HTTP, its connection closed. Never a 5xx, never silence. A request depends only
//! on the seed and its number: `--only NUMBER` sends one again and prints it. The last line is JSON; the exit code is 1 if
//! anything was wrong, or if the server does not answer or has grown afterwards.

mod bodies;
mod case;
mod connection;
#[path = "../soak/host.rs"]
mod host;
mod judge;
mod mutate;
mod options;
mod protocol;
#[path = "../soak/random.rs"]
mod random;
mod server;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::rc::Rc;

use serde_json::json;
use tokio::task::LocalSet;

use case::{Case, case, slow_case};
use connection::exchange;
use judge::judge;
use options::Options;

/// Failures that are printed in full.
const PRINTED: usize = 10;
/// Requests after which memory is shown.
const OFTEN: usize = 1000;
/// Growth of memory over the second half, in megabytes, that is still none.
const MOST_GROWTH: f64 = 20.0;

/// What all workers share.
struct Run {
    options: Options,
    next: Cell<usize>,
    /// How often which kind of request had which outcome.
    outcomes: RefCell<BTreeMap<String, u64>>,
    failures: Cell<usize>,
    /// Megabytes after the first requests.
    half: Cell<Option<f64>>,
}

impl Run {
    async fn one(&self, case: &Case) {
        let outcome = exchange(&self.options, case).await;
        let verdict = judge(&self.options, case, &outcome);
        let key = format!("{}: {}", case.kind, outcome.in_short());
        *self.outcomes.borrow_mut().entry(key).or_default() += 1;
        if let Err(reason) = verdict {
            self.failures.set(self.failures.get() + 1);
            if self.failures.get() <= PRINTED {
                eprintln!(
                    "request {} ({}): {reason}\n{}\n{}\n",
                    case.name,
                    case.kind,
                    case.shown(),
                    outcome.shown()
                );
            }
        }
    }

    async fn worker(&self) {
        while self.next.get() < self.options.requests {
            let number = self.next.replace(self.next.get() + 1);
            if number == self.options.requests / 2 {
                self.half.set(server::megabytes(&self.options).await);
            }
            if number > 0 && number.is_multiple_of(OFTEN) {
                let megabytes = server::megabytes(&self.options).await;
                println!(
                    "{number} requests, {} failures, {:.1} MB",
                    self.failures.get(),
                    megabytes.unwrap_or(f64::NAN)
                );
            }
            self.one(&case(&self.options, number)).await;
        }
    }
}

async fn fuzz(options: Options) -> Result<bool, String> {
    server::healthy(&options).await?;
    if let Some(number) = options.only {
        let case = case(&options, number);
        let outcome = exchange(&options, &case).await;
        println!("{}: {}\n{}\n{}", case.name, case.kind, case.shown(), outcome.shown());
        return judge(&options, &case, &outcome).map(|()| true);
    }
    let run = Rc::new(Run {
        options,
        next: Cell::new(0),
        outcomes: RefCell::default(),
        failures: Cell::new(0),
        half: Cell::new(None),
    });
    let all = LocalSet::new();
    for _ in 0..run.options.concurrency {
        let run = run.clone();
        all.spawn_local(async move { run.worker().await });
    }
    // They take a minute each, so they go beside the others.
    for number in 0..run.options.slow {
        let run = run.clone();
        all.spawn_local(async move { run.one(&slow_case(&run.options, number)).await });
    }
    all.await;

    for (outcome, count) in run.outcomes.borrow().iter() {
        println!("{count:7} {outcome}");
    }
    let after = server::recovered(&run.options).await;
    if let Err(reason) = &after {
        eprintln!("afterwards: {reason}");
    }
    let (half, end) = (run.half.get(), server::megabytes(&run.options).await);
    let growth = half.zip(end).map(|(half, end)| end - half);
    let grew = growth.is_some_and(|growth| growth > MOST_GROWTH);
    let good = run.failures.get() == 0 && after.is_ok() && !grew;
    let result = json!({
        "good": good,
        "requests": run.options.requests + run.options.slow,
        "seed": run.options.seed,
        "failures": run.failures.get(),
        "healthy_afterwards": after.is_ok(),
        "resident_mb_half": half,
        "resident_mb_last": end,
        "growth_mb": growth,
    });
    println!("{result}");
    Ok(good)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let outcome = match Options::read() {
        Ok(options) => fuzz(options).await,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
