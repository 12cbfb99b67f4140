//! Answers by a script, in the place of a scheduler with a model. The example `fake` uses it too.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use engine::{
    Dialect, Finish, Grammars, Job, Listener, Refused, Stats, Timing, TokenUpdate, Tokenizer, Update,
};
use server::{Answers, ServedModel};

/// What happens to a job.
#[derive(Clone, Debug)]
pub struct Play {
    /// Tokens of the prompt that count as known.
    pub reused: usize,
    /// Time for the prompt.
    pub prompt: Duration,
    /// The answer.
    pub text: String,
    /// Time for each token.
    pub pause: Duration,
    /// What goes wrong at the end, if anything.
    pub failure: Option<String>,
    /// Whether the job ends without a last word, as when its scheduler dies.
    pub lost: bool,
}

impl Play {
    /// An answer at once.
    pub fn text(text: &str) -> Self {
        let text = text.into();
        Self { reused: 0, prompt: Duration::ZERO, text, pause: Duration::ZERO, failure: None, lost: false }
    }
}

/// What a job asked for, for tests to look at.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub prompt: String,
    pub tokens: usize,
    pub stable: usize,
    pub max_tokens: Option<usize>,
    pub seed: Option<u64>,
    pub temperature: f32,
    pub constrained: bool,
    pub logprobs: Option<usize>,
}

type Script = Box<dyn Fn(&str) -> Play + Send + Sync>;

#[derive(Default)]
struct Counts {
    running: AtomicUsize,
    cancelled: AtomicUsize,
    tokens: AtomicUsize,
}

/// A scheduler without a model.
pub struct Fake {
    tokenizer: Tokenizer,
    script: Script,
    counts: Arc<Counts>,
    seen: Mutex<Vec<Seen>>,
    /// Jobs at the same time.
    room: usize,
    ending: AtomicBool,
}

/// The fixtures' tokenizer with a template that knows calls.
pub fn tokenizer() -> Tokenizer {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tokenizer");
    let read = |name: &str| match name {
        "chat_template.jinja" => Ok(Some(include_str!("template.jinja").into())),
        name => Ok(std::fs::read_to_string(folder.join(name)).ok()),
    };
    Tokenizer::from_files(&folder, read).expect("the fixture is there")
}

impl Fake {
    /// A fake that answers prompts as the script says.
    pub fn new(room: usize, script: impl Fn(&str) -> Play + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            tokenizer: tokenizer(),
            script: Box::new(script),
            counts: Arc::default(),
            seen: Mutex::default(),
            room,
            ending: AtomicBool::new(false),
        })
    }

    /// The model that a server serves with this fake.
    pub fn model(self: &Arc<Self>) -> ServedModel {
        let tokenizer = self.tokenizer.clone();
        ServedModel {
            id: "pleiad/fake".into(),
            dialect: Dialect::of(&tokenizer),
            grammars: Grammars::new(&tokenizer, tokenizer.vocab_size()),
            tokenizer,
            answers: Arc::new(Shared(self.clone())),
        }
    }

    /// Jobs seen so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// Jobs that run.
    pub fn running(&self) -> usize {
        self.counts.running.load(Ordering::SeqCst)
    }

    /// Jobs whose listener had gone.
    pub fn cancelled(&self) -> usize {
        self.counts.cancelled.load(Ordering::SeqCst)
    }
}

/// The server owns its answers; tests look at them from outside.
struct Shared(Arc<Fake>);

impl Answers for Shared {
    fn submit(&self, job: Job) -> Result<(), Refused> {
        let fake = &self.0;
        if fake.ending.load(Ordering::SeqCst) {
            return Err(Refused::Ending);
        }
        if job.prompt.len() > self.context() {
            return Err(
                engine::Error::PromptTooLong { tokens: job.prompt.len(), context: self.context() }.into()
            );
        }
        if fake.counts.running.fetch_add(1, Ordering::SeqCst) >= fake.room {
            fake.counts.running.fetch_sub(1, Ordering::SeqCst);
            return Err(Refused::Busy { waiting: 7, retry_after: Duration::from_millis(1500) });
        }
        let prompt = fake.tokenizer.decode(&job.prompt, false)?;
        let play = (fake.script)(&prompt);
        let ids = fake.tokenizer.encode(&play.text, false)?;
        fake.seen.lock().unwrap().push(Seen {
            prompt,
            tokens: job.prompt.len(),
            stable: job.stable,
            max_tokens: job.max_tokens,
            seed: job.sampling.seed,
            temperature: job.sampling.temperature,
            constrained: job.constraint.is_some(),
            logprobs: job.logprobs,
        });
        let counts = fake.counts.clone();
        thread::spawn(move || {
            if !act(&play, &ids, job, &counts) {
                counts.cancelled.fetch_add(1, Ordering::SeqCst);
            }
            counts.running.fetch_sub(1, Ordering::SeqCst);
        });
        Ok(())
    }

    fn stats(&self) -> Stats {
        Stats {
            running: self.0.running(),
            cancelled: self.0.cancelled() as u64,
            tokens: self.0.counts.tokens.load(Ordering::SeqCst) as u64,
            ..Stats::default()
        }
    }

    fn context(&self) -> usize {
        4096
    }

    fn finish(&self) {
        self.0.ending.store(true, Ordering::SeqCst);
        while self.0.running() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Plays a job to its end; false when its listener has gone.
fn act(play: &Play, ids: &[u32], job: Job, counts: &Counts) -> bool {
    let mut listener = job.listener;
    if !wait(play.prompt, &*listener) {
        return false;
    }
    listener.update(Update::Started { reused: play.reused.min(job.prompt.len()) });
    let most = job.max_tokens.unwrap_or(usize::MAX);
    for &id in ids.iter().take(most) {
        if !wait(play.pause, &*listener) {
            return false;
        }
        let top =
            (0..job.logprobs.unwrap_or(0)).map(|place| (id + place as u32, -0.25 - place as f32)).collect();
        listener.update(Update::Token(TokenUpdate { id, logprob: job.logprobs.map(|_| -0.25), top }));
        counts.tokens.fetch_add(1, Ordering::SeqCst);
    }
    if play.lost {
        return true;
    }
    listener.update(match &play.failure {
        Some(message) => Update::Failed(engine::Error::Decode(message.clone())),
        None => {
            let finish = if ids.len() > most { Finish::Length } else { Finish::End };
            Update::Finished(finish, Timing::default())
        }
    });
    true
}

/// Waits as a scheduler works: looking now and then whether anybody still listens.
fn wait(time: Duration, listener: &dyn Listener) -> bool {
    let until = Instant::now() + time;
    loop {
        if listener.is_gone() {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(Duration::from_millis(2)));
    }
}
