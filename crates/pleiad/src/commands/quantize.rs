//! `pleiad quantize`: a plain checkpoint to the quantised one that mlx-lm would write.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use checkpoint::Checkpoint;
use clap::Args;
use engine::bytes;
use models::{Outline, counted};

use crate::error::Error;
use crate::progress::Progress;
use crate::quantize::{self, ModeChoice, Plan};
use crate::source::find_folder;
use crate::terminal;

/// Arguments of `pleiad quantize`.
#[derive(Args)]
#[command(
    after_long_help = "SRC may hold bf16, f16, f32 or fp8, under mlx-lm's names or those of the Hugging Face original. DST gets mlx-lm's names \
and layouts, and loads there too. Routers keep 8 bits, and matrices whose width the group does not divide stay as they \
are, as in mlx-lm. A head that guesses tokens (MTP) goes to mtp.safetensors, a file that mlx-lm does not read."
)]
pub struct QuantizeArgs {
    /// Folder of the model (config.json and safetensors), or the hub's name of one that `pleiad pull` has fetched
    #[arg(value_parser = find_folder)]
    src: PathBuf,

    /// The folder to write; must not exist
    dst: PathBuf,

    /// Bits of a weight: 1, 2, 3, 4, 5, 6 or 8 [default: 4; that of the mode where it is not affine]
    #[arg(long)]
    bits: Option<u32>,

    /// Weights that share a scale: 32, 64 or 128 [default: 64; that of the mode where it is not affine]
    #[arg(long)]
    group: Option<usize>,

    /// What a code means
    #[arg(long, value_enum, default_value = "affine")]
    mode: ModeChoice,

    /// Other bits for some weights: mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6, as in mlx-lm, or a JSON file
    #[arg(
        long,
        value_name = "RECIPE",
        long_help = "Other bits for some weights: mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6, as in mlx-lm (values, \
                     down projections and the head get the larger number, routers the smaller one), or a JSON file: \
                     {\"PATTERN\": {\"bits\": .., \"group_size\": .., \"mode\": ..}, \"PATTERN\": false, ..}. A pattern \
                     is part of a path like model.layers.3.mlp.down_proj, or, with * for anything, the whole of it; \
                     the first that matches decides; false leaves the weight as it is"
    )]
    mixed: Option<String>,
}

/// Quantises: notes and progress on the standard error stream, what was made on the standard output.
pub fn run(args: &QuantizeArgs) -> Result<ExitCode, Error> {
    let start = Instant::now();
    let layout = args.mode.layout(args.bits, args.group)?;
    let checkpoint = Checkpoint::open(&args.src)?;
    let outline = Outline::open(&checkpoint, true)?;
    let plan = Plan::new(&checkpoint, outline, layout, args.mixed.as_deref())?;
    let config = quantize::config(checkpoint.config().root(), plan.quantization(), &args.src);
    let files = quantize::companions(&args.src)?;

    let (before, after) = (plan.source_bytes(), plan.total_bytes());
    eprintln!("{}: {} to {}", quantize::describe(layout), bytes(before), bytes(after));
    note_skipped(&plan);
    note_unused(&checkpoint);
    terminal::catch_interrupts();
    let mut progress = Progress::new(before);
    quantize::write(&args.dst, &config, &plan, &files, |done| progress.add(done))?;
    drop(progress);

    // Nobody reading is no reason to fail: the checkpoint is there.
    let _ = writeln!(
        stdout(),
        "{} to {}, {:.2} bits per weight, in {:.1} s: {}",
        bytes(before),
        bytes(after),
        plan.bits_per_weight(),
        start.elapsed().as_secs_f64(),
        args.dst.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Which matrices stay plain because of their width: layers have them in common, so by name without the layer.
fn note_skipped(plan: &Plan) {
    let mut kinds: BTreeMap<(String, usize), usize> = BTreeMap::new();
    for (path, width) in plan.skipped() {
        let kind: Vec<&str> =
            path.split('.').map(|part| if part.parse::<usize>().is_ok() { "*" } else { part }).collect();
        *kinds.entry((kind.join("."), *width)).or_default() += 1;
    }
    for ((kind, width), count) in kinds {
        eprintln!("not quantised: {kind} ({count}): the group does not divide its width of {width}");
    }
}

/// Tensors that the text model does not have.
fn note_unused(checkpoint: &Checkpoint) {
    let unused = checkpoint.unused();
    if let Some(first) = unused.first() {
        eprintln!(
            "left out: {} that the text model does not use, like {first}",
            counted(unused.len(), "tensor")
        );
    }
}
