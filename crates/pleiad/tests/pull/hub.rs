//! A hub that lives on this machine for the length of a test: lists, files, redirects to a second server as to a CDN,
//! ranges, tags, and whatever faults a test asks for.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

pub const REPO: &str = "org/model";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A question that came in.
#[derive(Clone, Debug)]
pub struct Seen {
    pub on_cdn: bool,
    pub method: String,
    pub path: String,
    /// First byte of the range that was asked for.
    pub start: Option<u64>,
    pub token: Option<String>,
}

impl Seen {
    pub fn is_list(&self) -> bool {
        self.path.starts_with("/api/")
    }
}

/// What to do instead of answering well.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Another status, with an error code of the hub.
    Status(u16, &'static str),
    /// End the connection after so many bytes of the body.
    Cut(usize),
    /// Send nothing any more after so many bytes of the body.
    Stall(usize),
    /// The whole file, whatever was asked for.
    NoRange,
    /// A part, but not the one that was asked for.
    WrongRange,
    /// Other bytes.
    Damage,
    /// To another place, with a status that keeps the method.
    Redirect(String),
    /// This body.
    Body(String),
}

pub struct File {
    pub bytes: Vec<u8>,
    /// Kept outside git, and sent by the second server.
    pub large: bool,
}

impl File {
    /// What names its contents.
    pub fn tag(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        if self.large {
            return hex(&Sha256::digest(&self.bytes));
        }
        let header = format!("blob {}\0", self.bytes.len());
        hex(&Sha1::new_with_prefix(header).chain_update(&self.bytes).finalize())
    }
}

type Faults = Box<dyn FnMut(&Seen) -> Option<Fault> + Send>;

struct State {
    files: BTreeMap<String, File>,
    /// Whether the list says sizes and hashes.
    blobs: bool,
    cdn: String,
    seen: Mutex<Vec<Seen>>,
    faults: Mutex<Faults>,
}

pub struct Hub {
    pub endpoint: String,
    state: Arc<State>,
}

/// Bytes that look like nothing.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A model in two shards, with much beside it that no model needs.
pub fn model() -> BTreeMap<String, File> {
    let shard = |n| format!("model-0000{n}-of-00002.safetensors");
    let index = json!({"weight_map": {"a": shard(1), "b": shard(2)}}).to_string();
    let small = |text: &str| File { bytes: text.as_bytes().to_vec(), large: false };
    let large = |len, seed| File { bytes: noise(len, seed), large: true };
    BTreeMap::from([
        ("config.json".into(), small("{\"model_type\": \"qwen3\"}")),
        ("chat_template.jinja".into(), small("{{ messages }}")),
        ("merges.txt".into(), small("")),
        ("model.safetensors.index.json".into(), small(&index)),
        (shard(1), large(700_001, 1)),
        (shard(2), large(300_007, 2)),
        ("tokenizer.json".into(), large(90_000, 3)),
        ("consolidated.safetensors".into(), large(1000, 4)),
        ("README.md".into(), small("# A model")),
        ("original/config.json".into(), small("{}")),
        ("original/model.safetensors".into(), large(1000, 5)),
        ("picture.png".into(), large(1000, 6)),
        ("pytorch_model.bin".into(), large(1000, 7)),
        ("model.gguf".into(), large(1000, 8)),
    ])
}

/// Those of [`model`] that a model needs.
pub const NEEDED: [&str; 7] = [
    "chat_template.jinja",
    "config.json",
    "merges.txt",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
];

/// How a server wraps its connections.
type Wrap = Arc<dyn Fn(TcpStream) -> Box<dyn Connection> + Send + Sync>;
pub trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

impl Hub {
    /// Serves [`model`].
    pub fn new() -> Hub {
        Hub::with(model(), true)
    }

    pub fn with(files: BTreeMap<String, File>, blobs: bool) -> Hub {
        Hub::wrapped(files, blobs, "http", Arc::new(|stream| Box::new(stream)))
    }

    pub fn wrapped(files: BTreeMap<String, File>, blobs: bool, scheme: &str, wrap: Wrap) -> Hub {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, cdn) = (listen(), listen());
        let address = |listener: &TcpListener| format!("{scheme}://{}", listener.local_addr().unwrap());
        let endpoint = address(&hub);
        let seen = Mutex::new(Vec::new());
        let faults: Mutex<Faults> = Mutex::new(Box::new(|_| None));
        let state = Arc::new(State { files, blobs, cdn: address(&cdn), seen, faults });
        for (listener, on_cdn) in [(hub, false), (cdn, true)] {
            let (state, wrap) = (state.clone(), wrap.clone());
            // They end with the process of the tests.
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (state, wrap) = (state.clone(), wrap.clone());
                    // An error means that the other side went away, as some tests want it.
                    thread::spawn(move || state.serve(wrap(stream), on_cdn));
                }
            });
        }
        Hub { endpoint, state }
    }

    /// Asks before every answer what is to go wrong with it.
    pub fn faults(&self, faults: impl FnMut(&Seen) -> Option<Fault> + Send + 'static) -> &Self {
        *self.state.faults.lock().unwrap() = Box::new(faults);
        self
    }

    /// Goes wrong the first time that a path ends with `end`.
    pub fn once(&self, end: &'static str, fault: Fault) -> &Self {
        let mut fault = Some(fault);
        self.faults(move |seen| if seen.path.ends_with(end) { fault.take() } else { None })
    }

    /// What was asked since the last time.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.seen.lock().unwrap())
    }

    pub fn file(&self, name: &str) -> &File {
        &self.state.files[name]
    }

    /// Where the second server has a file.
    pub fn cdn_path(&self, name: &str) -> String {
        format!("/cdn/{}", self.file(name).tag())
    }
}

impl State {
    fn serve(&self, stream: Box<dyn Connection>, on_cdn: bool) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (method, path) = (method.to_owned(), path.to_owned());
        let (mut start, mut token) = (None, None);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            let (name, value) = line.trim().split_once(':').unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "range" => {
                    start =
                        value.trim().strip_prefix("bytes=").and_then(|r| r.trim_end_matches('-').parse().ok())
                }
                "authorization" => token = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let seen = Seen { on_cdn, method, path, start, token };
        self.seen.lock().unwrap().push(seen.clone());
        let fault = self.faults.lock().unwrap()(&seen);
        self.answer(stream.get_mut(), &seen, fault)
    }

    fn answer(&self, out: &mut dyn Write, seen: &Seen, fault: Option<Fault>) -> std::io::Result<()> {
        match &fault {
            Some(Fault::Status(status, code)) => {
                return send(
                    out,
                    *status,
                    &[("X-Error-Code", code), ("X-Error-Message", "as the test wants it")],
                    b"no",
                );
            }
            Some(Fault::Redirect(to)) => return send(out, 307, &[("Location", to)], b""),
            Some(Fault::Body(text)) => return send(out, 200, &[], text.as_bytes()),
            _ => {}
        }
        if seen.is_list() {
            let list = self.list();
            return if matches!(fault, Some(Fault::Stall(_))) {
                stall()
            } else {
                send(out, 200, &[], list.as_bytes())
            };
        }
        let found = self.files.iter().find(|(name, file)| match seen.on_cdn {
            true => seen.path.starts_with(&format!("/cdn/{}?", file.tag())),
            false => seen.path == format!("/{REPO}/resolve/{COMMIT}/{name}"),
        });
        let Some((_, file)) = found else {
            return send(out, 404, &[("X-Error-Code", "EntryNotFound")], b"");
        };
        let (tag, size) = (format!("\"{}\"", file.tag()), file.bytes.len());
        if file.large && !seen.on_cdn {
            let to = format!("{}/cdn/{}?signature=secret", self.cdn, file.tag());
            let headers = [
                ("Location", to.as_str()),
                ("X-Linked-Etag", &tag),
                ("X-Linked-Size", &size.to_string()),
                ("ETag", "\"something else\""),
            ];
            return send(out, 302, &headers, b"");
        }
        let mut bytes = file.bytes.clone();
        let start = match fault {
            Some(Fault::NoRange) => None,
            Some(Fault::WrongRange) => Some(7),
            _ => seen.start,
        };
        if let Some(Fault::Damage) = fault {
            bytes[size / 2] ^= 1;
        }
        let from = start.unwrap_or(0) as usize;
        if from >= size.max(1) {
            return send(out, 416, &[], b"");
        }
        let range = format!("bytes {from}-{}/{size}", size.saturating_sub(1));
        let (status, mut headers) = (if start.is_some() { 206 } else { 200 }, vec![("ETag", tag.as_str())]);
        if start.is_some() {
            headers.push(("Content-Range", &range));
        }
        let body = &bytes[from..];
        let sent = match fault {
            Some(Fault::Cut(n) | Fault::Stall(n)) => n.min(body.len()),
            _ => body.len(),
        };
        head(out, status, &headers, body.len())?;
        if seen.method != "HEAD" {
            out.write_all(&body[..sent])?;
            out.flush()?;
        }
        if let Some(Fault::Stall(_)) = fault { stall() } else { Ok(()) }
    }

    fn list(&self) -> String {
        let sibling = |(name, file): (&String, &File)| {
            let size = file.bytes.len();
            match (self.blobs, file.large) {
                (false, _) => json!({"rfilename": name}),
                (true, false) => json!({"rfilename": name, "size": size, "blobId": file.tag()}),
                (true, true) => json!({
                    "rfilename": name, "size": size, "blobId": "0".repeat(40),
                    "lfs": {"sha256": file.tag(), "size": size, "pointerSize": 134},
                }),
            }
        };
        let siblings: Vec<_> = self.files.iter().map(sibling).collect();
        json!({"id": REPO, "sha": COMMIT, "siblings": siblings}).to_string()
    }
}

/// Longer than any timeout of the tests.
fn stall() -> std::io::Result<()> {
    thread::sleep(Duration::from_secs(60));
    Ok(())
}

fn head(out: &mut dyn Write, status: u16, headers: &[(&str, &str)], len: usize) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} Whatever\r\nContent-Length: {len}\r\nConnection: close\r\n");
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    out.write_all((text + "\r\n").as_bytes())
}

fn send(out: &mut dyn Write, status: u16, headers: &[(&str, &str)], body: &[u8]) -> std::io::Result<()> {
    head(out, status, headers, body.len())?;
    out.write_all(body)?;
    out.flush()
}
