//! How the server is doing.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::app::App;

/// A response with a JSON body.
pub fn json_response(json: &Json) -> Response {
    let mut response = Response::new(Body::from(json.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// `GET /health`: whether requests are taken.
pub async fn health(State(app): State<Arc<App>>) -> Response {
    let ending = *app.ending.borrow();
    let stats = app.model.answers.stats();
    let mut response = json_response(&json!({
        "status": if ending { "ending" } else { "ok" },
        "model": app.model.id,
        "running": stats.running,
        "waiting": stats.waiting,
    }));
    if ending {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// `GET /metrics`: counters for Prometheus.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.text(&app.model.answers.stats(), app.started);
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
