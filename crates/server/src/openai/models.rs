//! `GET /v1/models`: the one model there is, in the shape of whoever asks.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::app::App;
use crate::fault::{Api, Fault, Kind};
use crate::ids::date;
use crate::status::json_response;

/// Clients of Anthropic's API say so.
fn api(headers: &HeaderMap) -> Api {
    if headers.contains_key("anthropic-version") { Api::Anthropic } else { Api::OpenAi }
}

fn description(app: &App, api: Api) -> Json {
    let (id, context) = (&app.model.id, app.model.answers.context());
    match api {
        Api::OpenAi => json!({
            "id": id,
            "object": "model",
            "created": app.started,
            "owned_by": "pleiad",
            "max_model_len": context,
        }),
        Api::Anthropic => json!({
            "type": "model",
            "id": id,
            "display_name": id,
            "created_at": date(app.started),
            "max_input_tokens": context,
        }),
    }
}

/// `GET /v1/models`.
pub async fn models(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let api = api(&headers);
    let data = [description(&app, api)];
    json_response(&match api {
        Api::OpenAi => json!({"object": "list", "data": data}),
        Api::Anthropic => {
            json!({"data": data, "has_more": false, "first_id": app.model.id, "last_id": app.model.id})
        }
    })
}

/// `GET /v1/models/{id}`.
pub async fn model(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Response {
    let api = api(&headers);
    let id = decoded(uri.path().strip_prefix("/v1/models/").unwrap_or_default());
    if id == app.model.id {
        return json_response(&description(&app, api));
    }
    Fault {
        param: Some("model".into()),
        ..Fault::new(Kind::NotFound, format!("there is no model {id:?} here, only {:?}", app.model.id))
    }
    .with_code("model_not_found")
    .response(api)
}

/// A path with its escapes read; what is not UTF-8 is replaced, since no model is called so.
fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match tail {
            [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)).map(|(high, low)| 16 * high + low),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = &rest[if escaped.is_some() { 3 } else { 1 }..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn escapes_are_read_and_nothing_else_is() {
        for (path, expected) in [
            ("box", "box"),
            ("mlx-community%2FQwen", "mlx-community/Qwen"),
            ("a/b%20c", "a/b c"),
            ("%", "%"),
            ("%4", "%4"),
            ("%zz", "%zz"),
            ("%ff%00", "\u{fffd}\0"),
            ("%c3%A9", "é"),
        ] {
            assert_eq!(decoded(path), expected, "{path}");
        }
    }
}
