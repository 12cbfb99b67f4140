//! `POST /v1/messages`: the request.

use engine::{Grammar, ToolChoice};

use super::conversation::messages;
use crate::answer::{Conversation, Prompt, Question};
use crate::app::ServedModel;
use crate::fault::Fault;
use crate::fields::Fields;
use crate::forms::{Tools, schema, tool, tool_name};
use crate::sampling::sampling;

/// Reads a request into a question, and whether the answer is streamed.
pub fn read(fields: &Fields<'_>, model: &ServedModel) -> Result<(bool, Question), Fault> {
    let streamed = fields.flag("stream")?.unwrap_or(false);
    let expected = "a whole number, at least 1";
    fields.required("max_tokens", expected)?;
    let max_tokens =
        fields.count("max_tokens", expected, [1, u64::from(u32::MAX)])?.map(|count| count as usize);
    Ok((streamed, Question { max_tokens, ..question(fields, model)? }))
}

/// The same for a request whose tokens are only counted.
pub fn read_count(fields: &Fields<'_>, model: &ServedModel) -> Result<((), Question), Fault> {
    Ok(((), question(fields, model)?))
}

fn question(fields: &Fields<'_>, model: &ServedModel) -> Result<Question, Fault> {
    fields.text("model")?;
    let messages = messages(fields)?;
    // Anthropic's own models go on with what the assistant is said to have begun.
    let continued =
        messages.last().is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none());
    let mut conversation = Conversation { messages, tools: tools(fields)?, continued, ..Default::default() };
    conversation.default_variable("enable_thinking", thinking(fields)?);
    Ok(Question {
        prompts: vec![Prompt::Chat(conversation)],
        n: 1,
        sampling: sampling(fields, model.tokenizer.generation_defaults())?,
        max_tokens: None,
        stops: fields.texts("stop_sequences")?.into_iter().filter(|stop| !stop.is_empty()).collect(),
        form: form(fields)?,
        logprobs: None,
    })
}

/// Who does not ask for thoughts does not expect any.
fn thinking(fields: &Fields<'_>) -> Result<bool, Fault> {
    let Some(thinking) = fields.object("thinking")? else { return Ok(false) };
    Ok(thinking.required_text("type")? != "disabled")
}

/// Structured outputs, under their present name and their former one.
fn form(fields: &Fields<'_>) -> Result<Option<Grammar>, Fault> {
    let config = fields.object("output_config")?;
    let format = match config.map(|config| config.object("format")).transpose()?.flatten() {
        Some(format) => Some(format),
        None => fields.object("output_format")?,
    };
    let Some(format) = format else { return Ok(None) };
    if format.required_text("type")? != "json_schema" {
        return Err(format.wrong("type", "\"json_schema\""));
    }
    format.required("schema", "a JSON schema: an object")?;
    Ok(schema(&format, "schema")?.map(|schema| Grammar::JsonSchema(schema.clone())))
}

fn tools(fields: &Fields<'_>) -> Result<Tools, Fault> {
    let mut list = Vec::new();
    for (index, json) in fields.list("tools")?.unwrap_or_default().iter().enumerate() {
        let entry = Fields::of(json, format!("tools[{index}]"))?;
        if entry.text("type")?.is_some_and(|kind| kind != "custom") {
            return Err(entry.wrong("type", "\"custom\" or left out: this server has no tools of its own"));
        }
        entry.required("input_schema", "a JSON schema: an object")?;
        let parameters = schema(&entry, "input_schema")?;
        list.push(tool(tool_name(&entry)?, entry.text("description")?, parameters));
    }
    let mut tools = Tools { list, ..Tools::default() };
    if let Some(choice) = fields.object("tool_choice")? {
        tools.choice = match choice.required_text("type")? {
            "auto" => ToolChoice::Auto,
            "any" => ToolChoice::Required,
            "none" => ToolChoice::None,
            "tool" => ToolChoice::Named(choice.required_text("name")?.into()),
            _ => return Err(choice.wrong("type", "\"auto\", \"any\", \"tool\" or \"none\"")),
        };
        tools.parallel = !choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
    }
    tools.checked()
}
