//! Anthropic's messages.

use serde_json::{Value as Json, json};

use crate::client::{options, saying, start};
use crate::fake::{Fake, Play, tokenizer};

const PATH: &str = "/v1/messages";

fn hello() -> Json {
    json!({"model": "any", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]})
}

fn with(mut body: Json, more: Json) -> Json {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn look() -> Json {
    json!([{"name": "look", "description": "Looks", "input_schema": {
        "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"],
    }}])
}

const CALL: &str =
    "<tool_call>\n<function=look>\n<parameter=place>\nParis\n</parameter>\n</function>\n</tool_call>";

#[tokio::test]
async fn a_whole_message() {
    let play = Play { reused: 3, ..Play::text("Hi there.") };
    let server = start(options(), Fake::new(9, move |_| play.clone()));
    let json = server.post(PATH, &hello()).await.json();
    assert_eq!((&json["type"], &json["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(json["content"], json!([{"type": "text", "text": "Hi there."}]));
    assert_eq!((&json["stop_reason"], &json["stop_sequence"]), (&json!("end_turn"), &Json::Null));
    let seen = &server.fake.seen()[0];
    assert_eq!(json["usage"]["cache_read_input_tokens"], 3);
    assert_eq!(json["usage"]["input_tokens"], seen.tokens - 3);
    assert_eq!(seen.max_tokens, Some(100));
    let count =
        server.post("/v1/messages/count_tokens", &json!({"messages": hello()["messages"]})).await.json();
    assert_eq!(count, json!({"input_tokens": seen.tokens}));
}

#[tokio::test]
async fn a_stream_in_the_documented_order() {
    let server = saying(&format!("<think>\nHm.\n</think>\n\nLet me see.\n\n{CALL}"));
    let body = with(
        hello(),
        json!({"stream": true, "tools": look(), "thinking": {"type": "enabled", "budget_tokens": 9}}),
    );
    let reply = server.post(PATH, &body).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let mut names = Vec::new();
    for (name, data) in reply.events() {
        let data: Json = serde_json::from_str(&data).unwrap();
        assert_eq!(name.as_deref(), data["type"].as_str(), "an event's name is its type");
        let kind =
            data["content_block"]["type"].as_str().or(data["delta"]["type"].as_str()).unwrap_or_default();
        let name = format!("{} {kind}", name.unwrap()).trim().to_string();
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start thinking",
            "content_block_delta thinking_delta",
            "content_block_delta signature_delta",
            "content_block_stop",
            "content_block_start text",
            "content_block_delta text_delta",
            "content_block_stop",
            "content_block_start tool_use",
            "content_block_delta input_json_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let partial: String = reply
        .data()
        .iter()
        .filter_map(|event| event["delta"]["partial_json"].as_str().map(str::to_string))
        .collect();
    assert_eq!(serde_json::from_str::<Json>(&partial).unwrap(), json!({"place": "Paris"}));
    let delta = reply.data().into_iter().find(|event| event["type"] == "message_delta").unwrap();
    assert_eq!(delta["delta"]["stop_reason"], "tool_use");
    assert!(delta["usage"]["output_tokens"].as_u64().unwrap() > 5);
}

#[tokio::test]
async fn why_messages_end() {
    let server = saying("one two three four");
    let first = tokenizer().encode("one two", false).unwrap()[0];
    let first = tokenizer().decode(&[first], false).unwrap();
    for (more, text, reason, sequence) in [
        (json!({}), "one two three four", "end_turn", Json::Null),
        (json!({"stop_sequences": ["three"]}), "one two ", "stop_sequence", json!("three")),
        (json!({"max_tokens": 1}), &first, "max_tokens", Json::Null),
    ] {
        let json = server.post(PATH, &with(hello(), more.clone())).await.json();
        assert_eq!(json["content"][0]["text"], text, "{more}");
        assert_eq!((&json["stop_reason"], &json["stop_sequence"]), (&json!(reason), &sequence), "{more}");
    }
}

#[tokio::test]
async fn conversations_reach_the_template() {
    let server = saying("Fine.");
    let body = with(
        hello(),
        json!({
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Be kind."}],
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"place": "Rome"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                    {"type": "text", "text": "And now?"},
                ]},
            ],
        }),
    );
    let reply = server.post(PATH, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let expected = "<|im_start|>system\nBe brief.\nBe kind.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n\
        <|im_start|>assistant\nLet me see.\n<tool_call>\n<function=look>\n<parameter=place>\nRome\n</parameter>\n\
        </function>\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n\
        <|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(server.fake.seen()[0].prompt, expected);
    // An assistant's message at the end is the beginning of the answer.
    let messages = json!([{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One,"}]);
    server.post(PATH, &with(hello(), json!({"messages": messages}))).await;
    assert_eq!(
        server.fake.seen()[1].prompt,
        "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nOne,"
    );
}

#[tokio::test]
async fn choices_of_tools_become_constraints() {
    let server = saying(CALL);
    for (choice, constrained) in [
        (json!({"type": "any"}), true),
        (json!({"type": "tool", "name": "look", "disable_parallel_tool_use": true}), true),
        (json!({"type": "none"}), false),
    ] {
        let reply = server.post(PATH, &with(hello(), json!({"tools": look(), "tool_choice": choice}))).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(server.fake.seen().last().unwrap().constrained, constrained, "{choice}");
    }
    let format = json!({"format": {"type": "json_schema", "schema": {"type": "object"}}});
    server.post(PATH, &with(hello(), json!({"output_config": format}))).await;
    assert!(server.fake.seen().last().unwrap().constrained);
}

#[tokio::test]
async fn errors_in_its_own_shape() {
    let server = saying("Hi");
    let json = server.post(PATH, &json!({"messages": [{"role": "user", "content": "Hello"}]})).await;
    assert_eq!(json.status, 400);
    assert_eq!(json.json()["type"], "error");
    assert_eq!(json.json()["request_id"], json.header("request-id").unwrap());
    assert_eq!(json.json()["error"]["type"], "invalid_request_error");
    assert!(json.json()["error"]["message"].as_str().unwrap().contains("`max_tokens` is missing"));
    let failing = Play { failure: Some("it broke".into()), ..Play::text("So") };
    let server = start(options(), Fake::new(9, move |_| failing.clone()));
    let reply = server.post(PATH, &with(hello(), json!({"stream": true}))).await;
    let (name, data) = reply.events().pop().unwrap();
    assert_eq!(name.as_deref(), Some("error"));
    assert!(data.contains("api_error") && data.contains("it broke"), "{data}");
}
