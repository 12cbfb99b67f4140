//! Which dialect a model speaks: its chat template is given a conversation with a call and shows how it writes it.

use serde_json::{Value as Json, json};

use super::Dialect;
use crate::{TemplateInput, Tokenizer};

/// What is in the text of a call, most telling first.
const SIGNS: [(Dialect, &[&str]); 5] = [
    (Dialect::Gemma, &["<|tool_call>call:"]),
    (Dialect::DeepSeekFenced, &["<｜tool▁call▁begin｜>", "```json"]),
    (Dialect::DeepSeek, &["<｜tool▁call▁begin｜>"]),
    (Dialect::QwenXml, &["<tool_call>", "<function="]),
    (Dialect::QwenJson, &["<tool_call>", "\"arguments\""]),
];

pub fn dialect(tokenizer: &Tokenizer) -> Dialect {
    if !tokenizer.has_chat_template() {
        return Dialect::Plain;
    }
    let text = conversation(tokenizer).unwrap_or_default();
    let shown = SIGNS.iter().find(|(_, signs)| signs.iter().all(|sign| text.contains(sign)));
    match shown {
        Some((dialect, _)) => *dialect,
        None if text.contains("</think>") || tokenizer.token_id("</think>").is_some() => Dialect::Thinking,
        None => Dialect::Plain,
    }
}

/// A conversation with a call by the model's template. Some templates want arguments as an object, some as text.
fn conversation(tokenizer: &Tokenizer) -> Option<String> {
    let parameters =
        json!({"type": "object", "properties": {"city": {"type": "string", "description": "City"}}});
    let tool = json!({"type": "function",
        "function": {"name": "weather", "description": "Weather", "parameters": parameters}});
    let render = |arguments: Json| {
        let call = json!({"id": "call12345", "type": "function",
            "function": {"name": "weather", "arguments": arguments}});
        let messages = vec![
            json!({"role": "user", "content": "Weather?"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "content": "sunny", "name": "weather", "tool_call_id": "call12345"}),
        ];
        let tools = Some(vec![tool.clone()]);
        let input = TemplateInput { messages, tools, add_generation_prompt: true, ..Default::default() };
        tokenizer.render(input).ok()
    };
    render(json!({"city": "Paris"})).or_else(|| render(json!("{\"city\": \"Paris\"}")))
}
