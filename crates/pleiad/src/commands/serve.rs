//! `pleiad serve`: the model behind OpenAI's and Anthropic's APIs, and a chat page.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use backend::Run;
use clap::Args;
use engine::{Dialect, Engine, Grammars, Scheduler, SchedulerOptions, Tokenizer, bytes};
use server::{Options, ServedModel, Server};

use crate::error::Error;
use crate::machine::{Machine, wait_for_weights, with_engine};
use crate::options::{MachineArgs, parse_count, parse_size};
use crate::source::Source;

/// Arguments of `pleiad serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// The model: a folder, the hub's name of one that `pleiad pull` has fetched, or `box`; the model in the box when
    /// absent
    #[arg(value_parser = Source::find)]
    model: Option<Source>,

    /// The address to listen on; others can connect only if it is not a loopback address: give an --api-key then
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    host: IpAddr,

    /// The port to listen on; 0: any that is free
    #[arg(long, value_name = "N", default_value_t = 8000)]
    port: u16,

    /// Clients must give this key, as `Authorization: Bearer KEY` or `x-api-key: KEY`
    #[arg(long, value_name = "KEY", env = "PLEIAD_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Pages of this origin, like `https://example.com`, may use the server from a browser; `*` for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,

    /// Another name under which this machine is reached, where a proxy forwards to it; may be given several times
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// The model's name in answers [default: the name of its folder]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Answers written at the same time, as far as memory allows
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_count)]
    slots: usize,

    /// Requests that may wait beside them; others are told to try again later
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = parse_count)]
    queue: usize,

    /// Memory for finished chats, so that their next turn starts sooner [default: 2G, at most half of what caches may take]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    prefix_memory: Option<u64>,

    /// Keep finished chats in this folder when the server ends, and go on with them when it starts again
    #[arg(long, value_name = "FOLDER")]
    prefix_folder: Option<PathBuf>,

    /// Do not guess tokens, neither where a text repeats itself nor by a drafting head that the model may have
    #[arg(long)]
    no_speculation: bool,

    /// Bytes of the longest request
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_size)]
    body_limit: u64,

    /// Seconds that running answers may go on when the server is told to end
    #[arg(long, value_name = "N", default_value_t = 30)]
    drain: u64,

    /// No notes on the standard error stream
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    machine: MachineArgs,
}

pub fn run(mut args: ServeArgs) -> Result<ExitCode, Error> {
    args.machine.quiet = args.quiet;
    args.machine.drafting = !args.no_speculation;
    let source = args.model.clone().unwrap_or(Source::Box);
    let checkpoint = source.checkpoint()?;
    let tokenizer = source.tokenizer()?;
    with_engine!(args.machine.engine(&checkpoint)?, engine => {
        args.note(&format!(
            "[{}, {}, {}, {}{}]",
            args.name(&source),
            bytes(checkpoint.total_bytes()),
            engine.model().backend().description(),
            models::counted(engine.context(), "token") + " of context",
            engine.model().draft_shape(engine.cache()).map_or("", |_| ", a drafting head")
        ));
        serve(&args, &source, engine, tokenizer)
    })
}

impl ServeArgs {
    fn note(&self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// The model's name for clients.
    fn name(&self, source: &Source) -> String {
        let folder = || match source {
            Source::Box => "box".into(),
            Source::Folder(folder) => {
                let whole = folder.canonicalize().unwrap_or_else(|_| folder.clone());
                whole.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
            }
        };
        self.name.clone().unwrap_or_else(folder)
    }

    fn options(&self) -> Options {
        Options {
            address: SocketAddr::new(self.host, self.port),
            api_key: self.api_key.clone(),
            origins: self.cors.clone(),
            hosts: self.allow_host.clone(),
            body_limit: usize::try_from(self.body_limit).unwrap_or(usize::MAX),
            drain: Duration::from_secs(self.drain),
            ..Options::default()
        }
    }

    fn scheduling(&self) -> SchedulerOptions {
        let defaults = SchedulerOptions::default();
        SchedulerOptions {
            slots: self.slots,
            queue: self.queue,
            prefix_memory: self.prefix_memory.unwrap_or(defaults.prefix_memory),
            prefix_folder: self.prefix_folder.clone(),
            speculate: !self.no_speculation,
            trace: self.machine.trace(),
            ..defaults
        }
    }
}

fn serve<B: Machine + Send>(
    args: &ServeArgs,
    source: &Source,
    engine: Engine<B>,
    tokenizer: Tokenizer,
) -> Result<ExitCode, Error> {
    wait_for_weights(engine.model().backend())?;
    let grammars = Grammars::new(&tokenizer, engine.model().summary().vocabulary);
    let preparing = grammars.clone();
    // It takes a second for large vocabularies, which need not delay the start; who asks for a form will be told of a failure.
    std::thread::spawn(move || preparing.prepare());
    let scheduler = Scheduler::start(engine, args.scheduling())?;
    let model = ServedModel {
        id: args.name(source),
        dialect: Dialect::of(&tokenizer),
        tokenizer,
        grammars,
        answers: Arc::new(scheduler),
    };
    let server = Server::bind(args.options(), model)?;
    let address = server.address();
    if !address.ip().is_loopback() && args.api_key.is_none() {
        args.note("[anybody who reaches this machine can use the model: there is no --api-key]");
    }
    args.note(&format!("Chat at http://{address}/, APIs at http://{address}/v1. Ctrl-C ends it."));
    server.run()?;
    Ok(ExitCode::SUCCESS)
}
