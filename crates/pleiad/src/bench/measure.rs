//! The measuring itself: rounds of a prompt in one go and then token by token.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use backend::OperationTime;
use engine::{Engine, Job, Loop, SamplingParams, SchedulerOptions, Update, Updates};
use store::{Stats, Store};

use crate::error::Error;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::streamed::Streamed;
use crate::terminal;

/// What to run.
#[derive(Clone, Debug)]
pub struct Work {
    /// Tokens of the prompt.
    pub prefill: usize,
    /// Tokens after it, one at a time.
    pub decode: usize,
    /// Rounds that count.
    pub repeat: usize,
    /// Most tokens of a step.
    pub chunk: usize,
    /// Further lengths of the sequence before decoding begins, ascending.
    pub contexts: Vec<usize>,
    /// Numbers of sequences that are decoded at once, behind a prompt each.
    pub answers: Vec<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
}

impl Work {
    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        let one = self.prefill.max(self.contexts.last().copied().unwrap_or(0)) + self.decode;
        // Many at once go on from round to round.
        let many = if self.answers.is_empty() { 0 } else { self.prefill + (self.repeat + 1) * self.decode };
        one.max(many)
    }

    /// Tokens that run in all.
    fn tokens(&self) -> usize {
        let rounds = (self.repeat + 1) * (self.prefill + self.decode);
        let contexts = self.contexts.len() * self.repeat * self.decode;
        let answers: usize =
            self.answers.iter().map(|n| n * (self.prefill + (self.repeat + 1) * self.decode)).sum();
        rounds + contexts + self.contexts.last().copied().unwrap_or(0) + answers
    }
}

/// Tokens per second of several rounds.
#[derive(Clone, Debug, Default)]
pub struct Speeds(Vec<f64>);

impl Speeds {
    fn add(&mut self, tokens: usize, time: Duration) {
        self.0.push(tokens as f64 / time.as_secs_f64().max(1e-9));
    }

    /// The best round.
    pub fn best(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    /// The round in the middle, or between the two in the middle.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        match sorted.len() {
            0 => 0.0,
            n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
        }
    }
}

/// Where the time of one kind of step went.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// Tokens that were run.
    pub tokens: usize,
    /// Steps they were run in.
    pub steps: usize,
    /// All of the time.
    pub time: Duration,
    operations: BTreeMap<&'static str, (u64, Duration)>,
}

impl Profile {
    /// Adds what some steps took.
    pub fn add(&mut self, tokens: usize, steps: usize, time: Duration, operations: Vec<OperationTime>) {
        self.tokens += tokens;
        self.steps += steps;
        self.time += time;
        for OperationTime { name, calls, time } in operations {
            let sum = self.operations.entry(name).or_default();
            *sum = (sum.0 + calls, sum.1 + time);
        }
    }

    /// The operations, those that took longest first.
    pub fn operations(&self) -> Vec<OperationTime> {
        let all = self.operations.iter();
        let mut all: Vec<_> =
            all.map(|(&name, &(calls, time))| OperationTime { name, calls, time }).collect();
        all.sort_by_key(|operation| std::cmp::Reverse(operation.time));
        all
    }
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub prefill: Speeds,
    pub decode: Speeds,
    /// Decoding at each of [`Work::contexts`].
    pub contexts: Vec<(usize, Speeds)>,
    /// Decoding each of [`Work::answers`], tokens of all of them counted.
    pub answers: Vec<(usize, Speeds, Profile)>,
    pub prefill_profile: Profile,
    pub decode_profile: Profile,
    /// What was read from disk.
    pub prefill_streamed: Streamed,
    pub decode_streamed: Streamed,
    /// Kernels started for a decoded token, on machines that start kernels.
    pub dispatches_per_token: Option<f64>,
}

/// Pseudo-random tokens of the prompt: those at `range` in round `r`.
fn prompt_ids(range: std::ops::Range<usize>, r: usize, vocabulary: usize) -> Vec<u32> {
    range.map(|i| ((i as u64 * 7919 + r as u64) % vocabulary as u64) as u32).collect()
}

/// A loop under the clock.
struct Runner<'a, B: Machine> {
    steps: &'a mut Loop<B>,
    work: &'a Work,
}

impl<B: Machine> Runner<'_, B> {
    fn backend(&self) -> &B {
        self.steps.engine().model().backend()
    }

    fn vocabulary(&self) -> usize {
        self.steps.engine().model().summary().vocabulary
    }

    fn take_stats(&self) -> Option<Stats> {
        self.backend().store().map(Store::take_stats)
    }

    /// Hands over a request for so many tokens behind a prompt, of which the next one will have the
    /// first `stable` tokens too.
    fn ask(&mut self, prompt: Vec<u32>, stable: usize, tokens: usize) -> Result<Updates, Error> {
        let (listener, updates) = Updates::new();
        let (max_tokens, sampling) = (Some(tokens), self.work.sampling.clone());
        self.steps.push(Job { stable, max_tokens, sampling, ..Job::new(prompt, listener) })?;
        Ok(updates)
    }

    /// One step, unless it is interrupted.
    fn step(&mut self) -> Result<(), Error> {
        if terminal::interrupted() {
            return Err(Error::Interrupted);
        }
        self.steps.step();
        Ok(())
    }

    /// Steps until a request has its first token, which ends its prompt; the number of steps and
    /// the time.
    fn prefill(&mut self, updates: &Updates) -> Result<(usize, Duration), Error> {
        let started = Instant::now();
        for steps in 1.. {
            self.step()?;
            if told(updates)? > 0 {
                return Ok((steps, started.elapsed()));
            }
        }
        Ok((0, started.elapsed()))
    }

    /// Steps as often as there are tokens to decode, each for one token of every request.
    fn decode(&mut self, requests: &[Updates]) -> Result<Duration, Error> {
        let started = Instant::now();
        (0..self.work.decode).try_for_each(|_| self.step())?;
        let time = started.elapsed();
        for updates in requests {
            let tokens = told(updates)?;
            if tokens != self.work.decode {
                let asked = self.work.decode;
                return Err(Error::Usage(format!("a request has {tokens} tokens in {asked} steps")));
            }
        }
        Ok(time)
    }
}

/// Tokens that a request was told since the last look.
fn told(updates: &Updates) -> Result<usize, Error> {
    let mut tokens = 0;
    while let Some(update) = updates.next_ready() {
        match update {
            Update::Token(_) => tokens += 1,
            Update::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Ok(tokens)
}

/// A loop that measures: no draft tokens, every request that is asked for at once, and their
/// sequences kept.
pub fn measuring<B: Machine>(engine: Engine<B>, work: &Work, options: SchedulerOptions) -> Loop<B> {
    let most = work.answers.iter().copied().max().unwrap_or(1);
    Loop::new(engine, SchedulerOptions { slots: most, prefixes: most, speculate: false, ..options })
}

/// Runs everything, after one round that does not count. A round that is interrupted ends all.
pub fn measure<B: Machine>(steps: &mut Loop<B>, work: &Work) -> Result<Measured, Error> {
    let mut progress = Progress::tokens(work.tokens() as u64);
    let mut runner = Runner { steps, work };
    let vocabulary = runner.vocabulary();
    let mut measured = Measured::default();

    for r in 0..=work.repeat {
        runner.steps.clear();
        let updates = runner.ask(prompt_ids(0..work.prefill, r, vocabulary), 0, work.decode + 1)?;
        runner.backend().take_profile();
        runner.take_stats();
        let (steps, time) = runner.prefill(&updates)?;
        let (operations, stats) = (runner.backend().take_profile(), runner.take_stats());
        if r > 0 {
            measured.prefill.add(work.prefill, time);
            measured.prefill_streamed.add(work.prefill, time, stats);
            measured.prefill_profile.add(work.prefill, steps, time, operations);
        }
        progress.add(work.prefill as u64);

        let before = runner.backend().dispatches();
        let time = runner.decode(&[updates])?;
        let after = runner.backend().dispatches();
        measured.dispatches_per_token =
            before.zip(after).map(|(before, after)| (after - before) as f64 / work.decode as f64);
        let (operations, stats) = (runner.backend().take_profile(), runner.take_stats());
        if r > 0 {
            measured.decode.add(work.decode, time);
            measured.decode_streamed.add(work.decode, time, stats);
            measured.decode_profile.add(work.decode, work.decode, time, operations);
        }
        progress.add(work.decode as u64);
    }

    // Every round goes on where the context ends: the sequence is kept, and its last token runs
    // again.
    runner.steps.clear();
    let mut filled = 0;
    for &context in &work.contexts {
        let mut speeds = Speeds::default();
        for _ in 0..work.repeat {
            let prompt = prompt_ids(0..context.max(1), 0, vocabulary);
            let updates = runner.ask(prompt, context.max(1) - 1, work.decode + 1)?;
            runner.prefill(&updates)?;
            progress.add((context - filled) as u64);
            filled = context;
            speeds.add(work.decode, runner.decode(&[updates])?);
            progress.add(work.decode as u64);
        }
        measured.contexts.push((context, speeds));
    }

    for &answers in &work.answers {
        let (speeds, profile) = together(&mut runner, answers, &mut progress)?;
        measured.answers.push((answers, speeds, profile));
    }
    Ok(measured)
}

/// Decodes so many sequences at once, each behind a prompt of its own, which does not count.
fn together<B: Machine>(
    runner: &mut Runner<'_, B>,
    answers: usize,
    progress: &mut Progress,
) -> Result<(Speeds, Profile), Error> {
    let (work, vocabulary) = (runner.work, runner.vocabulary());
    let prompt = |i| prompt_ids(0..work.prefill, i, vocabulary);
    runner.steps.clear();
    // The prompts first, so that all begin to decode in the same step.
    for i in 0..answers {
        let updates = runner.ask(prompt(i), work.prefill - 1, 0)?;
        while !runner.steps.is_idle() {
            runner.step()?;
        }
        told(&updates)?;
        progress.add(work.prefill as u64);
    }
    let tokens = 1 + (work.repeat + 1) * work.decode;
    let requests: Vec<Updates> =
        (0..answers).map(|i| runner.ask(prompt(i), 0, tokens)).collect::<Result<_, _>>()?;
    for updates in &requests {
        if told(updates)? == 0 {
            runner.prefill(updates)?;
        }
    }
    let running = runner.steps.stats().running;
    if running < answers {
        return Err(Error::Usage(format!(
            "there is memory for {running} of {answers} sequences at once; take fewer --answers or a larger --memory"
        )));
    }
    let (mut speeds, mut profile) = (Speeds::default(), Profile::default());
    for r in 0..=work.repeat {
        runner.backend().take_profile();
        let (time, tokens) = (runner.decode(&requests)?, answers * work.decode);
        if r > 0 {
            speeds.add(tokens, time);
            profile.add(tokens, work.decode, time, runner.backend().take_profile());
        }
        progress.add(tokens as u64);
    }
    Ok((speeds, profile))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_and_median() {
        let speeds = |values: &[f64]| Speeds(values.to_vec());
        assert_eq!((speeds(&[3.0, 1.0, 2.0]).best(), speeds(&[3.0, 1.0, 2.0]).median()), (3.0, 2.0));
        assert_eq!(speeds(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!((speeds(&[]).best(), speeds(&[]).median()), (0.0, 0.0));
    }

    #[test]
    fn profiles_add_up() {
        let operation = |name, calls, ms| OperationTime { name, calls, time: Duration::from_millis(ms) };
        let mut profile = Profile::default();
        profile.add(4, 4, Duration::from_millis(20), vec![operation("a", 1, 5), operation("b", 2, 6)]);
        profile.add(4, 4, Duration::from_millis(20), vec![operation("a", 1, 5)]);
        assert_eq!(profile.operations(), [operation("a", 2, 10), operation("b", 2, 6)]);
        assert_eq!((profile.tokens, profile.time), (8, Duration::from_millis(40)));
    }
}
