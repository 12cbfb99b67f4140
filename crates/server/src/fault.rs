//! What is wrong with a request, and how each API says so.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use engine::Refused;
use serde_json::{Value as Json, json};

use crate::ids;

/// The header that names a request, in Anthropic's spelling.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It asks for something that cannot be.
    Invalid,
    /// The key is missing or wrong.
    Unauthorized,
    /// It comes from where it may not.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// There is, but not with this method.
    WrongMethod,
    /// It took too long to arrive.
    SlowSender,
    /// It is too long.
    TooLarge,
    /// Too many others wait already.
    Busy,
    /// Our own fault.
    Internal,
    /// The server is shutting down, or has no connection left.
    Unavailable,
}

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Of which kind it is.
    pub kind: Kind,
    /// What is wrong, for people.
    pub message: String,
    /// The field it is about.
    pub param: Option<String>,
    /// A word for programs, where OpenAI has one.
    pub code: Option<&'static str>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

/// Whose way to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Api {
    /// The API that a path belongs to.
    pub fn of(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }
}

impl Fault {
    /// A fault of a kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A wrong value of a field.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(Kind::Invalid, message) }
    }

    /// Something went wrong on our side.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    /// The server is ending.
    pub fn ending() -> Self {
        Self::new(Kind::Unavailable, Refused::Ending.to_string())
    }

    /// The same fault with OpenAI's word for it.
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        match self.kind {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Kind::SlowSender => StatusCode::REQUEST_TIMEOUT,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Busy => StatusCode::TOO_MANY_REQUESTS,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The body of the response, or the event in a stream.
    pub fn json(&self, api: Api) -> Json {
        match api {
            Api::OpenAi => json!({"error": {
                "message": self.message,
                "type": self.openai_type(),
                "param": self.param,
                "code": self.code,
            }}),
            Api::Anthropic => json!({
                "type": "error",
                "error": {"type": self.anthropic_type(), "message": self.message},
                "request_id": ids::fresh("req_"),
            }),
        }
    }

    /// The response.
    pub fn response(&self, api: Api) -> Response {
        let json = self.json(api);
        let mut response = Response::new(Body::from(json.to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        if let Some(id) = json["request_id"].as_str().and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(REQUEST_ID, id);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = self.retry_after {
            // Rounded up: a client that comes back too early only waits again.
            headers.insert(
                header::RETRY_AFTER,
                HeaderValue::from(wait.as_millis().div_ceil(1000).max(1) as u64),
            );
        }
        if self.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    fn openai_type(&self) -> &'static str {
        match self.kind {
            Kind::Busy => "rate_limit_error",
            Kind::Internal | Kind::Unavailable => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.kind {
            Kind::Unauthorized => "authentication_error",
            Kind::Forbidden => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::Busy => "rate_limit_error",
            Kind::Internal => "api_error",
            Kind::Unavailable => "overloaded_error",
            Kind::Invalid | Kind::WrongMethod | Kind::SlowSender => "invalid_request_error",
        }
    }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Busy { retry_after, .. } => Self {
                retry_after: Some(retry_after),
                code: Some("rate_limit_exceeded"),
                ..Self::new(Kind::Busy, refused.to_string())
            },
            Refused::Ending => Self::ending(),
            Refused::Invalid(error) => request_fault(error),
        }
    }
}

/// An error of the engine that the request is to blame for.
pub fn request_fault(error: engine::Error) -> Fault {
    use engine::Error;
    match error {
        // The engine's own words advise whoever started the server, not who uses it.
        Error::PromptTooLong { tokens, context } => Fault::new(
            Kind::Invalid,
            format!("the prompt has {tokens} tokens, but the context holds {context}: shorten it"),
        )
        .with_code("context_length_exceeded"),
        Error::InvalidSampling { name, .. } => Fault::invalid(name, error.to_string()),
        Error::TemplateRaised { .. } | Error::TemplateRender { .. } => {
            Fault::invalid("messages", error.to_string())
        }
        Error::TemplateSyntax { .. } => Fault::internal(error.to_string()),
        error => Fault::new(Kind::Invalid, error.to_string()),
    }
}

impl From<engine::Error> for Fault {
    fn from(error: engine::Error) -> Self {
        request_fault(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_api_says_it_in_its_own_shape() {
        let fault = Fault::invalid("temperature", "`temperature` must be a number");
        assert_eq!(
            fault.json(Api::OpenAi),
            json!({"error": {
                "message": "`temperature` must be a number",
                "type": "invalid_request_error",
                "param": "temperature",
                "code": null,
            }})
        );
        let said = fault.json(Api::Anthropic);
        assert_eq!(said["type"], "error");
        assert_eq!(
            said["error"],
            json!({"type": "invalid_request_error", "message": "`temperature` must be a number"})
        );
    }

    #[test]
    fn what_the_scheduler_refuses_becomes_a_status() {
        let busy = Refused::Busy { waiting: 3, retry_after: Duration::from_millis(2100) };
        let response = Fault::from(busy).response(Api::OpenAi);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "3");
        assert_eq!(Fault::from(Refused::Ending).status(), 503);
        let long = engine::Error::PromptTooLong { tokens: 9, context: 4 };
        let fault = Fault::from(Refused::Invalid(long));
        assert_eq!((fault.status().as_u16(), fault.code), (400, Some("context_length_exceeded")));
    }

    #[test]
    fn paths_belong_to_apis() {
        for (path, api) in [
            ("/v1/messages", Api::Anthropic),
            ("/v1/messages/count_tokens", Api::Anthropic),
            ("/v1/messagesx", Api::OpenAi),
            ("/v1/chat/completions", Api::OpenAi),
        ] {
            assert_eq!(Api::of(path), api, "{path}");
        }
    }
}
