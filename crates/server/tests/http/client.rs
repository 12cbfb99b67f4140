//! A server for a test, and just enough of a client for it: what goes over the wire is what tests are about.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use server::{Options, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::fake::{Fake, Play};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    pub fake: Arc<Fake>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), server::Error>>,
}

/// Settings for tests: any free port.
pub fn options() -> Options {
    Options { address: ([127, 0, 0, 1], 0).into(), drain: Duration::from_secs(5), ..Options::default() }
}

/// Starts a server with these settings over this fake.
pub fn start(options: Options, fake: Arc<Fake>) -> Running {
    let server = Server::bind(options, fake.model()).unwrap();
    let address = server.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(server.serve(async {
        let _ = stopped.await;
    }));
    Running { address, fake, stop: Some(stop), task }
}

/// A server that says the same to everything.
pub fn saying(text: &str) -> Running {
    let play = Play::text(text);
    start(options(), Fake::new(100, move |_| play.clone()))
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value))
    }

    /// The events of a stream: names, where they have them, and data.
    pub fn events(&self) -> Vec<(Option<String>, String)> {
        let blocks = self.body.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
        blocks
            .map(|block| {
                let line = |prefix: &str| block.lines().find_map(|line| line.strip_prefix(prefix));
                (line("event: ").map(Into::into), line("data: ").unwrap_or_default().into())
            })
            .collect()
    }

    /// The data of all events that are JSON.
    pub fn data(&self) -> Vec<Json> {
        self.events().iter().filter_map(|(_, data)| serde_json::from_str(data).ok()).collect()
    }

    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunked(body) } else { body.into() };
        Self { status, head: head.into(), body }
    }
}

/// A body without its chunks' lengths; tests' texts are short enough to be whole.
fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap_or(0);
        // A chunk may end in the middle of what a dropped connection left.
        let Some(chunk) = rest.get(..length).filter(|chunk| !chunk.is_empty()) else { break };
        whole += chunk;
        body = rest[length..].trim_start_matches("\r\n");
    }
    whole
}

impl Running {
    /// A connection on which this has been sent.
    pub async fn open(&self, sent: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream
    }

    /// Everything the server says on a connection until it closes it.
    pub async fn rest(&self, mut stream: TcpStream) -> Reply {
        let mut bytes = Vec::new();
        // A reset is an end too.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes))
            .await
            .expect("the server closes the connection");
        Reply::parse(&bytes)
    }

    /// The text of a request.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
        let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        text + "\r\n" + body
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.rest(self.open(&self.request(method, path, headers, body)).await).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Json) -> Reply {
        self.send("POST", path, &[], &body.to_string()).await
    }

    /// Tells the server to end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until the server has ended.
    pub async fn ended(mut self) {
        self.stop();
        timeout(PATIENCE, self.task).await.expect("the server ends").unwrap().unwrap();
    }
}

/// Waits until something is so.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not so after 10 s");
}
