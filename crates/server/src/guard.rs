//! What every request passes: who may ask from where, and what is noted about it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::app::App;
use crate::fault::{Api, Fault, Kind, REQUEST_ID};
use crate::{Options, ids};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Checks a request and passes it on; notes the outcome.
pub async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let api = Api::of(request.uri().path());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_string());
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = match check(&app, &request) {
        Err(fault) => fault.response(api),
        Ok(()) if is_preflight(&request) => preflight(request.headers()),
        Ok(()) => next.run(request).await,
    };
    app.metrics.request(route.as_deref().unwrap_or("other"), response.status().as_u16());
    let headers = response.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    // An error of Anthropic's API names its request itself.
    let id = headers.get(REQUEST_ID).cloned().or_else(|| HeaderValue::from_str(&ids::fresh("req_")).ok());
    if let Some(id) = id {
        headers.insert("x-request-id", id.clone());
        headers.insert(REQUEST_ID, id);
    }
    if let Some(origin) = origin.filter(|origin| listed(&app.options, origin)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        let exposed = HeaderValue::from_static("x-request-id, request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}

fn check(app: &App, request: &Request) -> Result<(), Fault> {
    let headers = request.headers();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(|authority| authority.as_str()).or(host);
    if app.address.ip().is_loopback() {
        check_host(&app.options, host)?;
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        check_origin(&app.options, origin, host)?;
    }
    if is_preflight(request) {
        return Ok(());
    }
    let path = request.uri().path();
    if let Some(key) = &app.options.api_key
        && !matches!(path, "/" | "/health")
    {
        check_key(key, headers)?;
    }
    if *app.ending.borrow() && path.starts_with("/v1/") {
        return Err(Fault::ending());
    }
    Ok(())
}

/// A page of a stranger can give its own name our address and then count as of the same origin; only the name gives it away.
fn check_host(options: &Options, host: Option<&str>) -> Result<(), Fault> {
    // A browser always says whom it means.
    let Some(host) = host else { return Ok(()) };
    let name = without_port(host);
    let known =
        ["localhost", "127.0.0.1", "[::1]"].into_iter().chain(options.hosts.iter().map(String::as_str));
    if known.into_iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    let message = format!("this server is for its own machine only and does not answer to the name {name:?}");
    Err(Fault::new(Kind::Forbidden, message))
}

fn without_port(host: &str) -> &str {
    match (host.starts_with('['), host.find(']'), host.rsplit_once(':')) {
        (true, Some(end), _) => &host[..=end],
        (false, _, Some((name, _))) => name,
        _ => host,
    }
}

/// A browser sends some requests of foreign pages before it asks whether it may; they must not reach the model.
fn check_origin(options: &Options, origin: &HeaderValue, host: Option<&str>) -> Result<(), Fault> {
    let text = origin.to_str().unwrap_or_default();
    let same = text.split_once("://").is_some_and(|(_, name)| Some(name) == host);
    if same || listed(options, origin) {
        return Ok(());
    }
    let message =
        format!("pages of {text:?} may not use this server; it can be started with their origin allowed");
    Err(Fault::new(Kind::Forbidden, message))
}

fn listed(options: &Options, origin: &HeaderValue) -> bool {
    options.origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
}

fn check_key(key: &str, headers: &HeaderMap) -> Result<(), Fault> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let given = bearer.or_else(|| headers.get(API_KEY)?.to_str().ok());
    let message = match given {
        Some(given) if same_bytes(given.as_bytes(), key.as_bytes()) => return Ok(()),
        Some(_) => "the API key is wrong",
        None => "an API key is needed: send the header `Authorization: Bearer KEY` or `x-api-key: KEY`",
    };
    Err(Fault::new(Kind::Unauthorized, message).with_code("invalid_api_key"))
}

/// Compares in a time that tells nothing but the length of what was given.
fn same_bytes(given: &[u8], key: &[u8]) -> bool {
    let mut different = u8::from(given.len() != key.len());
    for (at, byte) in given.iter().enumerate() {
        different |= std::hint::black_box(byte ^ key[at % key.len().max(1)]);
    }
    std::hint::black_box(different) == 0
}

/// A browser's question whether it may ask.
fn is_preflight(request: &Request) -> bool {
    request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ORIGIN)
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight(asked: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    if asked.contains_key("access-control-request-private-network") {
        headers.insert("access-control-allow-private-network", HeaderValue::from_static("true"));
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_with_any_port() {
        let options = Options { hosts: vec!["box.lan".into()], ..Options::default() };
        for host in
            ["localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1:80", "[::1]", "[::1]:8000", "box.lan:9"]
        {
            assert!(check_host(&options, Some(host)).is_ok(), "{host}");
        }
        for host in
            ["evil.com", "evil.com:8000", "localhost.evil.com", "127.0.0.1.evil.com:8000", "[::2]", "", ":80"]
        {
            assert!(check_host(&options, Some(host)).is_err(), "{host}");
        }
        assert!(check_host(&options, None).is_ok());
    }

    #[test]
    fn origins_are_the_same_or_listed() {
        let options = Options { origins: vec!["https://good.com".into()], ..Options::default() };
        let check = |origin: &'static str| {
            check_origin(&options, &HeaderValue::from_static(origin), Some("localhost:8000")).is_ok()
        };
        assert!(check("http://localhost:8000") && check("https://good.com"));
        assert!(!check("http://localhost:3000") && !check("null") && !check("https://good.com.evil.com"));
        let all = Options { origins: vec!["*".into()], ..Options::default() };
        assert!(check_origin(&all, &HeaderValue::from_static("null"), None).is_ok());
    }

    #[test]
    fn keys_are_equal_only_as_a_whole() {
        assert!(same_bytes(b"secret", b"secret"));
        for wrong in ["", "s", "secre", "secrets", "secretsecret", "Secret"] {
            assert!(!same_bytes(wrong.as_bytes(), b"secret"), "{wrong}");
        }
    }
}
