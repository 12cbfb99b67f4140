//! Tokenizers and tools for tests.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::Dialect;
use crate::Tokenizer;

/// How the vocabulary of a test has the marks of its dialect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MarksAre {
    Special,
    Plain,
    Several,
}

/// All dialects with calls, each with a template that shows how it writes them.
pub const CALLING: [(Dialect, &str); 5] = [
    (
        Dialect::QwenJson,
        "<tool_call>\n{\"name\": \"{{ f.name }}\", \"arguments\": {{ f.arguments | tojson }}}\n</tool_call>",
    ),
    (Dialect::QwenXml, "<tool_call>\n<function={{ f.name }}>\n</function>\n</tool_call>"),
    (
        Dialect::DeepSeek,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        Dialect::DeepSeekFenced,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n{{ f.arguments | tojson }}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (Dialect::Gemma, "<|tool_call>call:{{ f.name }}{}<tool_call|>"),
];

/// The box model's tokenizer.json.
fn box_tokenizer() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../box/tokenizer/tokenizer.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The box model's vocabulary.
pub fn vocabulary() -> Map<String, Json> {
    box_tokenizer()["model"]["vocab"].as_object().unwrap().clone()
}

/// The box model's tokenizer, with the marks of a dialect instead of its own.
pub fn tokenizer(dialect: Dialect, marks: MarksAre) -> Tokenizer {
    with_vocabulary(dialect, marks, vocabulary())
}

/// The same with another vocabulary, of at least the same tokens.
pub fn with_vocabulary(dialect: Dialect, marks: MarksAre, vocabulary: Map<String, Json>) -> Tokenizer {
    let mut json = box_tokenizer();
    let first = vocabulary.len();
    json["model"]["vocab"] = vocabulary.into();
    let specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(|token| (token, true));
    let marks_as_tokens = if marks == MarksAre::Several { &[] } else { dialect.marks().tokens };
    let marks = marks_as_tokens.iter().map(|mark| (*mark, marks == MarksAre::Special));
    let added = (first..).zip(specials.into_iter().chain(marks)).map(|(id, (token, special))| {
        json!({"id": id, "content": token, "special": special,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
    });
    json["added_tokens"] = added.collect();
    let template = |call: &str| {
        format!(
            "{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{{% set f = c.function %}}{call}{{% endfor %}}{{% endfor %}}"
        )
    };
    let template = match CALLING.iter().find(|(other, _)| *other == dialect) {
        Some((_, call)) => template(call),
        None => "no calls".to_owned(),
    };
    let config = json!({"eos_token": "<|im_end|>", "chat_template": template});
    let tokenizer = Tokenizer::from_files(Path::new("test"), |name| {
        Ok(match name {
            "tokenizer.json" => Some(json.to_string()),
            "tokenizer_config.json" => Some(config.to_string()),
            "generation_config.json" => Some(json!({"eos_token_id": [first + 2, first]}).to_string()),
            _ => None,
        })
    });
    tokenizer.unwrap()
}

/// Number of logits for it: more than there are tokens.
pub const WIDTH: usize = 4352;

/// Tools with arguments of all types.
pub fn tools() -> Vec<Json> {
    let function = |name: &str, parameters: Json| json!({"type": "function", "function": {"name": name, "description": "A tool.", "parameters": parameters}});
    vec![
        function(
            "get_weather",
            json!({"type": "object", "required": ["city", "days"], "properties": {
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "city": {"type": "string"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "exact": {"type": "boolean"},
            }}),
        ),
        function("now", json!({"type": "object", "properties": {}})),
        function(
            "book",
            json!({"type": "object", "required": ["guests"],
            "$defs": {"guest": {"type": "object", "required": ["name"], "additionalProperties": false,
                "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}},
            "properties": {
                "guests": {"type": "array", "items": {"$ref": "#/$defs/guest"}, "minItems": 1, "maxItems": 3},
                "price": {"type": "number"},
                "note": {"type": ["string", "null"]},
                "code": {"type": "string", "minLength": 2, "maxLength": 4},
            }}),
        ),
    ]
}
