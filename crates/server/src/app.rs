//! What all requests share, and which path leads where.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use engine::{Dialect, Grammars, Tokenizer};
use tokio::sync::watch;

use crate::fault::{Api, Fault, Kind};
use crate::metrics::Metrics;
use crate::{Answers, Options, anthropic, guard, ids, openai, page, status};

/// The model that a server serves.
pub struct ServedModel {
    /// Its name in answers and in the list of models. Requests may call it anything.
    pub id: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// How it writes thoughts and calls.
    pub dialect: Dialect,
    /// Its vocabulary prepared for forms of answers.
    pub grammars: Grammars,
    /// Who answers.
    pub answers: Arc<dyn Answers>,
}

/// What all requests share.
pub struct App {
    pub model: ServedModel,
    pub options: Options,
    /// Where the server listens.
    pub address: SocketAddr,
    pub metrics: Metrics,
    /// Since when, in seconds since 1970.
    pub started: u64,
    /// Whether the server is ending: running answers go on, nothing new begins.
    pub ending: watch::Sender<bool>,
    /// Whether even running answers are given up.
    pub cut: watch::Sender<bool>,
}

impl App {
    pub fn new(model: ServedModel, options: Options, address: SocketAddr) -> Self {
        Self {
            model,
            options,
            address,
            metrics: Metrics::default(),
            started: ids::now(),
            ending: watch::Sender::new(false),
            cut: watch::Sender::new(false),
        }
    }

    /// Every path.
    pub fn router(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/", get(page::index))
            .route("/health", get(status::health))
            .route("/metrics", get(status::metrics))
            .route("/v1/models", get(openai::models))
            .route("/v1/models/{*id}", get(openai::model))
            .route("/v1/chat/completions", post(openai::chat))
            .route("/v1/completions", post(openai::completions))
            .route("/v1/messages", post(anthropic::messages))
            .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
            .fallback(not_found)
            .method_not_allowed_fallback(wrong_method)
            .layer(from_fn_with_state(self.clone(), guard::guard))
            .with_state(self.clone())
    }
}

async fn not_found(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    Fault::new(Kind::NotFound, format!("there is nothing at {method} {path}")).response(Api::of(path))
}

async fn wrong_method(request: Request) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    Fault::new(Kind::WrongMethod, format!("{path} does not take {method}")).response(Api::of(path))
}

/// Waits until a flag is true, or can never be again.
pub async fn raised(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|raised| *raised).await;
}

/// Runs what may take a while where it keeps no connection waiting but its own.
pub async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(Fault::internal("the request could not be read; this is a bug of the server")),
    }
}

#[cfg(test)]
pub mod tests {
    use std::path::Path;
    use std::sync::LazyLock;

    use engine::Tokenizer;

    /// The fixtures' tokenizer.
    pub fn tokenizer() -> &'static Tokenizer {
        static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tokenizer");
            Tokenizer::open(&folder).expect("the fixture is there")
        });
        &TOKENIZER
    }
}
