//! The chat page: one file without anything from elsewhere, part of the program.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("index.html");

/// Only the page's own script and style run, known by their hashes, and they reach only this server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |tag: &str| {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let inner = PAGE
            .split_once(&open)
            .and_then(|(_, rest)| rest.split_once(&close))
            .map_or("", |(inner, _)| inner);
        base64(&Sha256::digest(inner))
    };
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style")
    )
});

/// `GET /`.
pub async fn index() -> Response {
    let mut response = Response::new(Body::from(PAGE));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    if let Ok(policy) = HeaderValue::from_str(&POLICY) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let number =
            chunk.iter().chain([&0; 2]).take(3).fold(0u32, |number, byte| number << 8 | u32::from(*byte));
        for place in 0..4 {
            let digit = number >> (18 - 6 * place) & 63;
            text.push(if place <= chunk.len() { char::from(ALPHABET[digit as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_page_keeps_to_its_policy() {
        for tag in ["<script", "<style"] {
            assert_eq!(PAGE.matches(tag).count(), 1, "{tag}");
        }
        assert!(PAGE.contains("<script>") && PAGE.contains("<style>"));
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            " style=",
            " onclick=",
        ] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        for elsewhere in ["src=\"http", "href=\"http", "@import", "url(http"] {
            assert!(!PAGE.contains(elsewhere), "{elsewhere}");
        }
        // 32 bytes of a hash are 44 characters.
        assert!(POLICY.split("sha256-").skip(1).all(|rest| rest.find('\'') == Some(44)));
    }
}
