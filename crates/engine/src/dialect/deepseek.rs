//! Calls between special tokens, in a group. V3.1 writes
//!
//! ```text
//! <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
//! ```
//!
//! and V3 and R1, within the same tokens, `function<｜tool▁sep｜>weather`, a line break and the JSON in a fenced block.

use super::cursor::{Cursor, Stop};
use super::lark::{self, Lark, quote};
use super::tool::Tool;
use super::{Piece, qwen_json};

const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

/// Reads a call in either form, with what may come before it in its group.
pub fn read(text: &mut Cursor<'_>) -> Result<Piece, Stop> {
    if text.take("<｜tool▁calls▁begin｜>")? {
        text.space();
    }
    text.expect(CALL_BEGIN)?;
    let mut name = text.name_until(SEPARATOR)?;
    text.space();
    let fenced = name == "function" && !text.rest().starts_with('{');
    if fenced {
        name = text.name_until("\n")?;
        text.space();
        text.expect("```json")?;
        text.space();
    }
    let json = text.json_object()?;
    text.space();
    if fenced {
        text.expect("```")?;
        text.space();
    }
    text.expect(CALL_END)?;
    Ok(Piece::Call { name: name.to_owned(), arguments: qwen_json::object(json)? })
}

/// What follows the opening mark of a call.
pub fn rules(lark: &mut Lark, tools: &[Tool], fenced: bool) {
    let calls: Vec<String> = tools
        .iter()
        .map(|tool| {
            let name = &tool.name;
            let (before, after) = if fenced {
                (format!("function{SEPARATOR}{name}\n```json\n"), format!("\n```{CALL_END}"))
            } else {
                (format!("{name}{SEPARATOR}"), CALL_END.to_owned())
            };
            let rule = lark.name("tool");
            lark.rule(&rule, &[quote(&before), lark::json(&tool.arguments()), quote(&after)].join(" "));
            rule
        })
        .collect();
    lark.rule("call", &calls.join(" | "));
}
