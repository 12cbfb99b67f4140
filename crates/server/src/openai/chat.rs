//! `POST /v1/chat/completions`: the answer, whole or as a stream.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use engine::Piece;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::chat_request::read;
use super::writing::{self, write};
use super::{Streaming, finish_reason, logprobs, usage_json};
use crate::answer::{Collected, Event, TokenInfo, Usage};
use crate::app::App;
use crate::fault::{Api, Fault};
use crate::ids;
use crate::intake::receive;

/// `POST /v1/chat/completions`.
pub async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, request).await.unwrap_or_else(|fault| fault.response(Api::OpenAi))
}

async fn respond(app: Arc<App>, request: Request) -> Result<Response, Fault> {
    let asked = receive(&app, request, read).await?;
    let streaming = asked.wishes;
    let writer = Writer::new(app.clone(), asked.question.n, streaming);
    write(&app, asked.ask(&app)?, writer, streaming.is_some()).await
}

/// Writes one request's answers in OpenAI's shape.
struct Writer {
    app: Arc<App>,
    id: String,
    created: u64,
    with_usage: bool,
    /// Calls so far, for each answer.
    calls: Vec<usize>,
}

/// A part of a stream. There is one for every token, so it is written without a tree of values in between.
#[derive(Serialize)]
struct Chunk<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: C,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Json>,
}

/// What it adds to one of the answers.
#[derive(Serialize)]
struct Choice<'a, D> {
    index: usize,
    delta: D,
    logprobs: Json,
    finish_reason: Option<&'a str>,
}

/// Text that is added.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Added<'a> {
    Content(&'a str),
    ReasoningContent(&'a str),
}

impl Writer {
    fn new(app: Arc<App>, answers: usize, streaming: Option<Streaming>) -> Self {
        let with_usage = streaming.is_some_and(|streaming| streaming.usage);
        Self { app, id: ids::fresh("chatcmpl-"), created: ids::now(), with_usage, calls: vec![0; answers] }
    }

    fn chunk(&self, choices: impl Serialize, usage: Json) -> String {
        let chunk = Chunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.app.model.id,
            choices,
            usage: self.with_usage.then_some(usage),
        };
        serde_json::to_string(&chunk).unwrap_or_default()
    }

    fn delta(
        &self,
        index: usize,
        delta: impl Serialize,
        tokens: &[TokenInfo],
        finish: Option<&str>,
    ) -> String {
        let logprobs = logprobs::chat(&self.app.model.tokenizer, tokens);
        self.chunk([Choice { index, delta, logprobs, finish_reason: finish }], Json::Null)
    }

    fn choice(&self, index: usize, answer: &Collected) -> Json {
        let mut message = json!({"role": "assistant", "content": answer.text, "refusal": null});
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = answer.reasoning.clone().into();
        }
        if !answer.calls.is_empty() {
            if answer.text.is_empty() {
                message["content"] = Json::Null;
            }
            message["tool_calls"] =
                answer.calls.iter().map(|(name, arguments)| call_json(name, arguments)).collect();
        }
        json!({
            "index": index,
            "message": message,
            "logprobs": logprobs::chat(&self.app.model.tokenizer, &answer.tokens),
            "finish_reason": finish_reason(&answer.outcome.ending),
        })
    }
}

impl writing::Writer for Writer {
    /// Who speaks.
    fn opening(&mut self) -> Vec<String> {
        let delta = json!({"role": "assistant", "content": ""});
        (0..self.calls.len()).map(|index| self.delta(index, &delta, &[], None)).collect()
    }

    fn event(&mut self, index: usize, event: Event) -> Option<String> {
        match event {
            Event::Started | Event::Failed(_) => None,
            Event::Part(Piece::Text(text), tokens) => {
                Some(self.delta(index, Added::Content(&text), &tokens, None))
            }
            Event::Part(Piece::Reasoning(text), tokens) => {
                Some(self.delta(index, Added::ReasoningContent(&text), &tokens, None))
            }
            Event::Part(Piece::Call { name, arguments }, tokens) => {
                let mut call = call_json(&name, &arguments);
                call["index"] = self.calls[index].into();
                self.calls[index] += 1;
                Some(self.delta(index, json!({"tool_calls": [call]}), &tokens, None))
            }
            Event::Finished(outcome) => {
                Some(self.delta(index, json!({}), &[], Some(finish_reason(&outcome.ending))))
            }
        }
    }

    fn closing(&mut self, usage: &Usage) -> Option<String> {
        self.with_usage.then(|| self.chunk(json!([]), usage_json(usage)))
    }

    fn whole(&mut self, answers: &[Collected], usage: &Usage) -> Json {
        let choices: Vec<Json> =
            answers.iter().enumerate().map(|(index, answer)| self.choice(index, answer)).collect();
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.app.model.id,
            "choices": choices,
            "usage": usage_json(usage),
        })
    }
}

fn call_json(name: &str, arguments: &str) -> Json {
    json!({"id": ids::fresh("call_"), "type": "function", "function": {"name": name, "arguments": arguments}})
}
