//! Anthropic's API: messages, and counting their tokens.

mod conversation;
mod request;
mod writer;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;

use crate::answer::{Event, Replies, collect};
use crate::app::App;
use crate::fault::{Api, Fault};
use crate::intake::receive;
use crate::sse::{self, Gone, Sink};
use crate::status::json_response;
use request::{read, read_count};
use writer::Writer;

/// `POST /v1/messages`.
pub async fn messages(State(app): State<Arc<App>>, request: Request) -> Response {
    respond(app, request).await.unwrap_or_else(|fault| fault.response(Api::Anthropic))
}

/// `POST /v1/messages/count_tokens`.
pub async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    match receive(&app, request, read_count).await {
        Ok(asked) => {
            let tokens: usize = asked.prepared.iter().map(|prompt| prompt.ids.len()).sum();
            json_response(&json!({"input_tokens": tokens}))
        }
        Err(fault) => fault.response(Api::Anthropic),
    }
}

async fn respond(app: Arc<App>, request: Request) -> Result<Response, Fault> {
    let asked = receive(&app, request, read).await?;
    let streamed = asked.wishes;
    let mut replies = asked.ask(&app)?;
    let writer = Writer::new(app.model.id.clone());
    if streamed {
        return Ok(sse::stream(&app.options, |sink| write_stream(sink, replies, writer)));
    }
    let answers = collect(&mut replies).await?;
    match answers.first() {
        Some(answer) => Ok(json_response(&writer.whole(answer))),
        None => Err(Fault::internal("there is no answer")),
    }
}

async fn write_stream(mut sink: Sink, mut replies: Replies, mut writer: Writer) -> Result<(), Gone> {
    writer.opening(&replies.usage()).iter().for_each(|event| sink.typed(event));
    let ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    while let Some((_, event)) = sink.next(&mut replies, ping).await? {
        if let Event::Failed(fault) = event {
            sink.typed(&fault.json(Api::Anthropic));
            break;
        }
        writer.event(event).iter().for_each(|event| sink.typed(event));
    }
    sink.flush().await
}
