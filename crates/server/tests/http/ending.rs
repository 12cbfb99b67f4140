//! The end of a server.

use std::time::{Duration, Instant};

use serde_json::json;
use server::Options;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::client::{options, start, until};
use crate::fake::{Fake, Play};

fn hello(stream: bool) -> String {
    json!({"stream": stream, "max_tokens": 500, "messages": [{"role": "user", "content": "Hello"}]})
        .to_string()
}

#[tokio::test]
async fn running_answers_are_finished_and_nothing_new_is_taken() {
    let play = Play { pause: Duration::from_millis(30), ..Play::text("one two three four five six seven") };
    let mut server = start(options(), Fake::new(9, move |_| play.clone()));
    let streamed = server.open(&server.request("POST", "/v1/chat/completions", &[], &hello(true))).await;
    let whole = server.open(&server.request("POST", "/v1/messages", &[], &hello(false))).await;
    until("both run", || server.fake.running() == 2).await;
    server.stop();
    let address = server.address;
    // A moment until the server has heard of it.
    let mut refused = false;
    for _ in 0..100 {
        match TcpStream::connect(address).await {
            Err(_) => refused = true,
            Ok(_) => tokio::time::sleep(Duration::from_millis(2)).await,
        }
        if refused {
            break;
        }
    }
    assert!(refused, "it still listens");
    let streamed = server.rest(streamed).await;
    assert!(streamed.body.ends_with("data: [DONE]\n\n"), "{streamed:?}");
    assert!(server.rest(whole).await.body.contains("seven"));
    server.ended().await;
}

#[tokio::test]
async fn answers_that_take_too_long_are_cut_short() {
    let play = Play { pause: Duration::from_secs(60), ..Play::text("never said") };
    let options = Options { drain: Duration::from_millis(100), ..options() };
    let mut server = start(options, Fake::new(9, move |_| play.clone()));
    let mut held = Vec::new();
    for (path, stream) in [
        ("/v1/chat/completions", true),
        ("/v1/chat/completions", false),
        ("/v1/messages", true),
        ("/v1/messages", false),
    ] {
        held.push((stream, server.open(&server.request("POST", path, &[], &hello(stream))).await));
    }
    until("all run", || server.fake.running() == 4).await;
    let started = Instant::now();
    server.stop();
    for (stream, connection) in held {
        let reply = server.rest(connection).await;
        assert_eq!(reply.status, if stream { 200 } else { 503 });
        assert!(reply.body.contains("shutting down"), "{reply:?}");
    }
    server.ended().await;
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn idle_connections_do_not_hold_the_server() {
    let mut server = start(options(), Fake::new(9, |_| Play::text("Hi")));
    let mut idle = server.open("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let silent = server.open("").await;
    let mut head = [0; 12];
    idle.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let started = Instant::now();
    server.stop();
    server.ended().await;
    assert!(started.elapsed() < Duration::from_secs(2));
    drop((idle, silent));
}
