//! https without C: rustls with cryptography in Rust and assembler.

use std::fs;
use std::path::Path;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsConfigBuilder, parse_pem};

use super::error::{Error, Result};

/// What the processor must have, for the error that says that it has not.
#[cfg(target_arch = "aarch64")]
pub const NEEDS: &str = "aes, pmull, sha2";
/// What the processor must have, for the error that says that it has not.
#[cfg(not(target_arch = "aarch64"))]
pub const NEEDS: &str = "x86-64 with adx, aes, avx2, bmi and pclmulqdq";

/// How to speak https; `None` on processors that cannot.
pub fn config(certificates: Option<&Path>) -> Result<Option<TlsConfig>> {
    let roots = match certificates {
        Some(path) => RootCerts::from(read_certificates(path)?),
        None => RootCerts::WebPki,
    };
    Ok(with_cryptography(TlsConfig::builder().root_certs(roots)).map(TlsConfigBuilder::build))
}

fn read_certificates(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let pem = fs::read(path).map_err(Error::io(path))?;
    let certificates = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        let problem = format!("{} has no certificates in PEM format", path.display());
        return Err(Error::Setting { name: "SSL_CERT_FILE", problem });
    }
    Ok(certificates)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn with_cryptography(builder: TlsConfigBuilder) -> Option<TlsConfigBuilder> {
    // Graviola panics on processors without these.
    #[cfg(target_arch = "x86_64")]
    let able = is_x86_feature_detected!("adx")
        && is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("ssse3");
    #[cfg(target_arch = "aarch64")]
    let able = std::arch::is_aarch64_feature_detected!("neon")
        && std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull")
        && std::arch::is_aarch64_feature_detected!("sha2");
    let provider = || std::sync::Arc::new(rustls_graviola::default_provider());
    able.then(|| builder.unversioned_rustls_crypto_provider(provider()))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn with_cryptography(_: TlsConfigBuilder) -> Option<TlsConfigBuilder> {
    None
}
