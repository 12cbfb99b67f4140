//! What keeps a server from starting.

use std::net::SocketAddr;

/// Every error of the server itself; what is wrong with a request is told to the one who sent it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address}: {source}; choose another --port, or end the program that has this one"
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// An origin that no browser would send.
    #[error("{0:?} is no origin: give it like https://example.com or http://localhost:3000, or * for all")]
    Origin(String),
    /// A key that does not fit in a header, which nobody could send.
    #[error("the API key must be visible ASCII characters without spaces, and at least one")]
    Key,
    /// The threads or signals the server needs were not to be had.
    #[error("cannot start the server: {0}")]
    Start(#[from] std::io::Error),
}
