//! Completions of plain texts.

use serde_json::json;

use crate::client::{options, saying, start};
use crate::fake::{Fake, Play, tokenizer};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn every_kind_of_prompt() {
    let server = start(options(), Fake::new(99, |prompt| Play::text(&prompt.to_uppercase())));
    let ids = tokenizer().encode("three", false).unwrap();
    for (prompt, texts) in [
        (json!("one"), vec!["ONE"]),
        (json!(["one", "two"]), vec!["ONE", "TWO"]),
        (json!(ids), vec!["THREE"]),
        (json!([ids, "four"]), vec!["THREE", "FOUR"]),
    ] {
        let json = server.post(PATH, &json!({"prompt": prompt})).await.json();
        assert_eq!(json["object"], "text_completion");
        let said: Vec<&str> = json["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| choice["text"].as_str().unwrap())
            .collect();
        assert_eq!(said, texts, "{prompt}");
    }
    assert_eq!(server.fake.seen()[0].max_tokens, Some(16));
}

#[tokio::test]
async fn several_answers_to_several_prompts_with_an_echo() {
    let server = start(options(), Fake::new(99, |prompt| Play::text(&prompt.to_uppercase())));
    let body = json!({"prompt": ["a", "b"], "n": 2, "echo": true, "seed": 1});
    let json = server.post(PATH, &body).await.json();
    let said: Vec<&str> =
        json["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap()).collect();
    assert_eq!(said, ["aA", "aA", "bB", "bB"]);
    assert_eq!(json["usage"]["prompt_tokens"], 2);
    assert_eq!(json["usage"]["completion_tokens"], 4);
}

#[tokio::test]
async fn a_stream_with_an_echo() {
    let server = saying("of stone");
    let body =
        json!({"prompt": "A heart", "stream": true, "echo": true, "stream_options": {"include_usage": true}});
    let reply = server.post(PATH, &body).await;
    assert_eq!(reply.events().last().unwrap().1, "[DONE]");
    let chunks = reply.data();
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, "A heartof stone");
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(chunks[chunks.len() - 1]["choices"], json!([]));
    assert!(chunks[chunks.len() - 1]["usage"]["total_tokens"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn logprobs_side_by_side() {
    let server = saying("of stone");
    let json = server.post(PATH, &json!({"prompt": "A heart", "logprobs": 1})).await.json();
    let logprobs = &json["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    for name in ["token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[name].as_array().unwrap().len(), tokens.len(), "{name}");
    }
    assert_eq!(logprobs["text_offset"][1], tokens[0].as_str().unwrap().len());
}
