//! How the server is doing.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::time::sleep;

use crate::case::{Act, Case, Manner, request};
use crate::connection::{End, exchange};
use crate::options::Options;

async fn ask(options: &Options, method: &str, path: &str, body: &str) -> Result<String, String> {
    let bytes = request(options, method, path, "", body.as_bytes());
    let outcome = exchange(options, &Case::new("check", path, Manner::Http, vec![Act::Send(bytes)])).await;
    match outcome.response {
        Some(response) if response.status == 200 && outcome.end == End::Complete => {
            Ok(String::from_utf8_lossy(&response.body).into())
        }
        _ => Err(format!("{method} {path}: {}", outcome.shown())),
    }
}

pub async fn healthy(options: &Options) -> Result<Json, String> {
    let text = ask(options, "GET", "/health", "").await?;
    serde_json::from_str(&text).map_err(|error| format!("/health: {error}"))
}

/// Whether the server is healthy, forgets all requests soon, and answers a good one.
pub async fn recovered(options: &Options) -> Result<(), String> {
    let mut health = Json::Null;
    for _ in 0..30 {
        health = healthy(options).await?;
        if ["running", "waiting"].iter().all(|name| health[*name].as_u64().unwrap_or(0) == 0) {
            let messages = json!([{"role": "user", "content": "What is 17 + 25?"}]);
            let body = json!({"messages": messages, "max_tokens": 4}).to_string();
            return ask(options, "POST", "/v1/chat/completions", &body).await.map(drop);
        }
        sleep(Duration::from_secs(1)).await;
    }
    Err(format!("30 s later there are still requests: {health}"))
}

/// Its memory, without what it keeps of finished chats up to a limit of its own.
pub async fn megabytes(options: &Options) -> Option<f64> {
    let metrics = ask(options, "GET", "/metrics", "").await.unwrap_or_default();
    let resident = match options.pid {
        Some(pid) => {
            number(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")? * 1024.0
        }
        None => number(&metrics, "process_resident_memory_bytes ")?,
    };
    Some((resident - number(&metrics, "pleiad_prefix_bytes ").unwrap_or(0.0)) / 1e6)
}

/// The number in the line that begins so.
fn number(text: &str, beginning: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(beginning))?;
    rest.split_whitespace().next()?.parse().ok()
}
