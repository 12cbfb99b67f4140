//! The server to try, as it is named on the command line.

/// Host and port of `http://HOST:PORT/`.
pub fn host(url: &str) -> Result<String, String> {
    let host = url.strip_prefix("http://").ok_or("the URL must begin with http://")?;
    Ok(host.trim_end_matches('/').into())
}
