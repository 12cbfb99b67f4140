//! Requests that are wrong: each is refused with the field's name, what was found and what is expected.

use serde_json::{Value as Json, json};

use crate::client::saying;

#[tokio::test]
async fn openai_says_what_is_wrong() {
    let server = saying("Hi");
    let user = json!([{"role": "user", "content": "Hello"}]);
    let chat = |more: Json| {
        let mut body = json!({"messages": user});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("/v1/chat/completions", body)
    };
    let said = |message: Json| chat(json!({"messages": [message]}));
    let tool = |tool: Json| chat(json!({"tools": [tool]}));
    let text = |body: Json| ("/v1/completions", body);
    for ((path, body), param, expected) in [
        (("/v1/chat/completions", json!({})), "messages", "is missing"),
        (chat(json!({"messages": "Hello"})), "messages", "must be a list, but is the string \"Hello\""),
        (chat(json!({"messages": []})), "messages", "but is an empty list"),
        (chat(json!({"messages": ["Hello"]})), "messages[0]", "must be an object"),
        (said(json!({"content": "Hello"})), "messages[0].role", "is missing"),
        (said(json!({"role": "robot", "content": "x"})), "messages[0].role", "but is the string \"robot\""),
        (said(json!({"role": "user"})), "messages[0].content", "is missing"),
        (said(json!({"role": "user", "content": 5})), "messages[0].content", "but is the number 5"),
        (
            said(json!({"role": "user", "content": [{"text": "x"}]})),
            "messages[0].content[0].type",
            "is missing",
        ),
        (
            said(json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]})),
            "messages[0].content[0].type",
            "reads only text",
        ),
        (
            said(json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]})),
            "messages[0].tool_calls[0].function.arguments",
            "must be the text of a JSON object",
        ),
        (
            said(json!({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]})),
            "messages[0].tool_calls[0].function.name",
            "is missing",
        ),
        (chat(json!({"model": 4})), "model", "must be a string"),
        (chat(json!({"stream": "yes"})), "stream", "must be true or false, but is the string \"yes\""),
        (chat(json!({"stream_options": 1})), "stream_options", "must be an object"),
        (chat(json!({"temperature": "hot"})), "temperature", "from 0 to 2, but is the string \"hot\""),
        (chat(json!({"n": 0})), "n", "from 1 to 64"),
        (chat(json!({"max_tokens": 0})), "max_tokens", "at least 1"),
        (chat(json!({"max_tokens": -5})), "max_tokens", "but is the number -5"),
        (chat(json!({"stop": 1})), "stop", "a string or a list of strings"),
        (chat(json!({"stop": ["a", 1]})), "stop", "a string or a list of strings"),
        (chat(json!({"top_logprobs": 21, "logprobs": true})), "top_logprobs", "from 0 to 20"),
        (chat(json!({"top_logprobs": 1})), "top_logprobs", "unless `logprobs`"),
        (chat(json!({"chat_template_kwargs": []})), "chat_template_kwargs", "must be an object"),
        (chat(json!({"continue_final_message": true})), "continue_final_message", "last message"),
        (tool(json!({"function": {"name": "f"}})), "tools[0].type", "is missing"),
        (tool(json!({"type": "retrieval"})), "tools[0].type", "must be \"function\""),
        (tool(json!({"type": "function", "function": {}})), "tools[0].function.name", "is missing"),
        (tool(json!({"type": "function", "function": {"name": "a b"}})), "tools[0].function.name", "letters"),
        (
            tool(json!({"type": "function", "function": {"name": "f", "parameters": 3}})),
            "tools[0].function.parameters",
            "a JSON schema",
        ),
        (chat(json!({"tool_choice": "sometimes"})), "tool_choice", "\"required\""),
        (chat(json!({"tool_choice": "required"})), "tool_choice", "no tool"),
        (chat(json!({"response_format": {"type": "xml"}})), "response_format.type", "\"json_schema\""),
        (text(json!({})), "prompt", "is missing"),
        (text(json!({"prompt": {}})), "prompt", "a string, a list of strings"),
        (text(json!({"prompt": []})), "prompt", "but is an empty list"),
        (text(json!({"prompt": [1, "a"]})), "prompt", "a string, a list of strings"),
        (text(json!({"prompt": [1, -1]})), "prompt", "a string, a list of strings"),
        (text(json!({"prompt": "a", "echo": true, "logprobs": 1})), "echo", "left out"),
        (text(json!({"prompt": "a", "suffix": "b"})), "suffix", "left out"),
        (text(json!({"prompt": vec!["a"; 65]})), "prompt", "at most 64"),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["type"], &error["param"]),
            (&json!("invalid_request_error"), &json!(param)),
            "{body}: {error}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{body}: {message}");
    }
    assert!(server.fake.seen().is_empty(), "none of them reached the model");
}

#[tokio::test]
async fn anthropic_says_what_is_wrong() {
    let server = saying("Hi");
    let user = json!([{"role": "user", "content": "Hello"}]);
    let body = |more: Json| {
        let mut body = json!({"max_tokens": 5, "messages": user});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let block = |block: Json| body(json!({"messages": [{"role": "user", "content": [block]}]}));
    for (body, expected) in [
        (json!({"messages": user}), "`max_tokens` is missing"),
        (json!({"max_tokens": 5}), "`messages` is missing"),
        (
            body(json!({"max_tokens": "many"})),
            "`max_tokens` must be a whole number, at least 1, but is the string",
        ),
        (body(json!({"system": 3})), "`system` must be a string or a list of blocks, but is the number 3"),
        (body(json!({"messages": [{"role": "tool", "content": "x"}]})), "`messages[0].role` must be"),
        (body(json!({"messages": [{"role": "user"}]})), "`messages[0].content` is missing"),
        (
            block(json!({"type": "image", "source": {}})),
            "`messages[0].content[0].type` is \"image\", but this model",
        ),
        (block(json!({"type": "text"})), "`messages[0].content[0].text` is missing"),
        (block(json!({"type": "tool_result"})), "`messages[0].content[0].tool_use_id` is missing"),
        (body(json!({"tools": [{"name": "f"}]})), "`tools[0].input_schema` is missing"),
        (body(json!({"tools": [{"type": "web_search_20250305", "name": "w"}]})), "no tools of its own"),
        (body(json!({"tool_choice": {"type": "some"}})), "`tool_choice.type` must be"),
        (body(json!({"tool_choice": {"type": "tool", "name": "f"}})), "no tool of that name"),
        (body(json!({"stop_sequences": [1]})), "`stop_sequences` must be"),
        (body(json!({"thinking": {}})), "`thinking.type` is missing"),
        (
            body(json!({"output_config": {"format": {"type": "json_schema"}}})),
            "`output_config.format.schema` is missing",
        ),
    ] {
        let reply = server.post("/v1/messages", &body).await;
        assert_eq!(reply.status, 400, "{body}: {}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{body}: {message}");
    }
}

#[tokio::test]
async fn what_the_template_or_the_context_refuses() {
    let server = saying("Hi");
    let late = json!({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]});
    let reply = server.post("/v1/chat/completions", &late).await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("System message must be at the beginning"), "{}", reply.body);
    let long = json!({"prompt": "word ".repeat(9000)});
    let reply = server.post("/v1/completions", &long).await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[tokio::test]
async fn unknown_fields_and_odd_types_of_content_are_fine() {
    let server = saying("Hi");
    let body = json!({
        "messages": [{"role": "user", "content": "Hello", "mood": "good"}],
        "user": "me", "store": true, "metadata": {"a": 1}, "temperature": null, "reasoning_effort": "none",
    });
    for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded"] {
        let reply =
            server.send("POST", "/v1/chat/completions", &[("content-type", kind)], &body.to_string()).await;
        assert_eq!(reply.status, 200, "{kind}: {}", reply.body);
    }
    for body in ["", "{", "[]", "\"text\"", "{\"messages\": [}"] {
        let reply = server.send("POST", "/v1/chat/completions", &[], body).await;
        assert_eq!(
            (reply.status, &reply.json()["error"]["type"]),
            (400, &json!("invalid_request_error")),
            "{body}"
        );
    }
}

/// Every request that differs from this one in one place, which holds an odd value.
fn variations(json: &Json, odd: &[Json]) -> Vec<Json> {
    let mut all = odd.to_vec();
    match json {
        Json::Object(map) => {
            for (name, value) in map {
                for inner in variations(value, odd) {
                    let mut map = map.clone();
                    map[name] = inner;
                    all.push(map.into());
                }
            }
        }
        Json::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                for inner in variations(value, odd) {
                    let mut list = list.clone();
                    list[index] = inner;
                    all.push(list.into());
                }
            }
        }
        _ => {}
    }
    all
}

#[tokio::test]
async fn no_value_anywhere_does_harm() {
    let server = saying("{}");
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let chat = json!({
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": "x", "reasoning_content": "y",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "z"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "stop": ["a"], "n": 1, "logit_bias": {"1": 2}, "stream_options": {"include_usage": true},
        "chat_template_kwargs": {"enable_thinking": true}, "top_k": 3, "seed": 1, "logprobs": true, "top_logprobs": 1,
    });
    let form = json!({"prompt": ["a", [1, 2]], "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let messages = json!({
        "max_tokens": 5, "system": [{"type": "text", "text": "s"}], "thinking": {"type": "enabled"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {"a": "b"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "z"}]}]},
        ],
        "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "tool", "name": "f"},
        "stop_sequences": ["a"],
    });
    let odd = [json!(true), json!(-1), json!(""), json!("é\u{0}<|im_end|>"), json!([]), json!({})];
    let mut accepted = 0;
    for (path, request) in
        [("/v1/chat/completions", chat), ("/v1/completions", form), ("/v1/messages", messages)]
    {
        assert_eq!(server.post(path, &request).await.status, 200, "{path}");
        for body in variations(&request, &odd) {
            let reply = server.post(path, &body).await;
            assert!(matches!(reply.status, 200 | 400), "{path} {body}: {reply:?}");
            accepted += usize::from(reply.status == 200);
        }
    }
    assert!(accepted > 50, "{accepted}");
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    assert_eq!(server.send("POST", "/v1/chat/completions", &[], &deep).await.status, 400);
}
