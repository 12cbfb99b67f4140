//! A small client for HTTP/1.1.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::options::Options;
use crate::problem::{Problem, wrong};

/// A connection that is between two requests, or within one.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

/// The head of a response.
pub struct Head {
    pub status: u16,
    /// Bytes of the body; none if it comes in chunks.
    pub length: Option<usize>,
    pub close: bool,
}

impl Connection {
    pub async fn open(options: &Options) -> Result<Self, Problem> {
        let stream = timeout(options.stuck, TcpStream::connect(&options.host)).await;
        let stream = stream.map_err(|_| Problem::Stuck("no connection".into()))??;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    pub async fn send(
        &mut self,
        options: &Options,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<(), Problem> {
        let host = &options.host;
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n", body.len());
        if let Some(key) = &options.key {
            request.push_str(&format!("authorization: Bearer {key}\r\n"));
        }
        request.push_str("content-type: application/json\r\n\r\n");
        request.push_str(body);
        Ok(self.stream.write_all(request.as_bytes()).await?)
    }

    pub async fn line(&mut self) -> Result<String, Problem> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return wrong("the connection was closed within a response");
        }
        Ok(line.trim_end().into())
    }

    pub async fn head(&mut self) -> Result<Head, Problem> {
        let first = self.line().await?;
        let Some(status) = first.split(' ').nth(1).and_then(|status| status.parse().ok()) else {
            return wrong(format!("this is no response: {first:?}"));
        };
        let mut head = Head { status, length: None, close: false };
        loop {
            let line = self.line().await?;
            let Some((name, value)) = line.split_once(':') else { return Ok(head) };
            match (name.to_ascii_lowercase().as_str(), value.trim()) {
                ("content-length", length) => head.length = Some(length.parse()?),
                ("connection", "close") => head.close = true,
                _ => {}
            }
        }
    }

    /// The next chunk of a body in chunks; none at its end.
    pub async fn chunk(&mut self) -> Result<Option<String>, Problem> {
        let size = usize::from_str_radix(&self.line().await?, 16)?;
        let mut bytes = vec![0; size + 2];
        self.stream.read_exact(&mut bytes).await?;
        bytes.truncate(size);
        // The server writes whole events, hence whole characters.
        Ok((size > 0).then_some(String::from_utf8(bytes)?))
    }

    pub async fn body(&mut self, head: &Head) -> Result<String, Problem> {
        if let Some(length) = head.length {
            let mut bytes = vec![0; length];
            self.stream.read_exact(&mut bytes).await?;
            return Ok(String::from_utf8(bytes)?);
        }
        let mut text = String::new();
        while let Some(chunk) = self.chunk().await? {
            text.push_str(&chunk);
        }
        Ok(text)
    }
}

/// What a path has to say.
pub async fn get(options: &Options, path: &str) -> Result<String, Problem> {
    let get = async {
        let mut connection = Connection::open(options).await?;
        connection.send(options, "GET", path, "").await?;
        let head = connection.head().await?;
        let body = connection.body(&head).await?;
        if head.status == 200 { Ok(body) } else { wrong(format!("{path} answers {}", head.status)) }
    };
    timeout(options.stuck, get).await.map_err(|_| Problem::Stuck(path.into()))?
}
