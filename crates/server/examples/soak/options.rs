//! The command line.

use std::error::Error;
use std::time::Duration;

use crate::exercise::Mix;
use crate::host::host;

pub const USAGE: &str =
    "soak URL [--clients 64] [--seconds 300] [--alone-seconds 20] [--pid SERVER] [--key KEY] [--seed 1]
     [--mix all|chat] [--stuck-seconds 30] [--patience 300] [--allow-refused]
soak URL --turns [TOKENS] [--rounds 3]
soak URL --forms [--rounds 3]

  --mix            all: requests of every kind; chat: short questions and long answers
  --pid            read the server's memory from /proc instead of /metrics
  --stuck-seconds  silence within an answer that counts as stuck
  --patience       seconds for a whole answer
  --allow-refused  answers 429 and 503 are no errors";

pub struct Options {
    pub host: String,
    pub clients: usize,
    pub seconds: f64,
    pub alone_seconds: f64,
    pub pid: Option<u32>,
    pub key: Option<String>,
    pub seed: u64,
    pub mix: Mix,
    pub stuck: Duration,
    pub patience: Duration,
    pub allow_refused: bool,
    pub turns: Option<usize>,
    pub forms: bool,
    pub rounds: usize,
}

impl Options {
    pub fn read() -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            host: String::new(),
            clients: 64,
            seconds: 300.0,
            alone_seconds: 20.0,
            pid: None,
            key: None,
            seed: 1,
            mix: Mix::All,
            stuck: Duration::from_secs(30),
            patience: Duration::from_secs(300),
            allow_refused: false,
            turns: None,
            forms: false,
            rounds: 3,
        };
        let mut words = std::env::args().skip(1).peekable();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--clients" => options.clients = value()?.parse()?,
                "--seconds" => options.seconds = value()?.parse()?,
                "--alone-seconds" => options.alone_seconds = value()?.parse()?,
                "--pid" => options.pid = Some(value()?.parse()?),
                "--key" => options.key = Some(value()?),
                "--seed" => options.seed = value()?.parse()?,
                "--mix" => {
                    options.mix = match value()?.as_str() {
                        "all" => Mix::All,
                        "chat" => Mix::Chat,
                        other => return Err(format!("there is no mix {other:?}\n{USAGE}").into()),
                    }
                }
                "--stuck-seconds" => options.stuck = Duration::from_secs_f64(value()?.parse()?),
                "--patience" => options.patience = Duration::from_secs_f64(value()?.parse()?),
                "--rounds" => options.rounds = value()?.parse()?,
                "--forms" => options.forms = true,
                "--allow-refused" => options.allow_refused = true,
                "--turns" => {
                    let tokens = words.peek().and_then(|word| word.parse().ok());
                    if tokens.is_some() {
                        words.next();
                    }
                    options.turns = Some(tokens.unwrap_or(8000));
                }
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
