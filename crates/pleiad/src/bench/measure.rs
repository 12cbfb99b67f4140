//! The measuring itself: rounds of a prompt in one go and then token by token.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use backend::OperationTime;
use engine::Engine;
use models::{Logits, Request, State};
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

/// The `i`th token after the prompt in round `r`.
fn decode_id(i: usize, r: usize, vocabulary: usize) -> u32 {
    ((i as u64 * 104_729 + r as u64) % vocabulary as u64) as u32
}

/// A sequence under the clock.
struct Runner<'a, B: Machine> {
    engine: &'a Engine<B>,
    work: &'a Work,
    state: State<B>,
}

impl<B: Machine> Runner<'_, B> {
    fn backend(&self) -> &B {
        self.engine.model().backend()
    }

    fn take_stats(&self) -> Option<Stats> {
        self.backend().store().map(Store::take_stats)
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.state = self.engine.model().state(self.engine.cache())?;
        Ok(())
    }

    /// Runs some tokens; of wanted logits the largest is read, as if to choose the next token, and nobody looks at it.
    fn step(&mut self, tokens: &[u32], logits: Logits) -> Result<(), Error> {
        if terminal::interrupted() {
            return Err(Error::Interrupted);
        }
        let model = self.engine.model();
        let request = Request { tokens, state: &mut self.state, logits };
        if let Some(rows) = model.step(&mut [request])? {
            black_box(model.backend().read_top(&rows, 1)?);
        }
        Ok(())
    }

    /// Runs a prompt, in one step if the chunk allows, up to the logits of its last token; returns the steps and the
    /// time.
    fn prefill(&mut self, ids: &[u32]) -> Result<(usize, Duration), Error> {
        let started = Instant::now();
        let steps = ids.len().div_ceil(self.work.chunk);
        for (i, chunk) in ids.chunks(self.work.chunk).enumerate() {
            self.step(chunk, if i + 1 == steps { Logits::Last } else { Logits::None })?;
        }
        Ok((steps, started.elapsed()))
    }

    /// Runs the tokens of round `r` one at a time, or, where the machine goes on by itself, those that it chooses.
    fn decode(&mut self, r: usize) -> Result<Duration, Error> {
        let model = self.engine.model();
        let vocabulary = model.summary().vocabulary;
        let started = Instant::now();
        if model.records_ahead() {
            self.decode_greedily(decode_id(0, r, vocabulary))?;
        } else {
            (0..self.work.decode)
                .try_for_each(|i| self.step(&[decode_id(i, r, vocabulary)], Logits::Last))?;
        }
        Ok(started.elapsed())
    }

    /// Runs `first` and what the likeliest tokens after it are, as the engine does for greedy answers: the machine has gone on to the next when a
    /// token is known.
    fn decode_greedily(&mut self, first: u32) -> Result<(), Error> {
        let model = self.engine.model();
        let backend = model.backend();
        let state = &mut self.state;
        let logits = model.step(&mut [Request { tokens: &[first], state, logits: Logits::Last }])?;
        let mut chosen = logits.map(|logits| backend.choose(&logits)).transpose()?;
        for i in 1..=self.work.decode {
            if terminal::interrupted() {
                return Err(Error::Interrupted);
            }
            let Some(present) = chosen.take() else { break };
            if i < self.work.decode {
                chosen = Some(model.step_chosen(&present, &mut self.state)?.1);
            }
            black_box(backend.read_chosen(present)?);
        }
        Ok(())
    }

    /// Lengthens the sequence to `len` tokens.
    fn fill(&mut self, len: usize) -> Result<(), Error> {
        let vocabulary = self.engine.model().summary().vocabulary;
        let missing = prompt_ids(self.state.len()..len, 0, vocabulary);
        let (last, before) =
            missing.split_last().map_or((None, &[][..]), |(last, before)| (Some(*last), before));
        before.chunks(self.work.chunk).try_for_each(|chunk| self.step(chunk, Logits::None))?;
        // Its logits are waited for, so that nothing of this is still under way when the clock starts.
        last.map_or(Ok(()), |last| self.step(&[last], Logits::Last))
    }
}

/// Runs everything, after one round that does not count. A round that is interrupted ends all.
pub fn measure<B: Machine>(engine: &Engine<B>, work: &Work) -> Result<Measured, Error> {
    let mut progress = Progress::tokens(work.tokens() as u64);
    let vocabulary = engine.model().summary().vocabulary;
    let state = engine.model().state(engine.cache())?;
    let mut runner = Runner { engine, work, state };
    let mut measured = Measured::default();

    for r in 0..=work.repeat {
        runner.begin()?;
        let ids = prompt_ids(0..work.prefill, r, vocabulary);
        runner.backend().take_profile();
        runner.take_stats();
        let (steps, time) = runner.prefill(&ids)?;
        let (operations, stats) = (runner.backend().take_profile(), runner.take_stats());
        if r > 0 {
            measured.prefill.add(work.prefill, time);
            measured.prefill_streamed.add(work.prefill, time, stats);
            measured.prefill_profile.add(work.prefill, steps, time, operations);
        }
        progress.add(work.prefill as u64);

        let before = runner.backend().dispatches();
        let time = runner.decode(r)?;
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

    // One sequence that grows; every round goes back to where the context ends.
    runner.begin()?;
    for &context in &work.contexts {
        let before = runner.state.len();
        runner.fill(context)?;
        progress.add((context - before) as u64);
        let here = runner.state.snapshot(runner.backend())?;
        let mut speeds = Speeds::default();
        for r in 1..=work.repeat {
            speeds.add(work.decode, runner.decode(r)?);
            progress.add(work.decode as u64);
            if !runner.state.restore(engine.model().backend(), &here)? {
                // A sliding window has forgotten what it would need.
                runner.begin()?;
                runner.fill(context)?;
            }
        }
        measured.contexts.push((context, speeds));
    }
    drop(runner);

    for &answers in &work.answers {
        let (speeds, profile) = together(engine, work, answers, &mut progress)?;
        measured.answers.push((answers, speeds, profile));
    }
    Ok(measured)
}

/// Decodes so many sequences at once, each behind a prompt of its own, which does not count.
fn together<B: Machine>(
    engine: &Engine<B>,
    work: &Work,
    answers: usize,
    progress: &mut Progress,
) -> Result<(Speeds, Profile), Error> {
    let model = engine.model();
    let vocabulary = model.summary().vocabulary;
    let mut states = Vec::with_capacity(answers);
    for i in 0..answers {
        let mut runner = Runner { engine, work, state: model.state(engine.cache())? };
        runner.prefill(&prompt_ids(0..work.prefill, i, vocabulary))?;
        states.push(runner.state);
        progress.add(work.prefill as u64);
    }
    let (mut speeds, mut profile) = (Speeds::default(), Profile::default());
    for r in 0..=work.repeat {
        model.backend().take_profile();
        let started = Instant::now();
        for i in 0..work.decode {
            if terminal::interrupted() {
                return Err(Error::Interrupted);
            }
            let next: Vec<[u32; 1]> = (0..answers).map(|a| [decode_id(i, r + a, vocabulary)]).collect();
            let states = next.iter().zip(&mut states);
            let mut requests: Vec<_> =
                states.map(|(tokens, state)| Request { tokens, state, logits: Logits::Last }).collect();
            if let Some(rows) = model.step(&mut requests)? {
                black_box(model.backend().read_top(&rows, 1)?);
            }
        }
        let (time, tokens) = (started.elapsed(), answers * work.decode);
        if r > 0 {
            speeds.add(tokens, time);
            profile.add(tokens, work.decode, time, model.backend().take_profile());
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
