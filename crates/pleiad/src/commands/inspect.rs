//! `pleiad inspect`: what a model is, and what it takes to run it here.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::process::ExitCode;

use backend::CacheFloat;
use backend::pool::BLOCK;
use checkpoint::{Checkpoint, Dtype};
use clap::Args;
use engine::{Caches, bytes};
use models::counted;

use crate::error::Error;
use crate::gpus;
use crate::machine::AnyMachine;
use crate::options::ModelArgs;

/// Arguments of `pleiad inspect`.
#[derive(Args)]
pub struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,
}

/// Lines of `name  text`, aligned.
struct Table(Vec<(String, String)>);

impl Table {
    fn row(&mut self, name: impl Into<String>, text: impl Into<String>) {
        self.0.push((name.into(), text.into()));
    }

    fn print(&self) -> std::io::Result<()> {
        let width = self.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let mut out = stdout().lock();
        self.0.iter().try_for_each(|(name, text)| writeln!(out, "{name:width$}  {text}"))
    }
}

/// How a tensor is stored, for people; the scales and biases of a quantised one count with it.
fn stored_as(checkpoint: &Checkpoint, name: &str) -> Result<String, Error> {
    const PARTS: [&str; 5] = [".weight", ".scales", ".biases", ".global_scale", ".weight_scale_inv"];
    let path = PARTS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
    let tensor = |part: &str| checkpoint.tensor(&format!("{path}.{part}"));
    if checkpoint.contains(&format!("{path}.weight_scale_inv")) {
        return Ok("fp8 in blocks".into());
    }
    if checkpoint.contains(&format!("{path}.scales")) {
        let (weight, scales) = (tensor("weight")?, tensor("scales")?);
        let (words, groups) =
            (weight.shape.last().copied().unwrap_or(0), scales.shape.last().copied().unwrap_or(0));
        return Ok(quantised_as(checkpoint, path, words, groups, scales.dtype));
    }
    Ok(checkpoint.tensor(name)?.dtype.to_string().to_lowercase())
}

/// The shapes know the width also where the config names only the default.
fn quantised_as(checkpoint: &Checkpoint, path: &str, words: usize, groups: usize, scales: Dtype) -> String {
    if scales == Dtype::U8 {
        return match words.checked_div(groups) {
            Some(2) => "nvfp4".into(),
            Some(4) => "mxfp4".into(),
            Some(8) => "mxfp8".into(),
            _ => "quantised".into(),
        };
    }
    let declared = checkpoint.config().quantization().for_path(path).map(|spec| spec.group);
    let fits = |group: &usize| (words * 32).checked_rem(groups * group) == Some(0);
    match declared.into_iter().chain([64, 32, 128]).find(fits) {
        Some(group) => format!("{}-bit affine, groups of {group}", words * 32 / (groups * group)),
        None => "quantised".into(),
    }
}

fn describe_weights(checkpoint: &Checkpoint, table: &mut Table) -> Result<(), Error> {
    let mut kinds: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for name in checkpoint.names() {
        let kind = kinds.entry(stored_as(checkpoint, name)?).or_default();
        let is_part =
            [".scales", ".biases", ".global_scale", ".weight_scale_inv"].iter().any(|p| name.ends_with(p));
        kind.0 += usize::from(!is_part);
        kind.1 += checkpoint.tensor(name)?.bytes.len() as u64;
    }
    table.row("weights", bytes(checkpoint.total_bytes()));
    let width = kinds.values().map(|(_, size)| bytes(*size).len()).max().unwrap_or(0);
    for (kind, (count, size)) in kinds {
        table.row("", format!("{:>width$}  {kind}, {}", bytes(size), counted(count, "tensor")));
    }
    Ok(())
}

/// Tensors the model does not use, by the first part of their names.
fn describe_unused(unused: &[String], table: &mut Table) {
    if unused.is_empty() {
        return table.row("unused", "no tensor");
    }
    let mut branches: BTreeMap<String, usize> = BTreeMap::new();
    for name in unused {
        let parts: Vec<&str> =
            name.split('.').filter(|part| !["model", "language_model"].contains(part)).collect();
        let branch = match parts.as_slice() {
            [.., "rotary_emb", _] => "rotary_emb".into(),
            ["layers", layer, ..] => format!("layers.{layer}"),
            [first, ..] => first.to_string(),
            [] => name.clone(),
        };
        *branches.entry(branch).or_default() += 1;
    }
    let known = |branch: &str| match branch {
        "vision_tower" | "visual" | "vision_embedder" | "embed_vision" | "multi_modal_projector" => {
            " (images)"
        }
        "audio_tower" | "embed_audio" => " (sound)",
        "mtp" => " (drafting head)",
        "rotary_emb" => " (computed instead)",
        _ => "",
    };
    let list: Vec<String> =
        branches.iter().map(|(branch, n)| format!("{branch}.*: {n}{}", known(branch))).collect();
    table.row("unused", format!("{}: {}", counted(unused.len(), "tensor"), list.join(", ")));
    for name in unused.iter().take(8) {
        table.row("", name);
    }
    if unused.len() > 8 {
        table.row("", format!("and {} more", unused.len() - 8));
    }
}

fn describe_running(caches: &Caches, float: CacheFloat, machine: &AnyMachine, table: &mut Table) {
    let float = match float {
        CacheFloat::F16 => "f16",
        CacheFloat::F32 => "f32",
        CacheFloat::Q8 => "q8",
    };
    let fixed = caches.bytes(0);
    let per_token = (caches.bytes(BLOCK) - fixed) / BLOCK as u64;
    let fixed = if fixed == 0 { String::new() } else { format!(" and {} of recurrent state", bytes(fixed)) };
    table.row("caches", format!("{} per token in {float}{fixed}, for each sequence", bytes(per_token)));
    let context = caches.context();
    let (tokens, size) = (counted(context, "token"), bytes(caches.bytes(context)));
    table.row("here", format!("a context of {tokens}, with {size} of caches"));
    let (machine, free) = machine.describe();
    let free = free.map_or(String::new(), |free| format!("; {} of memory free", bytes(free)));
    table.row("machine", format!("{machine}{free}"));
}

/// Those that `--gpu` takes.
fn describe_gpus(table: &mut Table) {
    let gpus = gpus::list();
    if gpus.is_empty() {
        table.row("GPUs", "none");
    }
    for (i, gpu) in gpus.into_iter().enumerate() {
        table.row(if i == 0 { "GPUs" } else { "" }, gpu);
    }
}

pub fn run(mut args: InspectArgs) -> Result<ExitCode, Error> {
    // As `serve` would load it.
    args.model.machine.drafting = true;
    let checkpoint = args.model.model.checkpoint()?;
    let mut table = Table(Vec::new());
    table.row("model", args.model.model.to_string());
    table.row("family", checkpoint.config().model_type()?);
    let machine = args.model.machine.machine(checkpoint.total_bytes());
    let opened =
        machine.and_then(|machine| Ok((args.model.machine.outline(&checkpoint, &machine)?, machine)));
    let ((outline, plan, caches), machine) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            // What can be said of a model that does not run is still worth saying.
            describe_weights(&checkpoint, &mut table)?;
            table.print()?;
            return Err(error);
        }
    };
    let summary = outline.summary();
    let context = summary.context.map_or(String::new(), |n| format!(", context {n}"));
    table.row("shape", format!("hidden size {}, vocabulary {}{context}", summary.hidden, summary.vocabulary));
    summary.parts.iter().for_each(|(name, text)| table.row(name, text));
    if outline.spec().has_drafter() {
        table.row("drafting head", "1 layer, with which `serve` guesses tokens that the model checks");
    }
    let unused = checkpoint.unused();
    describe_weights(&checkpoint, &mut table)?;
    describe_unused(&unused, &mut table);
    describe_running(&caches, args.model.machine.cache_float(), &machine, &mut table);
    if let Some(plan) = plan {
        table.row("plan", plan.to_string());
    }
    describe_gpus(&mut table);
    table.print()?;
    Ok(ExitCode::SUCCESS)
}
