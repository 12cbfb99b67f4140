//! Calls in Gemma's own notation, where strings stand between special tokens and keys have no quotes:
//!
//! ```text
//! <|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>
//! ```

mod rules;

use serde_json::Value as Json;

use super::Piece;
use super::cursor::{Cursor, Stop};
use super::tool::type_of;

pub use rules::rules;

/// What begins and ends a string.
const QUOTE: &str = "<|\"|>";

/// As deep as JSON parsers go, too.
const DEEPEST: usize = 100;

/// Reads a call.
pub fn read(text: &mut Cursor<'_>) -> Result<Piece, Stop> {
    text.expect("<|tool_call>")?;
    text.space();
    text.expect("call:")?;
    let name = text.name_until("{")?;
    let mut arguments = String::new();
    object(text, 0, &mut arguments)?;
    text.space();
    text.expect("<tool_call|>")?;
    Ok(Piece::Call { name: name.to_owned(), arguments })
}

/// The object after its opening brace, as JSON.
fn object(text: &mut Cursor<'_>, depth: usize, json: &mut String) -> Result<(), Stop> {
    items(text, ["{", "}"], json, |text, json| {
        if text.take(QUOTE)? {
            string(text, json)?;
            text.space();
            text.expect(":")?;
        } else {
            let key = text.until_any(&[':', ',', '{', '}', '[', ']', '<', '\n'])?.trim();
            text.expect(":")?;
            *json += &Json::from(key.trim_matches('"')).to_string();
        }
        *json += ": ";
        value(text, depth + 1, json)
    })
}

fn array(text: &mut Cursor<'_>, depth: usize, json: &mut String) -> Result<(), Stop> {
    items(text, ["[", "]"], json, |text, json| value(text, depth + 1, json))
}

/// Items after an opening bracket, up to the closing one.
fn items(
    text: &mut Cursor<'_>,
    [open, end]: [&str; 2],
    json: &mut String,
    mut item: impl FnMut(&mut Cursor<'_>, &mut String) -> Result<(), Stop>,
) -> Result<(), Stop> {
    *json += open;
    text.space();
    if !text.take(end)? {
        loop {
            item(text, json)?;
            text.space();
            if text.take(end)? {
                break;
            }
            text.expect(",")?;
            text.space();
            *json += ", ";
        }
    }
    *json += end;
    Ok(())
}

fn value(text: &mut Cursor<'_>, depth: usize, json: &mut String) -> Result<(), Stop> {
    if depth == DEEPEST {
        return Err(Stop::Malformed);
    }
    text.space();
    if text.take("{")? {
        return object(text, depth, json);
    }
    if text.take("[")? {
        return array(text, depth, json);
    }
    if text.take(QUOTE)? {
        return string(text, json);
    }
    bare(text.until_any(&[',', '}', ']', '<', '\n'])?.trim(), json)
}

/// The string after its opening mark.
fn string(text: &mut Cursor<'_>, json: &mut String) -> Result<(), Stop> {
    *json += &Json::from(text.until(QUOTE)?).to_string();
    Ok(())
}

/// A value without marks: a number, a constant, or a string that lacks them.
fn bare(text: &str, json: &mut String) -> Result<(), Stop> {
    let constant = match text {
        "" => return Err(Stop::Malformed),
        "True" => "true",
        "False" => "false",
        "None" => "null",
        text => text,
    };
    *json += &match type_of(constant) {
        Some(_) => constant.to_owned(),
        None => Json::from(text).to_string(),
    };
    Ok(())
}
