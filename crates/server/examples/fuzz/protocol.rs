//! Requests that are wrong as HTTP: paths, methods, headers, framing, size, pace.

use std::time::Duration;

use crate::bodies;
use crate::case::{Act, Case, Manner, request};
use crate::options::Options;
use crate::random::Random;

const PATHS: [&str; 20] = [
    "/",
    "/health",
    "/metrics",
    "/v1/models",
    "/v1/models/any",
    "/v1/models/%ff%00",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/messages/batches",
    "/v1/embeddings",
    "/v1/chat/completions/",
    "/V1/CHAT/COMPLETIONS",
    "/v1//chat/completions",
    "/v1/../../etc/passwd",
    "/v1/chat/completions?a=b&%zz",
    "/favicon.ico",
    "/%2e%2e/%00",
    "/index.html",
];
const METHODS: [&str; 9] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW"];
const TYPES: [&str; 7] = [
    "",
    "content-type: text/plain\r\n",
    "content-type: application/xml\r\n",
    "content-type: multipart/form-data; boundary=x\r\n",
    "content-type: application/json; charset=utf-16\r\n",
    "content-type: ;;;\r\n",
    "content-encoding: gzip\r\naccept: image/png\r\nexpect: 100-continue\r\n",
];

/// HTTP in order, but perhaps not what is at the path.
pub fn routed(options: &Options, random: &mut Random) -> Case {
    let (path, method) = (random.pick(&PATHS), random.pick(&METHODS));
    let (_, mut body) = bodies::valid(random);
    body["stream"] = false.into();
    let mut headers = random.pick(&TYPES).to_string();
    if random.percent(20) {
        headers.push_str("origin: http://elsewhere.example\r\naccess-control-request-method: POST\r\n");
    }
    let bytes = match method {
        "GET" | "HEAD" | "TRACE" => request(options, method, path, &headers, b""),
        _ => request(options, method, path, &headers, body.to_string().as_bytes()),
    };
    let mut case = Case::new("path and method", path, Manner::Http, vec![Act::Send(bytes)]);
    case.bodiless = method == "HEAD";
    case
}

/// Heads that break the rules of HTTP.
pub fn garbage(options: &Options, random: &mut Random) -> Case {
    let (path, mut body) = bodies::valid(random);
    body["stream"] = false.into();
    let body = body.to_string();
    let (host, length) = (&options.host, body.len());
    let post = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\n");
    let whole = |headers: &str| format!("{post}{headers}content-length: {length}\r\n\r\n{body}").into_bytes();
    // A head, and a body in chunks as given.
    let chunked = |headers: &str, chunks: &str| format!("{post}{headers}\r\n{chunks}").into_bytes();
    let chunk = format!("{length:x}\r\n{body}\r\n");
    let encoding = "transfer-encoding: chunked\r\n";
    let bytes = match random.below(32) {
        0 => (0..random.between(1, 3000)).map(|_| random.next() as u8).collect(),
        1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        2 => [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(), &[7; 300]].concat(),
        3 => format!("POST {path}\r\n\r\n").into_bytes(),
        4 => format!(
            "POST {path} HTTP/{}\r\nhost: {host}\r\n\r\n",
            random.pick(&["3.0", "0.9", "1.10", "x", ""])
        )
        .into_bytes(),
        5 => format!("{post}content-length: {length}\r\n\r\n{body}").replace("\r\n", "\n").into_bytes(),
        6 => whole(&format!("x-long: {}\r\n", "a".repeat(1 << random.between(12, 18)))),
        7 => whole(&"x-many: 1\r\n".repeat(1 << random.between(4, 13))),
        8 => whole("x-nul: a\0b\r\n"),
        9 => whole("x-control: \x01\x02\x7f\r\n"),
        10 => whole("no colon here\r\n"),
        11 => whole(": no name\r\n"),
        12 => whole("x folded: a\r\n b\r\n"),
        13 => whole("x-space : a\r\n"),
        14 => whole(&format!("host: {host}\r\nhost: elsewhere.example\r\n")),
        15 => format!("POST {path} HTTP/1.1\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes(),
        16 => {
            let wrong = ["-1", "abc", "1e3", "18446744073709551616", "0x10", "", "+5", "5 5", "5, 6"];
            format!("{post}content-length: {}\r\n\r\n{body}", random.pick(&wrong)).into_bytes()
        }
        17 => whole(&format!("content-length: {}\r\n", length.saturating_sub(random.below(3) as usize))),
        18 => whole(&format!("content-length: {length}\r\n")),
        // Which of the two lengths counts, a server and a proxy before it may see differently.
        19 => chunked(&format!("content-length: 4\r\n{encoding}"), &format!("{chunk}0\r\n\r\n")),
        20 => chunked(
            &format!("{encoding}content-length: 4\r\n"),
            "0\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        ),
        21 => {
            let wrong = [
                "xchunked",
                "identity",
                "chunked, identity",
                "chunked\r\ntransfer-encoding: x",
                "\x0bchunked",
                "gzip, chunked",
            ];
            chunked(&format!("transfer-encoding: {}\r\n", random.pick(&wrong)), &format!("{chunk}0\r\n\r\n"))
        }
        22 => {
            let wrong = ["zz", "-1", "ffffffffffffffffff", "", " ", "0x5", "7fffffffffffffff", "1 1"];
            chunked(encoding, &format!("{}\r\n{body}\r\n0\r\n\r\n", random.pick(&wrong)))
        }
        23 => chunked(
            encoding,
            &format!("{length:x};{}\r\n{body}\r\n0\r\n\r\n", "e=1;".repeat(1 << random.between(1, 15))),
        ),
        24 => chunked(
            encoding,
            &format!("{chunk}0\r\n{}\r\n", "x-trailer: 1\r\n".repeat(1 << random.between(0, 13))),
        ),
        25 => chunked(encoding, &format!("{length:x}\r\n{body}XX0\r\n\r\n")),
        26 => {
            let pieces: String = body.chars().map(|c| format!("{:x}\r\n{c}\r\n", c.len_utf8())).collect();
            chunked(encoding, &format!("{pieces}0\r\n\r\n"))
        }
        27 => [whole(""), whole(""), b"GARBAGE\r\n\r\n".to_vec()].concat(),
        28 => format!("POST /{} HTTP/1.1\r\nhost: {host}\r\n\r\n", "a".repeat(1 << random.between(8, 18)))
            .into_bytes(),
        29 => format!(
            "GET {} HTTP/1.1\r\nhost: {host}\r\n\r\n",
            random.pick(&["*", "http://elsewhere.example/", "health", "/a b", "//", "/\u{e9}"])
        )
        .into_bytes(),
        30 => format!("CONNECT elsewhere.example:443 HTTP/1.1\r\nhost: {host}\r\n\r\n").into_bytes(),
        _ => whole("upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: x\r\n"),
    };
    // Where a server rightly waits for more, this client does not: the slow ones do.
    Case { long: true, ..Case::new("garbage", path, Manner::Garbage, vec![Act::Send(bytes)]) }
}

/// Bodies that are longer than allowed, or say so.
pub fn large(options: &Options, random: &mut Random) -> Case {
    let (path, _) = bodies::valid(random);
    let host = &options.host;
    let post = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n");
    let announced =
        |length: u64| format!("{post}content-length: {length}\r\n\r\n{{\"messages\": \"").into_bytes();
    let megabyte = vec![b'a'; 1 << 20];
    match random.below(10) {
        0 => {
            let acts = vec![Act::Send(announced(20 << 20)), Act::Repeat(megabyte, 21)];
            Case { hopeless: true, ..Case::new("large", path, Manner::Garbage, acts) }
        }
        1 => {
            let chunk = [b"100000\r\n".as_slice(), &megabyte, b"\r\n"].concat();
            let head = format!("{post}transfer-encoding: chunked\r\n\r\n").into_bytes();
            let acts = vec![Act::Send(head), Act::Repeat(chunk, 1000)];
            Case { hopeless: true, ..Case::new("endless chunks", path, Manner::Garbage, acts) }
        }
        _ => {
            let length = [17 << 20, 1 << 32, 10 << 30, u64::MAX / 2, u64::MAX - 1][random.below(5) as usize];
            let acts = vec![Act::Send(announced(length))];
            Case { hopeless: true, ..Case::new("large announced", path, Manner::Garbage, acts) }
        }
    }
}

/// Senders that keep a connection without saying much.
pub fn slow(options: &Options, random: &mut Random, number: usize) -> Case {
    let (path, body) = bodies::valid(random);
    let whole = request(options, "POST", path, "", body.to_string().as_bytes());
    let head = whole.len() - body.to_string().len();
    let second = Duration::from_secs(1);
    let (kind, acts) = match number % 6 {
        0 => ("slow head", vec![Act::Drip(whole, second)]),
        1 => {
            ("slow body", vec![Act::Send(whole[..head].to_vec()), Act::Drip(whole[head..].to_vec(), second)])
        }
        2 => ("unfinished head", vec![Act::Send(whole[..random.below(head as u64) as usize].to_vec())]),
        3 => ("unfinished body", vec![Act::Send(whole[..head + 1].to_vec())]),
        4 => {
            let pause = Duration::from_secs(random.between(1, 20));
            ("slow and gone", vec![Act::Send(whole[..head + 3].to_vec()), Act::Pause(pause), Act::Leave])
        }
        _ => {
            let chunks = format!(
                "POST {path} HTTP/1.1\r\nhost: {}\r\ntransfer-encoding: chunked\r\n\r\n",
                options.host
            );
            (
                "slow chunks",
                vec![Act::Send(chunks.into_bytes()), Act::Drip(b"1\r\n{\r\n".repeat(100), second)],
            )
        }
    };
    Case::new(kind, path, Manner::Garbage, acts)
}
