//! The form of a whole answer: thoughts, text, calls.

use serde_json::{Value as Json, json};

use super::lark::{ANY_TEXT, Lark, any_of, quote};
use super::marks::{Marks, Thoughts};
use super::tool::Tool;
use super::{Dialect, ToolChoice, deepseek, gemma, qwen_json, qwen_xml};
use crate::Grammar;
use crate::constraint::{Unsupported, regex_terminal, with_options};

/// As much as models write between parts of an answer; more would let a small one run away.
const LITTLE_SPACE: &str = "/[ \\n]{0,2}/";

/// The form of an answer to a prompt, where there are tools to call and calls to keep valid.
///
/// After a call only further calls can come: text there would be the model's idea of what the tool returns.
pub fn grammar(
    dialect: Dialect,
    prompt: &str,
    tools: &[Json],
    choice: &ToolChoice,
    parallel: bool,
) -> Option<Grammar> {
    let mut tools = Tool::list(tools);
    let forced = match choice {
        ToolChoice::None => return None,
        ToolChoice::Auto => false,
        ToolChoice::Required => true,
        ToolChoice::Named(name) => {
            tools.retain(|tool| tool.name == *name);
            true
        }
    };
    let marks = dialect.marks();
    let (&opening, other_openings) = marks.openings.split_first()?;
    if tools.is_empty() {
        return None;
    }

    let mut lark = Lark::default();
    let thoughts = marks.thoughts_after(prompt);
    let mut start = match thoughts {
        Thoughts::Open => "thoughts_end thoughts*",
        // Who wants a call wants it now, unless the prompt has thoughts open.
        Thoughts::Closed | Thoughts::Unknown if forced => "",
        Thoughts::Closed | Thoughts::Unknown => "thoughts*",
    }
    .to_owned();
    start += if forced { " FORCED_OPENING calls" } else { " (opening calls | TEXT)?" };
    lark.rule("start", &start);

    thoughts_rules(&mut lark, marks, if forced { LITTLE_SPACE } else { "/\\s*/" });
    let without = |marks: &[&str]| match marks {
        [] => String::new(),
        marks => format!(" & ~({ANY_TEXT} {} {ANY_TEXT})", any_of(marks.iter().copied())),
    };
    if forced {
        lark.rule("FORCED_OPENING", &format!("{LITTLE_SPACE} {}", quote(opening)));
    } else {
        lark.shortest("opening", &format!("{ANY_TEXT} {}{}", quote(opening), without(other_openings)));
        lark.rule("TEXT", &format!("/(?s:.+)/{}", without(marks.openings)));
    }

    let frame = Frame::of(dialect)?;
    let more = if parallel { format!("({} call)*", frame.next) } else { String::new() };
    lark.rule("calls", &format!("{} call {more} {}", frame.first, frame.end));
    match dialect {
        Dialect::QwenJson => qwen_json::rules(&mut lark, &tools),
        Dialect::QwenXml => qwen_xml::rules(&mut lark, &tools),
        Dialect::DeepSeek => deepseek::rules(&mut lark, &tools, false),
        Dialect::DeepSeekFenced => deepseek::rules(&mut lark, &tools, true),
        Dialect::Gemma => gemma::rules(&mut lark, &tools),
        Dialect::Plain | Dialect::Thinking => return None,
    }
    Some(Grammar::Lark(lark.finish()))
}

/// The same form for an answer that continues thoughts of the prompt. Where none are open the form comes at once: a small model
/// that has seen no thoughts would lose itself in them.
pub fn after_thoughts(dialect: Dialect, prompt: &str, form: &Grammar) -> Grammar {
    let marks = dialect.marks();
    let thoughts = match marks.thoughts_after(prompt) {
        Thoughts::Open => "thoughts_end thoughts*",
        Thoughts::Closed | Thoughts::Unknown => return form.clone(),
    };
    let schema = |schema: &Json| Some(format!("%json {}", with_options(schema, Unsupported::Refuse).ok()?));
    let form_as_rule = match form {
        Grammar::JsonObject => schema(&json!({"type": "object"})),
        Grammar::JsonSchema(given) => schema(given),
        Grammar::Regex(regex) => Some(regex_terminal(regex)),
        Grammar::Lark(lark) => Some(format!("%lark {{\n{lark}\n}}")),
    };
    // What is wrong with a form by itself is said about it as it is.
    let Some(form_as_rule) = form_as_rule else { return form.clone() };
    let mut lark = Lark::default();
    lark.rule("start", &format!("{thoughts} /[ \\n]{{1,2}}/? form"));
    thoughts_rules(&mut lark, marks, LITTLE_SPACE);
    lark.rule("form", &form_as_rule);
    Grammar::Lark(lark.finish())
}

fn thoughts_rules(lark: &mut Lark, marks: &Marks, space: &str) {
    if let Some([open, close]) = marks.thoughts {
        lark.rule("thoughts", "thoughts_begin thoughts_end");
        lark.shortest("thoughts_begin", &format!("{space} {}", quote(open)));
        lark.shortest("thoughts_end", &format!("{ANY_TEXT} {}", quote(close)));
    }
}

/// What stands around calls, in Lark's notation.
struct Frame {
    /// Between the opening mark and the first call.
    first: &'static str,
    /// Before each further call.
    next: &'static str,
    /// After the last one.
    end: &'static str,
}

impl Frame {
    fn of(dialect: Dialect) -> Option<Self> {
        Some(match dialect {
            Dialect::Plain | Dialect::Thinking => return None,
            Dialect::QwenJson | Dialect::QwenXml => {
                Self { first: "", next: r#"/\n?<tool_call>/"#, end: r#""\n"?"# }
            }
            Dialect::DeepSeek => Self {
                first: r#""<｜tool▁call▁begin｜>""#,
                next: r#""<｜tool▁call▁begin｜>""#,
                end: r#""<｜tool▁calls▁end｜>""#,
            },
            Dialect::DeepSeekFenced => Self {
                first: r#""<｜tool▁call▁begin｜>""#,
                next: r#"/\n?<｜tool▁call▁begin｜>/"#,
                end: r#""<｜tool▁calls▁end｜>""#,
            },
            Dialect::Gemma => Self { first: "", next: r#""<|tool_call>""#, end: "" },
        })
    }
}
