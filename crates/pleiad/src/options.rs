//! Flags that several commands share, and opening a model by them.

use backend::CacheFloat;
use clap::{Args, ValueEnum};
use cpu::Set;
use engine::{DEFAULT_CHUNK, SchedulerOptions, Trace};

use crate::error::Error;
use crate::machine::{AnyEngine, wait_for_weights, with_engine};
use crate::source::Source;

/// Where to run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// A GPU if there is one with room for the model, else the CPU, as for models under 100 MB: they answer sooner
    /// than a GPU is opened
    Auto,
    /// The CPU
    Cpu,
    /// A GPU, or an error
    Gpu,
}

/// How products are rounded.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NumericsChoice {
    /// On the CPU, activations are rounded to 15 bits inside products; caches are f16, unless --cache says otherwise
    Fast,
    /// Plain f32 throughout
    Exact,
}

/// How key-value caches store their values.
#[derive(Clone, Copy, ValueEnum)]
pub enum CacheChoice {
    /// 16-bit floats: half the memory
    F16,
    /// 32-bit floats
    F32,
    /// 8-bit codes, a scale for every 32: about half the memory of f16, a little less exact
    Q8,
}

/// A model and the machine to run it on.
#[derive(Args)]
pub struct ModelArgs {
    /// Folder of the model (config.json and safetensors), the hub's name of one that `pleiad pull` has fetched, or `box`
    #[arg(value_parser = Source::find)]
    pub model: Source,

    #[command(flatten)]
    pub machine: MachineArgs,
}

/// The machine to run on, and how.
#[derive(Args)]
pub struct MachineArgs {
    /// Where to run
    #[arg(long, value_enum, default_value = "auto", help_heading = "Machine")]
    pub backend: BackendChoice,

    /// Run on this GPU, by its number in the list of `pleiad inspect`; the only way to choose a software one
    #[arg(long, value_name = "N", value_parser = parse_gpu, help_heading = "Machine")]
    pub gpu: Option<usize>,

    /// Put barriers between all kernels, on NVIDIA's GPUs too, where those of a token otherwise wait for each other by themselves: 4 to 12% slower
    #[arg(long, hide_short_help = true, help_heading = "Machine")]
    pub gpu_barriers: bool,

    /// Worker threads of the CPU [default: one per physical core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Machine")]
    pub threads: Option<u16>,

    /// How products are rounded
    #[arg(long, value_enum, default_value = "fast", help_heading = "Machine")]
    pub numerics: NumericsChoice,

    /// Instructions of the CPU to use, for comparing them: avx512, avx2, neon or scalar [default: the best it has]
    #[arg(long, value_name = "SET", value_parser = parse_set, hide_short_help = true, help_heading = "Machine")]
    pub kernels: Option<Set>,

    /// Budget for weights and caches, like 12G [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Machine")]
    pub memory: Option<u64>,

    /// Longest sequence, in tokens [default: the model's own, as far as memory allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Machine")]
    pub context: Option<u32>,

    /// How key-value caches store their values [default: f16; f32 with exact numerics]
    #[arg(long, value_enum, help_heading = "Machine")]
    pub cache: Option<CacheChoice>,

    /// Tokens of a prompt per step
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHUNK, value_parser = parse_count, help_heading = "Machine")]
    pub chunk: usize,

    /// Tell on the standard error stream what every step plans, submits, collects and commits, and how long
    /// each takes
    #[arg(long, hide_short_help = true, help_heading = "Machine")]
    pub trace_steps: bool,

    /// Whether a drafting head is of use, if the model has one.
    #[arg(skip)]
    pub drafting: bool,

    /// Whether the machine measures its operations.
    #[arg(skip)]
    pub profile: bool,

    /// Whether to keep notes to oneself.
    #[arg(skip)]
    pub quiet: bool,
}

/// A whole number above 0.
pub fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number above 0".into()),
        Ok(n) => Ok(n),
    }
}

fn parse_gpu(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a number from the list of `pleiad inspect`".into())
}

fn parse_set(name: &str) -> Result<Set, String> {
    Set::named(name).ok_or_else(|| {
        let names: Vec<_> = Set::available().into_iter().map(Set::name).collect();
        format!("this machine has {}", names.join(", "))
    })
}

/// `12G`, `1.5GB`, `800M`, `1000000`: powers of ten, as disks and this program count.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 1e0,
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        _ => return Err("expected a size like 12G or 800M".into()),
    };
    match digits.trim().parse::<f64>() {
        Ok(n) if n.is_finite() && n > 0.0 => Ok((n * unit) as u64),
        _ => Err("expected a size like 12G or 800M".into()),
    }
}

impl MachineArgs {
    /// Who hears of the parts of every step.
    pub fn trace(&self) -> Trace {
        if self.trace_steps { Trace::stderr() } else { Trace::default() }
    }

    /// Settings of a loop for one request after the other, each of which goes on with the sequence of the
    /// one before as far as they are the same.
    pub fn alone(&self, speculate: bool) -> SchedulerOptions {
        SchedulerOptions {
            slots: 1,
            prefixes: 1,
            prefix_memory: u64::MAX,
            speculate,
            trace: self.trace(),
            ..SchedulerOptions::default()
        }
    }

    /// The float of key-value caches. Exact numerics are exact in the caches too, unless asked otherwise.
    pub fn cache_float(&self) -> CacheFloat {
        match self.cache {
            Some(CacheChoice::F16) => CacheFloat::F16,
            Some(CacheChoice::F32) => CacheFloat::F32,
            Some(CacheChoice::Q8) => CacheFloat::Q8,
            None if self.numerics == NumericsChoice::Exact => CacheFloat::F32,
            None => CacheFloat::F16,
        }
    }
}

impl ModelArgs {
    /// Opens the weights, builds the model, and waits until it can run.
    pub fn open(&self) -> Result<AnyEngine, Error> {
        let engine = self.machine.engine(&self.model.checkpoint()?)?;
        with_engine!(&engine, engine => wait_for_weights(engine.model().backend()))?;
        Ok(engine)
    }
}

/// Token ids separated by commas.
pub fn parse_ids(text: &str) -> Result<Vec<u32>, String> {
    let id = |part: &str| {
        part.trim()
            .parse()
            .map_err(|_| format!("`{}` is not a token id: expected whole numbers like 5,17,3", part.trim()))
    };
    if text.trim().is_empty() { Ok(Vec::new()) } else { text.split(',').map(id).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("12G", 12_000_000_000),
            ("1.5GB", 1_500_000_000),
            ("800m", 800_000_000),
            ("7", 7),
            ("2 kB", 2000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1G", "12Q", "1e400", "nan"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ids() {
        assert_eq!(parse_ids("5, 17,3"), Ok(vec![5, 17, 3]));
        assert_eq!(parse_ids(""), Ok(vec![]));
        for text in ["5,,3", "a", "-1", "5 6", "99999999999"] {
            assert!(parse_ids(text).is_err(), "{text}");
        }
    }
}
