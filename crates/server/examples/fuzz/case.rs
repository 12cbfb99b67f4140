//! One request: what is sent and what may come back.

use std::time::Duration;

use serde_json::Value as Json;

use crate::mutate::{break_bytes, mutated};
use crate::options::Options;
use crate::random::Random;
use crate::{bodies, protocol};

/// Bytes of a request that are printed.
const SHOWN: usize = 1500;

/// What a client does.
#[derive(Clone)]
pub enum Act {
    Send(Vec<u8>),
    /// Sends the same again and again, so many times or until there is an answer.
    Repeat(Vec<u8>, usize),
    /// Sends byte by byte with pauses between them.
    Drip(Vec<u8>, Duration),
    Pause(Duration),
    /// Goes away.
    Leave,
}

/// How much the server must make of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// HTTP in order: there is an answer, and an error has the shape of its API.
    Http,
    /// Perhaps not HTTP: an answer without a body, or a closed connection, will do.
    Garbage,
}

pub struct Case {
    /// Its number, with `slow` before it where it is one of those.
    pub name: String,
    pub kind: &'static str,
    pub acts: Vec<Act>,
    pub manner: Manner,
    /// The path as the server must understand it.
    pub path: String,
    /// Whether an error has no body, as with HEAD.
    pub bodiless: bool,
    /// Whether it cannot be answered with 2xx.
    pub hopeless: bool,
    /// Whether the answer may take longer than anyone waits: then the client goes away without complaint.
    pub long: bool,
    /// Bytes of the answer after which the client goes away.
    pub leave_after: Option<usize>,
}

impl Case {
    pub fn new(kind: &'static str, path: &str, manner: Manner, acts: Vec<Act>) -> Self {
        Self {
            name: String::new(),
            kind,
            acts,
            manner,
            path: path.into(),
            bodiless: false,
            hopeless: false,
            long: false,
            leave_after: None,
        }
    }

    pub fn shown(&self) -> String {
        let act = |act: &Act| match act {
            Act::Send(bytes) => format!("> {}", escaped(bytes)),
            Act::Repeat(bytes, times) => format!("> {times} times: {}", escaped(bytes)),
            Act::Drip(bytes, pause) => format!("> a byte per {pause:?}: {}", escaped(bytes)),
            Act::Pause(time) => format!("> pause {time:?}"),
            Act::Leave => "> leave".into(),
        };
        self.acts.iter().map(act).collect::<Vec<String>>().join("\n")
    }
}

/// Bytes as text, the long ones cut.
pub fn escaped(bytes: &[u8]) -> String {
    let text = bytes[..bytes.len().min(SHOWN)].escape_ascii().to_string().replace("\\\"", "\"");
    if bytes.len() > SHOWN { format!("{text}... ({} bytes)", bytes.len()) } else { text }
}

/// A request in order.
pub fn request(options: &Options, method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let key = options.key.as_ref().map_or(String::new(), |key| format!("authorization: Bearer {key}\r\n"));
    let (host, length) = (&options.host, body.len());
    let head =
        format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{key}{headers}content-length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// The request of a number.
pub fn case(options: &Options, number: usize) -> Case {
    let mut random = Random(options.seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ number as u64);
    random.next();
    let random = &mut random;
    let case = match random.below(100) {
        0..45 => mutated_json(options, random),
        45..60 => broken_bytes(options, random),
        60..70 => protocol::routed(options, random),
        70..85 => protocol::garbage(options, random),
        85..90 => protocol::large(options, random),
        _ => dropped(options, random),
    };
    Case { name: number.to_string(), ..case }
}

/// A sender that takes its time.
pub fn slow_case(options: &Options, number: usize) -> Case {
    let mut random = Random(options.seed ^ 0x51_0000 ^ number as u64);
    Case { name: format!("slow {number}"), ..protocol::slow(options, &mut random, number) }
}

/// A body that was valid before something in it became something else.
fn mutated_json(options: &Options, random: &mut Random) -> Case {
    let (path, body) = bodies::valid(random);
    let limit = body["max_tokens"].clone();
    let text = mutated(random, body);
    let bytes = request(options, "POST", path, "content-type: application/json\r\n", text.as_bytes());
    Case {
        long: is_unlimited(text.as_bytes(), &limit),
        ..Case::new("fuzzed JSON", path, Manner::Http, vec![Act::Send(bytes)])
    }
}

/// A body that is no JSON any more, most of the time.
fn broken_bytes(options: &Options, random: &mut Random) -> Case {
    let (path, body) = bodies::valid(random);
    let (broken, hopeless) = break_bytes(random, body.to_string().into_bytes());
    let long = is_unlimited(&broken, &body["max_tokens"]);
    let bytes = request(options, "POST", path, "content-type: application/json\r\n", &broken);
    Case { hopeless, long, ..Case::new("broken bytes", path, Manner::Http, vec![Act::Send(bytes)]) }
}

/// Whether a body might be answered with more tokens than were meant.
fn is_unlimited(body: &[u8], limit: &Json) -> bool {
    serde_json::from_slice::<Json>(body).is_ok_and(|body| body["max_tokens"] != *limit)
}

/// A client that goes away at some point.
fn dropped(options: &Options, random: &mut Random) -> Case {
    let (path, mut body) = bodies::valid(random);
    body["max_tokens"] = random.between(1, 200).into();
    body["stream"] = random.percent(50).into();
    let mut bytes = request(options, "POST", path, "", body.to_string().as_bytes());
    let mut acts = Vec::new();
    let mut leave_after = None;
    match random.below(3) {
        0 => {
            bytes.truncate(random.below(bytes.len() as u64) as usize);
            acts.extend([Act::Send(bytes), Act::Leave]);
        }
        1 => {
            let pause = Duration::from_millis(random.below(300));
            acts.extend([Act::Send(bytes), Act::Pause(pause), Act::Leave]);
        }
        _ => {
            acts.push(Act::Send(bytes));
            leave_after = Some(random.between(1, 2000) as usize);
        }
    }
    Case { leave_after, long: true, ..Case::new("dropped", path, Manner::Http, acts) }
}
