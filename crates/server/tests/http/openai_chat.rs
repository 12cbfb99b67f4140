//! Chat completions: whole answers and streams.

use serde_json::{Value as Json, json};

use crate::client::{options, saying, start, until};
use crate::fake::{Fake, Play};

const PATH: &str = "/v1/chat/completions";

fn hello() -> Json {
    json!({"model": "any", "messages": [{"role": "user", "content": "Hello"}]})
}

fn with(mut body: Json, more: Json) -> Json {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn look() -> Json {
    let parameters =
        json!({"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]});
    json!([{"type": "function", "function": {"name": "look", "description": "Looks", "parameters": parameters}}])
}

const CALL: &str =
    "<tool_call>\n<function=look>\n<parameter=place>\nParis\n</parameter>\n</function>\n</tool_call>";

#[tokio::test]
async fn a_whole_answer() {
    let play = Play { reused: 5, ..Play::text("Hi there.") };
    let server = start(options(), Fake::new(9, move |_| play.clone()));
    let reply = server.post(PATH, &hello()).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    let json = reply.json();
    assert_eq!((&json["object"], &json["model"]), (&json!("chat.completion"), &json!("pleiad/fake")));
    assert_eq!(
        json["choices"],
        json!([{
            "index": 0,
            "message": {"role": "assistant", "content": "Hi there.", "refusal": null},
            "logprobs": null,
            "finish_reason": "stop",
        }])
    );
    let seen = &server.fake.seen()[0];
    assert_eq!(seen.prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    // The words that open the answer are not part of what the next turn begins with.
    assert!(seen.stable > 0 && seen.stable < seen.tokens, "{seen:?}");
    let usage = &json["usage"];
    assert_eq!(usage["prompt_tokens"], seen.tokens);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 5);
    let completion = usage["completion_tokens"].as_u64().unwrap();
    assert!(completion > 0);
    assert_eq!(usage["total_tokens"], seen.tokens as u64 + completion);
}

#[tokio::test]
async fn a_stream_in_order() {
    let server = saying("Grüße, world");
    let body = with(hello(), json!({"stream": true, "stream_options": {"include_usage": true}}));
    let reply = server.post(PATH, &body).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/event-stream")));
    assert_eq!(reply.events().last().unwrap().1, "[DONE]");
    let chunks = reply.data();
    assert!(
        chunks
            .iter()
            .all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"])
    );
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64().unwrap() > 1);
    let (last, chunks) = chunks.split_last().unwrap();
    assert_eq!(
        (&last["choices"][0]["delta"], &last["choices"][0]["finish_reason"]),
        (&json!({}), &json!("stop"))
    );
    assert!(last["usage"].is_null() && last.as_object().unwrap().contains_key("usage"));
    let text: String =
        chunks.iter().map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "Grüße, world");

    let without = server.post(PATH, &with(hello(), json!({"stream": true}))).await;
    assert!(without.data().iter().all(|chunk| chunk.get("usage").is_none()));
}

#[tokio::test]
async fn thoughts_and_calls_whole_and_streamed() {
    let server = saying(&format!("<think>\nHm.\n</think>\n\nLet me see.\n\n{CALL}"));
    let body = with(hello(), json!({"tools": look()}));
    let json = server.post(PATH, &body).await.json();
    let choice = &json["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let message = &choice["message"];
    assert_eq!(message["reasoning_content"].as_str().unwrap().trim(), "Hm.");
    assert_eq!(message["content"].as_str().unwrap().trim(), "Let me see.");
    let call = &message["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("look")));
    let arguments: Json = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"place": "Paris"}));
    assert!(json["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);

    let chunks = server.post(PATH, &with(body, json!({"stream": true}))).await.data();
    let mut kinds: Vec<&str> = Vec::new();
    for chunk in &chunks {
        for name in chunk["choices"][0]["delta"].as_object().unwrap().keys() {
            if kinds.last() != Some(&name.as_str()) {
                kinds.push(name);
            }
        }
    }
    assert_eq!(kinds, ["role", "content", "reasoning_content", "content", "tool_calls"]);
    let call = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .find(|call| !call.is_null());
    let call = call.unwrap();
    assert_eq!((&call["index"], &call["function"]["name"]), (&json!(0), &json!("look")));
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn a_call_alone_has_no_content() {
    let server = saying(CALL);
    let json = server.post(PATH, &with(hello(), json!({"tools": look()}))).await.json();
    assert!(json["choices"][0]["message"]["content"].is_null(), "{json}");
}

#[tokio::test]
async fn stop_strings_and_lengths() {
    let play =
        Play { pause: std::time::Duration::from_millis(1), ..Play::text("one two three four five six") };
    let server = start(options(), Fake::new(9, move |_| play.clone()));
    for stop in [json!("three"), json!(["never", "three"])] {
        let json = server.post(PATH, &with(hello(), json!({"stop": stop}))).await.json();
        assert_eq!(json["choices"][0]["message"]["content"], "one two ");
        assert_eq!(json["choices"][0]["finish_reason"], "stop");
    }
    // The rest of the answer is not generated for nobody.
    until("cancelled", || server.fake.cancelled() == 2).await;
    for name in ["max_tokens", "max_completion_tokens"] {
        let json = server.post(PATH, &with(hello(), json!({name: 2}))).await.json();
        assert_eq!(json["choices"][0]["finish_reason"], "length");
        assert_eq!(json["usage"]["completion_tokens"], 2);
    }
}

#[tokio::test]
async fn several_answers_with_seeds_of_their_own() {
    let server = saying("Yes.");
    let body = with(hello(), json!({"n": 3, "seed": 7}));
    let json = server.post(PATH, &body).await.json();
    let choices = json["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    let seen = server.fake.seen();
    assert_eq!(seen.iter().map(|seen| seen.seed).collect::<Vec<_>>(), [Some(7), Some(8), Some(9)]);
    assert_eq!(json["usage"]["prompt_tokens"], seen[0].tokens, "the prompt counts once");

    let chunks = server.post(PATH, &with(body, json!({"stream": true}))).await.data();
    for index in 0..3 {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|choice| choice["index"] == index);
        let text: String = own.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(text, "Yes.");
    }
}

#[tokio::test]
async fn logprobs_of_every_token() {
    let server = saying("Hello, world.");
    let body = with(hello(), json!({"logprobs": true, "top_logprobs": 2}));
    let json = server.post(PATH, &body).await.json();
    let tokens = json["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, "Hello, world.");
    assert!(
        tokens
            .iter()
            .all(|token| token["logprob"] == -0.25 && token["top_logprobs"].as_array().unwrap().len() == 2)
    );
    let chunks = server.post(PATH, &with(body, json!({"stream": true}))).await.data();
    let streamed: Vec<&Json> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .collect();
    assert_eq!(streamed, tokens.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn settings_reach_the_job() {
    let server = saying("Yes.");
    let more = json!({"temperature": 0.25, "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 4, "seed": 5});
    assert_eq!(server.post(PATH, &with(hello(), more)).await.status, 200);
    let seen = &server.fake.seen()[0];
    assert_eq!(
        (seen.temperature, seen.max_tokens, seen.logprobs, seen.seed),
        (0.25, Some(9), Some(4), Some(5))
    );
}

#[tokio::test]
async fn forms_become_constraints() {
    let server = saying("{}");
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let named = json!({"type": "function", "function": {"name": "look"}});
    for (more, constrained) in [
        (json!({}), false),
        (json!({"response_format": {"type": "text"}}), false),
        (json!({"response_format": {"type": "json_object"}}), true),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
            true,
        ),
        (json!({"regex": "[ab]+"}), true),
        (json!({"grammar": "start: \"yes\" | \"no\""}), true),
        (json!({"tools": look(), "tool_choice": "none"}), false),
        (json!({"tools": look(), "tool_choice": "required"}), true),
        (json!({"tools": look(), "tool_choice": named}), true),
        (json!({"tools": look(), "tool_choice": named, "response_format": {"type": "json_object"}}), true),
    ] {
        let reply = server.post(PATH, &with(hello(), more.clone())).await;
        assert_eq!(reply.status, 200, "{more}: {}", reply.body);
        assert_eq!(server.fake.seen().last().unwrap().constrained, constrained, "{more}");
    }
    for more in [
        json!({"response_format": {"type": "json_object"}, "tools": look()}),
        json!({"grammar": "start: nonsense"}),
        json!({"regex": "(["}),
    ] {
        let reply = server.post(PATH, &with(hello(), more.clone())).await;
        assert_eq!(reply.status, 400, "{more}: {}", reply.body);
    }
}

#[tokio::test]
async fn messages_reach_the_template() {
    let server = saying("Fine.");
    let body = json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"place\": \"Rome\", \"n\": 1.50}"}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "And now?"},
    ]});
    assert_eq!(server.post(PATH, &body).await.status, 200);
    let expected = "<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>\n<|im_start|>user\nOne\ntwo<|im_end|>\n\
        <|im_start|>assistant\n<tool_call>\n<function=look>\n<parameter=place>\nRome\n</parameter>\n\
        <parameter=n>\n1.5\n</parameter>\n</function>\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n\
        <|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(server.fake.seen()[0].prompt, expected);
    let body = json!({"continue_final_message": true, "messages": [
        {"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, "},
    ]});
    assert_eq!(server.post(PATH, &body).await.status, 200);
    let expected = "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nOne, two,";
    assert_eq!(server.fake.seen()[1].prompt, expected);
}

#[tokio::test]
async fn what_goes_wrong_on_the_way() {
    let failing = Play { failure: Some("the disk is on fire".into()), ..Play::text("So") };
    let lost = Play { lost: true, ..Play::text("So") };
    for (play, said) in [(failing, "the disk is on fire"), (lost, "stopped working")] {
        let server = start(options(), Fake::new(9, move |_| play.clone()));
        let reply = server.post(PATH, &hello()).await;
        assert_eq!((reply.status, &reply.json()["error"]["type"]), (500, &json!("server_error")));
        assert!(reply.body.contains(said), "{}", reply.body);
        let reply = server.post(PATH, &with(hello(), json!({"stream": true}))).await;
        let last = reply.data().pop().unwrap();
        assert!(last["error"]["message"].as_str().unwrap().contains(said), "{last}");
        assert!(!reply.body.contains("[DONE]"));
    }
}
