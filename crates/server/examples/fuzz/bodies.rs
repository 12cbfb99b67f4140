//! Valid requests with short answers, of every kind.

use serde_json::{Value as Json, json};

use crate::random::Random;

/// A path and a body that it takes.
pub fn valid(random: &mut Random) -> (&'static str, Json) {
    match random.below(10) {
        0..5 => ("/v1/chat/completions", chat(random)),
        5..7 => ("/v1/completions", completion(random)),
        7..9 => ("/v1/messages", message(random)),
        _ => ("/v1/messages/count_tokens", message(random)),
    }
}

fn chat(random: &mut Random) -> Json {
    let mut body = json!({
        "model": "any",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 17 + 25?"}],
        "max_tokens": 2,
        "temperature": 0.5,
    });
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"type": ["string", "null"], "pattern": "^x+$"}},
        "required": ["a"],
        "additionalProperties": false,
    });
    let extra = match random.below(6) {
        0 => json!({"stream": true, "stream_options": {"include_usage": true}}),
        1 => json!({
            "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": false,
        }),
        2 => {
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}})
        }
        3 => json!({
            "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "n": 2, "stop": ["x", "\n\n"],
            "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
            "logit_bias": {"5": -100, "9": 2.5}, "logprobs": true, "top_logprobs": 3,
        }),
        4 => json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look."}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
        ]}),
        _ => json!({"regex": "[0-9]{1,3}", "chat_template_kwargs": {"enable_thinking": false}}),
    };
    merge(&mut body, extra);
    body
}

fn completion(random: &mut Random) -> Json {
    let mut body = json!({"model": "any", "prompt": "Once upon a time", "max_tokens": 2, "temperature": 0});
    let extra = match random.below(4) {
        0 => json!({"prompt": ["One", "Two"], "n": 2, "logprobs": 2}),
        1 => json!({"prompt": [5, 6, 7], "echo": true}),
        2 => json!({"stream": true, "stop": "."}),
        _ => json!({"grammar": "start: \"yes\" | \"no\"", "seed": 1}),
    };
    merge(&mut body, extra);
    body
}

fn message(random: &mut Random) -> Json {
    let mut body = json!({
        "model": "any",
        "max_tokens": 2,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "What is 17 + 25?"}],
    });
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let extra = match random.below(4) {
        0 => {
            json!({"stream": true, "stop_sequences": ["x"], "temperature": 0.3, "top_k": 5, "metadata": {"user_id": "u"}})
        }
        1 => json!({
            "tools": [{"name": "f", "description": "d", "input_schema": schema}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        }),
        2 => json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look."}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "1"}]},
        ]}),
        _ => json!({
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "output_config": {"format": {"type": "json_schema", "schema": schema}},
        }),
    };
    merge(&mut body, extra);
    body
}

fn merge(body: &mut Json, extra: Json) {
    if let (Json::Object(body), Json::Object(extra)) = (body, extra) {
        body.extend(extra);
    }
}
