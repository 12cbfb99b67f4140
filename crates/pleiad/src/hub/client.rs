//! Questions to the hub and what it answers.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, ETAG, LOCATION, RANGE};
use ureq::http::{HeaderMap, Method, Request, Response, Uri};
use ureq::{Agent, Body, ResponseExt};

use super::error::{Error, Result, Silence};
use super::hash::{Hash, RemoteFile};
use super::repo::{RepoId, Revision, is_commit, is_inside};
use super::settings::Settings;
use super::tls;

/// Times that a question is asked again.
pub const RETRIES: u32 = 4;
const REDIRECTS: usize = 10;
/// More than the list of any repository.
const LONGEST_LIST: u64 = 64 << 20;

/// How long to wait before a question is asked again for the `tries`-th time.
pub fn pause(tries: u32) {
    std::thread::sleep(Duration::from_millis(300) * 2u32.saturating_pow(tries));
}

/// One model on the hub.
pub struct Client {
    agent: Agent,
    https: bool,
    endpoint: String,
    origin: Uri,
    token: Option<String>,
    repo: RepoId,
}

/// What a commit has.
pub struct Listing {
    /// The commit.
    pub commit: String,
    /// The paths of its files.
    pub names: Vec<String>,
    known: HashMap<String, RemoteFile>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    /// Wherever a file may be.
    Anywhere,
    /// Only to other names on the hub: what it says itself about a file is wanted.
    OnTheHub,
}

impl Client {
    /// A client for one model. Asks nothing yet.
    pub fn new(settings: &Settings, repo: &RepoId) -> Result<Client> {
        let tls = tls::config(settings.certificates.as_deref())?;
        let https = tls.is_some();
        let origin = settings.endpoint.parse();
        let origin = origin.map_err(|_| bad_address(&settings.endpoint))?;
        let timeout = Some(settings.timeout);
        let config = Agent::config_builder()
            .user_agent(concat!("pleiad/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // Followed here: only the hub itself may see the token.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(timeout)
            .timeout_connect(timeout)
            .timeout_send_request(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout);
        let config = match tls {
            Some(tls) => config.tls_config(tls),
            None => config,
        };
        Ok(Client {
            agent: config.build().new_agent(),
            https,
            endpoint: settings.endpoint.clone(),
            origin,
            token: settings.token.clone(),
            repo: repo.clone(),
        })
    }

    /// The model.
    pub fn repo(&self) -> &RepoId {
        &self.repo
    }

    /// The files of a revision.
    pub fn list(&self, revision: &Revision) -> Result<Listing> {
        let name = encode(revision.as_str(), false);
        let url = format!("{}/api/models/{}/revision/{name}?blobs=true", self.endpoint, self.repo);
        let what = self.repo.to_string();
        let ask = || {
            let mut response = self.send(Method::GET, &url, 0, Follow::Anywhere, &what)?;
            self.check(&response, &what, Some(revision))?;
            let body = response.body_mut().with_config().limit(LONGEST_LIST).read_to_vec();
            body.map_err(|error| silence(&self.origin, &what, &error))
        };
        let body = retry(ask, |error| error.may_pass() && !error.is_no_connection())?;
        let info: Info = serde_json::from_slice(&body)
            .map_err(|error| self.unexpected(format!("the list of files: {error}")))?;
        self.listing(info)
    }

    fn listing(&self, info: Info) -> Result<Listing> {
        if !is_commit(&info.sha) {
            return Err(self.unexpected(format!("`{}` as the name of a commit", printable(&info.sha))));
        }
        let mut listing = Listing { commit: info.sha, names: Vec::new(), known: HashMap::new() };
        for sibling in info.siblings {
            let name = sibling.rfilename.clone();
            if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
                return Err(self.unexpected(format!("a file named `{}`", printable(&name))));
            }
            if !is_inside(&name) {
                continue;
            }
            if let Some(file) = sibling.file() {
                listing.known.insert(name.clone(), file);
            }
            listing.names.push(name);
        }
        listing.names.sort();
        listing.names.dedup();
        Ok(listing)
    }

    /// What a file of the list must be. Asks only where the list did not say.
    pub fn describe(&self, listing: &Listing, name: &str) -> Result<RemoteFile> {
        if let Some(file) = listing.known.get(name) {
            return Ok(file.clone());
        }
        let url = self.url(&listing.commit, name);
        let ask = || {
            let response = self.send(Method::HEAD, &url, 0, Follow::OnTheHub, name)?;
            if !response.status().is_redirection() {
                self.check(&response, name, None)?;
            }
            Ok(response)
        };
        let response = retry(ask, Error::may_pass)?;
        let text = |header: &str| header_text(response.headers(), header);
        let tag = text("x-linked-etag").or_else(|| text(ETAG.as_str()));
        let tag = tag.map(|tag| tag.trim_start_matches("W/").trim_matches('"').to_owned());
        let size = text("x-linked-size").or_else(|| text("content-length"));
        let (hash, size) = (tag.as_deref().and_then(Hash::parse), size.and_then(|size| size.parse().ok()));
        match (hash, size) {
            (Some(hash), Some(size)) => Ok(RemoteFile { name: name.to_owned(), size, hash }),
            _ => {
                Err(self
                    .unexpected(format!("neither hash nor size of {name}, so that it could not be checked")))
            }
        }
    }

    /// The bytes of a file from `start` on, or all of them if the server thinks so: the status tells.
    pub fn open(&self, commit: &str, file: &RemoteFile, start: u64) -> Result<Response<Body>> {
        let response =
            self.send(Method::GET, &self.url(commit, &file.name), start, Follow::Anywhere, &file.name)?;
        if response.status() != 416 {
            self.check(&response, &file.name, None)?;
        }
        Ok(response)
    }

    fn url(&self, commit: &str, name: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.endpoint, self.repo, encode(name, true))
    }

    /// An error for a body that stopped.
    pub fn cut(&self, file: &RemoteFile, error: &std::io::Error) -> Error {
        // The transport's own errors travel inside those of reading.
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let problem = match inner {
            Some(ureq::Error::Timeout(_)) => "sends nothing any more".to_owned(),
            _ if error.kind() == std::io::ErrorKind::UnexpectedEof => "ends the connection early".to_owned(),
            _ => format!("breaks off: {error}"),
        };
        self.silent(file, problem)
    }

    /// An error for a body that is shorter than it should be.
    pub fn short(&self, file: &RemoteFile) -> Error {
        self.silent(file, "ends the connection early".to_owned())
    }

    fn silent(&self, file: &RemoteFile, problem: String) -> Error {
        Error::Unreachable {
            what: file.name.clone(),
            host: "the server".into(),
            problem,
            silence: Silence::Cut,
        }
    }

    /// Asks one question, where redirects lead too.
    fn send(
        &self,
        method: Method,
        url: &str,
        start: u64,
        follow: Follow,
        what: &str,
    ) -> Result<Response<Body>> {
        let mut uri: Uri = url.parse().map_err(|_| bad_address(url))?;
        for _ in 0..REDIRECTS {
            if uri.scheme_str() == Some("https") && !self.https {
                return Err(Error::NoHttps(tls::NEEDS));
            }
            let mut request = Request::builder()
                .method(method.clone())
                .uri(uri.clone())
                .header(ACCEPT_ENCODING, "identity");
            if start > 0 {
                request = request.header(RANGE, format!("bytes={start}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| same_origin(&uri, &self.origin)) {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            let request = request.body(()).map_err(|_| bad_address(url))?;
            let response = self.agent.run(request).map_err(|error| silence(&uri, what, &error))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            let next = header_text(response.headers(), LOCATION.as_str()).and_then(|to| target(&uri, &to));
            let next = next.ok_or_else(|| self.unexpected(format!("a redirect of {what} to nowhere")))?;
            if follow == Follow::OnTheHub && !same_origin(&next, &self.origin) {
                return Ok(response);
            }
            uri = next;
        }
        Err(self.unexpected(format!("more than {REDIRECTS} redirects of {what}")))
    }

    /// Turns answers that are no success into errors that say what to do.
    fn check(&self, response: &Response<Body>, what: &str, revision: Option<&Revision>) -> Result<()> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let text = |header: &str| header_text(response.headers(), header).unwrap_or_default();
        let (code, message) = (text("x-error-code"), printable(&text("x-error-message")));
        let (endpoint, repo) = (self.endpoint.clone(), self.repo.to_string());
        let (with_token, from) = (self.token.is_some(), response.get_uri());
        let host = from.host().unwrap_or_default().to_owned();
        let other =
            Error::Status { what: what.into(), host, status: status.as_u16(), message: message.clone() };
        if !same_origin(from, &self.origin) {
            return Err(other);
        }
        Err(match (status.as_u16(), code.as_str(), revision) {
            (_, "RepoNotFound", _) => Error::NoSuchRepo { endpoint, repo },
            (_, "RevisionNotFound", Some(revision)) => {
                Error::NoSuchRevision { repo, revision: revision.to_string() }
            }
            (401 | 403, ..) | (_, "GatedRepo", _) => Error::Denied { endpoint, repo, with_token, message },
            (404, _, Some(_)) => Error::NoSuchRepo { endpoint, repo },
            _ => other,
        })
    }

    fn host(&self) -> String {
        self.origin.host().unwrap_or_default().to_owned()
    }

    fn unexpected(&self, problem: String) -> Error {
        Error::Unexpected { host: self.host(), problem }
    }
}

/// What the hub says about a commit.
#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

/// What it says about a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<LargeFile>,
}

/// A file that git has only a note about.
#[derive(Deserialize)]
struct LargeFile {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

impl Sibling {
    fn file(self) -> Option<RemoteFile> {
        let (hash, size) = match self.lfs {
            Some(large) => (Hash::parse(&large.sha256)?, large.size),
            None => (Hash::parse(&self.blob_id?)?, self.size?),
        };
        Some(RemoteFile { name: self.rfilename, size, hash })
    }
}

/// Asks again, a little later each time, while `again` says so.
fn retry<T>(mut ask: impl FnMut() -> Result<T>, again: impl Fn(&Error) -> bool) -> Result<T> {
    let mut tries = 0;
    loop {
        match ask() {
            Err(error) if again(&error) && tries < RETRIES => pause(tries),
            result => return result,
        }
        tries += 1;
    }
}

/// What became of a question without an answer.
fn silence(uri: &Uri, what: &str, error: &ureq::Error) -> Error {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let (problem, silence) = match error {
        ureq::Error::HostNotFound => ("cannot be found: is the network up?".into(), Silence::NoConnection),
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            ("cannot be reached in time".into(), Silence::NoConnection)
        }
        ureq::Error::Timeout(_) => ("does not answer in time".into(), Silence::Cut),
        ureq::Error::Io(e)
            if matches!(e.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable) =>
        {
            (format!("cannot be reached: {e}"), Silence::NoConnection)
        }
        ureq::Error::Rustls(e) => (format!("cannot be trusted or understood: {e}"), Silence::Final),
        ureq::Error::Io(e) if is_tls(e) => (format!("cannot be trusted or understood: {e}"), Silence::Final),
        ureq::Error::Io(e) => (format!("breaks off: {e}"), Silence::Cut),
        ureq::Error::Protocol(_) | ureq::Error::ConnectionFailed => {
            (format!("breaks off: {error}"), Silence::Cut)
        }
        _ => (format!("cannot be asked: {error}"), Silence::Final),
    };
    let host = uri.host().unwrap_or_default().to_owned();
    Error::Unreachable { what: what.to_owned(), host, problem, silence }
}

/// A handshake that failed travels inside an error of reading.
fn is_tls(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::InvalidData
}

fn bad_address(url: &str) -> Error {
    Error::Setting { name: "HF_ENDPOINT", problem: format!("`{url}` is not an address") }
}

fn header_text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Where a redirect leads from `base`.
fn target(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        return format!("{}://{}{location}", base.scheme_str()?, base.authority()?).parse().ok();
    }
    let uri: Uri = location.parse().ok()?;
    let known = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    known.then_some(uri)
}

/// Whether both are the same server, port and protocol included.
fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme_str() == b.scheme_str() && host(a) == host(b) && port(a) == port(b)
}

/// Text as part of an address.
fn encode(text: &str, keep_slashes: bool) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b) || (keep_slashes && b == b'/');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Text of a stranger, fit for a terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(encode("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encode("a b/ä.json", true), "a%20b/%C3%A4.json");
        let base: Uri = "https://hub.test:8443/a/b?c".parse().unwrap();
        let to = |location| target(&base, location).map(|uri| uri.to_string());
        assert_eq!(to("/x?y=1").as_deref(), Some("https://hub.test:8443/x?y=1"));
        assert_eq!(to("https://cdn.test/x").as_deref(), Some("https://cdn.test/x"));
        for bad in ["", "//cdn.test/x", "file:///etc/passwd", "x", "http:///x"] {
            assert_eq!(to(bad), None, "{bad}");
        }
        let same = |a: &str, b: &str| same_origin(&a.parse().unwrap(), &b.parse().unwrap());
        assert!(same("https://hub.test/x", "https://HUB.test:443"));
        assert!(!same("https://hub.test", "http://hub.test"));
        assert!(!same("https://hub.test", "https://hub.test:444"));
        assert!(!same("https://hub.test", "https://hub.test.evil.test"));
        assert!(!same("https://hub.test", "https://hub.test@evil.test"));
    }
}
