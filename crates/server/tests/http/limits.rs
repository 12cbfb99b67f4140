//! How much, how long, how many; and clients that go away.

use std::time::{Duration, Instant};

use serde_json::json;
use server::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{options, start, until};
use crate::fake::{Fake, Play};

fn hello(stream: bool) -> String {
    json!({"stream": stream, "max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}).to_string()
}

fn slow() -> Play {
    Play { pause: Duration::from_secs(60), ..Play::text("never said") }
}

#[tokio::test]
async fn bodies_that_are_too_long() {
    let server = start(Options { body_limit: 1000, ..options() }, Fake::new(9, |_| Play::text("Hi")));
    let long = format!("{{\"messages\": \"{}\"}}", "x".repeat(2000));
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"] {
        let reply = server.send("POST", path, &[], &long).await;
        assert_eq!(reply.status, 413, "{path}: {reply:?}");
        assert!(reply.json()["error"]["message"].as_str().unwrap().contains("longer than"), "{path}");
    }
    // Also one that does not say in advance how long it is.
    let chunked = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    assert_eq!(server.rest(server.open(&chunked).await).await.status, 413);
    assert_eq!(server.send("POST", "/v1/messages", &[], &hello(false)).await.status, 200);
}

#[tokio::test]
async fn heads_that_are_too_long() {
    let server = start(options(), Fake::new(9, |_| Play::text("Hi")));
    let long = "x".repeat(100 << 10);
    assert_eq!(server.send("GET", "/health", &[("x-long", &long)], "").await.status, 431);
    let many: Vec<String> = (0..200).map(|n| format!("x-{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(server.send("GET", "/health", &many, "").await.status, 431);
    assert_eq!(server.send("GET", "/health", &[], "").await.status, 200);
}

#[tokio::test]
async fn slow_senders() {
    let brief = Duration::from_millis(100);
    let options = Options { header_timeout: brief, body_timeout: brief, ..options() };
    let server = start(options, Fake::new(9, |_| Play::text("Hi")));
    let started = Instant::now();
    let heads = ["", "POST /v1/chat/compl", "GET /health HTTP/1.1\r\nHost: localhost\r\n"];
    for head in heads {
        let reply = server.rest(server.open(head).await).await;
        assert!(matches!(reply.status, 0 | 408), "{head:?}: {reply:?}");
    }
    let half = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"mess";
    assert_eq!(server.rest(server.open(half).await).await.status, 408);
    // A connection that is kept open but says nothing more.
    let idle = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(server.rest(server.open(idle).await).await.status, 200);
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn more_connections_than_there_may_be() {
    let server = start(Options { connections: 2, ..options() }, Fake::new(9, |_| slow()));
    let request = server.request("POST", "/v1/chat/completions", &[], &hello(true));
    let held = [server.open(&request).await, server.open(&request).await];
    until("both run", || server.fake.running() == 2).await;
    let reply = server.get("/health").await;
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")));
    drop(held);
    until("both end", || server.fake.running() == 0).await;
    // The connections themselves end a moment after their jobs.
    for _ in 0..100 {
        if server.get("/health").await.status == 200 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no connection is free");
}

#[tokio::test]
async fn more_requests_than_may_wait() {
    let server = start(options(), Fake::new(1, |_| slow()));
    let held = server.open(&server.request("POST", "/v1/chat/completions", &[], &hello(true))).await;
    until("it runs", || server.fake.running() == 1).await;
    for (path, code) in
        [("/v1/chat/completions", "rate_limit_exceeded"), ("/v1/messages", "rate_limit_error")]
    {
        let reply = server.send("POST", path, &[], &hello(false)).await;
        assert_eq!((reply.status, reply.header("retry-after")), (429, Some("2")), "{path}");
        assert!(reply.body.contains(code) && reply.body.contains("busy"), "{}", reply.body);
    }
    drop(held);
    // Two answers where there is room for one: neither is left behind.
    until("it ends", || server.fake.running() == 0).await;
    let two = json!({"prompt": ["a", "b"]}).to_string();
    assert_eq!(server.send("POST", "/v1/completions", &[], &two).await.status, 429);
    until("none is left", || server.fake.running() == 0).await;
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_answer() {
    let silent = Play { prompt: Duration::from_secs(60), ..Play::text("never said") };
    for play in [slow(), silent] {
        let server = start(options(), Fake::new(9, move |_| play.clone()));
        for (count, (path, stream)) in [
            ("/v1/chat/completions", true),
            ("/v1/chat/completions", false),
            ("/v1/messages", true),
            ("/v1/messages", false),
        ]
        .into_iter()
        .enumerate()
        {
            let held = server.open(&server.request("POST", path, &[], &hello(stream))).await;
            until("it runs", || server.fake.running() == 1).await;
            drop(held);
            until("it is cancelled", || server.fake.cancelled() == count + 1).await;
        }
    }
}

#[tokio::test]
async fn signs_of_life_while_a_prompt_is_computed() {
    let play = Play { prompt: Duration::from_millis(200), ..Play::text("Hi") };
    let server = start(
        Options { keep_alive: Duration::from_millis(50), ..options() },
        Fake::new(9, move |_| play.clone()),
    );
    let reply = server.send("POST", "/v1/chat/completions", &[], &hello(true)).await;
    assert!(reply.body.matches(": keep-alive\n\n").count() >= 2, "{}", reply.body);
    assert!(reply.body.ends_with("data: [DONE]\n\n"));
    let reply = server.send("POST", "/v1/messages", &[], &hello(true)).await;
    assert!(reply.body.matches("event: ping\n").count() >= 3, "{}", reply.body);
    assert!(reply.body.starts_with("event: message_start\n"));
}

#[tokio::test]
async fn a_client_that_takes_nothing_counts_as_gone() {
    // More than the buffers of two sockets hold, and slower than they fill.
    let long = Play { pause: Duration::from_micros(20), ..Play::text(&"word ".repeat(30_000)) };
    let options = Options { stall_timeout: Duration::from_millis(100), ..options() };
    let server = start(options, Fake::new(9, move |_| long.clone()));
    let body = json!({
        "stream": true, "logprobs": true, "top_logprobs": 20, "messages": [{"role": "user", "content": "x"}],
    });
    let held = server.open(&server.request("POST", "/v1/chat/completions", &[], &body.to_string())).await;
    until("it is given up", || server.fake.cancelled() == 1).await;
    drop(held);
}

#[tokio::test]
async fn several_requests_on_one_connection() {
    let server = start(options(), Fake::new(9, |_| Play::text("Hi")));
    let body = hello(false);
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = server.open(&request).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.write_all(server.request("GET", "/health", &[], "").as_bytes()).await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&all).matches("HTTP/1.1 200 OK").count(), 3);
}
