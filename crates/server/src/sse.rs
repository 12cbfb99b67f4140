//! Answers as streams of server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Frame;
use serde_json::Value as Json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::Options;
use crate::answer::{Event, Replies};

/// Events written ahead of a client that reads slowly.
const AHEAD: usize = 64;

/// The client has gone, or takes nothing any more.
#[derive(Debug)]
pub struct Gone;

/// Where events are written.
pub struct Sink {
    lines: mpsc::Sender<Bytes>,
    stall_timeout: Duration,
    keep_alive: Duration,
}

impl Sink {
    async fn send(&self, lines: String) -> Result<(), Gone> {
        match timeout(self.stall_timeout, self.lines.send(lines.into())).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }

    /// An event without a name.
    pub async fn data(&self, data: &Json) -> Result<(), Gone> {
        self.send(format!("data: {data}\n\n")).await
    }

    /// An event whose name is the `type` in its data, as Anthropic has it.
    pub async fn typed(&self, data: &Json) -> Result<(), Gone> {
        let name = data["type"].as_str().unwrap_or("error");
        self.send(format!("event: {name}\ndata: {data}\n\n")).await
    }

    /// The end, as OpenAI has it.
    pub async fn done(&self) -> Result<(), Gone> {
        self.send("data: [DONE]\n\n".into()).await
    }

    /// The next event of the answers; `sign_of_life` is sent while there is none for long.
    pub async fn next(
        &self,
        replies: &mut Replies,
        sign_of_life: &str,
    ) -> Result<Option<(usize, Event)>, Gone> {
        loop {
            match timeout(self.keep_alive, replies.next()).await {
                Ok(event) => return Ok(event),
                Err(_) => self.send(sign_of_life.into()).await?,
            }
        }
    }
}

/// A response whose events `write` writes. It is given up, with all that it owns, when the client goes away.
pub fn stream<F>(options: &Options, write: impl FnOnce(Sink) -> F) -> Response
where
    F: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (lines, receiver) = mpsc::channel(AHEAD);
    let watch = lines.clone();
    let writing = write(Sink { lines, stall_timeout: options.stall_timeout, keep_alive: options.keep_alive });
    tokio::spawn(async move {
        tokio::select! {
            () = watch.closed() => {}
            // Who has gone need not be told.
            _ = writing => {}
        }
    });
    let mut response = Response::new(Body::new(Lines(receiver)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx would otherwise collect events before they pass them on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A body of what comes through a channel.
struct Lines(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|lines| lines.map(|lines| Ok(Frame::data(lines))))
    }
}
