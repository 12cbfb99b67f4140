//! The loop: plan a step, submit it, collect what it brings, commit that.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use backend::Backend;

use super::costs::Costs;
use super::device::{self, Collected, Ticket, Wanted};
use super::job::{Finish, Job};
use super::plan::{Part, Plan};
use super::prefix::Prefixes;
use super::request::Request;
use super::trace::{Phase, Trace};
use super::{Queued, SchedulerOptions, Stats};
use crate::{Engine, Error};

/// How long requests that decode may wait for the prompts of others.
const PATIENCE: Duration = Duration::from_millis(150);

/// Fewest tokens of prompts in a step, however long they take.
const LEAST_PROMPT: usize = 16;

/// Most requests at once for which speculation pays: with more, a step is no longer bound by
/// reading weights.
pub(super) const FEW: usize = 4;

/// Room that a sequence is granted in advance, in tokens.
const MARGIN: usize = 256;

/// Runs requests over an engine, all of them in one batch per step, on the thread that calls
/// [`step`](Self::step).
pub struct Loop<B: Backend> {
    pub(super) engine: Engine<B>,
    slots: usize,
    pub(super) speculate: bool,
    pub(super) trace: Trace,
    waiting: VecDeque<Request<B>>,
    pub(super) running: Vec<Request<B>>,
    /// Steps under way, the oldest first; at most as many as the backend's depth.
    pub(super) in_flight: VecDeque<(Plan, Ticket<B>)>,
    pub(super) prefixes: Prefixes<B>,
    /// Requests that have arrived, for their numbers.
    arrived: u64,
    /// Requests that wait, those on their way to this thread included.
    queued: Arc<AtomicUsize>,
    /// Seconds per token of a prompt, as far as known.
    pub(super) pace: Option<f64>,
    /// What steps take with drafts of a drafting head and without.
    pub(super) costs: Costs,
    pub(super) stats: Stats,
    /// Memory for logits, where all are needed.
    pub(super) logits: Vec<f32>,
}

impl<B: Backend> Loop<B> {
    /// A loop without requests. [`SchedulerOptions::queue`] means nothing to it.
    pub fn new(engine: Engine<B>, options: SchedulerOptions) -> Self {
        Self::counting(engine, options, Arc::default())
    }

    /// A loop that counts in `queued` what waits: jobs are added by whoever hands them over.
    pub(super) fn counting(engine: Engine<B>, options: SchedulerOptions, queued: Arc<AtomicUsize>) -> Self {
        let memory = options.prefix_memory.min(engine.memory());
        let folder = options.prefix_folder.as_deref();
        Self {
            prefixes: Prefixes::new(&engine, memory, options.prefixes, folder),
            engine,
            slots: options.slots.max(1),
            speculate: options.speculate,
            trace: options.trace,
            waiting: VecDeque::new(),
            running: Vec::new(),
            in_flight: VecDeque::new(),
            arrived: 0,
            queued,
            pace: None,
            costs: Costs::default(),
            stats: Stats::default(),
            logits: Vec::new(),
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<B> {
        &self.engine
    }

    /// Counters since the start, and what is going on now.
    pub fn stats(&self) -> Stats {
        let (waiting, running) = (self.waiting.len(), self.running.len());
        Stats { waiting, running, prefix_bytes: self.prefixes.bytes(), ..self.stats }
    }

    /// Takes a job, or says why it cannot be done.
    pub fn push(&mut self, job: Job) -> Result<(), Error> {
        let queued = Queued::new(job, self.engine.limits())?;
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.enqueue(queued);
        Ok(())
    }

    /// Takes a job that is counted among the queued ones.
    pub(super) fn enqueue(&mut self, queued: Queued) {
        self.arrived += 1;
        self.waiting.push_back(Request::new(self.arrived, queued));
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.in_flight.is_empty()
    }

    /// Steps until all requests are done.
    pub fn run_until_idle(&mut self) {
        while !self.is_idle() {
            self.step();
        }
    }

    /// Commits one step, and has as many more under way as the backend allows.
    pub fn step(&mut self) {
        self.drop_cancelled();
        self.admit();
        self.make_room();
        let begun = Instant::now();
        while self.in_flight.len() < device::depth(&self.engine, self.running.len())
            && let Some(plan) = self.plan()
        {
            match self.submit(&plan) {
                Ok(ticket) => self.in_flight.push_back((plan, ticket)),
                Err(error) => return self.fail_all(&error),
            }
        }
        let Some((plan, ticket)) = self.in_flight.pop_front() else { return };
        match self.collect(&plan, ticket) {
            Ok(collected) => self.commit(plan, collected, begun),
            Err(error) => self.fail_all(&error),
        }
    }

    /// Forgets all kept sequences.
    pub fn clear(&mut self) {
        self.prefixes.shrink(&self.engine, 0);
    }

    /// Reads a sequence that [`save`](Self::save) wrote with the same model and kind of cache, and
    /// keeps it for prompts that begin with it. The result is its number of tokens.
    pub fn load(&mut self, path: &Path) -> Result<usize, Error> {
        let sequence = self.engine.load(path)?;
        let tokens = sequence.tokens.len();
        self.prefixes.put(&self.engine, sequence);
        Ok(tokens)
    }

    /// Writes the sequence of the latest request that has ended, if it is kept, to a file; one that
    /// was there is replaced whole.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        self.prefixes.latest().map_or(Ok(()), |sequence| self.engine.save(sequence, path))
    }

    /// Writes all kept sequences to a folder, and removes this model's oldest files there beyond
    /// the memory for them.
    pub(super) fn save_all(self, folder: &Path) {
        self.prefixes.save(&self.engine, folder);
    }

    // ---- Who runs ----

    /// Ends requests whose listener has gone.
    fn drop_cancelled(&mut self) {
        let gone = |request: &Request<B>| request.writer.job.listener.is_gone();
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(mut request) if gone(&request) => {
                    self.queued.fetch_sub(1, Ordering::Relaxed);
                    self.stats.cancelled += 1;
                    self.stats.finished += 1;
                    request.writer.finish(Finish::Stopped);
                }
                Some(request) => self.waiting.push_back(request),
                None => break,
            }
        }
        for i in (0..self.running.len()).rev() {
            if gone(&self.running[i]) {
                self.stats.cancelled += 1;
                self.end(i, Finish::Stopped);
            }
        }
    }

    /// Bytes that a request may take before the next look.
    fn room(&self, request: &Request<B>) -> u64 {
        request.bytes(&self.engine, MARGIN, self.speculate)
    }

    /// Bytes of all running requests.
    fn used(&self) -> u64 {
        self.running.iter().map(|request| self.room(request)).sum()
    }

    /// Begins waiting requests, the first come first, as long as there is room; not while a step is
    /// under way, which they could not join.
    fn admit(&mut self) {
        while self.in_flight.is_empty()
            && self.running.len() < self.slots
            && let Some(first) = self.waiting.front()
        {
            let (needed, memory) = (self.used() + self.room(first), self.engine.memory());
            if needed > memory && !self.running.is_empty() {
                break;
            }
            let Some(mut request) = self.waiting.pop_front() else { break };
            request.writer.begin();
            self.queued.fetch_sub(1, Ordering::Relaxed);
            let free = memory.saturating_sub(needed);
            let sequence = match request.writer.job.prompt_logits {
                true => self.engine.sequence(),
                false => self.prefixes.take(&self.engine, request.writer.tokens(), free),
            };
            match sequence {
                Ok(sequence) => {
                    request.writer.reused = sequence.tokens.len();
                    self.stats.reused_tokens += sequence.tokens.len() as u64;
                    request.sequence = Some(sequence);
                    self.running.push(request);
                }
                Err(error) => self.fail(request, error),
            }
            self.prefixes.shrink(&self.engine, free);
        }
    }

    /// Makes room for what running requests have grown by: first by what is kept for later, then by
    /// preempting the latest request, which is computed again when there is room.
    fn make_room(&mut self) {
        let memory = self.engine.memory();
        while self.in_flight.is_empty() && self.running.len() > 1 && self.used() > memory {
            if let Some(mut request) = self.running.pop() {
                request.sequence = None;
                self.stats.preempted += 1;
                self.waiting.push_front(request);
                self.queued.fetch_add(1, Ordering::Relaxed);
            }
        }
        let free = memory.saturating_sub(self.used());
        self.prefixes.shrink(&self.engine, free);
    }

    // ---- Plan ----

    /// The next step, if it can begin now.
    fn plan(&mut self) -> Option<Plan> {
        if self.running.is_empty() {
            return None;
        }
        let clock = self.trace.clock();
        let plan = match self.in_flight.back() {
            None => self.plan_all(),
            Some((before, _)) => self.plan_next(before)?,
        };
        self.stats.steps += 1;
        self.trace.tell(Phase::Plan, &plan, clock);
        Some(plan)
    }

    fn number(&self) -> u64 {
        self.stats.steps + 1
    }

    /// Tokens of prompts in the next step.
    fn prompt_budget(&self) -> usize {
        let chunk = self.engine.chunk();
        let others_wait = self.running.iter().any(Request::is_decoding);
        match self.pace {
            Some(pace) if others_wait => {
                ((PATIENCE.as_secs_f64() / pace) as usize).clamp(LEAST_PROMPT.min(chunk), chunk)
            }
            None if others_wait => LEAST_PROMPT.max(chunk / 8),
            _ => chunk,
        }
    }

    /// The next tokens of every request. Prompts share their budget evenly.
    fn plan_all(&mut self) -> Plan {
        let (number, context) = (self.number(), self.engine.context());
        let mut budget = self.prompt_budget();
        let mut prompts = self.running.iter().filter(|request| !request.is_decoding()).count();
        let speculate = self.speculate && prompts == 0 && self.running.len() <= FEW;
        let (mut parts, mut prompt_tokens) = (Vec::with_capacity(self.running.len()), 0);
        for request in &mut self.running {
            let (number, seen, unseen) = (request.number, request.seen(), request.unseen());
            if request.is_decoding() {
                let part = request.writer.plan(number, seen, unseen, speculate, context);
                self.stats.drafted += part.drafts as u64;
                parts.push(part);
                continue;
            }
            let part = request.writer.plan(number, seen, (budget / prompts).max(1), false, context);
            budget = budget.saturating_sub(part.tokens.len());
            prompts -= 1;
            prompt_tokens += part.tokens.len();
            parts.push(part);
        }
        Plan::new(number, parts, prompt_tokens)
    }

    /// The step after one under way, for the token that this will bring: for a request that is
    /// alone, will go on, and has no draft tokens to check.
    fn plan_next(&self, before: &Plan) -> Option<Plan> {
        let ([request], [part]) = (&self.running[..], &before.parts[..]) else { return None };
        let writer = &request.writer;
        // A snapshot is a copy of the state, which must not be further then. The place to take one
        // is in the prompt, which a request that decodes has behind it.
        let goes_on = request.number == part.request
            && request.is_decoding()
            && part.rows.len() == 1
            && part.drafts == 0
            && writer.goes_on(self.speculate, self.engine.context());
        if !goes_on || !self.waiting.is_empty() || (self.has_head() && !writer.is_without_head()) {
            return None;
        }
        Some(Plan::new(self.number(), vec![writer.plan_next(request.number, part.end())], 0))
    }

    /// Whether a drafting head makes drafts.
    pub(super) fn has_head(&self) -> bool {
        self.speculate && self.engine.has_drafting_head()
    }

    // ---- Submit and collect ----

    /// Starts a step.
    fn submit(&mut self, plan: &Plan) -> Result<Ticket<B>, Error> {
        let clock = self.trace.clock();
        let Self { engine, running, in_flight, speculate, .. } = self;
        let ticket = match (in_flight.back_mut(), &mut running[..]) {
            (Some((_, before)), [request]) => device::submit_next(engine, before, request),
            _ => {
                // Masks of requests that decode are computed since their last token was chosen.
                let b = engine.model().backend();
                let prompts = running.iter().filter(|request| !request.is_decoding());
                prompts.filter_map(Request::next_mask).for_each(|mask| b.background(mask));
                device::submit(engine, plan, running, *speculate && plan.parts.len() <= FEW)
            }
        };
        self.trace.tell(Phase::Submit, plan, clock);
        ticket
    }

    /// Waits for what a step brings.
    fn collect(&mut self, plan: &Plan, ticket: Ticket<B>) -> Result<Collected<B>, Error> {
        let clock = self.trace.clock();
        let rows = plan.parts.last().map_or(0, |part| part.rows.end);
        let mut wanted = Wanted { largest: Some(1), allowed: vec![None; rows] };
        let asking = |(part, _): &(&Part, &mut Request<B>)| !part.rows.is_empty();
        for (part, request) in plan.with(&mut self.running).filter(asking) {
            // As many of the largest as suffice for everybody, or all.
            let needed = request.writer.needed(part);
            wanted.largest = wanted.largest.zip(needed).map(|(a, b)| a.max(b));
        }
        if wanted.largest.is_some() {
            for (part, request) in plan.with(&mut self.running).filter(asking) {
                wanted.allowed[part.rows.clone()].fill(request.writer.allowed());
            }
        }
        let memory = std::mem::take(&mut self.logits);
        let collected = device::collect(&self.engine, ticket, &wanted, memory);
        self.trace.tell(Phase::Collect, plan, clock);
        collected
    }
}
