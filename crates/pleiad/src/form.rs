//! Flags for the form of an answer.

use std::path::Path;

use clap::Args;
use engine::Grammar;

use crate::error::Error;

/// What the answer must look like: one of these, or anything.
#[derive(Args)]
#[command(next_help_heading = "Form of the answer")]
#[group(multiple = false)]
pub struct FormArgs {
    /// The answer is JSON that this schema allows: a file, or the schema itself
    #[arg(long, short = 'j', value_name = "FILE|SCHEMA")]
    json_schema: Option<String>,

    /// The whole answer matches this regular expression
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,

    /// The answer is a text of this grammar in Lark's notation: a file, or the grammar itself
    #[arg(long, value_name = "FILE|GRAMMAR")]
    grammar: Option<String>,
}

/// The text of a file, or the argument itself where there is no such file.
fn file_or_text(argument: &str) -> Result<String, Error> {
    let path = Path::new(argument);
    if !path.is_file() {
        return Ok(argument.into());
    }
    std::fs::read_to_string(path).map_err(|e| Error::Usage(format!("cannot read {argument}: {e}")))
}

impl FormArgs {
    /// The form that is asked for.
    pub fn grammar(&self) -> Result<Option<Grammar>, Error> {
        Ok(match self {
            Self { json_schema: Some(schema), .. } => Some(Grammar::JsonSchema(json(schema)?)),
            Self { regex: Some(regex), .. } => Some(Grammar::Regex(regex.clone())),
            Self { grammar: Some(lark), .. } => Some(Grammar::Lark(file_or_text(lark)?)),
            _ => None,
        })
    }
}

fn json(argument: &str) -> Result<serde_json::Value, Error> {
    serde_json::from_str(&file_or_text(argument)?).map_err(|e| {
        let problem = match Path::new(argument).is_file() {
            true => format!("{argument} is not JSON: {e}"),
            false => format!("{argument}: there is no such file, and as JSON: {e}"),
        };
        Error::Usage(format!("--json-schema {problem}"))
    })
}
