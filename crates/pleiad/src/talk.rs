//! Answers as they are generated: from token ids to text on the standard output.

use std::io::{Write, stdout};

use engine::{
    Dialect, Finish, Grammar, Grammars, Job, Loop, SamplingParams, StopScanner, TokenUpdate, Tokenizer,
};
use models::counted;
use serde_json::Value;

use crate::error::Error;
use crate::generate::{Flow, Generated, generate};
use crate::machine::{Machine, wait_for_weights};
use crate::terminal;

/// A model in conversation: everything but the words.
pub struct Talk<B: Machine> {
    pub steps: Loop<B>,
    pub tokenizer: Tokenizer,
    pub grammars: Grammars,
    /// What answers must look like.
    pub form: Option<Grammar>,
    /// Sampler settings; each answer has the next seed, where there is one.
    pub sampling: SamplingParams,
    pub stops: Vec<String>,
    pub max_tokens: Option<usize>,
    /// Most probable tokens to tell with each.
    pub logprobs: Option<usize>,
}

/// A prompt.
pub struct Prompt<'a> {
    pub text: &'a str,
    pub ids: Vec<u32>,
    /// How many of them a later prompt will probably begin with too.
    pub stable: usize,
    /// Whether the chat template made it.
    pub is_chat: bool,
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
    /// Continues a prompt, printing the text as it comes.
    pub fn answer(&mut self, prompt: Prompt<'_>) -> Result<Answer, Error> {
        let Self { steps, tokenizer, grammars, form, sampling, stops, max_tokens, logprobs } = self;
        let dialect = Dialect::of(tokenizer);
        let form = form.as_ref().map(|form| match prompt.is_chat {
            true => dialect.after_thoughts(prompt.text, form),
            false => form.clone(),
        });
        let constraint = form.map(|form| grammars.constraint(&form)).transpose()?;
        let mut stream = tokenizer.stream(true);
        let mut scanner = StopScanner::new(stops.clone());
        let thoughts_end = prompt.is_chat.then(|| dialect.open_thoughts(prompt.text)).flatten();
        let mut printer = Printer::new(thoughts_end);
        let mut stopped = false;
        terminal::clear_interrupt();
        wait_for_weights(steps.engine().model().backend())?;

        let job = |listener| Job {
            stable: prompt.stable,
            max_tokens: *max_tokens,
            end_ids: tokenizer.eos_ids().to_vec(),
            sampling: sampling.clone(),
            constraint,
            logprobs: *logprobs,
            ..Job::new(prompt.ids, listener)
        };
        let generated = generate(steps, job, |token| {
            let outcome = scanner.push(&stream.push(token.id)?);
            printer.print(&outcome.text)?;
            stopped = outcome.stopped.is_some();
            Ok(if stopped { Flow::Stop } else { Flow::Continue })
        })?;
        if !stopped {
            let last = scanner.push(&stream.finish());
            printer.print(&last.text)?;
            printer.print(&scanner.finish().text)?;
        }
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(1));
        let interrupted = generated.finish == Finish::Stopped && !stopped && terminal::interrupted();
        Ok(Answer { text: printer.text, generated, interrupted })
    }
}

/// Prints a line for each token: its log probability, the token, and the most probable ones with
/// theirs. Tokens are JSON strings, or ids without a tokenizer.
pub fn print_logprobs(tokens: &[TokenUpdate], tokenizer: Option<&Tokenizer>) -> std::io::Result<()> {
    let name = |id: u32| match tokenizer.and_then(|tokenizer| tokenizer.token_bytes(id)) {
        Some(bytes) => Value::from(String::from_utf8_lossy(&bytes)).to_string(),
        None => id.to_string(),
    };
    let mut out = stdout().lock();
    for TokenUpdate { id, logprob, top } in tokens {
        let others: Vec<String> = top.iter().map(|(id, p)| format!("{} {p:.4}", name(*id))).collect();
        let line = format!("{:9.4}  {:16}  {}", logprob.unwrap_or(f32::NAN), name(*id), others.join("  "));
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Speed of an answer, for the standard error stream.
pub fn summary(generated: &Generated) -> String {
    let Generated { tokens, prompt_tokens, reused_tokens, timing, finish } = generated;
    let reused = match reused_tokens {
        0 => String::new(),
        reused => format!(" ({reused} already known)"),
    };
    let speed = match tokens.len() {
        0 | 1 => String::new(),
        _ => format!(", then {:.1} tokens/s", generated.decode_speed()),
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
        timing.prompt.as_secs_f64(),
        counted(tokens.len(), "token")
    )
}
