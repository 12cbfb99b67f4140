//! Whether an outcome is as it should be.

use serde_json::Value as Json;

use crate::case::{Case, Manner};
use crate::connection::{End, Outcome};
use crate::options::Options;

pub fn judge(options: &Options, case: &Case, outcome: &Outcome) -> Result<(), String> {
    match outcome.end {
        End::Unreachable => return Err("no connection: is the server gone?".into()),
        End::Silent => return Err(format!("silence for more than {} s", options.limit.as_secs())),
        End::Complete | End::Closed | End::Left => {}
    }
    let Some(response) = &outcome.response else {
        return match (outcome.end, case.manner) {
            (End::Left, _) | (_, Manner::Garbage) if outcome.bytes.is_empty() => Ok(()),
            // A client that leaves after a few bytes may leave within the head.
            (End::Left, _) => Ok(()),
            (_, Manner::Garbage) => Err("something came back that is no response".into()),
            (_, Manner::Http) => Err("the connection was closed without a response".into()),
        };
    };
    match response.status {
        429 | 503 if options.allow_busy => Ok(()),
        200..300 if case.hopeless => Err("this was answered, although it cannot be".into()),
        200..300 if outcome.end == End::Closed => Err("the answer is cut short".into()),
        200..300 => Ok(()),
        400..500 if outcome.end == End::Left || case.bodiless => Ok(()),
        400..500 if response.body.is_empty() && case.manner == Manner::Garbage => Ok(()),
        400..500 if !response.json => Err("the error is no JSON".into()),
        400..500 => shape(case, &response.body),
        status => Err(format!("status {status}")),
    }
}

/// Whether an error has the shape of its API.
fn shape(case: &Case, body: &[u8]) -> Result<(), String> {
    let json: Json =
        serde_json::from_slice(body).map_err(|error| format!("the error is no JSON: {error}"))?;
    let error = &json["error"];
    let text = |name: &str| error[name].as_str().is_some_and(|text| !text.is_empty());
    let optional = |name: &str| error.get(name).is_some_and(|value| value.is_null() || value.is_string());
    let openai = text("message") && text("type") && optional("param") && optional("code");
    let anthropic = json["type"] == "error" && text("message") && text("type");
    let fits = match (case.manner, case.path == "/v1/messages" || case.path.starts_with("/v1/messages/")) {
        (Manner::Http, true) => anthropic,
        (Manner::Http, false) => openai,
        // What was garbled may have reached another path.
        (Manner::Garbage, _) => anthropic || openai,
    };
    if fits { Ok(()) } else { Err("the error does not have the shape of its API".into()) }
}
