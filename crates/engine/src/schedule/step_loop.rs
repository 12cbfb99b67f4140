//! The loop: plan a step, submit it, collect what it brings, commit that.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use backend::Backend;

use super::costs::Costs;
use super::device::{self, Collected, Ticket};
use super::job::{Finish, Job};
use super::plan::{Part, Plan};
use super::prefix::Prefixes;
use super::request::Request;
use super::trace::{Phase, Trace};
use super::{Queued, SchedulerOptions, Stats};
use crate::sequence::Sequence;
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
    waiting: VecDeque<Request>,
    pub(super) running: Vec<Request>,
    /// Steps under way, the oldest first; at most as many as the backend's depth.
    pub(super) in_flight: VecDeque<(Plan, Ticket<B>)>,
    pub(super) prefixes: Prefixes,
    /// Requests that have arrived, for their numbers.
    arrived: u64,
    /// Requests that wait, those on their way to this thread included.
    queued: Arc<AtomicUsize>,
    /// Seconds per token of a prompt, as far as known.
    pub(super) pace: Option<f64>,
    /// What steps take with drafts of a drafting head and without.
    pub(super) costs: Costs,
    pub(super) stats: Stats,
}

impl<B: Backend> Loop<B> {
    /// A loop without requests. [`SchedulerOptions::queue`] means nothing to it.
    pub fn new(engine: Engine<B>, options: SchedulerOptions) -> Self {
        Self::counting(engine, options, Arc::default())
    }

    /// A loop that counts in `queued` what waits: jobs are added by whoever hands them over.
    pub(super) fn counting(engine: Engine<B>, options: SchedulerOptions, queued: Arc<AtomicUsize>) -> Self {
        let memory = options.prefix_memory.min(engine.pools().budget());
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
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<B> {
        &self.engine
    }

    /// Counters since the start, and what is going on now.
    pub fn stats(&self) -> Stats {
        let (waiting, running, pools) = (self.waiting.len(), self.running.len(), self.engine.pools());
        let (prefix_bytes, cache_bytes) = (self.prefixes.bytes(), pools.used());
        Stats { waiting, running, prefix_bytes, cache_bytes, ..self.stats }
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
        let begun = Instant::now();
        while self.in_flight.len() < self.engine.depth()
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
        self.prefixes.shrink(&mut self.engine, 0);
    }

    /// Reads a sequence that [`save`](Self::save) wrote with the same model and kind of cache, and
    /// keeps it for prompts that begin with it. The result is its number of tokens.
    pub fn load(&mut self, path: &Path) -> Result<usize, Error> {
        loop {
            if let Some(sequence) = self.engine.load(path)? {
                let len = sequence.len;
                self.prefixes.put(&mut self.engine, &self.running, sequence);
                return Ok(len);
            }
            if !self.prefixes.drop_oldest(&mut self.engine) {
                return Err(Error::CachesFull { bytes_for_caches: self.engine.pools().budget() });
            }
        }
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
        let gone = |request: &Request| request.writer.job.listener.is_gone();
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

    /// Begins waiting requests, the first come first, as long as there is room for what running ones grow by, too.
    fn admit(&mut self) {
        while self.running.len() < self.slots
            && let Some(first) = self.waiting.front()
        {
            let scores = first.writer.job.prompt_logits;
            let shared = if scores { 0 } else { self.prefixes.longest(&self.engine, &self.running, first) };
            let running = self.running.iter().map(|request| (request, request.seen()));
            let growth =
                running.chain([(first, shared)]).map(|(r, seen)| r.growth(&self.engine, seen, MARGIN));
            let needed: u64 = growth.fold(0, u64::saturating_add);
            if needed > self.engine.pools().free().saturating_add(self.prefixes.bytes())
                && !self.running.is_empty()
            {
                break;
            }
            let Some(mut request) = self.waiting.pop_front() else { break };
            let begun = match scores {
                true => Sequence::create(&mut self.engine),
                false => self.prefixes.take(&mut self.engine, &self.running, request.writer.tokens()),
            };
            match begun {
                Ok(Some(sequence)) => {
                    request.writer.begin();
                    self.queued.fetch_sub(1, Ordering::Relaxed);
                    request.writer.reused = sequence.len;
                    self.stats.reused_tokens += sequence.len as u64;
                    request.sequence = Some(sequence);
                    self.running.push(request);
                }
                Ok(None) => {
                    self.waiting.push_front(request);
                    if !self.give_way() {
                        break;
                    }
                }
                Err(error) => {
                    self.queued.fetch_sub(1, Ordering::Relaxed);
                    self.fail(request, error);
                }
            }
        }
    }

    /// Gives up what is kept for later, the least useful first; whether there was anything.
    fn give_way(&mut self) -> bool {
        let Self { prefixes, running, engine, .. } = self;
        prefixes.drop_oldest(engine)
            || running
                .iter_mut()
                .any(|request| request.sequence.as_mut().is_some_and(|sequence| sequence.forget_mark(engine)))
    }

    /// Makes room for the tokens of a step: first by what is kept for later, then by preempting the latest requests,
    /// which are computed again when there is room.
    fn reserve(&mut self, parts: &mut Vec<Part>) -> Result<(), Error> {
        for part in &mut *parts {
            let Some(at) = self.running.iter().position(|request| request.number == part.request) else {
                continue;
            };
            let Some(sequence) = &mut self.running[at].sequence else {
                self.preempt(at);
                continue;
            };
            if part.drafts > 0 && !sequence.begin_drafts(&mut self.engine)? {
                part.cut_drafts(0);
            }
            let slot = sequence.slot;
            // Those behind it are preempted, then it itself.
            while at < self.running.len() {
                let (b, pools) = self.engine.parts();
                if pools.sequences().reserve(b, slot, part.tokens.len())? {
                    break;
                }
                if !self.give_way() {
                    if self.running.len() == 1 {
                        return Err(Error::CachesFull { bytes_for_caches: self.engine.pools().budget() });
                    }
                    self.preempt(self.running.len() - 1);
                }
            }
        }
        parts.retain(|part| self.running.iter().any(|request| request.number == part.request));
        Ok(())
    }

    /// Sets a running request aside until there is room for it.
    fn preempt(&mut self, i: usize) {
        let mut request = self.running.remove(i);
        request.release(&mut self.engine);
        self.stats.preempted += 1;
        self.waiting.push_front(request);
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    // ---- Plan ----

    /// The next step, if it can begin now.
    fn plan(&mut self) -> Option<Plan> {
        if self.running.is_empty() || !self.can_go_on() {
            return None;
        }
        let clock = self.trace.clock();
        let mut parts = self.plan_parts();
        if let Err(error) = self.reserve(&mut parts) {
            self.fail_all(&error);
            return None;
        }
        if parts.is_empty() {
            return None;
        }
        let plan = Plan::new(self.stats.steps + 1, parts);
        self.stats.steps += 1;
        self.stats.drafted += plan.parts.iter().map(|part| part.drafts as u64).sum::<u64>();
        self.trace.tell(Phase::Plan, &plan, clock);
        Some(plan)
    }

    /// Whether a step can begin before those under way are over: where the next token of every request is known, or will
    /// be chosen by then and nobody but the backend needs to know it.
    fn can_go_on(&self) -> bool {
        let Some((before, _)) = self.in_flight.back() else { return true };
        let speculate = self.speculates();
        self.running.iter().all(|request| {
            let Some(part) = before.parts.iter().find(|part| part.request == request.number) else {
                return true;
            };
            let writer = &request.writer;
            match part.draws.len() {
                0 => true,
                1 if part.drafts == 0 => {
                    writer.constraint().is_none()
                        && !(speculate && writer.is_repeating(self.engine.context()))
                        && (!self.has_head() || writer.is_without_head())
                }
                _ => false,
            }
        })
    }

    /// Whether draft tokens may be checked, as far as the running requests are concerned.
    fn speculates(&self) -> bool {
        self.speculate && self.running.len() <= FEW && self.running.iter().all(Request::is_decoding)
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
    fn plan_parts(&mut self) -> Vec<Part> {
        let context = self.engine.context();
        let mut budget = self.prompt_budget();
        let mut prompts = self.running.iter().filter(|request| !request.is_decoding()).count();
        let speculate = self.speculates() && self.in_flight.is_empty();
        let mut parts = Vec::with_capacity(self.running.len());
        for request in &mut self.running {
            let (number, seen, unseen) = (request.number, request.seen(), request.unseen());
            if request.is_decoding() {
                match unseen {
                    // Whoever chooses its last token in a step under way is over then.
                    0 if !request.writer.goes_on(context) => {}
                    0 => parts.push(request.writer.plan_next(number, seen)),
                    _ => parts.push(request.writer.plan(number, seen, unseen, speculate, context)),
                }
                continue;
            }
            if unseen > 0 {
                let part = request.writer.plan(number, seen, (budget / prompts).max(1), false, context);
                budget = budget.saturating_sub(part.tokens.len());
                parts.push(Part { is_prompt: true, ..part });
            } else if request.writer.goes_on(context) {
                parts.push(request.writer.plan_next(number, seen));
            }
            prompts -= 1;
        }
        parts
    }

    /// Whether a drafting head makes drafts.
    pub(super) fn has_head(&self) -> bool {
        self.speculate && self.engine.has_drafting_head()
    }

    // ---- Submit and collect ----

    /// Starts a step.
    fn submit(&mut self, plan: &Plan) -> Result<Ticket<B>, Error> {
        let clock = self.trace.clock();
        let Self { engine, running, speculate, .. } = self;
        // Masks of requests that decode are computed since their last token was chosen.
        let b = engine.model().backend();
        let prompts = running.iter().filter(|request| !request.is_decoding());
        prompts.filter_map(Request::next_mask).for_each(|mask| b.background(mask));
        let ticket = device::submit(engine, plan, running, *speculate && plan.parts.len() <= FEW);
        self.trace.tell(Phase::Submit, plan, clock);
        ticket
    }

    /// Waits for what a step brings.
    fn collect(&mut self, plan: &Plan, ticket: Ticket<B>) -> Result<Collected<B>, Error> {
        let clock = self.trace.clock();
        let collected = device::collect(&self.engine, ticket);
        self.trace.tell(Phase::Collect, plan, clock);
        collected
    }
}
