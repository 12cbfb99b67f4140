//! One client, and what it sees.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::answer::Answer;
use crate::ask::ask;
use crate::exercise::{Exercise, exercise};
use crate::options::Options;
use crate::problem::Problem;
use crate::random::Random;

/// Wrong answers that are printed in full.
const PRINTED: u64 = 20;

/// What all clients of a phase have seen.
#[derive(Default)]
pub struct Seen {
    pub requests: u64,
    pub cancelled: u64,
    pub refused: u64,
    pub stuck: u64,
    pub wrong: u64,
    pub tokens: u64,
    /// Tokens, counted by the share of their answer's time that lies within the phase.
    pub tokens_within: f64,
    pub finishes: BTreeMap<String, u64>,
    pub first: Vec<f32>,
    pub gaps: Vec<f32>,
}

impl Seen {
    pub fn errors(&self) -> u64 {
        self.stuck + self.wrong
    }

    /// Adds an answer of which so much was written within the phase.
    fn add(&mut self, answer: Answer, within: f64) {
        let tokens = answer.usage["completion_tokens"].as_u64().unwrap_or(0);
        self.tokens += tokens;
        self.tokens_within += tokens as f64 * within;
        *self.finishes.entry(answer.finish.unwrap_or_default()).or_default() += 1;
        self.first.extend(answer.first.map(|first| first.as_secs_f32()));
        self.gaps.extend(answer.gaps);
    }

    fn note(&mut self, exercise: &Exercise, problem: &Problem) {
        match problem {
            Problem::Refused(_) => self.refused += 1,
            Problem::Stuck(_) => self.stuck += 1,
            Problem::Wrong(_) => self.wrong += 1,
        }
        if self.errors() + self.refused <= PRINTED {
            eprintln!("{problem}\n  {}", exercise.body);
        }
    }
}

/// One client: asks again and again until `end`.
pub async fn client(options: &Options, seed: u64, end: Instant, seen: &RefCell<Seen>) {
    let mut random = Random(seed);
    let mut kept = None;
    while Instant::now() < end {
        let exercise = exercise(options.mix, &mut random);
        // Some clients come anew each time.
        if random.percent(30) {
            kept = None;
        }
        let start = Instant::now();
        let asking = async {
            let answer = ask(options, &mut kept, &exercise.body).await?;
            match answer.check(&exercise) {
                Ok(()) => Ok(answer),
                Err(problem) => Err(Problem::Wrong(format!("{problem}: {}", answer.shown()))),
            }
        };
        let limit = exercise.cancelled.unwrap_or(options.patience);
        let outcome = match timeout(limit, asking).await {
            Ok(outcome) => outcome,
            Err(_) if exercise.cancelled.is_some() => {
                seen.borrow_mut().cancelled += 1;
                continue;
            }
            Err(_) => Err(Problem::Stuck(format!("no whole answer in {} s", options.patience.as_secs()))),
        };
        seen.borrow_mut().requests += 1;
        match outcome {
            Ok(answer) => {
                let (whole, after) = (start.elapsed(), Instant::now().saturating_duration_since(end));
                let within = 1.0 - (after.as_secs_f64() / whole.as_secs_f64().max(1e-9)).min(1.0);
                seen.borrow_mut().add(answer, within);
            }
            Err(problem) => {
                seen.borrow_mut().note(&exercise, &problem);
                if matches!(problem, Problem::Refused(_)) {
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }
}
