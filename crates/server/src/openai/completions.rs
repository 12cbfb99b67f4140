//! `POST /v1/completions`: the answer, whole or as a stream.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use engine::Piece;
use serde_json::{Value as Json, json};

use super::completion_request::{Wishes, read};
use super::writing::{self, write};
use super::{finish_reason, logprobs, usage_json};
use crate::answer::{Collected, Event, Prepared, TokenInfo, Usage};
use crate::app::App;
use crate::fault::{Api, Fault};
use crate::ids;
use crate::intake::receive;

/// `POST /v1/completions`.
pub async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, request).await.unwrap_or_else(|fault| fault.response(Api::OpenAi))
}

async fn respond(app: Arc<App>, request: Request) -> Result<Response, Fault> {
    let asked = receive(&app, request, read).await?;
    let wishes = asked.wishes;
    let writer = Writer::new(app.clone(), wishes, asked.question.n, &asked.prepared);
    write(&app, asked.ask(&app)?, writer, wishes.streaming.is_some()).await
}

/// Writes one request's answers in OpenAI's shape.
struct Writer {
    app: Arc<App>,
    id: String,
    created: u64,
    with_usage: bool,
    /// What each answer begins with: its prompt, where an echo is wanted.
    echoes: Vec<String>,
    /// Characters of each answer so far.
    offsets: Vec<usize>,
}

impl Writer {
    fn new(app: Arc<App>, wishes: Wishes, n: usize, prepared: &[Prepared]) -> Self {
        let echo = |prompt: &Prepared| if wishes.echo { prompt.text.clone() } else { String::new() };
        let echoes: Vec<String> =
            prepared.iter().flat_map(|prompt| std::iter::repeat_n(echo(prompt), n)).collect();
        Self {
            app,
            id: ids::fresh("cmpl-"),
            created: ids::now(),
            with_usage: wishes.streaming.is_some_and(|streaming| streaming.usage),
            offsets: echoes.iter().map(|echo| echo.chars().count()).collect(),
            echoes,
        }
    }

    fn object(&self, choices: Json) -> Json {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.app.model.id,
            "choices": choices,
        })
    }

    fn choice(&mut self, index: usize, text: &str, tokens: &[TokenInfo], finish: Option<&str>) -> Json {
        let logprobs = logprobs::completion(&self.app.model.tokenizer, tokens, &mut self.offsets[index]);
        json!({"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish})
    }

    fn chunk(&mut self, index: usize, text: &str, tokens: &[TokenInfo], finish: Option<&str>) -> String {
        let choice = self.choice(index, text, tokens, finish);
        let mut chunk = self.object(json!([choice]));
        if self.with_usage {
            chunk["usage"] = Json::Null;
        }
        chunk.to_string()
    }
}

impl writing::Writer for Writer {
    /// The echoes.
    fn opening(&mut self) -> Vec<String> {
        let echoes = self.echoes.clone();
        let echoed = echoes.iter().enumerate().filter(|(_, echo)| !echo.is_empty());
        echoed.map(|(index, echo)| self.chunk(index, echo, &[], None)).collect()
    }

    fn event(&mut self, index: usize, event: Event) -> Option<String> {
        match event {
            // Only a dialect makes other pieces than text, and there is none here.
            Event::Part(Piece::Text(text), tokens) => Some(self.chunk(index, &text, &tokens, None)),
            Event::Finished(outcome) => {
                Some(self.chunk(index, "", &[], Some(finish_reason(&outcome.ending))))
            }
            Event::Part(..) | Event::Started | Event::Failed(_) => None,
        }
    }

    fn closing(&mut self, usage: &Usage) -> Option<String> {
        self.with_usage.then(|| {
            let mut chunk = self.object(json!([]));
            chunk["usage"] = usage_json(usage);
            chunk.to_string()
        })
    }

    fn whole(&mut self, answers: &[Collected], usage: &Usage) -> Json {
        let mut choices = Vec::new();
        for (index, answer) in answers.iter().enumerate() {
            let text = format!("{}{}", self.echoes[index], answer.text);
            choices.push(self.choice(
                index,
                &text,
                &answer.tokens,
                Some(finish_reason(&answer.outcome.ending)),
            ));
        }
        let mut object = self.object(choices.into());
        object["usage"] = usage_json(usage);
        object
    }
}
