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
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::timeout;

use crate::Options;
use crate::answer::{Event, Replies};

/// Writes ahead of a client that reads slowly.
const AHEAD: usize = 64;

/// Bytes of events that leave at the latest.
const MOST_WRITTEN: usize = 16 << 10;

/// The client has gone, or takes nothing any more.
#[derive(Debug)]
pub struct Gone;

/// Where events are written. They leave together when the next one has to be waited for: a stream costs one hand-over and one
/// write for each step of the model, however many events came of it.
pub struct Sink {
    lines: mpsc::Sender<Bytes>,
    /// Events that have not left.
    written: String,
    stall_timeout: Duration,
    keep_alive: Duration,
}

impl Sink {
    /// An event without a name.
    pub fn data(&mut self, data: &str) {
        self.written.extend(["data: ", data, "\n\n"]);
    }

    /// An event whose name is the `type` in its data, as Anthropic has it.
    pub fn typed(&mut self, data: &Json) {
        let name = data["type"].as_str().unwrap_or("error");
        self.written.extend(["event: ", name, "\n"]);
        self.data(&data.to_string());
    }

    /// Lets go of what is written.
    pub async fn flush(&mut self) -> Result<(), Gone> {
        if self.written.is_empty() {
            return Ok(());
        }
        let lines = Bytes::from(std::mem::take(&mut self.written));
        // Usually there is room, and no need for a clock.
        match self.lines.try_send(lines) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(_)) => Err(Gone),
            Err(TrySendError::Full(lines)) => {
                match timeout(self.stall_timeout, self.lines.send(lines)).await {
                    Ok(Ok(())) => Ok(()),
                    _ => Err(Gone),
                }
            }
        }
    }

    /// The next event of the answers; `sign_of_life` is sent while there is none for long.
    pub async fn next(
        &mut self,
        replies: &mut Replies,
        sign_of_life: &str,
    ) -> Result<Option<(usize, Event)>, Gone> {
        if self.written.len() < MOST_WRITTEN
            && let Some(event) = replies.next_ready()
        {
            return Ok(Some(event));
        }
        loop {
            self.flush().await?;
            match timeout(self.keep_alive, replies.next()).await {
                Ok(event) => return Ok(event),
                Err(_) => self.written.push_str(sign_of_life),
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
    let Options { stall_timeout, keep_alive, .. } = *options;
    let writing = write(Sink { lines, written: String::new(), stall_timeout, keep_alive });
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
