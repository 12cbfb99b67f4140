//! One request over a loop that has nothing else to do: for commands that answer one at a time.

use std::time::Duration;

use engine::{Finish, Job, Listener, Loop, Timing, TokenUpdate, Update, Updates};

use crate::error::Error;
use crate::machine::Machine;
use crate::terminal::{self, PromptBar};

/// What a request brought, and how long it took.
#[derive(Debug)]
pub struct Generated {
    /// The tokens, without an end token.
    pub tokens: Vec<TokenUpdate>,
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that a kept sequence had seen.
    pub reused_tokens: usize,
    pub timing: Timing,
}

impl Generated {
    /// Ids of the tokens.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    /// All of the time.
    pub fn time(&self) -> Duration {
        self.timing.prompt + self.timing.decode
    }

    /// Prompt tokens computed per second.
    pub fn prompt_speed(&self) -> f64 {
        let computed = self.prompt_tokens.saturating_sub(self.reused_tokens);
        computed as f64 / self.timing.prompt.as_secs_f64().max(1e-9)
    }

    /// Tokens generated per second. The first comes with the prompt.
    pub fn decode_speed(&self) -> f64 {
        self.tokens.len().saturating_sub(1) as f64 / self.timing.decode.as_secs_f64().max(1e-9)
    }
}

/// Shows how far a long prompt has come, and is gone at Ctrl-C.
struct Watched {
    listener: Box<dyn Listener>,
    bar: PromptBar,
}

impl Listener for Watched {
    fn update(&mut self, update: Update) {
        match update {
            Update::Prompt { done, of } => self.bar.set(done, of),
            update => {
                self.bar.clear();
                self.listener.update(update);
            }
        }
    }

    fn is_gone(&self) -> bool {
        terminal::interrupted() || self.listener.is_gone()
    }
}

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Continue,
    Stop,
}

/// Runs the request that `job` makes for a listener. `tell` hears of each token; the one at which
/// it stops is still part of the answer. Ctrl-C ends it too.
pub fn generate<B: Machine>(
    steps: &mut Loop<B>,
    job: impl FnOnce(Box<dyn Listener>) -> Job,
    mut tell: impl FnMut(&TokenUpdate) -> Result<Flow, Error>,
) -> Result<Generated, Error> {
    let (listener, updates) = Updates::new();
    let job = job(Box::new(Watched { listener, bar: PromptBar::default() }));
    let (prompt_tokens, mut reused_tokens) = (job.prompt.len(), 0);
    let (mut tokens, mut flow) = (Vec::new(), Ok(Flow::Continue));
    steps.push(job)?;
    loop {
        steps.step();
        while let Some(update) = updates.next_ready() {
            match update {
                Update::Prompt { .. } | Update::PromptLogits(_) => {}
                Update::Started { reused } => reused_tokens = reused,
                // One step may bring more than the text that ended it.
                Update::Token(token) if matches!(flow, Ok(Flow::Continue)) => {
                    flow = tell(&token);
                    tokens.push(token);
                    if !matches!(flow, Ok(Flow::Continue)) {
                        updates.cancel();
                    }
                }
                Update::Token(_) => {}
                Update::Finished(finish, timing) => {
                    let finish = if flow? == Flow::Stop { Finish::Stopped } else { finish };
                    return Ok(Generated { tokens, finish, prompt_tokens, reused_tokens, timing });
                }
                Update::Failed(error) => return Err(error.into()),
            }
        }
        if steps.is_idle() {
            return Err(Error::Usage("the model has stopped without a last word".into()));
        }
    }
}

/// The logits after every token of a text, in the pieces of the loop's steps.
pub struct Scores {
    updates: Updates,
}

impl Scores {
    /// Hands a text to a loop.
    pub fn of<B: Machine>(steps: &mut Loop<B>, ids: &[u32]) -> Result<Self, Error> {
        let (listener, updates) = Updates::new();
        let (max_tokens, prompt_logits) = (Some(0), true);
        steps.push(Job { max_tokens, prompt_logits, ..Job::new(ids.to_vec(), listener) })?;
        Ok(Self { updates })
    }

    /// The logits of the next step, row after row; `None` behind the last.
    pub fn next<B: Machine>(&self, steps: &mut Loop<B>) -> Result<Option<Vec<f32>>, Error> {
        loop {
            match self.updates.next_ready() {
                Some(Update::PromptLogits(rows)) => return Ok(Some(rows)),
                Some(Update::Failed(error)) => return Err(error.into()),
                Some(Update::Finished(..)) => return Ok(None),
                Some(_) => {}
                None if steps.is_idle() => return Ok(None),
                None => steps.step(),
            }
        }
    }
}
