//! What a client does on its connection, and what it hears.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{sleep, timeout};

use crate::case::{Act, Case, Manner, escaped};
use crate::options::Options;

/// Bytes of an answer that are read.
const MOST: usize = 8 << 20;
/// How long an answer that may be long is listened to, and one to what may be no request.
const LISTENED: Duration = Duration::from_secs(10);
const LISTENED_AFTER_GARBAGE: Duration = Duration::from_secs(3);
/// Time beyond the limit for the server's own limits to take effect.
const GRACE: Duration = Duration::from_secs(15);

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With a whole response.
    Complete,
    /// The server closed the connection.
    Closed,
    /// The client went away.
    Left,
    /// Nothing came for too long.
    Silent,
    /// There was no connection.
    Unreachable,
}

/// What came back.
pub struct Outcome {
    pub end: End,
    pub bytes: Vec<u8>,
    pub response: Option<Response>,
}

/// The first response that is more than `100 Continue`.
pub struct Response {
    pub status: u16,
    pub json: bool,
    pub body: Vec<u8>,
    complete: bool,
}

impl Outcome {
    pub fn in_short(&self) -> String {
        match &self.response {
            Some(response) => format!("{} {:?}", response.status, self.end),
            None => format!("{:?}", self.end),
        }
    }

    pub fn shown(&self) -> String {
        format!("< {:?}: {}", self.end, escaped(&self.bytes))
    }
}

/// Does what the case says and listens meanwhile.
pub async fn exchange(options: &Options, case: &Case) -> Outcome {
    let mut bytes = Vec::new();
    let end = match timeout(options.limit, TcpStream::connect(&options.host)).await {
        Ok(Ok(stream)) => talk(options, case, stream, &mut bytes).await,
        _ => End::Unreachable,
    };
    let response = parse(&bytes, case.bodiless);
    Outcome { end, bytes, response }
}

async fn talk(options: &Options, case: &Case, stream: TcpStream, bytes: &mut Vec<u8>) -> End {
    let (mut reader, mut writer) = stream.into_split();
    let listening = listen(&mut reader, case, bytes);
    tokio::pin!(listening);
    let left = tokio::select! {
        end = &mut listening => return end,
        left = timeout(options.limit + GRACE, act(&mut writer, &case.acts)) => left,
    };
    match left {
        // A server must not put up with a slow sender for so long.
        Err(_) => return End::Silent,
        Ok(Ok(true)) => return End::Left,
        // Who cannot send any more may still have an answer.
        Ok(Ok(false) | Err(_)) => {}
    }
    let limit = match (case.long, case.manner) {
        (false, _) => options.limit + GRACE,
        (true, Manner::Http) => LISTENED,
        (true, Manner::Garbage) => LISTENED_AFTER_GARBAGE,
    };
    match timeout(limit, listening).await {
        Ok(end) => end,
        Err(_) if case.long => End::Left,
        Err(_) => End::Silent,
    }
}

/// Says whether the client goes away at the end.
async fn act(writer: &mut OwnedWriteHalf, acts: &[Act]) -> io::Result<bool> {
    for act in acts {
        match act {
            Act::Send(bytes) => writer.write_all(bytes).await?,
            Act::Repeat(bytes, times) => {
                for _ in 0..*times {
                    writer.write_all(bytes).await?;
                }
            }
            Act::Drip(bytes, pause) => {
                for byte in bytes {
                    writer.write_all(&[*byte]).await?;
                    sleep(*pause).await;
                }
            }
            Act::Pause(time) => sleep(*time).await,
            Act::Leave => return Ok(true),
        }
    }
    Ok(false)
}

async fn listen(reader: &mut OwnedReadHalf, case: &Case, bytes: &mut Vec<u8>) -> End {
    let mut buffer = [0; 1 << 14];
    loop {
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return End::Closed,
            Ok(count) => bytes.extend(&buffer[..count]),
        }
        if parse(bytes, case.bodiless).is_some_and(|response| response.complete) {
            return End::Complete;
        }
        if bytes.len() >= case.leave_after.unwrap_or(MOST) {
            return End::Left;
        }
    }
}

fn parse(bytes: &[u8], bodiless: bool) -> Option<Response> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, rest) = (String::from_utf8_lossy(&bytes[..end]), &bytes[end + 4..]);
    let status: u16 = head.split(' ').nth(1)?.parse().ok()?;
    if status < 200 {
        return parse(rest, bodiless);
    }
    let head = head.to_ascii_lowercase();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let length: Option<usize> = header("content-length:").and_then(|length| length.parse().ok());
    let (body, complete) = if bodiless || status == 204 || status == 304 {
        (Vec::new(), true)
    } else if header("transfer-encoding:") == Some("chunked") {
        unchunked(rest)
    } else {
        let length = length.unwrap_or(usize::MAX);
        (rest[..rest.len().min(length)].to_vec(), rest.len() >= length)
    };
    let json = header("content-type:").is_some_and(|kind| kind.starts_with("application/json"));
    Some(Response { status, json, body, complete })
}

/// The chunks that are there, and whether the last one is.
fn unchunked(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    loop {
        let line = rest.windows(2).position(|two| two == b"\r\n");
        let size =
            line.and_then(|end| usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok());
        let (Some(line), Some(size)) = (line, size) else { return (body, false) };
        let Some(chunk) = rest.get(line + 2..line + 2 + size) else { return (body, false) };
        if size == 0 {
            return (body, true);
        }
        body.extend(chunk);
        rest = rest.get(line + 2 + size + 2..).unwrap_or_default();
    }
}
