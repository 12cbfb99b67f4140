//! The loop: take jobs, plan a step, run it, tell what came of it.

use std::collections::VecDeque;
use std::iter::repeat_n;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use backend::{Backend, Handle};
use models::Stepped;

use super::ahead::Step;
use super::answer::{Answer, Gain, Row};
use super::costs::Costs;
use super::draft::draft;
use super::job::{Job, Update};
use super::prefix::Prefixes;
use super::{SchedulerOptions, Shared, Stats, lock};
use crate::{Engine, Error, Finish, Sampler};

/// A job as it was handed over.
pub(super) struct Queued {
    pub job: Job,
    pub sampler: Sampler,
    pub since: Instant,
}

/// How a step went for each answer.
pub(super) type Gains = Vec<Result<Gain, Error>>;

/// How long answers that are being written may wait for other prompts.
const PATIENCE: Duration = Duration::from_millis(150);

/// Fewest tokens of prompts in a step, however long they take.
const LEAST_PROMPT: usize = 16;

/// Most answers at once for which guessing pays: with more, a step is no longer bound by reading weights.
pub(super) const FEW: usize = 4;

/// Room that a sequence is granted in advance, in tokens.
const MARGIN: usize = 256;

/// The thread's side.
pub(super) struct Loop<B: Backend> {
    engine: Engine<B>,
    received: Receiver<Box<Queued>>,
    shared: Weak<Shared>,
    slots: usize,
    speculate: bool,
    folder: Option<PathBuf>,
    waiting: VecDeque<Answer<B>>,
    running: Vec<Answer<B>>,
    prefixes: Prefixes<B>,
    /// Seconds per token of a prompt, as far as known.
    pace: Option<f64>,
    /// What steps take with guesses of a drafting head and without.
    costs: Costs,
    stats: Stats,
    /// Logits of the present step, where all are needed.
    logits: Vec<f32>,
    /// No more jobs will come.
    ending: bool,
}

impl<B: Backend> Loop<B> {
    pub fn new(
        engine: Engine<B>,
        options: SchedulerOptions,
        received: Receiver<Box<Queued>>,
        shared: Weak<Shared>,
    ) -> Self {
        let memory = options.prefix_memory.min(engine.memory() / 2);
        Self {
            prefixes: Prefixes::new(&engine, memory, options.prefix_folder.as_deref()),
            engine,
            received,
            shared,
            slots: options.slots.max(1),
            speculate: options.speculate,
            folder: options.prefix_folder,
            waiting: VecDeque::new(),
            running: Vec::new(),
            pace: None,
            costs: Costs::default(),
            stats: Stats::default(),
            logits: Vec::new(),
            ending: false,
        }
    }

    pub fn run(mut self) {
        loop {
            self.receive();
            self.drop_abandoned();
            self.admit();
            if self.running.is_empty() {
                if self.ending && self.waiting.is_empty() {
                    break;
                }
                continue;
            }
            self.step();
            self.publish();
        }
        if let Some(folder) = &self.folder {
            self.prefixes.save(&self.engine, folder);
        }
    }

    /// Takes what has been handed over; waits for something if there is nothing to do.
    fn receive(&mut self) {
        let idle = self.running.is_empty() && self.waiting.is_empty();
        if idle && !self.ending {
            self.publish();
            match self.received.recv() {
                Ok(queued) => self.waiting.push_back(Answer::new(*queued)),
                Err(_) => self.ending = true,
            }
        }
        loop {
            match self.received.try_recv() {
                Ok(queued) => self.waiting.push_back(Answer::new(*queued)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.ending = true;
                    break;
                }
            }
        }
    }

    fn publish(&mut self) {
        self.stats.running = self.running.len();
        self.stats.prefix_bytes = self.prefixes.bytes();
        if let Some(shared) = self.shared.upgrade() {
            *lock(&shared.stats) = self.stats;
        }
    }

    /// One job fewer waits to begin.
    fn count_begun(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn drop_abandoned(&mut self) {
        let gone = |answer: &Answer<B>| answer.writer.job.listener.is_gone();
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(answer) if gone(&answer) => {
                    self.count_begun();
                    self.stats.cancelled += 1;
                    self.stats.finished += 1;
                }
                Some(answer) => self.waiting.push_back(answer),
                None => break,
            }
        }
        for i in (0..self.running.len()).rev() {
            if gone(&self.running[i]) {
                self.stats.cancelled += 1;
                self.retire(i);
            }
        }
    }

    /// Takes an answer out and keeps its sequence for later prompts.
    fn retire(&mut self, i: usize) -> Answer<B> {
        let mut answer = self.running.remove(i);
        self.stats.finished += 1;
        self.stats.busy += answer.writer.age();
        answer.conclude(self.engine.model());
        if let Some(sequence) = answer.sequence.take() {
            self.prefixes.put(&self.engine, sequence);
        }
        answer
    }

    /// Bytes that an answer's state may take before the next look.
    fn room(&self, answer: &Answer<B>) -> u64 {
        self.engine.state_bytes((answer.writer.tokens().len() + MARGIN).min(self.engine.context()))
    }

    /// Bytes of all running answers.
    fn used(&self) -> u64 {
        self.running.iter().map(|answer| self.room(answer)).sum()
    }

    /// Begins waiting jobs, the first come first, as long as there is room. A step that is recorded comes first.
    fn admit(&mut self) {
        if self.running.iter().any(Answer::is_ahead) {
            return;
        }
        while self.running.len() < self.slots
            && let Some(first) = self.waiting.front()
        {
            let needed = self.used() + self.room(first);
            let free = self.engine.memory().saturating_sub(needed);
            if needed > self.engine.memory() && !self.running.is_empty() {
                break;
            }
            self.prefixes.shrink(&self.engine, free);
            let Some(mut answer) = self.waiting.pop_front() else { break };
            answer.writer.begin();
            self.count_begun();
            match self.prefixes.take(&self.engine, answer.writer.tokens()) {
                Ok(sequence) => {
                    answer.writer.reused = sequence.tokens().len();
                    self.stats.reused_tokens += answer.writer.reused as u64;
                    answer.sequence = Some(sequence);
                    self.running.push(answer);
                }
                Err(error) => self.fail(answer, error),
            }
        }
    }

    fn fail(&mut self, mut answer: Answer<B>, error: Error) {
        self.stats.failed += 1;
        self.stats.finished += 1;
        answer.writer.job.listener.update(Update::Failed(error));
    }

    /// Makes room for what running answers have grown by: first by what is kept for later, then by setting the latest
    /// answer aside, which is computed again when there is room.
    fn make_room(&mut self) {
        let memory = self.engine.memory();
        while self.running.len() > 1 && self.used() > memory {
            if let Some(mut answer) = self.running.pop() {
                answer.sequence = None;
                self.stats.set_aside += 1;
                self.waiting.push_front(answer);
                if let Some(shared) = self.shared.upgrade() {
                    shared.waiting.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let free = memory.saturating_sub(self.used());
        self.prefixes.shrink(&self.engine, free);
    }

    /// Tokens of prompts in the next step.
    fn prompt_budget(&self) -> usize {
        let chunk = self.engine.chunk();
        let others_wait = self.running.iter().any(Answer::is_writing);
        match self.pace {
            Some(pace) if others_wait => {
                ((PATIENCE.as_secs_f64() / pace) as usize).clamp(LEAST_PROMPT.min(chunk), chunk)
            }
            None if others_wait => LEAST_PROMPT.max(chunk / 8),
            _ => chunk,
        }
    }

    /// Plans, runs and accounts for one step.
    fn step(&mut self) {
        self.make_room();
        let begun = Instant::now();
        let prompt_tokens = match self.plan() {
            Ok(prompt_tokens) => prompt_tokens,
            Err(error) => return self.fail_all(&error),
        };
        let writing = self.running.len();
        let checked: Option<usize> = self.running.iter().map(|answer| answer.writer.checked()).sum();
        let result = self.run_step();
        self.stats.steps += 1;
        let (mut gains, drafted) = match result {
            Ok(result) => result,
            Err(error) => return self.fail_all(&error),
        };
        if let (Some(drafted), Some(checked), 0) = (drafted, checked, prompt_tokens) {
            self.costs.learn(writing, checked, drafted, begun.elapsed());
        }
        self.stats.prompt_tokens += prompt_tokens as u64;
        // Steps that are mostly prompt tell how long a prompt takes.
        if prompt_tokens > 4 * writing {
            let now = begun.elapsed().as_secs_f64() / prompt_tokens as f64;
            self.pace = Some(self.pace.map_or(now, |before| 0.7 * before + 0.3 * now));
        }
        for i in (0..self.running.len()).rev() {
            match gains.pop() {
                Some(Ok(gain)) => self.account(i, gain),
                Some(Err(error)) => {
                    // Its state is whole, but nobody knows what it would have said.
                    let answer = self.running.remove(i);
                    self.fail(answer, error);
                }
                None => {}
            }
        }
    }

    fn account(&mut self, i: usize, gain: Gain) {
        self.stats.tokens += gain.tokens;
        self.stats.guessed_right += gain.right;
        if let Some(finish) = gain.finish {
            self.end(i, finish);
        } else if self.running[i].sequence.is_none() {
            match self.engine.sequence() {
                Ok(fresh) => self.running[i].sequence = Some(fresh),
                Err(error) => {
                    let answer = self.running.remove(i);
                    self.fail(answer, error);
                }
            }
        }
    }

    fn end(&mut self, i: usize, finish: Finish) {
        // The sequence is kept before the client hears of it: its next request may come at once.
        let mut answer = self.retire(i);
        answer.writer.finish(finish);
    }

    /// Chooses what every answer runs, and returns the tokens of prompts among that. Prompts share the budget evenly.
    fn plan(&mut self) -> Result<usize, Error> {
        let context = self.engine.context();
        let mut budget = self.prompt_budget();
        let mut prompts = self.running.iter().filter(|answer| !answer.is_writing()).count();
        let guess = self.speculate && prompts == 0 && self.running.len() <= FEW;
        let b = self.engine.model().backend();
        let mut prompt_tokens = 0;
        for answer in &mut self.running {
            if answer.is_writing() {
                answer.plan(b, answer.unseen(), guess && !answer.is_ahead(), context)?;
                self.stats.guessed += answer.writer.planned().1 as u64;
                continue;
            }
            answer.plan(b, (budget / prompts).max(1), false, context)?;
            let (planned, _) = answer.writer.planned();
            budget = budget.saturating_sub(planned);
            prompts -= 1;
            prompt_tokens += planned;
        }
        Ok(prompt_tokens)
    }

    /// Runs the step; how it went for each answer, in their order, and the guesses that a drafting head has made for the next, if it
    /// was asked.
    fn run_step(&mut self) -> Result<(Gains, Option<usize>), Error> {
        let Self { engine, waiting, running, speculate, logits: all, costs, .. } = self;
        let b = engine.model().backend();
        let context = engine.context();
        let prompts = running.iter().filter(|answer| !answer.is_writing());
        prompts.filter_map(|answer| answer.writer.beside()).for_each(|task| b.beside(task));
        let ahead = match &mut running[..] {
            [answer] => answer.start_ahead(engine.model())?,
            _ => None,
        };
        let (mut step, mut hidden) = match ahead {
            Some(step) => (Some(step), None),
            None => {
                let mut requests: Vec<_> = running.iter_mut().filter_map(Answer::request).collect();
                let Stepped { logits, hidden } = match *speculate && requests.len() <= FEW {
                    true => engine.model().step_with_hidden(&mut requests)?,
                    false => Stepped { logits: engine.model().step(&mut requests)?, hidden: None },
                };
                (logits.map(|logits| Step { logits, chosen: None }), hidden)
            }
        };
        let has_head = *speculate && engine.model().draft_shape(engine.cache()).is_some();
        let alone = waiting.is_empty() && engine.model().records_ahead();
        if let ([answer], Some(step), true) = (&mut running[..], &mut step, alone)
            && (!has_head || answer.writer.is_without_head())
            && answer.go_ahead(engine, step, *speculate)?
        {
            // There is nothing to guess for a step that is recorded.
            hidden = None;
        }
        let asking = || running.iter().filter(|answer| answer.rows() > 0);
        // As many of the largest as suffice for everybody, or all.
        let needed: Option<Vec<usize>> = asking().map(|answer| answer.writer.needed()).collect();
        let (mut top, mut width) = (Vec::new(), 1);
        all.clear();
        if let Some(Step { logits, chosen }) = step {
            match needed.and_then(|needed| needed.into_iter().max()) {
                Some(k) => {
                    let allowed: Vec<_> = asking()
                        .flat_map(|answer| repeat_n(answer.writer.allowed(), answer.rows()))
                        .collect();
                    top = match chosen {
                        Some(chosen) => vec![vec![b.read_chosen(chosen)?]],
                        None if allowed.iter().all(Option::is_none) => b.read_top(&logits, k)?,
                        None => {
                            let allowed: Vec<_> =
                                allowed.iter().map(|words| words.as_ref().map(|w| w.as_slice())).collect();
                            b.read_top_allowed(&logits, k, &allowed)?
                        }
                    }
                }
                None => {
                    width = logits.shape().cols.max(1);
                    b.read_into(&logits, all)?;
                }
            }
        }
        let mut rows = all.chunks_exact(width).map(Row::All).chain(top.iter().map(|row| Row::Top(row)));
        // Each is locked once: it is how threads get one answer each.
        let mut choices = Vec::with_capacity(running.len());
        for answer in &mut *running {
            let rows: Vec<Row<'_>> = rows.by_ref().take(answer.rows()).collect();
            let settled = answer.settle(b).map(|()| Gain::default());
            choices.push(Mutex::new((&mut answer.writer, rows, settled)));
        }
        b.spread(choices.len(), &|i| {
            let (writer, rows, gain) = &mut *lock(&choices[i]);
            if gain.is_ok() {
                *gain = writer.advance(rows, context);
            }
        });
        let gains: Vec<_> = choices
            .into_iter()
            .map(|choice| choice.into_inner().unwrap_or_else(PoisonError::into_inner).2)
            .collect();
        // From here on, while others wait for this thread.
        let going_on =
            running.iter().zip(&gains).filter(|(_, gain)| matches!(gain, Ok(Gain { finish: None, .. })));
        going_on.filter_map(|(answer, _)| answer.writer.beside()).for_each(|task| b.beside(task));
        let finished = |(answer, gain): (&mut Answer<B>, Result<Gain, Error>)| {
            let gain = gain?;
            answer.drop_guesses(b, &gain)?;
            Ok(gain)
        };
        let gains: Vec<_> = running.iter_mut().zip(gains).map(finished).collect();
        let drafted = match hidden {
            Some(hidden) => Some(draft(engine, running, &gains, &hidden, costs)?),
            None => has_head.then_some(0),
        };
        Ok((gains, drafted))
    }

    /// A step that failed leaves all its states in between: none can go on.
    fn fail_all(&mut self, error: &Error) {
        let reason = error.to_string();
        for answer in std::mem::take(&mut self.running) {
            self.fail(answer, Error::Step { reason: reason.clone() });
        }
    }
}
