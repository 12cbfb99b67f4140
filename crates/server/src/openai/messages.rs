//! Messages of a chat, as templates read them: content is always a string.

use serde_json::{Map, Value as Json, json};

use crate::fault::Fault;
use crate::fields::{Fields, wrong};

/// All messages of a request.
pub fn messages(fields: &Fields<'_>) -> Result<Vec<Json>, Fault> {
    fields.required("messages", "a list of messages")?;
    let list = fields.list("messages")?.unwrap_or_default();
    if list.is_empty() {
        return Err(fields.wrong("messages", "a list of at least one message"));
    }
    let one = |(index, json)| message(&Fields::of(json, format!("messages[{index}]"))?);
    list.iter().enumerate().map(one).collect()
}

fn message(fields: &Fields<'_>) -> Result<Json, Fault> {
    let role = match fields.required_text("role")? {
        // The newer name for the same.
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        _ => {
            return Err(
                fields.wrong("role", "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"")
            );
        }
    };
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    // A call alone has no content.
    let content = match fields.get("content") {
        None if role == "assistant" => String::new(),
        _ => text(fields.required("content", "a string or a list of parts")?, &fields.path("content"))?,
    };
    message.insert("content".into(), content.into());
    for name in ["name", "tool_call_id"] {
        if let Some(text) = fields.text(name)? {
            message.insert(name.into(), text.into());
        }
    }
    if role == "assistant" {
        let reasoning = fields.text("reasoning_content")?.or(fields.text("reasoning")?);
        if let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) {
            message.insert("reasoning_content".into(), reasoning.into());
        }
        let calls = fields.list("tool_calls")?.unwrap_or_default();
        if !calls.is_empty() {
            let path = |index| format!("{}[{index}]", fields.path("tool_calls"));
            let calls: Result<Vec<Json>, Fault> =
                calls.iter().enumerate().map(|(index, json)| call(&Fields::of(json, path(index))?)).collect();
            message.insert("tool_calls".into(), calls?.into());
        }
    }
    Ok(message.into())
}

/// A call in a message. Its arguments come as the text of a JSON object; templates want the object.
fn call(fields: &Fields<'_>) -> Result<Json, Fault> {
    fields.required("function", "an object with `name` and `arguments`")?;
    let Some(function) = fields.object("function")? else {
        return Err(fields.wrong("function", "an object"));
    };
    let name = function.required_text("name")?;
    let expected = "the text of a JSON object";
    let arguments = match function.get("arguments") {
        Some(Json::String(text)) if text.trim().is_empty() => json!({}),
        Some(Json::String(text)) => serde_json::from_str(text)
            .ok()
            .filter(Json::is_object)
            .ok_or_else(|| function.wrong("arguments", expected))?,
        Some(object @ Json::Object(_)) => object.clone(),
        Some(_) => return Err(function.wrong("arguments", expected)),
        None => json!({}),
    };
    let id = fields.text("id")?.unwrap_or_default();
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// Content as one text: a string, or parts that are texts.
pub fn text(content: &Json, path: &str) -> Result<String, Fault> {
    let parts = match content {
        Json::String(text) => return Ok(text.clone()),
        Json::Array(parts) => parts,
        other => return Err(wrong(path, "a string or a list of parts", other)),
    };
    let mut texts = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let part = Fields::of(part, format!("{path}[{index}]"))?;
        match part.required_text("type")? {
            "text" | "input_text" | "output_text" => texts.push(part.required_text("text")?),
            "refusal" => texts.push(part.required_text("refusal")?),
            kind => {
                let path = part.path("type");
                let message = format!(
                    "`{path}` is {kind:?}, but this model reads only text: send parts of the type \"text\""
                );
                return Err(Fault::invalid(path, message));
            }
        }
    }
    Ok(texts.join("\n"))
}
