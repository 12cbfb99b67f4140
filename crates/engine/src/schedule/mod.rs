//! Many requests at once. [`Loop`] runs them: a step is a batch of the next token of every request
//! that decodes, some draft tokens, and as much of new prompts as keeps the others from waiting
//! long. It plans a step, submits it, collects what it brings and commits that; where the backend
//! looks ahead, the next step is submitted before the present one is collected. [`Scheduler`] is a
//! loop on a thread of its own, to which everybody else hands jobs.
//!
//! `step_loop` is the loop, `plan` a step before it runs, `device` starts and reads it, `commit`
//! ends it. `request` is one job on its way, `writer` its host side, `prefix` what finished
//! sequences leave for later prompts. `lookup` drafts from repetitions, `draft` by a model's own
//! head, and `costs` says whether that pays. `trace` tells who wants to know.

mod commit;
mod costs;
mod device;
mod draft;
mod job;
mod lookup;
mod plan;
mod prefix;
mod request;
mod step_loop;
mod trace;
mod writer;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use backend::Backend;

pub use job::{Finish, Job, Listener, Refused, Timing, TokenUpdate, Update, Updates};
pub use step_loop::Loop;
pub use trace::{Phase, StepEvent, Trace};

use crate::engine::Limits;
use crate::{Engine, Error, Sampler};

/// Settings of a [`Loop`] or a [`Scheduler`].
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Requests that run at the same time.
    pub slots: usize,
    /// Requests that may wait beside them in a scheduler.
    pub queue: usize,
    /// Bytes for the states of finished sequences, which later prompts may begin with; a scheduler
    /// uses at most half of what caches may take.
    pub prefix_memory: u64,
    /// Most finished sequences to keep.
    pub prefixes: usize,
    /// Where a scheduler keeps such states when it ends, if anywhere.
    pub prefix_folder: Option<PathBuf>,
    /// Whether to check draft tokens: where the text repeats itself, and by the model's drafting
    /// head where it was loaded. Answers keep their distribution.
    pub speculate: bool,
    /// Who hears of the parts of every step.
    pub trace: Trace,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            slots: 64,
            queue: 256,
            prefix_memory: 2 << 30,
            prefixes: 1024,
            prefix_folder: None,
            speculate: true,
            trace: Trace::default(),
        }
    }
}

/// Counters since the start, and what is going on now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Jobs that wait.
    pub waiting: usize,
    /// Jobs that run.
    pub running: usize,
    /// Jobs done, of every outcome.
    pub finished: u64,
    /// Time they took since they began, added up.
    pub busy: Duration,
    /// Of these, jobs whose listener had gone.
    pub cancelled: u64,
    /// Of these, jobs that failed.
    pub failed: u64,
    /// Times that a request was preempted for want of memory; it is computed again later.
    pub preempted: u64,
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that did not have to be.
    pub reused_tokens: u64,
    /// Tokens generated.
    pub tokens: u64,
    /// Draft tokens checked.
    pub drafted: u64,
    /// Of these, accepted ones.
    pub accepted: u64,
    /// Steps of the model.
    pub steps: u64,
    /// Bytes kept for later prompts.
    pub prefix_bytes: u64,
    /// Bytes of caches and recurrent states in use, what is kept included.
    pub cache_bytes: u64,
}

/// A job as it was handed over.
struct Queued {
    job: Job,
    sampler: Sampler,
    since: Instant,
}

impl Queued {
    fn new(job: Job, limits: Limits) -> Result<Self, Error> {
        limits.check(&job.prompt)?;
        let sampler = Sampler::new(job.sampling.clone(), job.prompt.len())?;
        Ok(Self { job, sampler, since: Instant::now() })
    }
}

/// What both sides of the channel see.
struct Shared {
    /// `None` once the scheduler is ending.
    jobs: Mutex<Option<Sender<Box<Queued>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Jobs handed over and not yet begun.
    waiting: Arc<AtomicUsize>,
    stats: Mutex<Stats>,
    limits: Limits,
    slots: usize,
    queue: usize,
}

/// A running scheduler. Cheap to clone; its thread ends with [`finish`](Self::finish), or when the
/// last clone is dropped.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
}

/// The lock, also after a panic elsewhere: what it guards is counters and handles, whole at any
/// time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scheduler {
    /// Starts the thread that runs the model.
    pub fn start<B: Backend + Send>(engine: Engine<B>, options: SchedulerOptions) -> Result<Self, Error> {
        let (jobs, received) = channel();
        let (limits, slots, queue) = (engine.limits(), options.slots.max(1), options.queue.max(1));
        let folder = options.prefix_folder.clone();
        let prefix_memory = options.prefix_memory.min(engine.pools().budget() / 2);
        let options = SchedulerOptions { prefix_memory, ..options };
        let waiting = Arc::<AtomicUsize>::default();
        let shared = Arc::new(Shared {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(None),
            waiting: waiting.clone(),
            stats: Mutex::default(),
            limits,
            slots,
            queue,
        });
        let weak = Arc::downgrade(&shared);
        let work = move || {
            let steps = run(Loop::counting(engine, options, waiting), &received, &weak);
            if let Some(folder) = folder {
                steps.save_all(&folder);
            }
        };
        let thread = std::thread::Builder::new().name("scheduler".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Thread { reason: e.to_string() })?;
        *lock(&shared.thread) = Some(thread);
        Ok(Self { shared })
    }

    /// Hands over a job, or says why not.
    pub fn submit(&self, job: Job) -> Result<(), Refused> {
        let shared = &self.shared;
        let queued = Box::new(Queued::new(job, shared.limits)?);
        let take = |waiting: usize| (waiting < shared.queue).then_some(waiting + 1);
        if let Err(waiting) = shared.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            return Err(Refused::Busy { waiting, retry_after: self.patience(waiting) });
        }
        let sent = lock(&shared.jobs).as_ref().is_some_and(|jobs| jobs.send(queued).is_ok());
        if !sent {
            shared.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Refused::Ending);
        }
        Ok(())
    }

    /// How long `waiting` jobs will probably take, as far as the past tells.
    fn patience(&self, waiting: usize) -> Duration {
        let Stats { finished, busy, .. } = *lock(&self.shared.stats);
        let each = busy / u32::try_from(finished.max(1)).unwrap_or(u32::MAX);
        let rounds = waiting.div_ceil(self.shared.slots) as u32;
        (each * rounds).clamp(Duration::from_secs(1), Duration::from_secs(60))
    }

    /// Longest sequence, prompt and answer.
    pub fn context(&self) -> usize {
        self.shared.limits.context
    }

    /// What is going on.
    pub fn stats(&self) -> Stats {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        Stats { waiting, ..*lock(&self.shared.stats) }
    }

    /// Takes nothing new, and returns when all jobs are done.
    pub fn finish(&self) {
        lock(&self.shared.jobs).take();
        let thread = lock(&self.shared.thread).take();
        if let Some(thread) = thread {
            // A panic in it has already been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// The thread's side: takes jobs and steps until no more will come and all are done.
fn run<B: Backend>(mut steps: Loop<B>, received: &Receiver<Box<Queued>>, shared: &Weak<Shared>) -> Loop<B> {
    let publish = |steps: &Loop<B>| {
        if let Some(shared) = shared.upgrade() {
            *lock(&shared.stats) = steps.stats();
        }
    };
    loop {
        if steps.is_idle() {
            publish(&steps);
            match received.recv() {
                Ok(queued) => steps.enqueue(*queued),
                Err(_) => return steps,
            }
        }
        while let Ok(queued) = received.try_recv() {
            steps.enqueue(*queued);
        }
        steps.step();
        publish(&steps);
    }
}
