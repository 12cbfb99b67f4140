//! `pleiad pull`: a model from the Hugging Face hub.

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::Args;

use crate::error::Error;
use crate::hub;

/// Arguments of `pleiad pull`.
#[derive(Args)]
pub struct PullArgs {
    /// The model on the hub, like org/name
    #[arg(value_name = "REPO")]
    repo: String,

    /// A branch, a tag or a commit of it [default: main]
    #[arg(long, value_name = "REV")]
    revision: Option<String>,
}

/// Fetches what is not there yet and prints the folder of the model.
pub fn run(args: &PullArgs) -> Result<ExitCode, Error> {
    let folder = hub::pull(&args.repo, args.revision.as_deref())?;
    writeln!(stdout(), "{}", folder.display())?;
    Ok(ExitCode::SUCCESS)
}
