//! `pleiad bench`: how fast a model runs here, and how fast it could.

use std::fs;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum, value_parser};
use engine::{Engine, SamplingParams};

use crate::bench::{Bandwidth, Report, Target, Work, draw, large_pages, measure, measuring, peak_memory};
use crate::error::Error;
use crate::machine::{Machine, wait_for_weights, with_engine};
use crate::options::MachineArgs;
use crate::sampling::SamplingArgs;
use crate::terminal;

/// Prompts of up to so many tokens run in one step unless --chunk says otherwise, as in llama.cpp.
const STEP: usize = 512;
/// Contexts of a quick look, and of a picture when none are given.
const CONTEXTS: [usize; 3] = [0, 256, 1024];

/// Arguments of `pleiad bench`.
#[derive(Args)]
#[command(
    mut_arg("chunk", |arg| {
        // Beyond any prompt: the whole of it in one step.
        arg.default_value("1000000000").hide_default_value(true).help("Tokens of a prompt per step [default: all of them]")
    }),
    after_long_help = "Each round begins with an empty sequence: --prefill pseudo-random tokens in one step, then --decode tokens, one \
step each, through the loop that `run` and `serve` use. Tokens are the most probable ones unless a --temperature is given. The first \
round only warms up. Weights per token are what a \
decoded token has to read: every matrix once, of a layer's experts those it is sent to. The limit is the measured \
bandwidth of the CPU divided by them; on a GPU none is told. Caches and recurrent states, which grow with the context, are not in it."
)]
pub struct BenchArgs {
    /// The model: a folder, the hub's name of one that `pleiad pull` has fetched, or `box`; or a preset of `pleiad synth`,
    /// made for the occasion and removed again; the model in the box when absent
    #[arg(value_name = "MODEL|PRESET")]
    model: Option<String>,

    #[command(flatten)]
    machine: MachineArgs,

    /// Tokens of the prompt [default: 512; 256 with --quick]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    prefill: Option<u32>,

    /// Tokens to decode
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = value_parser!(u32).range(1..))]
    decode: u32,

    /// Rounds that count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u32).range(1..=10_000))]
    repeat: u32,

    /// Decode at these context lengths too, like 0,512,4096
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    contexts: Option<Vec<u32>>,

    /// Decode so many answers at once, too, like 8,64, as a server does
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = value_parser!(u32).range(1..=4096))]
    answers: Vec<u32>,

    /// With a preset: make only so many layers of it
    #[arg(long, value_name = "N")]
    layers: Option<usize>,

    /// A look that takes a few seconds with the model in the box
    #[arg(long)]
    quick: bool,

    /// One JSON object on the standard output instead of a table
    #[arg(long)]
    json: bool,

    /// Draw the speed of decoding against the context
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Also tell how long each operation takes, which slows small models down a little
    #[arg(long)]
    profile: bool,

    #[command(flatten)]
    sampling: SamplingArgs,
}

/// The seed of sampled decoding when none is given, so that runs are alike.
const SEED: u64 = 0;

impl BenchArgs {
    fn work(&self) -> Result<Work, Error> {
        let prefill = self.prefill.unwrap_or(if self.quick { 256 } else { 512 }) as usize;
        let mut contexts: Vec<usize> = match &self.contexts {
            Some(given) => given.iter().map(|n| *n as usize).collect(),
            None if self.quick || self.svg.is_some() => CONTEXTS.into(),
            None => Vec::new(),
        };
        contexts.sort_unstable();
        contexts.dedup();
        // That is where decoding begins anyway.
        contexts.retain(|context| *context != prefill);
        let answers = self.answers.iter().map(|n| *n as usize).collect();
        let chunk = self.machine.chunk.min(prefill.max(STEP));
        let (decode, repeat) = (self.decode as usize, self.repeat as usize);
        let greedy = SamplingParams { seed: Some(SEED), ..SamplingParams::greedy() };
        let sampling = self.sampling.params(greedy)?;
        Ok(Work { prefill, decode, repeat, chunk, contexts, answers, sampling })
    }
}

/// Refuses sequences longer than a context; contexts that nobody asked for are left out instead.
fn fit(work: &mut Work, asked: bool, context: usize, whose: &str) -> Result<(), Error> {
    if !asked {
        work.contexts.retain(|n| n + work.decode <= context);
    }
    if work.longest() <= context {
        return Ok(());
    }
    let before = work.longest() - work.decode;
    Err(Error::Usage(format!(
        "{before} tokens and {} decoded ones behind them make {}, but {whose} is {context}; take a smaller --prefill or \
         shorter --contexts",
        work.decode,
        work.longest()
    )))
}

/// A picture is the last thing of a long run: what can go wrong with its place is said before.
fn check_place(file: &Path) -> Result<(), Error> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match folder.is_dir() && !file.is_dir() {
        true => Ok(()),
        false => Err(Error::Usage(format!("--svg {}: there can be no file of this name", file.display()))),
    }
}

/// All or nothing, like every file this program writes.
fn write_whole(file: &Path, text: &str) -> Result<(), Error> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = file.with_file_name(name);
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, file));
    written.map_err(|e| {
        let _ = fs::remove_file(&partial);
        Error::Usage(format!("cannot write {}: {e}", file.display()))
    })
}

/// How long the disk is measured.
const DISK_TIME: Duration = Duration::from_secs(1);

/// Measures a model that is open.
fn report<B: Machine>(
    args: &BenchArgs,
    name: &str,
    weights: u64,
    open_seconds: f64,
    work: Work,
    engine: Engine<B>,
) -> Result<Report, Error> {
    let mut steps = measuring(engine, &work, args.machine.alone(false));
    let measured = measure(&mut steps, &work)?;
    let engine = steps.engine();
    // Before the buffer that the bandwidth is measured with.
    let (peak_memory, large_pages) = (peak_memory(), large_pages());
    let machine = engine.model().backend();
    let numerics = machine.numerics(args.machine.numerics).to_possible_value();
    let bandwidth = |threads| Bandwidth::measure(threads, machine.free_memory(), args.quick);
    Ok(Report {
        model: name.into(),
        family: engine.model().summary().family.clone(),
        weights,
        backend: machine.description(),
        threads: machine.threads(),
        numerics: numerics.map(|value| value.get_name().into()).unwrap_or_default(),
        work,
        measured,
        traffic: engine.model().traffic(),
        bandwidth: machine.threads().map(bandwidth).transpose()?,
        disk: machine.store().and_then(|store| store.disk_speed(DISK_TIME)),
        open_seconds,
        peak_memory,
        large_pages,
        profiled: args.profile,
    })
}

/// Measures, with progress on the standard error stream and what was found on the standard output.
pub fn run(mut args: BenchArgs) -> Result<ExitCode, Error> {
    let mut work = args.work()?;
    let asked = args.contexts.is_some();
    if let Some(context) = args.machine.context {
        fit(&mut work, asked, context as usize, "--context")?;
    }
    if let Some(file) = &args.svg {
        check_place(file)?;
    }
    terminal::catch_interrupts();
    // Before the engine, so that it goes after it: files that are mapped cannot be removed everywhere.
    let target = Target::find(args.model.as_deref(), args.layers)?;

    let started = Instant::now();
    let checkpoint = target.checkpoint()?;
    let given = args.machine.context.is_some();
    args.machine.context = Some(u32::try_from(work.longest()).unwrap_or(u32::MAX));
    args.machine.chunk = work.chunk;
    args.machine.profile = args.profile;
    let report = with_engine!(args.machine.engine(&checkpoint)?, engine => {
        wait_for_weights(engine.model().backend())?;
        let open_seconds = started.elapsed().as_secs_f64();
        if let (Some(own), false) = (engine.model().summary().context, given) {
            fit(&mut work, asked, own, "the model's context")?;
        }
        report(&args, &target.name, checkpoint.total_bytes(), open_seconds, work, engine)?
    });
    if let Some(file) = &args.svg {
        write_whole(file, &draw(&report))?;
    }
    let mut out = stdout().lock();
    match args.json {
        true => writeln!(out, "{}", report.json())?,
        false => report.print(&mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}
