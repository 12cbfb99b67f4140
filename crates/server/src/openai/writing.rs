//! Answers in OpenAI's shape, whole or as a stream.

use std::sync::Arc;

use axum::response::Response;
use serde_json::Value as Json;

use crate::answer::{Collected, Event, Replies, Usage, collect};
use crate::app::App;
use crate::fault::{Api, Fault};
use crate::sse::{self, Gone, Sink};
use crate::status::json_response;

/// What a kind of completions looks like.
pub trait Writer: Send + 'static {
    /// What a stream begins with, as JSON.
    fn opening(&mut self) -> Vec<String>;

    /// What an event adds to it.
    fn event(&mut self, index: usize, event: Event) -> Option<String>;

    /// What comes last: the usage, where that is wanted.
    fn closing(&mut self, usage: &Usage) -> Option<String>;

    /// All answers at once.
    fn whole(&mut self, answers: &[Collected], usage: &Usage) -> Json;
}

/// Writes answers as they come, or when all are there.
pub async fn write(
    app: &Arc<App>,
    mut replies: Replies,
    mut writer: impl Writer,
    streamed: bool,
) -> Result<Response, Fault> {
    if streamed {
        return Ok(sse::stream(&app.options, |sink| write_stream(sink, replies, writer)));
    }
    let answers = collect(&mut replies).await?;
    Ok(json_response(&writer.whole(&answers, &replies.usage())))
}

async fn write_stream(mut sink: Sink, mut replies: Replies, mut writer: impl Writer) -> Result<(), Gone> {
    writer.opening().iter().for_each(|chunk| sink.data(chunk));
    while let Some((index, event)) = sink.next(&mut replies, ": keep-alive\n\n").await? {
        if let Event::Failed(fault) = event {
            sink.data(&fault.json(Api::OpenAi).to_string());
            return sink.flush().await;
        }
        writer.event(index, event).iter().for_each(|chunk| sink.data(chunk));
    }
    writer.closing(&replies.usage()).iter().for_each(|chunk| sink.data(chunk));
    sink.data("[DONE]");
    sink.flush().await
}
