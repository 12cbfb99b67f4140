//! Who may ask from where.

use serde_json::json;
use server::Options;

use crate::client::{options, saying, start};
use crate::fake::{Fake, Play};

fn hello() -> String {
    json!({"max_tokens": 5, "messages": [{"role": "user", "content": "Hello"}]}).to_string()
}

#[tokio::test]
async fn a_key_is_needed_where_there_is_one() {
    let options = Options { api_key: Some("secret".into()), ..options() };
    let server = start(options, Fake::new(9, |_| Play::text("Hi")));
    for (path, headers, status) in [
        ("/v1/chat/completions", vec![], 401),
        ("/v1/chat/completions", vec![("authorization", "Bearer wrong")], 401),
        ("/v1/chat/completions", vec![("authorization", "Basic secret")], 401),
        ("/v1/chat/completions", vec![("authorization", "Bearer secret")], 200),
        ("/v1/chat/completions", vec![("authorization", "bearer secret")], 200),
        ("/v1/chat/completions", vec![("x-api-key", "secret")], 200),
        ("/v1/messages", vec![("x-api-key", "secret")], 200),
        ("/v1/messages", vec![("x-api-key", "secre")], 401),
        ("/v1/messages", vec![("authorization", "Bearer secret")], 200),
    ] {
        let reply = server.send("POST", path, &headers, &hello()).await;
        assert_eq!(reply.status, status, "{path} {headers:?}: {}", reply.body);
        if status == 401 {
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            let expected = if path == "/v1/messages" { "authentication_error" } else { "invalid_api_key" };
            assert!(reply.body.contains(expected), "{}", reply.body);
        }
    }
    for (path, status) in
        [("/health", 200), ("/", 200), ("/metrics", 401), ("/v1/models", 401), ("/nothing", 401)]
    {
        assert_eq!(server.get(path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn a_server_of_this_machine_answers_to_its_own_names_only() {
    let server = saying("Hi");
    for (host, status) in [
        ("localhost:1234", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.com", 403),
        ("evil.com:80", 403),
    ] {
        assert_eq!(server.send("GET", "/health", &[("host", host)], "").await.status, status, "{host}");
        let reply = server.send("POST", "/v1/messages", &[("host", host)], &hello()).await;
        assert_eq!(reply.status, status, "{host}: {}", reply.body);
    }
}

#[tokio::test]
async fn pages_of_others_may_not_ask_unless_allowed() {
    let server = saying("Hi");
    let own = format!("http://{}", server.address);
    for (origin, status) in [(own.as_str(), 200), ("https://evil.com", 403), ("null", 403)] {
        let reply = server.send("POST", "/v1/chat/completions", &[("origin", origin)], &hello()).await;
        assert_eq!(reply.status, status, "{origin}");
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    let asks = [("origin", "https://evil.com"), ("access-control-request-method", "POST")];
    assert_eq!(server.send("OPTIONS", "/v1/chat/completions", &asks, "").await.status, 403);
}

#[tokio::test]
async fn origins_that_are_allowed() {
    let origin = "https://good.com";
    let options = Options { origins: vec![origin.into()], api_key: Some("secret".into()), ..options() };
    let server = start(options, Fake::new(9, |_| Play::text("Hi")));
    let asks = [
        ("origin", origin),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, content-type"),
    ];
    let reply = server.send("OPTIONS", "/v1/chat/completions", &asks, "").await;
    assert_eq!(reply.status, 204);
    for (name, value) in [
        ("access-control-allow-origin", origin),
        ("access-control-allow-methods", "GET, POST, OPTIONS"),
        ("access-control-allow-headers", "authorization, content-type"),
        ("vary", "origin"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{name}");
    }
    // A page must be able to read why it was refused.
    let reply = server.send("POST", "/v1/chat/completions", &[("origin", origin)], &hello()).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (401, Some(origin)));
    let good = [("origin", origin), ("authorization", "Bearer secret")];
    let reply = server.send("POST", "/v1/chat/completions", &good, &hello()).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some(origin)));
    let evil = [("origin", "https://evil.com"), ("authorization", "Bearer secret")];
    assert_eq!(server.send("POST", "/v1/chat/completions", &evil, &hello()).await.status, 403);
}
