//! `pleiad serve` with the model in the box, as a client sees it.
#![cfg(feature = "box")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server on a port of its own; gone when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleiad"));
        command.args(["serve", "--port", "0", "--backend", "cpu"]).args(flags);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program");
        let lines = BufReader::new(child.stderr.take().expect("its notes")).lines();
        let address = lines.map_while(Result::ok).find_map(|line| {
            let (_, rest) = line.split_once("http://")?;
            rest.split('/').next().map(str::to_owned)
        });
        Self { child, address: address.expect("a line with the address") }
    }

    /// Status and body of the answer to a request.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        let (host, length) = (&self.address, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n");
        stream
            .write_all(format!("{head}{headers}connection: close\r\n\r\n{body}").as_bytes())
            .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, answer.split_once("\r\n\r\n").expect("a body").1.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SUM: &str =
    r#"{"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "max_tokens": 20}"#;

#[test]
fn both_apis_answer() {
    let server = Server::start(&[]);
    assert_eq!(server.ask("GET", "/health", "", "").0, 200);
    let (status, body) = server.ask("POST", "/v1/chat/completions", "", SUM);
    assert!(status == 200 && body.contains(r#""content":"42""#), "{status} {body}");
    let (status, body) =
        server.ask("POST", "/v1/messages", "", &SUM.replacen('{', r#"{"model": "box", "#, 1));
    assert!(status == 200 && body.contains(r#""text":"42""#), "{status} {body}");
    let (status, body) = server.ask("POST", "/v1/chat/completions", "", r#"{"messages": 5}"#);
    assert!(status == 400 && body.contains("must be a list"), "{status} {body}");
}

#[test]
fn a_drafting_head_guesses_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny");
    let model = model.to_str().unwrap();
    let synth = ["synth", "tiny", model, "--drafter"];
    assert!(Command::new(env!("CARGO_BIN_EXE_pleiad")).args(synth).status().unwrap().success());
    let answer = |flags: &[&str]| {
        let server = Server::start(&[&[model], flags].concat());
        let ask = r#"{"prompt": "Hello", "temperature": 1, "seed": 3, "max_tokens": 60}"#;
        let (status, body) = server.ask("POST", "/v1/completions", "", ask);
        assert_eq!(status, 200, "{body}");
        let text = body.split(r#""text":"#).nth(1).expect("a text").split(r#""finish_reason""#).next();
        let metrics = server.ask("GET", "/metrics", "", "").1;
        let guessed = metrics.lines().find_map(|line| line.strip_prefix("pleiad_guessed_tokens_total "));
        (text.expect("a text").to_owned(), guessed.expect("a count").to_owned())
    };
    let (with, guessed) = answer(&["--numerics", "exact"]);
    let (without, none) = answer(&["--numerics", "exact", "--no-speculation"]);
    assert_eq!((with, none.as_str()), (without, "0"));
    assert_ne!(guessed, "0");
}

#[test]
fn a_schema_is_kept_to() {
    let server = Server::start(&["--no-speculation"]);
    let form = r#""response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["left", "right"]}}}, "#;
    let (status, body) =
        server.ask("POST", "/v1/chat/completions", "", &SUM.replacen('{', &format!("{{{form}"), 1));
    assert!(
        status == 200 && (body.contains(r#"\"left\""#) || body.contains(r#"\"right\""#)),
        "{status} {body}"
    );
}

#[test]
fn a_key_is_asked_for() {
    let server = Server::start(&["--api-key", "secret"]);
    assert_eq!(server.ask("POST", "/v1/chat/completions", "", SUM).0, 401);
    assert_eq!(server.ask("POST", "/v1/chat/completions", "x-api-key: secret\r\n", SUM).0, 200);
}

#[cfg(unix)]
#[test]
fn told_to_end_it_keeps_its_chats() {
    let folder = tempfile::tempdir().expect("a folder");
    let states = folder.path().join("states");
    let mut server = Server::start(&["--prefix-folder", states.to_str().expect("a path")]);
    assert_eq!(server.ask("POST", "/v1/chat/completions", "", SUM).0, 200);
    let told = Command::new("kill").arg(server.child.id().to_string()).status().expect("kill");
    assert!(told.success() && server.child.wait().expect("an end").success());
    assert_eq!(std::fs::read_dir(states).expect("its folder").count(), 1);
}

#[test]
fn experts_on_disk_give_the_same_answers_and_their_loss_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../box/model");
    for file in std::fs::read_dir(model).expect("the model").map_while(Result::ok) {
        std::fs::copy(file.path(), folder.path().join(file.file_name())).expect("a copy");
    }
    let model = folder.path().to_str().expect("a path");
    let server = Server::start(&[model, "--memory", "305M", "--context", "512"]);
    let (status, body) = server.ask("POST", "/v1/chat/completions", "", SUM);
    assert!(status == 200 && body.contains(r#""content":"42""#), "{status} {body}");

    let weights = std::fs::File::options().write(true).open(folder.path().join("model.safetensors"));
    weights.expect("the weights").set_len(100_000).expect("a shorter file");
    for _ in 0..3 {
        let other =
            SUM.replace("What is 17 + 25?", "Tell me a story about a lighthouse and a very old ship.");
        let (status, body) = server.ask("POST", "/v1/chat/completions", "", &other);
        assert!(status == 500 && body.contains("model.safetensors: the file has been"), "{status} {body}");
    }
    assert_eq!(server.ask("GET", "/health", "", "").0, 200);
}

#[test]
fn what_cannot_work_is_said_at_once() {
    let taken = Server::start(&[]);
    let port = taken.address.rsplit(':').next().expect("a port").to_owned();
    for (flags, words) in [
        (["--port", port.as_str()], "choose another --port"),
        (["--cors", "example.com"], "example.com"),
        (["--api-key", ""], "key"),
        (["--slots", "0"], "above 0"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_pleiad"))
            .args(["serve", "--backend", "cpu"])
            .args(flags)
            .output()
            .expect("the program");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(words), "{flags:?}: {said}");
    }
}
