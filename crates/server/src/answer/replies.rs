//! The answers to a question while they are generated.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use engine::{Job, Listener, Update};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::Usage;
use super::choice::{Choice, Event};
use super::prompt::Prepared;
use super::question::Question;
use crate::app::{App, raised};
use crate::fault::Fault;

/// When the scheduler drops a job without a last word.
const LOST: &str = "the model has stopped working; see what the server itself says";

/// Passes a job's updates on. Nobody waits: an answer is at most as long as the context, so the queue stays small.
struct Feed {
    index: usize,
    updates: UnboundedSender<(usize, Update)>,
    over: Arc<AtomicBool>,
}

impl Listener for Feed {
    fn update(&mut self, update: Update) {
        // It fails only when nobody listens any more, which `is_gone` tells.
        let _ = self.updates.send((self.index, update));
    }

    fn is_gone(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.updates.is_closed()
    }
}

/// An answer and whether it still goes on.
struct Running {
    choice: Choice,
    /// Tells the scheduler that no more is wanted, where the text ended before the tokens did.
    over: Arc<AtomicBool>,
    ended: bool,
    last_token: Option<Instant>,
}

/// All answers to a question; dropping it ends them.
pub struct Replies {
    app: Arc<App>,
    updates: UnboundedReceiver<(usize, Update)>,
    running: Vec<Running>,
    ready: VecDeque<(usize, Event)>,
    cut: watch::Receiver<bool>,
    asked: Instant,
    /// Answers per prompt: each prompt is counted once.
    n: usize,
}

/// Hands all answers of a question to the scheduler: those of the first prompt first.
pub fn ask(
    app: &Arc<App>,
    question: &Question,
    prepared: Vec<Prepared>,
    asked: Instant,
) -> Result<Replies, Fault> {
    let (sender, updates) = unbounded_channel();
    let mut running = Vec::new();
    let tokenizer = &app.model.tokenizer;
    for mut prompt in prepared {
        let mut constraints = std::mem::take(&mut prompt.constraints).into_iter();
        for copy in 0..question.n {
            let over = Arc::new(AtomicBool::new(false));
            let feed = Feed { index: running.len(), updates: sender.clone(), over: over.clone() };
            let mut sampling = question.sampling.clone();
            sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(copy as u64));
            app.model.answers.submit(Job {
                stable: prompt.stable,
                max_tokens: question.max_tokens,
                end_ids: tokenizer.eos_ids().to_vec(),
                sampling,
                constraint: constraints.next(),
                logprobs: question.logprobs,
                ..Job::new(prompt.ids.clone(), Box::new(feed))
            })?;
            let reader = prompt.reader();
            // A dialect reads special tokens; plain text has none.
            let stream = tokenizer.stream(reader.is_none());
            let informed = question.logprobs.is_some();
            let choice = Choice::new(stream, reader, question.stops.clone(), informed, prompt.ids.len());
            running.push(Running { choice, over, ended: false, last_token: None });
        }
    }
    let (ready, cut) = (VecDeque::new(), app.cut.subscribe());
    Ok(Replies { app: app.clone(), updates, running, ready, cut, asked, n: question.n.max(1) })
}

impl Replies {
    /// The next event and the index of its answer; `None` when all answers are over. It may be given up and called again.
    pub async fn next(&mut self) -> Option<(usize, Event)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.running.iter().all(|answer| answer.ended) {
                return None;
            }
            let update = tokio::select! {
                biased;
                () = raised(&mut self.cut) => Err(Fault::ending()),
                update = self.updates.recv() => update.ok_or_else(|| Fault::internal(LOST)),
            };
            match update {
                Ok((index, update)) => self.take(index, update),
                Err(fault) => self.fail_all(&fault),
            }
        }
    }

    /// The next event, if it is there already.
    pub fn next_ready(&mut self) -> Option<(usize, Event)> {
        while self.ready.is_empty() {
            let (index, update) = self.updates.try_recv().ok()?;
            self.take(index, update);
        }
        self.ready.pop_front()
    }

    /// Tokens used so far.
    pub fn usage(&self) -> Usage {
        let mut total = Usage::default();
        for (index, answer) in self.running.iter().enumerate() {
            let usage = answer.choice.usage();
            total.completion += usage.completion;
            total.reasoning += usage.reasoning;
            if index % self.n == 0 {
                total.prompt += usage.prompt;
                total.cached += usage.cached;
            }
        }
        total
    }

    fn take(&mut self, index: usize, update: Update) {
        let Some(answer) = self.running.get_mut(index).filter(|answer| !answer.ended) else { return };
        let events = match update {
            Update::Prompt { .. } | Update::PromptLogits(_) => Vec::new(),
            Update::Started { reused } => {
                answer.choice.started(reused);
                vec![Event::Started]
            }
            Update::Token(token) => {
                let now = Instant::now();
                match answer.last_token.replace(now) {
                    Some(before) => self.app.metrics.token(now - before),
                    None => self.app.metrics.first_token(now - self.asked),
                }
                answer.choice.token(token)
            }
            Update::Finished(finish, _) => answer.choice.end(finish),
            Update::Failed(error) => vec![Event::Failed(Fault::internal(error.to_string()))],
        };
        if matches!(events.last(), Some(Event::Finished(_) | Event::Failed(_))) {
            answer.ended = true;
            answer.over.store(true, Ordering::Relaxed);
        }
        self.ready.extend(events.into_iter().map(|event| (index, event)));
    }

    fn fail_all(&mut self, fault: &Fault) {
        for (index, answer) in self.running.iter_mut().enumerate().filter(|(_, answer)| !answer.ended) {
            answer.ended = true;
            answer.over.store(true, Ordering::Relaxed);
            self.ready.push_back((index, Event::Failed(fault.clone())));
        }
    }
}
