//! Answers as they are generated: from token ids to text on the standard output.

use std::io::{Write, stdout};

use engine::{Engine, Event, Finish, Flow, Generated, Sampler, Sequence, StopScanner, Task, Tokenizer};
use models::counted;

use crate::error::Error;
use crate::machine::{Machine, wait_for_weights};
use crate::terminal::{self, PromptBar};

/// A model in conversation: everything but the words.
pub struct Talk<B: Machine> {
    pub engine: Engine<B>,
    pub tokenizer: Tokenizer,
    pub sequence: Sequence<B>,
    pub sampler: Sampler,
    pub stops: Vec<String>,
    pub max_tokens: Option<usize>,
}

/// An answer and how it came about.
pub struct Answer {
    pub text: String,
    pub generated: Generated,
    /// Whether the user cut it short.
    pub interrupted: bool,
}

/// Prints pieces of text; what the model thinks before it answers is dimmed on a terminal.
struct Printer {
    styled: bool,
    /// What ends the thoughts, while there are any.
    thoughts_end: Option<&'static str>,
    text: String,
}

impl Printer {
    fn new(thoughts_end: Option<&'static str>) -> Self {
        Self { styled: terminal::styled(), thoughts_end, text: String::new() }
    }

    fn print(&mut self, piece: &str) -> std::io::Result<()> {
        let mut out = stdout().lock();
        self.text.push_str(piece);
        let Some(end) = self.thoughts_end.filter(|_| self.styled) else {
            out.write_all(piece.as_bytes())?;
            return out.flush();
        };
        // The end mark is one token of such models, so it comes in one piece.
        match piece.find(end) {
            Some(at) => {
                let (thought, answer) = piece.split_at(at + end.len());
                write!(out, "\x1b[2m{thought}\x1b[0m{answer}")?;
                self.thoughts_end = None;
            }
            None => write!(out, "\x1b[2m{piece}\x1b[0m")?,
        }
        out.flush()
    }
}

impl<B: Machine> Talk<B> {
    /// Continues `prompt`, printing the text as it comes. `stable`: see [`Task::stable`]. `thoughts_end`: the mark that ends
    /// the model's thoughts, where the prompt ends inside them.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        stable: usize,
        thoughts_end: Option<&'static str>,
    ) -> Result<Answer, Error> {
        let Self { engine, tokenizer, sequence, sampler, stops, max_tokens } = self;
        let mut stream = tokenizer.stream(true);
        let mut scanner = StopScanner::new(stops.clone());
        let mut printer = Printer::new(thoughts_end);
        let mut failure: Option<Error> = None;
        let mut stopped = false;
        terminal::clear_interrupt();
        wait_for_weights(engine.model().backend())?;

        let mut bar = PromptBar::default();
        let task = Task { prompt, stable, max_tokens: *max_tokens, end_ids: tokenizer.eos_ids() };
        let generated = engine.generate(sequence, &task, sampler, |event| {
            let id = match event {
                Event::Prompt { done, of } => {
                    bar.set(done, of);
                    return if terminal::interrupted() { Flow::Stop } else { Flow::Continue };
                }
                Event::Token(id) => id,
            };
            bar.clear();
            let mut show = || -> Result<(), Error> {
                let outcome = scanner.push(&stream.push(id)?);
                printer.print(&outcome.text)?;
                stopped = outcome.stopped.is_some();
                Ok(())
            };
            if let Err(error) = show() {
                failure = Some(error);
            }
            if failure.is_some() || stopped || terminal::interrupted() { Flow::Stop } else { Flow::Continue }
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        if !stopped {
            let last = scanner.push(&stream.finish());
            printer.print(&last.text)?;
            printer.print(&scanner.finish().text)?;
        }
        let interrupted = generated.finish == Finish::Stopped && !stopped && terminal::interrupted();
        Ok(Answer { text: printer.text, generated, interrupted })
    }
}

/// Speed of an answer, for the standard error stream.
pub fn summary(generated: &Generated) -> String {
    let Generated { ids, prompt_tokens, reused_tokens, prompt_time, finish, .. } = generated;
    let reused = if *reused_tokens > 0 { format!(" ({reused_tokens} already known)") } else { String::new() };
    let speed = if ids.len() > 1 {
        format!(", then {:.1} tokens/s", generated.decode_speed())
    } else {
        String::new()
    };
    let end = match finish {
        Finish::End | Finish::Stopped => "",
        Finish::Length => "; stopped at --max-tokens",
        Finish::Context => "; the context is full",
    };
    format!(
        "[prompt {}{reused} at {:.1} tokens/s, first token after {:.2} s{speed}, {}{end}]",
        counted(*prompt_tokens, "token"),
        generated.prompt_speed(),
        prompt_time.as_secs_f64(),
        counted(ids.len(), "token")
    )
}
