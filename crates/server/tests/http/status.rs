//! Models, health, counters, the page, and what is not there.

use serde_json::json;

use crate::client::saying;

#[tokio::test]
async fn models_in_both_shapes() {
    let server = saying("Hi");
    let json = server.get("/v1/models").await.json();
    assert_eq!((&json["object"], &json["data"][0]["id"]), (&json!("list"), &json!("pleiad/fake")));
    assert_eq!(
        (&json["data"][0]["object"], &json["data"][0]["max_model_len"]),
        (&json!("model"), &json!(4096))
    );
    for path in ["/v1/models/pleiad/fake", "/v1/models/pleiad%2Ffake"] {
        assert_eq!(server.get(path).await.json()["id"], "pleiad/fake", "{path}");
    }
    let reply = server.get("/v1/models/other").await;
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
    let version = [("anthropic-version", "2023-06-01")];
    let json = server.send("GET", "/v1/models", &version, "").await.json();
    assert_eq!((&json["has_more"], &json["data"][0]["type"]), (&json!(false), &json!("model")));
    let reply = server.send("GET", "/v1/models/other", &version, "").await;
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (404, &json!("not_found_error")));
}

#[tokio::test]
async fn health_and_counters() {
    let server = saying("one two three");
    let json = server.get("/health").await.json();
    assert_eq!((&json["status"], &json["model"]), (&json!("ok"), &json!("pleiad/fake")));
    let body = json!({"messages": [{"role": "user", "content": "Hello"}]});
    server.post("/v1/chat/completions", &body).await;
    server.post("/v1/chat/completions", &json!({})).await;
    server.get("/nothing").await;
    let reply = server.get("/metrics").await;
    assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    for line in [
        "pleiad_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "pleiad_requests_total{route=\"/v1/chat/completions\",status=\"400\"} 1",
        "pleiad_requests_total{route=\"other\",status=\"404\"} 1",
        "pleiad_time_to_first_token_seconds_count 1",
        "pleiad_connections 1",
    ] {
        assert!(reply.body.lines().any(|found| found == line), "{line}\n{}", reply.body);
    }
    assert!(!reply.body.contains("pleiad_tokens_total 0\n"));
}

#[tokio::test]
async fn what_is_not_there() {
    let server = saying("Hi");
    for (method, path, status, kind) in [
        ("GET", "/v1/nothing", 404, "invalid_request_error"),
        ("POST", "/v1/messages/nothing", 404, "not_found_error"),
        ("GET", "/v1/chat/completions", 405, "invalid_request_error"),
        ("DELETE", "/v1/models", 405, "invalid_request_error"),
        ("PUT", "/v1/messages", 405, "invalid_request_error"),
    ] {
        let reply = server.send(method, path, &[], "").await;
        assert_eq!((reply.status, &reply.json()["error"]["type"]), (status, &json!(kind)), "{method} {path}");
        assert_eq!(reply.header("allow").is_some(), status == 405, "{method} {path}");
    }
}

#[tokio::test]
async fn the_page_and_its_policy() {
    let server = saying("Hi");
    let reply = server.get("/").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = reply.header("content-security-policy").unwrap();
    for part in ["default-src 'none'", "script-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"));
    assert!(reply.body.contains("<title>"));
}
