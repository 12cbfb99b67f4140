//! Settings of a server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::Error;

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes any that is free.
    pub address: SocketAddr,
    /// The key that clients must give, if any.
    pub api_key: Option<String>,
    /// Origins whose pages may use the server from a browser, such as `https://example.com`; `*` for all.
    pub origins: Vec<String>,
    /// Names under which clients may reach a server that listens on the loopback interface, beside localhost and its
    /// addresses. Other names are refused there: a page could have made one point here.
    pub hosts: Vec<String>,
    /// Bytes of the longest request.
    pub body_limit: usize,
    /// Connections at the same time.
    pub connections: usize,
    /// How long the head of a request may take, and a connection be silent between two requests.
    pub header_timeout: Duration,
    /// How long the body of a request may take.
    pub body_timeout: Duration,
    /// How long a client may take none of an answer before it counts as gone.
    pub stall_timeout: Duration,
    /// Silence in a stream after which a sign of life is sent.
    pub keep_alive: Duration,
    /// How long running answers may go on when the server is told to end.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 8000).into(),
            api_key: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            body_limit: 16 << 20,
            connections: 256,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(60),
            stall_timeout: Duration::from_secs(60),
            keep_alive: Duration::from_secs(10),
            drain: Duration::from_secs(30),
        }
    }
}

impl Options {
    /// What could never work is refused before anything starts.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let is_origin = |origin: &str| {
            origin == "*"
                || origin.split_once("://").is_some_and(|(scheme, host)| {
                    !scheme.is_empty()
                        && !host.is_empty()
                        && !host.contains(['/', '?', '#', '@'])
                        && origin.bytes().all(|byte| byte.is_ascii_graphic())
                })
        };
        if let Some(origin) = self.origins.iter().find(|origin| !is_origin(origin)) {
            return Err(Error::Origin(origin.clone()));
        }
        match &self.api_key {
            Some(key) if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err(Error::Key)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_and_keys_are_checked() {
        let origin = |text: &str| Options { origins: vec![text.into()], ..Options::default() }.check();
        for good in ["*", "http://localhost:3000", "https://example.com", "vscode-webview://abc"] {
            assert!(origin(good).is_ok(), "{good}");
        }
        for bad in ["", "example.com", "https://example.com/", "https://", "http://a b"] {
            assert!(matches!(origin(bad), Err(Error::Origin(_))), "{bad}");
        }
        for (key, good) in [("secret", true), ("", false), ("two words", false), ("clé", false)] {
            let options = Options { api_key: Some(key.into()), ..Options::default() };
            assert_eq!(options.check().is_ok(), good, "{key:?}");
        }
    }
}
