//! Calls as tags:
//!
//! ```text
//! <tool_call>
//! <function=weather>
//! <parameter=city>
//! Paris
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! Values are written without quotes: only the tool's schema says whether `5` is a number or a string.

use serde_json::Value as Json;

use super::Piece;
use super::cursor::{Cursor, Stop};
use super::lark::{self, Lark, quote};
use super::tool::{Tool, properties, type_of};

const CLOSE: &str = "</parameter>";

/// Reads a call.
pub fn read(text: &mut Cursor<'_>, tools: &[Tool]) -> Result<Piece, Stop> {
    text.expect("<tool_call>")?;
    text.space();
    text.expect("<function=")?;
    let name = text.name_until(">")?;
    let tool = tools.iter().find(|tool| tool.name == name);
    let mut arguments: Vec<(&str, String)> = Vec::new();
    loop {
        text.space();
        if text.take("</function>")? {
            break;
        }
        text.expect("<parameter=")?;
        let key = text.name_until(">")?;
        let value = to_json(value(text)?, tool, key);
        match arguments.iter_mut().find(|(name, _)| *name == key) {
            Some((_, earlier)) => *earlier = value,
            None => arguments.push((key, value)),
        }
    }
    text.space();
    text.expect("</tool_call>")?;
    let arguments: Vec<String> =
        arguments.iter().map(|(key, value)| format!("{}: {value}", Json::from(*key))).collect();
    Ok(Piece::Call { name: name.to_owned(), arguments: format!("{{{}}}", arguments.join(", ")) })
}

/// A value without the line breaks around it. It ends where its closing mark is followed by what can follow: a text
/// about such tags may contain the mark.
fn value<'a>(text: &mut Cursor<'a>) -> Result<&'a str, Stop> {
    let whole = text.rest();
    loop {
        text.until(CLOSE)?;
        let end = whole.len() - text.rest().len() - CLOSE.len();
        let mut next = text.clone();
        next.space();
        if next.clone().take("<parameter=")? || next.take("</function>")? {
            let value = &whole[..end];
            let value = value.strip_prefix('\n').unwrap_or(value);
            return Ok(value.strip_suffix('\n').unwrap_or(value));
        }
    }
}

/// A value as JSON of one of the types that the tool's schema allows for it: as a string where that is one of them, or
/// where the value is of none.
fn to_json(value: &str, tool: Option<&Tool>, key: &str) -> String {
    let types = tool.and_then(|tool| Some(tool.types(tool.parameter(key)?))).unwrap_or_default();
    let allows = |name: &str| types.iter().any(|t| t == name);
    let text = || Json::from(value).to_string();
    // Templates show these to the model as Python writes them.
    let json = match value.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        json => json,
    };
    let allowed = match type_of(json) {
        None => false,
        Some("null") => allows("null"),
        Some(_) if allows("string") => false,
        Some("integer") => allows("integer") || allows("number"),
        Some(other) => allows(other),
    };
    if allowed { json.to_owned() } else { text() }
}

/// What follows the opening mark.
pub fn rules(lark: &mut Lark, tools: &[Tool]) {
    let calls: Vec<String> = tools
        .iter()
        .map(|tool| {
            let parameters: Vec<(String, bool)> = properties(&tool.parameters)
                .iter()
                .map(|property| (parameter(lark, tool, property.name, property.schema), property.required))
                .collect();
            let parameters = lark.in_any_order(&parameters, "");
            let before = quote(&format!("\n<function={}>\n", tool.name));
            let rule = lark.name("tool");
            lark.rule(&rule, &format!("{before} {parameters} {}", quote("</function>\n</tool_call>")));
            rule
        })
        .collect();
    lark.rule("call", &calls.join(" | "));
}

fn parameter(lark: &mut Lark, tool: &Tool, name: &str, schema: &Json) -> String {
    let before = quote(&format!("<parameter={name}>\n"));
    let types = tool.types(schema);
    let rule = lark.name("parameter");
    let is_text = types.is_empty() || types.iter().any(|name| name == "string");
    let body = match (is_text, choices(tool, schema)) {
        (true, Some(choices)) => format!("{} {}", lark::any_of(choices), quote("\n</parameter>\n")),
        (true, None) => {
            let value = lark.name("value");
            lark.shortest(&value, &lark::text(schema, "", "\n</parameter>", CLOSE));
            format!("{value} {}", quote("\n"))
        }
        (false, _) => {
            format!("{} {}", lark::json(&tool.with_definitions(schema)), quote("\n</parameter>\n"))
        }
    };
    lark.rule(&rule, &format!("{before} {body}"));
    rule
}

/// The strings that a schema lists.
fn choices<'a>(tool: &'a Tool, schema: &'a Json) -> Option<Vec<&'a str>> {
    let schema = match schema.get("$ref").and_then(Json::as_str) {
        Some(reference) => tool.resolve(reference)?,
        None => schema,
    };
    let listed = match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => std::slice::from_ref(value),
        (None, values) => values?.as_array()?.as_slice(),
    };
    let strings: Vec<&str> = listed.iter().filter_map(Json::as_str).collect();
    Some(strings).filter(|strings| !strings.is_empty())
}
