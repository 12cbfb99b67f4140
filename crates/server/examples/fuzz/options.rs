//! The command line.

use std::error::Error;
use std::time::Duration;

use crate::host::host;

const USAGE: &str = "fuzz URL [--requests 10000] [--seed 1] [--concurrency 16] [--slow 32] [--pid SERVER]
     [--limit 60] [--key KEY] [--allow-busy] [--only NUMBER]

  --slow        senders that take a minute, beside the other requests
  --pid         read the server's memory from /proc instead of /metrics
  --limit       seconds of silence that count as a hang
  --allow-busy  answers 429 and 503 are no failures
  --only        send one request again and print it";

pub struct Options {
    pub host: String,
    pub requests: usize,
    pub seed: u64,
    pub concurrency: usize,
    pub slow: usize,
    pub pid: Option<u32>,
    pub limit: Duration,
    pub key: Option<String>,
    pub allow_busy: bool,
    pub only: Option<usize>,
}

impl Options {
    pub fn read() -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            host: String::new(),
            requests: 10_000,
            seed: 1,
            concurrency: 16,
            slow: 32,
            pid: None,
            limit: Duration::from_secs(60),
            key: None,
            allow_busy: false,
            only: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--requests" => options.requests = value()?.parse()?,
                "--seed" => options.seed = value()?.parse()?,
                "--concurrency" => options.concurrency = value()?.parse()?,
                "--slow" => options.slow = value()?.parse()?,
                "--pid" => options.pid = Some(value()?.parse()?),
                "--limit" => options.limit = Duration::from_secs_f64(value()?.parse()?),
                "--key" => options.key = Some(value()?),
                "--allow-busy" => options.allow_busy = true,
                "--only" => options.only = Some(value()?.parse()?),
                url if !url.starts_with('-') && options.host.is_empty() => options.host = host(url)?,
                _ => return Err(format!("I do not understand {word:?}\n{USAGE}").into()),
            }
        }
        if options.host.is_empty() {
            return Err(USAGE.into());
        }
        Ok(options)
    }
}
