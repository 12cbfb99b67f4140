//! From a question to tokens. It may take a while for long texts, so it runs where waiting is allowed.

use engine::{ChatPrompt, Constraint, Dialect, Grammar, Reader, TemplateInput, ToolChoice};
use serde_json::Value as Json;

use super::question::{Conversation, Prompt, Question, merge_system};
use crate::app::ServedModel;
use crate::fault::{Fault, Kind, request_fault};
use crate::forms::Tools;

/// A prompt ready to be answered.
pub struct Prepared {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// How many of them a later prompt will probably begin with too.
    pub stable: usize,
    /// Its text, as far as it is one.
    pub text: String,
    /// How to take answers apart; absent where they are only text.
    pub dialect: Option<(Dialect, Vec<Json>)>,
    /// One per answer, where the answer has a form.
    pub constraints: Vec<Constraint>,
}

impl Prepared {
    /// A reader for one of the answers.
    pub fn reader(&self) -> Option<Reader> {
        self.dialect.as_ref().map(|(dialect, tools)| dialect.reader(&self.text, tools))
    }
}

/// Renders and tokenises every prompt of a question.
pub fn prepare(model: &ServedModel, question: &mut Question) -> Result<Vec<Prepared>, Fault> {
    let (n, form) = (question.n, question.form.as_ref());
    question.prompts.drain(..).map(|prompt| prepare_one(model, prompt, form, n)).collect()
}

fn prepare_one(
    model: &ServedModel,
    prompt: Prompt,
    form: Option<&Grammar>,
    n: usize,
) -> Result<Prepared, Fault> {
    let tokenizer = &model.tokenizer;
    let encode = |text: &str, special| encode(model, text, special);
    let constraints = |grammar: Option<&Grammar>, param: &str| -> Result<Vec<Constraint>, Fault> {
        let Some(grammar) = grammar else { return Ok(Vec::new()) };
        let one = |_| model.grammars.constraint(grammar);
        (0..n).map(one).collect::<Result<_, _>>().map_err(|error| Fault::invalid(param, error.to_string()))
    };
    match prompt {
        Prompt::Text(text) => {
            let ids = encode(&text, true)?;
            let constraints = constraints(form, "response_format")?;
            Ok(Prepared { stable: ids.len(), ids, text, dialect: None, constraints })
        }
        Prompt::Tokens(ids) => {
            let text = tokenizer.decode(&ids, false).map_err(request_fault)?;
            let constraints = constraints(form, "response_format")?;
            Ok(Prepared { stable: ids.len(), ids, text, dialect: None, constraints })
        }
        Prompt::Chat(mut conversation) => {
            let Tools { list, choice, parallel } = std::mem::take(&mut conversation.tools);
            let has_tools = !list.is_empty();
            if form.is_some() && has_tools && choice == ToolChoice::Auto {
                let message = "an answer of a given form cannot be combined with `tools` that may be called or not; \
                               leave out one of them, or set `tool_choice`";
                return Err(Fault::invalid("response_format", message));
            }
            let ChatPrompt { text, ids, stable } =
                render(model, conversation, has_tools.then(|| list.clone()))?;
            // Where a call is asked for, the answer is that, and its form that of the call.
            let constraints = match form {
                _ if has_tools => {
                    constraints(model.dialect.grammar(&text, &list, &choice, parallel).as_ref(), "tools")?
                }
                Some(form) => {
                    constraints(Some(&model.dialect.after_thoughts(&text, form)), "response_format")?
                }
                None => Vec::new(),
            };
            Ok(Prepared { ids, stable, text, dialect: Some((model.dialect, list)), constraints })
        }
    }
}

/// Times that a text may shrink before it is cut into tokens, where accents join their letters, say.
const SHRINKING: usize = 4;

/// The tokens of a text, unless it is so long that there would be no point: that takes a hundred times its memory.
fn encode(model: &ServedModel, text: &str, special: bool) -> Result<Vec<u32>, Fault> {
    let context = model.answers.context();
    let fewest = text.len() / (SHRINKING * model.tokenizer.longest_token());
    if fewest > context {
        let message = format!(
            "the prompt has {} bytes, which are more than {fewest} tokens, but the context holds {context}: shorten it",
            text.len()
        );
        return Err(Fault::new(Kind::Invalid, message).with_code("context_length_exceeded"));
    }
    model.tokenizer.encode(text, special).map_err(request_fault)
}

/// A conversation as a prompt.
fn render(
    model: &ServedModel,
    conversation: Conversation,
    tools: Option<Vec<Json>>,
) -> Result<ChatPrompt, Fault> {
    let tokenizer = &model.tokenizer;
    let Conversation { messages, extra, continued, .. } = conversation;
    let opening = if continued { messages.last().and_then(|last| last["content"].as_str()) } else { None };
    let opening = opening.map(|text| text.trim_end().to_string());
    let input = TemplateInput { messages: merge_system(messages), tools, extra, ..Default::default() };
    let encode = |text: &str| encode(model, text, false);
    if let Some(opening) = opening {
        let mut text = tokenizer.render(input).map_err(request_fault)?;
        // What the template writes behind a message ends the turn, which is to go on.
        let Some(at) = text.rfind(&opening) else {
            let message = "the chat template changes the last message, so it cannot be continued";
            return Err(Fault::invalid("messages", message));
        };
        text.truncate(at + opening.len());
        let ids = encode(&text)?;
        return Ok(ChatPrompt { text, ids, stable: 0 });
    }
    tokenizer.prompt(input, encode)
}
