//! `POST /v1/chat/completions`: the request.

use engine::ToolChoice;
use serde_json::Value as Json;

use super::{Streaming, answers, check_model, max_tokens, messages, stops, streaming};
use crate::answer::{Conversation, Prompt, Question};
use crate::app::ServedModel;
use crate::fault::Fault;
use crate::fields::Fields;
use crate::forms::{self, Tools, tool, tool_name};
use crate::sampling::sampling;

/// Reads a request into a question.
pub fn read(fields: &Fields<'_>, model: &ServedModel) -> Result<(Option<Streaming>, Question), Fault> {
    check_model(fields)?;
    let streaming = streaming(fields)?;
    let mut conversation = Conversation {
        messages: messages::messages(fields)?,
        tools: tools(fields)?,
        extra: fields.object("chat_template_kwargs")?.map(|extra| extra.map().clone()).unwrap_or_default(),
        continued: fields.flag("continue_final_message")?.unwrap_or(false),
    };
    if conversation.continued && conversation.messages.last().is_none_or(|last| last["role"] != "assistant") {
        return Err(
            fields.wrong("continue_final_message", "false unless the last message is the assistant's")
        );
    }
    match fields.text("reasoning_effort")? {
        Some("none") => conversation.default_variable("enable_thinking", false),
        Some(effort) => conversation.default_variable("reasoning_effort", effort),
        None => {}
    }
    let question = Question {
        prompts: vec![Prompt::Chat(conversation)],
        n: answers(fields)?,
        sampling: sampling(fields, model.tokenizer.generation_defaults())?,
        max_tokens: max_tokens(fields, &["max_completion_tokens", "max_tokens"])?,
        stops: stops(fields)?,
        form: forms::form(fields)?,
        logprobs: logprobs(fields)?,
    };
    Ok((streaming, question))
}

fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, Fault> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", "a whole number from 0 to 20", [0, 20])?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0) as usize)),
        (false, Some(1..)) => Err(fields.wrong("top_logprobs", "left out unless `logprobs` is true")),
        (false, _) => Ok(None),
    }
}

fn tools(fields: &Fields<'_>) -> Result<Tools, Fault> {
    let mut list = Vec::new();
    for (index, json) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let entry = Fields::of(json, format!("tools[{index}]"))?;
        if entry.required_text("type")? != "function" {
            return Err(entry.wrong("type", "\"function\""));
        }
        entry.required("function", "an object with a `name`")?;
        let Some(function) = entry.object("function")? else { continue };
        let parameters = forms::schema(&function, "parameters")?;
        list.push(tool(tool_name(&function)?, function.text("description")?, parameters));
    }
    let expected =
        "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ...}}";
    let choice = match fields.get("tool_choice") {
        None => ToolChoice::Auto,
        Some(Json::String(choice)) => match choice.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => ToolChoice::None,
            "required" => ToolChoice::Required,
            _ => return Err(fields.wrong("tool_choice", expected)),
        },
        Some(json @ Json::Object(_)) => match json["function"]["name"].as_str() {
            Some(name) => ToolChoice::Named(name.into()),
            None => return Err(fields.wrong("tool_choice", expected)),
        },
        Some(_) => return Err(fields.wrong("tool_choice", expected)),
    };
    let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    Tools { list, choice, parallel }.checked()
}
