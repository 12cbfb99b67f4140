//! OpenAI's API: chat completions, completions, models.

mod chat;
mod chat_request;
mod completion_request;
mod completions;
mod logprobs;
mod messages;
mod models;
mod writing;

pub use chat::chat;
pub use completions::completions;
pub use models::{model, models};

use serde_json::{Value as Json, json};

use crate::answer::{Ending, Usage};
use crate::fault::Fault;
use crate::fields::Fields;

/// Most answers to one request.
const MOST_ANSWERS: u64 = 64;

/// What a client wants as a stream, and whether with the usage at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Streaming {
    usage: bool,
}

/// Whether and how to stream.
fn streaming(fields: &Fields<'_>) -> Result<Option<Streaming>, Fault> {
    let wanted = fields.flag("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?;
    let usage = options.map(|options| options.flag("include_usage")).transpose()?.flatten().unwrap_or(false);
    Ok(wanted.then_some(Streaming { usage }))
}

/// Stop strings; empty ones would end every answer before it begins and are ignored.
fn stops(fields: &Fields<'_>) -> Result<Vec<String>, Fault> {
    Ok(fields.texts("stop")?.into_iter().filter(|stop| !stop.is_empty()).collect())
}

/// The number of answers.
fn answers(fields: &Fields<'_>) -> Result<usize, Fault> {
    Ok(fields.count("n", "a whole number from 1 to 64", [1, MOST_ANSWERS])?.unwrap_or(1) as usize)
}

/// A number of tokens under one of several names, the first of which that is there counts.
fn max_tokens(fields: &Fields<'_>, names: &[&str]) -> Result<Option<usize>, Fault> {
    for name in names {
        if let Some(count) = fields.count(name, "a whole number, at least 1", [1, u64::from(u32::MAX)])? {
            return Ok(Some(count as usize));
        }
    }
    Ok(None)
}

/// The name of a model, which may be any: there is only one here.
fn check_model(fields: &Fields<'_>) -> Result<(), Fault> {
    fields.text("model").map(drop)
}

fn finish_reason(ending: &Ending) -> &'static str {
    match ending {
        Ending::End | Ending::Stop(_) => "stop",
        Ending::Calls => "tool_calls",
        Ending::Length | Ending::Context => "length",
    }
}

fn usage_json(usage: &Usage) -> Json {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    })
}
