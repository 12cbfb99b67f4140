//! Listening, connections, and the end of both.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::app::{App, raised};
use crate::fault::{Api, Fault, Kind};
use crate::{Error, Options, ServedModel};

/// Bytes and lines of the longest head of a request; beyond them it is answered with 431.
const HEADER_BYTES: usize = 64 << 10;
const HEADER_LINES: usize = 100;
/// Connections beyond the limit that are told so; yet others are closed without a word.
const TURNED_AWAY: usize = 64;
/// Threads that read and tokenise at the same time. Each keeps memory of its largest request.
const BLOCKING_THREADS: usize = 4;
/// After the last answers have been cut short, time to write their last words.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Pause after an accept that failed, which it does when there are no file handles left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A server that has its address and answers once it [runs](Server::run).
pub struct Server {
    listener: std::net::TcpListener,
    app: Arc<App>,
}

impl Server {
    /// Takes the address. Clients can connect from now on and wait.
    pub fn bind(options: Options, model: ServedModel) -> Result<Self, Error> {
        options.check()?;
        let address = options.address;
        let bound = |source| Error::Bind { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(bound)?;
        listener.set_nonblocking(true).map_err(bound)?;
        let address = listener.local_addr().map_err(bound)?;
        Ok(Self { listener, app: Arc::new(App::new(model, options, address)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.app.address
    }

    /// Answers until Ctrl-C or a polite request to end, then lets running answers finish. A second Ctrl-C cuts them short.
    pub fn run(self) -> Result<(), Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("server")
            .enable_all()
            .build()?;
        let outcome = runtime.block_on(async {
            let mut signals = Signals::new()?;
            let app = self.app.clone();
            let (told, stop) = tokio::sync::oneshot::channel::<()>();
            let serving = self.serve(async {
                let _ = stop.await;
            });
            tokio::pin!(serving);
            tokio::select! {
                served = &mut serving => return served,
                () = signals.next() => drop(told),
            }
            tokio::select! {
                served = &mut serving => served,
                () = signals.next() => {
                    app.cut.send_replace(true);
                    let _ = timeout(LAST_WORDS, serving).await;
                    Ok(())
                }
            }
        });
        // Does not wait for threads: after a second Ctrl-C something may hang.
        runtime.shutdown_background();
        outcome
    }

    /// Answers until `stop`, then lets running answers finish, as long as [`Options::drain`] allows.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let Self { listener, app } = self;
        let listener = TcpListener::from_std(listener)?;
        let mut connections = JoinSet::new();
        accept(&app, listener, &mut connections, stop).await;

        app.ending.send_replace(true);
        let answers = app.model.answers.clone();
        let finished = tokio::task::spawn_blocking(move || answers.finish());
        let all_closed = async { while connections.join_next().await.is_some() {} };
        if timeout(app.options.drain, all_closed).await.is_err() {
            app.cut.send_replace(true);
            let all_closed = async { while connections.join_next().await.is_some() {} };
            let _ = timeout(LAST_WORDS, all_closed).await;
            connections.shutdown().await;
        }
        // Nobody listens any more, so this takes no longer than a step of the model and what is to be kept.
        let _ = finished.await;
        Ok(())
    }
}

/// Takes connections until `stop`.
async fn accept(
    app: &Arc<App>,
    listener: TcpListener,
    connections: &mut JoinSet<()>,
    stop: impl Future<Output = ()>,
) {
    let free = Arc::new(Semaphore::new(app.options.connections));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    let router = app.router();
    tokio::pin!(stop);
    loop {
        let stream = tokio::select! {
            () = &mut stop => return,
            // Forgets connections that have closed.
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        // Tokens are small and should not wait for each other.
        let _ = stream.set_nodelay(true);
        if let Ok(place) = free.clone().try_acquire_owned() {
            let service = TowerToHyperService::new(router.clone());
            let app = app.clone();
            connections.spawn(async move {
                app.metrics.connections.fetch_add(1, Ordering::Relaxed);
                connection(&app, stream, service, true).await;
                app.metrics.connections.fetch_sub(1, Ordering::Relaxed);
                drop(place);
            });
        } else if let Ok(place) = turned_away.clone().try_acquire_owned() {
            let app = app.clone();
            connections.spawn(async move {
                connection(&app, stream, service_fn(turn_away), false).await;
                drop(place);
            });
        }
    }
}

/// The answer when all connections are taken.
async fn turn_away(request: Request<Incoming>) -> Result<Response, std::convert::Infallible> {
    let fault = Fault {
        retry_after: Some(Duration::from_secs(5)),
        ..Fault::new(Kind::Unavailable, "all connections of the server are taken; try again later")
    };
    Ok(fault.response(Api::of(request.uri().path())))
}

/// Serves one connection to its end, or, when the server ends, to the end of the answer it is at.
async fn connection<S>(app: &App, stream: TcpStream, service: S, keep_alive: bool)
where
    S: Service<Request<Incoming>, Response = Response<Body>>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.header_timeout)
        .max_buf_size(HEADER_BYTES)
        .max_header_size(HEADER_BYTES)
        .max_headers(HEADER_LINES)
        .keep_alive(keep_alive)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let mut ending = app.ending.subscribe();
    // What goes wrong on a connection, such as a client that went away, concerns only that client.
    tokio::select! {
        _ = serving.as_mut() => {}
        () = raised(&mut ending) => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// Requests of the operating system to end: Ctrl-C, and on Unix SIGTERM.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(windows)]
struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self(tokio::signal::windows::ctrl_c()?))
    }

    async fn next(&mut self) {
        let _ = self.0.recv().await;
    }
}
