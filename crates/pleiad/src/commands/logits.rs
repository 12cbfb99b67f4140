//! `pleiad logits`: raw logits to a safetensors file.

use std::path::PathBuf;
use std::process::ExitCode;

use checkpoint::{Dtype, TensorSpec, write_file};
use clap::Args;
use engine::Loop;

use crate::error::Error;
use crate::generate::Scores;
use crate::machine::with_engine;
use crate::options::{ModelArgs, parse_ids};

/// Arguments of `pleiad logits`.
#[derive(Args)]
pub struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Token ids, separated by commas
    #[arg(long, value_name = "IDS", required = true, value_parser = parse_ids)]
    ids: std::vec::Vec<u32>,

    /// The file to write: `logits`, f32 [ids, vocabulary]
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub fn run(args: &LogitsArgs) -> Result<ExitCode, Error> {
    let (logits, vocabulary) = with_engine!(args.model.open()?, engine => {
        let vocabulary = engine.model().summary().vocabulary;
        let mut steps = Loop::new(engine, args.model.machine.alone(false));
        let (scores, mut logits) = (Scores::of(&mut steps, &args.ids)?, Vec::new());
        while let Some(rows) = scores.next(&mut steps)? {
            logits.extend(rows);
        }
        (logits, vocabulary)
    });
    let bytes: Vec<u8> = logits.iter().flat_map(|v| v.to_le_bytes()).collect();
    let shape = vec![args.ids.len(), vocabulary];
    write_file(&args.out, &[(TensorSpec { name: "logits".into(), dtype: Dtype::F32, shape }, &bytes)])?;
    Ok(ExitCode::SUCCESS)
}
