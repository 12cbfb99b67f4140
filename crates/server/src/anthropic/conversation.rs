//! Anthropic's messages, as templates read them: with calls and their results as messages of their own.

use serde_json::{Value as Json, json};

use crate::fault::Fault;
use crate::fields::{Fields, wrong};

/// The system prompt and all messages of a request.
pub fn messages(fields: &Fields<'_>) -> Result<Vec<Json>, Fault> {
    let mut messages = Vec::new();
    if let Some(system) = fields.get("system") {
        let text = text(system, &fields.path("system"))?;
        if !text.is_empty() {
            messages.push(json!({"role": "system", "content": text}));
        }
    }
    fields.required("messages", "a list of messages")?;
    let list = fields.list("messages")?.unwrap_or_default();
    if list.is_empty() {
        return Err(fields.wrong("messages", "a list of at least one message"));
    }
    for (index, json) in list.iter().enumerate() {
        let message = Fields::of(json, format!("messages[{index}]"))?;
        let content = message.required("content", "a string or a list of blocks")?;
        let path = message.path("content");
        match message.required_text("role")? {
            "user" => user(content, &path, &mut messages)?,
            "assistant" => messages.push(assistant(content, &path)?),
            "system" => messages.push(json!({"role": "system", "content": text(content, &path)?})),
            _ => return Err(message.wrong("role", "\"user\" or \"assistant\"")),
        }
    }
    Ok(messages)
}

/// What a user says, after the results of calls that stand before it.
fn user(content: &Json, path: &str, messages: &mut Vec<Json>) -> Result<(), Fault> {
    let Some(blocks) = blocks(content, path)? else {
        messages.push(json!({"role": "user", "content": content}));
        return Ok(());
    };
    let mut texts = Vec::new();
    let mut results = 0;
    for block in blocks {
        if block.required_text("type")? != "tool_result" {
            texts.push(block_text(&block)?);
            continue;
        }
        let id = block.required_text("tool_use_id")?;
        let result = match block.get("content") {
            Some(content) => text(content, &block.path("content"))?,
            None => String::new(),
        };
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        results += 1;
    }
    if !texts.is_empty() || results == 0 {
        messages.push(json!({"role": "user", "content": texts.join("\n")}));
    }
    Ok(())
}

fn assistant(content: &Json, path: &str) -> Result<Json, Fault> {
    let Some(blocks) = blocks(content, path)? else {
        return Ok(json!({"role": "assistant", "content": content}));
    };
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks {
        match block.required_text("type")? {
            "thinking" => thoughts.push(block.required_text("thinking")?),
            // For nobody's eyes but Anthropic's.
            "redacted_thinking" => {}
            "tool_use" => {
                block.required("input", "an object")?;
                let input = block.object("input")?.map(|input| input.map().clone()).unwrap_or_default();
                let function = json!({"name": block.required_text("name")?, "arguments": input});
                calls.push(
                    json!({"id": block.required_text("id")?, "type": "function", "function": function}),
                );
            }
            _ => texts.push(block_text(&block)?),
        }
    }
    let mut message = json!({"role": "assistant", "content": texts.join("\n")});
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.join("\n").into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    Ok(message)
}

/// The blocks of content that is not a string.
fn blocks<'a>(content: &'a Json, path: &str) -> Result<Option<Vec<Fields<'a>>>, Fault> {
    match content {
        Json::String(_) => Ok(None),
        Json::Array(list) => {
            let block = |(index, json)| Fields::of(json, format!("{path}[{index}]"));
            list.iter().enumerate().map(block).collect::<Result<_, _>>().map(Some)
        }
        other => Err(wrong(path, "a string or a list of blocks", other)),
    }
}

/// Content that can only be text.
fn text(content: &Json, path: &str) -> Result<String, Fault> {
    match (content, blocks(content, path)?) {
        (_, Some(blocks)) => {
            Ok(blocks.iter().map(block_text).collect::<Result<Vec<String>, Fault>>()?.join("\n"))
        }
        (content, None) => Ok(content.as_str().unwrap_or_default().into()),
    }
}

/// A block that can only be text, also that of a document.
fn block_text(block: &Fields<'_>) -> Result<String, Fault> {
    let kind = block.required_text("type")?;
    if kind == "text" {
        return Ok(block.required_text("text")?.into());
    }
    if kind == "document"
        && let Some(source) = block.object("source")?
        && source.text("type")? == Some("text")
    {
        return Ok(source.required_text("data")?.into());
    }
    let path = block.path("type");
    let message =
        format!("`{path}` is {kind:?}, but this model reads only text: send blocks of the type \"text\"");
    Err(Fault::invalid(path, message))
}
