//! How a family of models writes what is not plain text: thoughts and calls of tools.
//!
//! A family's file holds both sides of its calls: how they are read and the rules that keep a model to them. `marks`
//! lists the strings that set calls and thoughts apart, `reader` takes a streamed answer apart by them, and `grammar`
//! puts the rules together.

mod cursor;
mod deepseek;
mod gemma;
mod grammar;
mod lark;
mod marks;
mod qwen_json;
mod qwen_xml;
mod reader;
mod recognise;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
mod tool;

use serde_json::Value as Json;

use crate::{Grammar, Tokenizer};

pub use reader::Reader;

/// A family's way to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Only text.
    Plain,
    /// Text after thoughts in `<think>`; no calls.
    Thinking,
    /// Qwen3 and Qwen3-Next: a call is JSON in `<tool_call>`.
    QwenJson,
    /// Qwen3-Coder, Qwen3.5 and the model in the box: a call is `<function=...>` with `<parameter=...>` in it.
    QwenXml,
    /// DeepSeek V3.1: name and JSON between special tokens.
    DeepSeek,
    /// DeepSeek V3 and R1: the same with the JSON in a fenced block.
    DeepSeekFenced,
    /// Gemma 4: `call:name{...}` with a notation of its own for arguments.
    Gemma,
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    Auto,
    /// Not at all.
    None,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// What the model thinks before it answers.
    Reasoning(String),
    /// The answer.
    Text(String),
    /// A whole call; the arguments are a JSON object.
    Call {
        /// Name of the tool.
        name: String,
        /// Its arguments, as JSON.
        arguments: String,
    },
}

impl Dialect {
    /// The dialect of a model, as its chat template and vocabulary show.
    pub fn of(tokenizer: &Tokenizer) -> Self {
        recognise::dialect(tokenizer)
    }

    /// A reader for the answer to a prompt. Its text must hold special tokens too, apart from end tokens. Without tools
    /// nothing is a call.
    pub fn reader(self, prompt: &str, tools: &[Json]) -> Reader {
        Reader::new(self, prompt, tools)
    }

    /// The form that keeps calls valid: names of tools that exist, arguments by their schemas. `None` where the choice of
    /// tools asks for nothing.
    pub fn grammar(
        self,
        prompt: &str,
        tools: &[Json],
        choice: &ToolChoice,
        parallel: bool,
    ) -> Option<Grammar> {
        grammar::grammar(self, prompt, tools, choice, parallel)
    }

    /// A form for an answer to this prompt: where the prompt leaves thoughts open, they come first.
    pub fn after_thoughts(self, prompt: &str, form: &Grammar) -> Grammar {
        grammar::after_thoughts(self, prompt, form)
    }
}
