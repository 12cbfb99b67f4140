//! From a request to its answer.

use std::time::Instant;

use serde_json::Value as Json;
use tokio::time::timeout;

use crate::answer::Answer;
use crate::http::Connection;
use crate::options::Options;
use crate::problem::{Problem, wrong};

/// Waits for what must come soon.
pub async fn soon<T>(
    options: &Options,
    what: &str,
    work: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    match timeout(options.stuck, work).await {
        Ok(result) => result,
        Err(_) => Err(Problem::Stuck(format!("{what}: nothing for {} s", options.stuck.as_secs()))),
    }
}

/// Asks and reads the whole answer. The connection is kept for the next request where the server keeps it.
pub async fn ask(options: &Options, kept: &mut Option<Connection>, body: &Json) -> Result<Answer, Problem> {
    let asked = Instant::now();
    let (path, text) = ("/v1/chat/completions", body.to_string());
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => Connection::open(options).await?,
    };
    connection.send(options, "POST", path, &text).await?;
    let streamed = body["stream"] == true;
    let head =
        if streamed { soon(options, "head", connection.head()).await? } else { connection.head().await? };
    let mut answer = Answer::default();
    if !streamed || head.status != 200 {
        let text = connection.body(&head).await?;
        match head.status {
            200 => {}
            429 | 503 => return Err(Problem::Refused(head.status)),
            status => return wrong(format!("status {status}: {text}")),
        }
        let json: Json = serde_json::from_str(&text)?;
        let choice = &json["choices"][0];
        answer.add(&choice["message"])?;
        answer.finish = choice["finish_reason"].as_str().map(str::to_string);
        answer.usage = json["usage"].clone();
    } else {
        read_stream(options, &mut connection, &mut answer, asked).await?;
        answer.first.get_or_insert(asked.elapsed());
    }
    if !head.close {
        *kept = Some(connection);
    }
    Ok(answer)
}

pub async fn read_stream(
    options: &Options,
    connection: &mut Connection,
    answer: &mut Answer,
    asked: Instant,
) -> Result<(), Problem> {
    let (mut done, mut last, mut rest) = (false, asked, String::new());
    while let Some(chunk) = soon(options, "stream", connection.chunk()).await? {
        rest.push_str(&chunk);
        while let Some((event, after)) = rest.split_once("\n\n") {
            if done {
                return wrong(format!("something after [DONE]: {event}"));
            }
            match event.strip_prefix("data: ") {
                Some("[DONE]") => done = true,
                Some(data) => answer.event(&serde_json::from_str(data)?, asked, &mut last)?,
                // Before the first token a client waits for its turn; after it, signs of life are not enough.
                None if event.starts_with(':') && (answer.pieces == 0 || last.elapsed() < options.stuck) => {}
                None if event.starts_with(':') => return Err(Problem::Stuck("only signs of life".into())),
                None => return wrong(format!("not an event: {event:?}")),
            }
            rest = after.into();
        }
    }
    if done && rest.is_empty() {
        Ok(())
    } else {
        wrong(format!("the stream ends without [DONE], with {rest:?}"))
    }
}
