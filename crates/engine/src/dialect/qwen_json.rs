//! Calls as JSON:
//!
//! ```text
//! <tool_call>
//! {"name": "weather", "arguments": {"city": "Paris"}}
//! </tool_call>
//! ```

use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::Piece;
use super::cursor::{Cursor, Stop};
use super::lark::{self, Lark, quote};
use super::tool::{Tool, type_of};

#[derive(Deserialize)]
struct Call<'a> {
    name: String,
    #[serde(borrow)]
    arguments: &'a RawValue,
}

/// Reads a call.
pub fn read(text: &mut Cursor<'_>) -> Result<Piece, Stop> {
    text.expect("<tool_call>")?;
    text.space();
    let json = text.json_object()?;
    text.space();
    text.expect("</tool_call>")?;
    let call: Call<'_> = serde_json::from_str(json).map_err(|_| Stop::Malformed)?;
    Ok(Piece::Call { name: call.name, arguments: object(call.arguments.get())? })
}

/// Arguments as they were written, where they are an object. Some models write the object as a string.
pub fn object(json: &str) -> Result<String, Stop> {
    match type_of(json) {
        Some("object") => Ok(json.trim().to_owned()),
        Some("string") => {
            let inner: String = serde_json::from_str(json).map_err(|_| Stop::Malformed)?;
            if type_of(&inner) == Some("object") { Ok(inner.trim().to_owned()) } else { Err(Stop::Malformed) }
        }
        _ => Err(Stop::Malformed),
    }
}

/// What follows the opening mark.
pub fn rules(lark: &mut Lark, tools: &[Tool]) {
    let calls: Vec<String> = tools
        .iter()
        .map(|tool| {
            let rule = lark.name("tool");
            let before = format!("\n{{\"name\": {}, \"arguments\": ", Json::from(tool.name.as_str()));
            let body = [quote(&before), lark::json(&tool.arguments()), quote("}\n</tool_call>")].join(" ");
            lark.rule(&rule, &body);
            rule
        })
        .collect();
    lark.rule("call", &calls.join(" | "));
}
