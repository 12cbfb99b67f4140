//! Many answers at once: one thread owns the engine and runs the steps, everybody else hands it jobs.
//!
//! A step is a batch: the next token of every answer that is being written, some tokens that are guessed, and as much of new
//! prompts as keeps the others from waiting long. `run` is the loop, `answer` one job on its way, `prefix` what finished
//! sequences leave for later prompts. `ahead` has a step ready before its token is known. `guess` finds repetitions, `draft` asks a
//! model's own head for guesses, and `costs` whether these are worth it.

mod ahead;
mod answer;
mod costs;
mod draft;
mod guess;
mod job;
mod prefix;
mod run;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use backend::Backend;

pub use job::{Job, Listener, Refused, Timing, TokenUpdate, Update};

use crate::engine::Limits;
use crate::{Engine, Error, Sampler};
use run::{Loop, Queued};

/// Settings of a [`Scheduler`].
#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Answers generated at the same time.
    pub slots: usize,
    /// Jobs that may wait beside them.
    pub queue: usize,
    /// Bytes for the states of finished sequences, which later prompts may begin with.
    pub prefix_memory: u64,
    /// Where such states are kept when the scheduler ends, if anywhere.
    pub prefix_folder: Option<PathBuf>,
    /// Whether to guess several tokens at once: where the text repeats itself, and by the model's drafting head where it was loaded. Answers
    /// keep their distribution.
    pub speculate: bool,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self { slots: 64, queue: 256, prefix_memory: 2 << 30, prefix_folder: None, speculate: true }
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
    /// Times that an answer gave way to others for want of memory; it is computed again later.
    pub set_aside: u64,
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens of prompts that did not have to be.
    pub reused_tokens: u64,
    /// Tokens generated.
    pub tokens: u64,
    /// Tokens guessed.
    pub guessed: u64,
    /// Of these, tokens guessed right.
    pub guessed_right: u64,
    /// Steps of the model.
    pub steps: u64,
    /// Bytes of states kept for later prompts.
    pub prefix_bytes: u64,
}

/// What both sides of the channel see.
struct Shared {
    /// `None` once the scheduler is ending.
    jobs: Mutex<Option<Sender<Box<Queued>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Jobs handed over and not yet begun.
    waiting: AtomicUsize,
    stats: Mutex<Stats>,
    limits: Limits,
    slots: usize,
    queue: usize,
}

/// A running scheduler. Cheap to clone; its thread ends with [`finish`](Self::finish), or when the last clone is dropped.
#[derive(Clone)]
pub struct Scheduler {
    shared: Arc<Shared>,
}

/// The lock, also after a panic elsewhere: what it guards is counters and handles, whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Scheduler {
    /// Starts the thread that runs the model.
    pub fn start<B: Backend + Send>(engine: Engine<B>, options: SchedulerOptions) -> Result<Self, Error> {
        let (jobs, received) = channel();
        let shared = Arc::new(Shared {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(None),
            waiting: AtomicUsize::new(0),
            stats: Mutex::default(),
            limits: engine.limits(),
            slots: options.slots.max(1),
            queue: options.queue,
        });
        let weak = Arc::downgrade(&shared);
        let work = move || Loop::new(engine, options, received, weak).run();
        let thread = std::thread::Builder::new().name("scheduler".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Thread { reason: e.to_string() })?;
        *lock(&shared.thread) = Some(thread);
        Ok(Self { shared })
    }

    /// Hands over a job, or says why not.
    pub fn submit(&self, job: Job) -> Result<(), Refused> {
        let shared = &self.shared;
        shared.limits.check(&job.prompt)?;
        let sampler = Sampler::new(job.sampling.clone())?;
        let take = |waiting: usize| (waiting < shared.queue.max(1)).then_some(waiting + 1);
        if let Err(waiting) = shared.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            return Err(Refused::Busy { waiting, retry_after: self.patience(waiting) });
        }
        let queued = Box::new(Queued { job, sampler, since: Instant::now() });
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
