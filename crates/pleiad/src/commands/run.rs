//! `pleiad run`: one answer, or a chat.

use std::io::{IsTerminal, Read, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use backend::Backend;
use checkpoint::Checkpoint;
use clap::Args;
use engine::{
    ChatPrompt, Engine, Grammar, Grammars, Job, Loop, SamplingParams, TemplateInput, Tokenizer, bytes,
};
use models::counted;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::error::Error;
use crate::form::FormArgs;
use crate::generate::{Flow, Generated, generate};
use crate::machine::{Machine, wait_for_weights, with_engine};
use crate::options::{MachineArgs, parse_ids};
use crate::sampling::SamplingArgs;
use crate::source::Source;
use crate::streamed::Streamed;
use crate::talk::{Answer, Prompt, Talk, print_logprobs, summary};
use crate::terminal;

/// Tokens of a run over ids when none are asked for.
const DEFAULT_IDS: usize = 256;

/// Arguments of `pleiad run`.
#[derive(Args)]
pub struct RunArgs {
    /// The model: a folder, the hub's name of one that `pleiad pull` has fetched, or `box`; the model in the box when
    /// absent. Then the prompt; `-` reads it from the standard input. Without a prompt: a chat, or the standard input when
    /// that is not a terminal
    #[arg(value_names = ["MODEL", "PROMPT"], num_args = 0..=2)]
    words: Vec<String>,

    #[command(flatten)]
    machine: MachineArgs,

    /// Continue these token ids, separated by commas, instead of text; needs no tokenizer, and end tokens do not stop it
    #[arg(long, value_name = "IDS", value_parser = parse_ids,
        conflicts_with_all = ["system", "raw", "json_schema", "regex", "grammar"])]
    ids: Option<std::vec::Vec<u32>>,

    /// With --ids: print the generated ids on one line
    #[arg(long, requires = "ids")]
    print_ids: bool,

    /// Instructions for the whole conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Continue the prompt as plain text, without the chat template
    #[arg(long, conflicts_with = "system")]
    raw: bool,

    /// Ask a model that can think to answer at once
    #[arg(long)]
    no_think: bool,

    /// Stop after so many tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,

    /// Stop at this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Keep what was computed in this file, so that a prompt that begins the same way starts sooner the next time
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Check draft tokens, where the text repeats itself and by a drafting head that the model may have: often
    /// faster; with fast numerics an answer may differ by rounding
    #[arg(long)]
    speculate: bool,

    /// After the answer, print each token with its log probability and the N most probable tokens with theirs
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,

    /// For models larger than memory: say how much was read from disk, and how long that was waited for
    #[arg(long)]
    stats: bool,

    /// No notes on the standard error stream
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    form: FormArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

impl RunArgs {
    fn note(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// Prints what was asked for beside an answer, and says how it went.
    fn account<B: Machine>(
        &self,
        steps: &Loop<B>,
        tokenizer: Option<&Tokenizer>,
        generated: &Generated,
    ) -> Result<(), Error> {
        if self.logprobs.is_some() {
            print_logprobs(&generated.tokens, tokenizer)?;
        }
        self.note(&summary(generated));
        if self.stats
            && let Some(store) = steps.engine().model().backend().store()
        {
            let mut streamed = Streamed::default();
            let computed = generated.prompt_tokens.saturating_sub(generated.reused_tokens);
            let tokens = computed + generated.tokens.len();
            streamed.add(tokens, generated.time(), Some(store.take_stats()));
            self.note(&format!("[{streamed}]"));
        }
        Ok(())
    }

    /// A loop over the engine, with the sequence of the state file.
    fn steps<B: Backend>(&self, engine: Engine<B>) -> Result<Loop<B>, Error> {
        let mut steps = Loop::new(engine, self.machine.alone(self.speculate));
        if let Some(path) = self.state.as_ref().filter(|path| path.exists()) {
            let tokens = steps.load(path)?;
            self.note(&format!("[{} from {}]", counted(tokens, "token"), path.display()));
        }
        Ok(steps)
    }

    fn save<B: Backend>(&self, steps: &Loop<B>) -> Result<(), Error> {
        match &self.state {
            Some(path) => Ok(steps.save(path)?),
            None => Ok(()),
        }
    }

    /// The model and the prompt. A single word or text may be either: it is the model if there is one of that name, or
    /// if it looks like a path.
    fn split(&self) -> Result<(Source, Option<&str>), Error> {
        let find =
            |text: &str| Source::find(text).map_err(|problem| Error::Usage(format!("{text}: {problem}")));
        Ok(match self.words.as_slice() {
            [] => (Source::Box, None),
            [model, prompt, ..] => (find(model)?, Some(prompt)),
            [only] => {
                let is_path = only.contains(['/', '\\']) && !only.contains(char::is_whitespace);
                match find(only) {
                    Ok(Source::Folder(folder)) if !is_path && !folder.exists() => (Source::Box, Some(only)),
                    Err(_) if !is_path => (Source::Box, Some(only)),
                    found => (found?, None),
                }
            }
        })
    }

    /// The text of the prompt, wherever it comes from; `None` for a chat.
    fn text(&self, prompt: Option<&str>) -> Result<Option<String>, Error> {
        let piped = prompt.is_none() && !stdin().is_terminal();
        if prompt != Some("-") && !piped {
            return Ok(prompt.map(Into::into));
        }
        let mut text = String::new();
        stdin()
            .read_to_string(&mut text)
            .map_err(|e| Error::Usage(format!("cannot read the prompt: {e}")))?;
        Ok(Some(text))
    }
}

pub fn run(mut args: RunArgs) -> Result<ExitCode, Error> {
    args.machine.quiet = args.quiet;
    args.machine.drafting = args.speculate;
    let form = args.form.grammar()?;
    let (source, prompt) = args.split()?;
    if args.ids.is_some() && prompt.is_some() {
        return Err(Error::Usage("give either a PROMPT or --ids".into()));
    }
    let checkpoint = source.checkpoint()?;
    // Before the weights: a prompt without a tokenizer fails at once.
    let tokenizer = if args.ids.is_none() { Some(source.tokenizer()?) } else { None };
    with_engine!(args.machine.engine(&checkpoint)?, engine => {
        introduce(&args, &source, &checkpoint, &engine);
        terminal::catch_interrupts();
        match (tokenizer, &args.ids) {
            (Some(tokenizer), _) => talk(&args, engine, tokenizer, form, prompt),
            (None, ids) => continue_ids(&args, &source, engine, ids.as_deref().unwrap_or(&[])),
        }
    })
}

/// Says which model runs, and where.
fn introduce<B: Backend>(args: &RunArgs, source: &Source, checkpoint: &Checkpoint, engine: &Engine<B>) {
    let what = match source {
        Source::Box => source.to_string(),
        Source::Folder(_) => engine.model().summary().family.clone(),
    };
    let machine = engine.model().backend().description();
    args.note(&format!("[{what}, {}, {machine}]", bytes(checkpoint.total_bytes())));
}

/// Ids in, ids (or, with a tokenizer, text) out.
fn continue_ids<B: Machine>(
    args: &RunArgs,
    source: &Source,
    engine: Engine<B>,
    ids: &[u32],
) -> Result<ExitCode, Error> {
    wait_for_weights(engine.model().backend())?;
    let sampling = args.sampling.params(SamplingParams::default())?;
    let mut steps = args.steps(engine)?;
    let job = |listener| Job {
        max_tokens: Some(args.max_tokens.unwrap_or(DEFAULT_IDS)),
        sampling,
        logprobs: args.logprobs,
        ..Job::new(ids.to_vec(), listener)
    };
    let generated = generate(&mut steps, job, |_| Ok(Flow::Continue))?;
    let tokenizer = if args.print_ids { None } else { source.tokenizer().ok() };
    let text = match &tokenizer {
        Some(tokenizer) => tokenizer.decode(&generated.ids(), false)?,
        None => generated.ids().iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    };
    writeln!(stdout(), "{text}")?;
    args.account(&steps, tokenizer.as_ref(), &generated)?;
    args.save(&steps)?;
    Ok(if terminal::interrupted() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

fn talk<B: Machine>(
    args: &RunArgs,
    engine: Engine<B>,
    tokenizer: Tokenizer,
    form: Option<Grammar>,
    prompt: Option<&str>,
) -> Result<ExitCode, Error> {
    let mut params = SamplingParams::default();
    tokenizer.generation_defaults().apply(&mut params);
    let grammars = Grammars::new(&tokenizer, engine.model().summary().vocabulary);
    // A form that cannot be used is said before anything is asked.
    form.as_ref().map(|form| grammars.constraint(form)).transpose()?;
    let mut talk = Talk {
        steps: args.steps(engine)?,
        sampling: args.sampling.params(params)?,
        stops: args.stop.clone(),
        max_tokens: args.max_tokens,
        logprobs: args.logprobs,
        grammars,
        form,
        tokenizer,
    };
    let Some(prompt) = args.text(prompt)? else { return chat(args, &mut talk) };
    let answer = if args.raw || !talk.tokenizer.has_chat_template() {
        let ids = talk.tokenizer.encode(&prompt, true)?;
        talk.answer(Prompt { text: &prompt, stable: ids.len(), ids, is_chat: false })?
    } else {
        if prompt.trim().is_empty() {
            return Err(engine::Error::EmptyPrompt.into());
        }
        Conversation::new(args).ask(&mut talk, &prompt)?
    };
    writeln!(stdout())?;
    args.account(&talk.steps, Some(&talk.tokenizer), &answer.generated)?;
    args.save(&talk.steps)?;
    Ok(if answer.interrupted { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// What has been said so far.
struct Conversation {
    system: Option<Value>,
    messages: Vec<Value>,
    no_think: bool,
}

impl Conversation {
    fn new(args: &RunArgs) -> Self {
        let system = args.system.as_ref().map(|text| json!({"role": "system", "content": text}));
        Self { messages: system.iter().cloned().collect(), system, no_think: args.no_think }
    }

    fn clear(&mut self) {
        self.messages = self.system.iter().cloned().collect();
    }

    fn prompt(&self, tokenizer: &Tokenizer) -> Result<ChatPrompt, engine::Error> {
        let mut extra = serde_json::Map::new();
        if self.no_think {
            extra.insert("enable_thinking".into(), Value::Bool(false));
        }
        let input = TemplateInput { messages: self.messages.clone(), extra, ..Default::default() };
        tokenizer.prompt(input, |text| tokenizer.encode(text, false))
    }

    /// Says `text` to the model and prints its answer; both become part of the conversation.
    fn ask<B: Machine>(&mut self, talk: &mut Talk<B>, text: &str) -> Result<Answer, Error> {
        self.messages.push(json!({"role": "user", "content": text}));
        let ChatPrompt { text, ids, stable } = self.prompt(&talk.tokenizer)?;
        let prompt = Prompt { text: &text, ids, stable, is_chat: true };
        let answer = talk.answer(prompt).inspect_err(|_| {
            self.messages.pop();
        })?;
        self.messages.push(json!({"role": "assistant", "content": answer.text}));
        Ok(answer)
    }
}

const HELP: &str = "\
/clear   forget the conversation
/help    this list
/quit    leave (or Ctrl-D)
Ctrl-C stops an answer.";

fn chat<B: Machine>(args: &RunArgs, talk: &mut Talk<B>) -> Result<ExitCode, Error> {
    if args.raw || !talk.tokenizer.has_chat_template() {
        return Err(match args.raw {
            true => Error::Usage("--raw continues a text: give a PROMPT".into()),
            false => engine::Error::NoChatTemplate.into(),
        });
    }
    let terminal_error = |e: ReadlineError| Error::Usage(format!("cannot read from the terminal: {e}"));
    let mut editor = rustyline::DefaultEditor::new().map_err(terminal_error)?;
    let mut conversation = Conversation::new(args);
    args.note("Ask something, or /help.");
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(e) => return Err(terminal_error(e)),
        };
        let line = line.trim();
        match line {
            "" => continue,
            "/quit" | "/exit" => break,
            "/help" => {
                println!("{HELP}");
                continue;
            }
            "/clear" => {
                conversation.clear();
                continue;
            }
            _ if line.starts_with('/') => {
                println!("There is no command {line}.\n{HELP}");
                continue;
            }
            _ => {}
        }
        // It only fails to remember a line, which is no reason to stop.
        let _ = editor.add_history_entry(line);
        match conversation.ask(talk, line) {
            Ok(answer) => {
                writeln!(stdout())?;
                args.account(&talk.steps, Some(&talk.tokenizer), &answer.generated)?;
            }
            Err(Error::Output(e)) => return Err(e.into()),
            // One question too many for the context, say, must not end the conversation.
            Err(error) => eprintln!("pleiad: {error}"),
        }
    }
    args.save(&talk.steps)?;
    Ok(ExitCode::SUCCESS)
}
