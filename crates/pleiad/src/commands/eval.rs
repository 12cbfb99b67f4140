//! `pleiad eval`: how well a model predicts a text, and how far it is from another.

use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use cpu::Cpu;
use engine::{Engine, Loop, SchedulerOptions, common_prefix};
use serde_json::{Value, json};

use super::items;
use crate::error::Error;
use crate::generate::Scores;
use crate::machine::{AnyEngine, Machine, with_engine};
use crate::options::{BackendChoice, CacheChoice, ModelArgs, NumericsChoice, parse_ids};
use crate::progress::Progress;
use crate::source::Source;
use crate::terminal;

/// Tokens of a window when nothing else is asked for.
const WINDOW: u32 = 512;
/// Most tokens whose logits are in memory at a time: those of a whole window can be a gigabyte.
const STEP: usize = 64;

/// Arguments of `pleiad eval`.
#[derive(Args)]
#[command(
    mut_arg("context", |arg| arg.help("Tokens of a window [default: 512]").help_heading(None::<&str>)),
    after_long_help = "The text is cut into windows of --context tokens that do not overlap. Each window is read on its own, and every token \
after its first is scored given those before it; a last, shorter window counts too. Where the tokenizer opens every text \
with a token, each window begins with it. Perplexity is exp(nats per token); bits per byte are bits per scored token \
times the text's tokens per byte."
)]
pub struct EvalArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// The text, a file in UTF-8
    #[arg(long, value_name = "FILE", required_unless_present_any = ["ids", "items"])]
    text: Option<PathBuf>,

    /// Token ids instead of text: a file of them, or a list separated by commas
    #[arg(long, value_name = "IDS", conflicts_with = "text")]
    ids: Option<String>,

    /// Another checkpoint of the same vocabulary, the reference: also say how far MODEL's predictions are from its own,
    /// as the divergence KL(OTHER || MODEL) and how often both prefer the same token
    #[arg(long, value_name = "OTHER", value_parser = Source::find)]
    against: Option<Source>,

    /// Numerics of the reference [default: as --numerics]; without --against the reference is MODEL itself
    #[arg(long, value_enum, value_name = "NUMERICS")]
    against_numerics: Option<NumericsChoice>,

    /// Where the reference runs [default: as --backend]; without --against the reference is MODEL itself
    #[arg(long, value_enum, value_name = "BACKEND")]
    against_backend: Option<BackendChoice>,

    /// How the reference's caches store their values [default: as --cache]; without --against the reference is MODEL itself
    #[arg(long, value_enum, value_name = "CACHE")]
    against_cache: Option<CacheChoice>,

    /// Instead of a text: questions with exact answers, a line of JSON each, with `kind`, `messages` and `answer`; how many
    /// the model gets right, greedily and through its chat template
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "ids", "against", "against_numerics", "against_backend", "against_cache"])]
    items: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is to be predicted.
struct Task {
    windows: Vec<Vec<u32>>,
    /// Tokens and bytes of the whole text; `None` for ids.
    text: Option<(usize, usize)>,
}

impl Task {
    fn scored(&self) -> usize {
        self.windows.iter().map(|window| window.len() - 1).sum()
    }
}

/// Cuts tokens into windows of at most `len`, each beginning with `opening`. A window with nothing to score is none.
fn windows(tokens: &[u32], opening: &[u32], len: usize) -> Vec<Vec<u32>> {
    let parts = tokens.chunks(len.saturating_sub(opening.len()).max(1));
    parts.map(|part| [opening, part].concat()).filter(|window| window.len() > 1).collect()
}

impl EvalArgs {
    fn task(&self, len: usize) -> Result<Task, Error> {
        let task = match (&self.text, &self.ids) {
            (Some(path), _) => self.text_task(path, len)?,
            (None, Some(ids)) => Task { windows: windows(&read_ids(ids)?, &[], len), text: None },
            (None, None) => {
                return Err(Error::Usage("give a text with --text or token ids with --ids".into()));
            }
        };
        match task.scored() {
            0 => Err(Error::Usage("there is nothing to score: at least two tokens are needed".into())),
            _ => Ok(task),
        }
    }

    fn text_task(&self, path: &Path, len: usize) -> Result<Task, Error> {
        let bytes =
            std::fs::read(path).map_err(|e| Error::Usage(format!("cannot read {}: {e}", path.display())))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            Error::Usage(format!(
                "{} is not text in UTF-8: byte {at} is wrong; convert it first",
                path.display()
            ))
        })?;
        if text.is_empty() {
            return Err(Error::Usage(format!("{} is empty: there is nothing to score", path.display())));
        }
        let tokenizer = self.model.model.tokenizer()?;
        let tokens = tokenizer.encode(&text, false)?;
        // The same text must be the same tokens, or the numbers say nothing about each other.
        if let Some(other) = self.against.as_ref().filter(|other| other.has_tokenizer())
            && other.tokenizer()?.encode(&text, false)? != tokens
        {
            return Err(Error::Usage(format!(
                "{} and {} cut this text into different tokens: only models with the same tokenizer can be compared",
                self.model.model, other
            )));
        }
        let opening = tokenizer.encode("", true)?;
        let opening = &opening[..common_prefix(&opening, &tokenizer.encode(&text, true)?)];
        if opening.len() >= len {
            return Err(Error::Usage(format!("--context {len} leaves no room for text")));
        }
        Ok(Task { windows: windows(&tokens, opening, len), text: Some((tokens.len(), text.len())) })
    }
}

/// Ids from a file, separated by commas or white space, or from the argument itself.
fn read_ids(argument: &str) -> Result<Vec<u32>, Error> {
    let path = Path::new(argument);
    if !path.is_file() {
        return parse_ids(argument).map_err(|problem| {
            Error::Usage(format!("--ids {argument}: there is no such file, and as a list: {problem}"))
        });
    }
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::Usage(format!("cannot read {}: {e}", path.display())))?;
    let parts: Vec<&str> =
        text.split(|c: char| c == ',' || c.is_whitespace()).filter(|p| !p.is_empty()).collect();
    parse_ids(&parts.join(",")).map_err(|problem| Error::Usage(format!("{}: {problem}", path.display())))
}

/// Refuses tokens that a vocabulary does not have.
fn check(windows: &[Vec<u32>], vocabulary: usize) -> Result<(), Error> {
    match windows.iter().flatten().find(|id| **id as usize >= vocabulary) {
        Some(&id) => Err(backend::Error::TokenOutOfRange { id, vocabulary }.into()),
        None => Ok(()),
    }
}

fn vocabulary(engine: &AnyEngine) -> usize {
    with_engine!(engine, engine => engine.model().summary().vocabulary)
}

/// One of the models compared.
struct Side<B: Machine> {
    steps: Loop<B>,
    /// Sum over the scored tokens.
    nats: f64,
}

impl<B: Machine> Side<B> {
    fn new(engine: Engine<B>, options: &SchedulerOptions) -> Self {
        Side { steps: Loop::new(engine, options.clone()), nats: 0.0 }
    }

    /// Begins a window.
    fn begin(&mut self, inputs: &[u32]) -> Result<Scores, Error> {
        Scores::of(&mut self.steps, inputs)
    }

    fn sum(&self) -> Sum {
        Sum { nats: self.nats, machine: self.steps.engine().model().backend().description() }
    }
}

/// What a model took for all scored tokens, and where it ran.
struct Sum {
    nats: f64,
    machine: String,
}

/// What the logarithm of the sum of all exponentials is: log-probabilities are logits minus this.
fn log_sum_exp(logits: &[f32]) -> Result<f64, Error> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    let log = f64::from(max) + sum.ln();
    if log.is_finite() {
        return Ok(log);
    }
    Err(Error::Usage("the logits are not finite numbers; the weights may be damaged".into()))
}

/// The most probable token; the first of equal ones.
fn best(logits: &[f32]) -> usize {
    (0..logits.len()).reduce(|best, i| if logits[i] > logits[best] { i } else { best }).unwrap_or(0)
}

/// `sum_i p_i (ln p_i - ln q_i)` for `p` of the reference's logits and `q` of the model's, given their
/// [`log_sum_exp`]s.
fn divergence(reference: (&[f32], f64), model: (&[f32], f64)) -> f64 {
    let terms = reference.0.iter().zip(model.0).map(|(p, q)| {
        let (p, q) = (f64::from(*p) - reference.1, f64::from(*q) - model.1);
        // Impossible for the reference: no contribution, whatever the model says.
        if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }
    });
    // Rounding alone can make it negative.
    terms.sum::<f64>().max(0.0)
}

/// How far two models are apart.
#[derive(Default)]
struct Distance {
    kl: f64,
    largest_kl: f64,
    agreements: usize,
}

/// What was found.
struct Found {
    model: Sum,
    reference: Option<Sum>,
    distance: Distance,
}

/// Scores a whole task, window by window and step by step; `None` when interrupted.
fn score<A: Machine, B: Machine>(
    model: Engine<A>,
    reference: Option<Engine<B>>,
    task: &Task,
    options: &SchedulerOptions,
) -> Result<Option<Found>, Error> {
    let vocabulary = model.model().summary().vocabulary;
    let mut model = Side::new(model, options);
    let mut reference = reference.map(|engine| Side::new(engine, options));
    let mut progress = Progress::tokens(task.scored() as u64);
    let mut distance = Distance::default();
    for window in &task.windows {
        let (inputs, mut targets) = (&window[..window.len() - 1], &window[1..]);
        let ours = model.begin(inputs)?;
        let theirs = reference.as_mut().map(|side| side.begin(inputs)).transpose()?;
        while !targets.is_empty() {
            if terminal::interrupted() {
                return Ok(None);
            }
            let logits = ours.next(&mut model.steps)?.unwrap_or_default();
            let others = match (&theirs, &mut reference) {
                (Some(theirs), Some(side)) => theirs.next(&mut side.steps)?.unwrap_or_default(),
                _ => Vec::new(),
            };
            let rows = logits.chunks_exact(vocabulary);
            if rows.len() == 0 || (theirs.is_some() && others.len() != logits.len()) {
                return Err(Error::Usage("the models do not score the same tokens in a step".into()));
            }
            let (now, later) = targets.split_at(rows.len().min(targets.len()));
            for (i, (row, target)) in rows.zip(now).enumerate() {
                let sum = log_sum_exp(row)?;
                let target = *target as usize;
                model.nats += sum - f64::from(row[target]);
                if let Some(side) = &mut reference {
                    let other = &others[i * vocabulary..(i + 1) * vocabulary];
                    let other_sum = log_sum_exp(other)?;
                    side.nats += other_sum - f64::from(other[target]);
                    let kl = divergence((other, other_sum), (row, sum));
                    distance.kl += kl;
                    distance.largest_kl = distance.largest_kl.max(kl);
                    distance.agreements += usize::from(best(row) == best(other));
                }
            }
            progress.add(now.len() as u64);
            targets = later;
        }
    }
    Ok(Some(Found { model: model.sum(), reference: reference.as_ref().map(Side::sum), distance }))
}

/// Asks the questions and prints how many were answered.
fn ask(args: &EvalArgs, items: &Path) -> Result<ExitCode, Error> {
    let tokenizer = args.model.model.tokenizer()?;
    let options = args.model.machine.alone(false);
    let tally = with_engine!(args.model.open()?, engine => {
        items::ask(&mut Loop::new(engine, options), &tokenizer, items)
    });
    let Some(tally) = tally? else {
        return Ok(ExitCode::from(130));
    };
    tally.print(args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Scores the text and prints what was found.
pub fn run(args: EvalArgs) -> Result<ExitCode, Error> {
    terminal::catch_interrupts();
    if let Some(items) = &args.items {
        return ask(&args, items);
    }
    let window = args.model.machine.context.unwrap_or(WINDOW);
    let task = args.task(window as usize)?;
    let EvalArgs {
        model: mut model_args,
        against,
        against_numerics,
        against_backend,
        against_cache,
        json,
        ..
    } = args;
    let itself = against_numerics.is_some() || against_backend.is_some() || against_cache.is_some();
    let against = against.or_else(|| itself.then(|| model_args.model.clone()));
    model_args.machine.context = Some(window);
    // The logits of a step are in memory at a time.
    model_args.machine.chunk = model_args.machine.chunk.min(STEP);
    let options = SchedulerOptions { prefix_memory: 0, ..model_args.machine.alone(false) };
    let model = model_args.open()?;
    check(&task.windows, vocabulary(&model))?;
    let source = model_args.model.clone();
    let scores = match &against {
        None => with_engine!(model, model => score(model, None::<Engine<Cpu>>, &task, &options)),
        Some(other) => {
            // The same machine, another folder, other numerics or another machine after all.
            model_args.model = other.clone();
            model_args.machine.numerics = against_numerics.unwrap_or(model_args.machine.numerics);
            model_args.machine.cache = against_cache.or(model_args.machine.cache);
            if let Some(backend) = against_backend {
                model_args.machine.move_to(backend);
            }
            let reference = model_args.open()?;
            let (ours, theirs) = (vocabulary(&model), vocabulary(&reference));
            if ours != theirs {
                return Err(Error::Usage(format!(
                    "{source} has a vocabulary of {ours} and {other} one of {theirs}: only models with the same can be \
                     compared"
                )));
            }
            with_engine!(model, model => with_engine!(reference, reference => {
                score(model, Some(reference), &task, &options)
            }))
        }
    };
    let Some(scores) = scores? else { return Ok(ExitCode::from(130)) };

    let report = Report { source: &source, against: against.as_ref(), window, task: &task, scores: &scores };
    match json {
        true => writeln!(stdout(), "{:#}", report.json())?,
        false => report.print()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What was measured, for printing.
struct Report<'a> {
    source: &'a Source,
    against: Option<&'a Source>,
    window: u32,
    task: &'a Task,
    scores: &'a Found,
}

/// The ways to say how well a text was predicted.
struct Score<'a> {
    machine: &'a str,
    perplexity: f64,
    nats_per_token: f64,
    bits_per_byte: Option<f64>,
}

impl Report<'_> {
    fn mean(&self, sum: f64) -> f64 {
        sum / self.task.scored() as f64
    }

    fn score<'a>(&self, sum: &'a Sum) -> Score<'a> {
        let nats_per_token = self.mean(sum.nats);
        let per_byte = |(tokens, bytes): (usize, usize)| {
            nats_per_token / std::f64::consts::LN_2 * tokens as f64 / bytes as f64
        };
        Score {
            machine: &sum.machine,
            perplexity: nats_per_token.exp(),
            nats_per_token,
            bits_per_byte: self.task.text.map(per_byte),
        }
    }

    fn json(&self) -> Value {
        let Found { model, reference, distance } = self.scores;
        let score = |source: &Source, sum: &Sum| {
            let Score { machine, perplexity, nats_per_token, bits_per_byte } = self.score(sum);
            json!({
                "folder": source.to_string(),
                "machine": machine,
                "perplexity": perplexity,
                "nats_per_token": nats_per_token,
                "bits_per_byte": bits_per_byte,
            })
        };
        let mut report = json!({
            "context": self.window,
            "windows": self.task.windows.len(),
            "tokens_scored": self.task.scored(),
            "model": score(self.source, model),
        });
        if let (Some(other), Some(sum)) = (self.against, reference) {
            report["reference"] = score(other, sum);
            report["kl_mean"] = json!(self.mean(distance.kl));
            report["kl_max"] = json!(distance.largest_kl);
            report["top1_agreement"] = json!(self.mean(distance.agreements as f64));
        }
        report
    }

    fn print(&self) -> std::io::Result<()> {
        let Found { model, reference, distance } = self.scores;
        let mut out = stdout().lock();
        let windows = self.task.windows.len();
        writeln!(out, "tokens scored  {} in {windows} windows of {}", self.task.scored(), self.window)?;
        let mut line = |name: &str, value: fn(&Score) -> Option<f64>| {
            let Some(ours) = value(&self.score(model)) else { return Ok(()) };
            match reference.as_ref().and_then(|sum| value(&self.score(sum))) {
                None => writeln!(out, "{name:13}  {ours:.5}"),
                Some(theirs) => writeln!(out, "{name:13}  {ours:.5}  reference {theirs:.5}"),
            }
        };
        line("perplexity", |score| Some(score.perplexity))?;
        line("nats/token", |score| Some(score.nats_per_token))?;
        line("bits/byte", |score| score.bits_per_byte)?;
        if reference.is_some() {
            let Distance { kl, largest_kl, agreements } = distance;
            writeln!(out, "divergence     {:.3e} nats/token, at most {largest_kl:.3e}", self.mean(*kl))?;
            writeln!(out, "same choice    {:.2}%", 100.0 * self.mean(*agreements as f64))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_do_not_overlap() {
        let tokens: Vec<u32> = (10..20).collect();
        let cut = |opening: &[u32], len| windows(&tokens, opening, len);
        assert_eq!(cut(&[], 4), [vec![10, 11, 12, 13], vec![14, 15, 16, 17], vec![18, 19]]);
        // A last token alone has nothing before it; with an opening it has.
        assert_eq!(cut(&[], 3).len(), 3);
        assert_eq!(cut(&[1], 4).last().unwrap(), &[1, 19]);
        assert_eq!(cut(&[1], 4).iter().map(|w| w.len() - 1).sum::<usize>(), 10);
        assert_eq!(cut(&[], 100), std::slice::from_ref(&tokens));
        assert!(windows(&[5], &[], 8).is_empty());
    }

    #[test]
    fn divergences() {
        let p = [0.25f32.ln(), 0.75f32.ln()];
        let q = [1000.0f32, 1000.0];
        let (sp, sq) = (log_sum_exp(&p).unwrap(), log_sum_exp(&q).unwrap());
        assert!(sp.abs() < 1e-7 && (sq - 1000.0 - 2f64.ln()).abs() < 1e-9);
        let expected = 0.25 * (0.25f64 / 0.5).ln() + 0.75 * (0.75f64 / 0.5).ln();
        assert!((divergence((&p, sp), (&q, sq)) - expected).abs() < 1e-7);
        assert_eq!(divergence((&p, sp), (&p, sp)), 0.0);
        let masked = [0.0, f32::NEG_INFINITY];
        assert!((divergence((&masked, 0.0), (&q, sq)) - 2f64.ln()).abs() < 1e-9);
        assert!(log_sum_exp(&[f32::NAN, 1.0]).is_err());
        assert!(log_sum_exp(&[f32::INFINITY, 1.0]).is_err());
        assert_eq!(best(&[1.0, 3.0, 3.0]), 1);
    }
}
