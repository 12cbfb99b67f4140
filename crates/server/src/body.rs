//! The body of a request, if it is not too long and does not take too long.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, header};
use engine::bytes as size;
use http_body_util::LengthLimitError;
use tokio::time::timeout;

use crate::Options;
use crate::fault::{Fault, Kind};

/// Reads the whole body. Whatever its type claims to be, it is read as JSON: many clients claim none.
pub async fn read(options: &Options, headers: &HeaderMap, body: Body) -> Result<Bytes, Fault> {
    let limit = options.body_limit;
    let too_large =
        || Fault::new(Kind::TooLarge, format!("the request is longer than {}", size(limit as u64)));
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    match timeout(options.body_timeout, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_length_limit(&error) => Err(too_large()),
        Ok(Err(error)) => Err(Fault::new(Kind::Invalid, format!("the request could not be read: {error}"))),
        Err(_) => {
            let seconds = options.body_timeout.as_secs_f64();
            let message = format!("the body of the request took longer than {seconds} s to arrive");
            Err(Fault::new(Kind::SlowSender, message))
        }
    }
}

/// `to_bytes` says so only by an error somewhere inside its own.
fn is_length_limit(error: &axum::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.is::<LengthLimitError>() {
            return true;
        }
        source = error.source();
    }
    false
}
