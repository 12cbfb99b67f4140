//! `GET /v1/models`: the one model there is, in the shape of whoever asks.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
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
pub async fn model(State(app): State<Arc<App>>, Path(id): Path<String>, headers: HeaderMap) -> Response {
    let api = api(&headers);
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
