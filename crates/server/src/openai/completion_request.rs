//! `POST /v1/completions`: the request.

use serde_json::Value as Json;

use super::{MOST_ANSWERS, Streaming, answers, check_model, max_tokens, stops, streaming};
use crate::answer::{Prompt, Question};
use crate::app::ServedModel;
use crate::fault::Fault;
use crate::fields::{Fields, whole};
use crate::forms;
use crate::sampling::sampling;

/// Tokens when the request names no number: what OpenAI's documentation says.
const DEFAULT_TOKENS: usize = 16;

/// What the request wants beside the answers.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Whether and how to stream.
    pub streaming: Option<Streaming>,
    /// Whether an answer begins with its prompt.
    pub echo: bool,
}

/// Reads a request into a question.
pub fn read(fields: &Fields<'_>, model: &ServedModel) -> Result<(Wishes, Question), Fault> {
    check_model(fields)?;
    let wishes = Wishes { streaming: streaming(fields)?, echo: fields.flag("echo")?.unwrap_or(false) };
    let question = Question {
        prompts: prompts(fields)?,
        n: answers(fields)?,
        sampling: sampling(fields, model.tokenizer.generation_defaults())?,
        max_tokens: Some(
            max_tokens(fields, &["max_tokens", "max_completion_tokens"])?.unwrap_or(DEFAULT_TOKENS),
        ),
        stops: stops(fields)?,
        form: forms::form(fields)?,
        logprobs: fields.count("logprobs", "a whole number from 0 to 20", [0, 20])?.map(|top| top as usize),
    };
    if wishes.echo && question.logprobs.is_some() {
        return Err(fields.wrong("echo", "left out where `logprobs` is asked for: prompts have none here"));
    }
    if fields.count("best_of", "a whole number", [0, u64::MAX])?.unwrap_or(1) > question.n as u64 {
        return Err(fields.wrong("best_of", "left out, or the same as `n`: all answers are returned"));
    }
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.wrong("suffix", "left out: this model continues texts, it does not fill gaps"));
    }
    if (question.prompts.len() * question.n) as u64 > MOST_ANSWERS {
        return Err(fields.wrong("prompt", "so few prompts that there are at most 64 answers in all"));
    }
    Ok((wishes, question))
}

/// A text, texts, tokens, or several lists of tokens.
fn prompts(fields: &Fields<'_>) -> Result<Vec<Prompt>, Fault> {
    let expected = "a string, a list of strings, a list of token ids, or a list of such lists";
    let wrong = || fields.wrong("prompt", expected);
    let id = |json: &Json| whole(json).and_then(|id| u32::try_from(id).ok());
    let ids = |list: &[Json]| list.iter().map(id).collect::<Option<Vec<u32>>>().map(Prompt::Tokens);
    let prompts = match fields.required("prompt", expected)? {
        Json::String(text) => vec![Prompt::Text(text.clone())],
        Json::Array(list) => match list.first() {
            None => return Err(wrong()),
            Some(Json::Number(_)) => vec![ids(list).ok_or_else(wrong)?],
            Some(_) => (list.iter())
                .map(|json| match json {
                    Json::String(text) => Some(Prompt::Text(text.clone())),
                    Json::Array(list) => ids(list),
                    _ => None,
                })
                .collect::<Option<_>>()
                .ok_or_else(wrong)?,
        },
        _ => return Err(wrong()),
    };
    Ok(prompts)
}
