//! The variables of the environment that the hub's own tools know.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{Error, Result};

const ENDPOINT: &str = "https://huggingface.co";
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where the hub is, where its files go and who we are.
pub struct Settings {
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// The folder of all fetched models.
    pub cache: PathBuf,
    /// What opens gated models.
    pub token: Option<String>,
    /// Whether the network is off limits.
    pub offline: bool,
    /// How long a connection may take, and then each part of an answer.
    pub timeout: Duration,
    /// Certificates to trust instead of those built in.
    pub certificates: Option<PathBuf>,
}

/// Variables by name; those that are empty count as unset.
struct Variables<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    fn text(&self, name: &'static str) -> Result<Option<String>> {
        let not_text = |_| Error::Setting { name, problem: "it is not UTF-8 text".into() };
        self.get(name).map(|value| value.into_string().map_err(not_text)).transpose()
    }

    fn is_on(&self, name: &str) -> bool {
        let on = ["1", "ON", "YES", "TRUE"];
        self.get(name).is_some_and(|value| on.contains(&value.to_string_lossy().to_uppercase().as_str()))
    }

    /// A path; `~` is the home folder.
    fn path(&self, name: &str, home: Option<&Path>) -> Option<PathBuf> {
        let path = PathBuf::from(self.get(name)?);
        match (path.strip_prefix("~"), home) {
            (Ok(rest), Some(home)) => Some(home.join(rest)),
            _ => Some(path),
        }
    }

    /// The folder of everything that belongs to the hub.
    fn hub_home(&self, home: Option<&Path>) -> Result<PathBuf> {
        if let Some(folder) = self.path("HF_HOME", home) {
            return Ok(folder);
        }
        let cache = self.path("XDG_CACHE_HOME", home).or_else(|| Some(home?.join(".cache")));
        let unknown = || Error::Setting {
            name: "HF_HOME",
            problem: "there is no home folder: set this variable".into(),
        };
        Ok(cache.ok_or_else(unknown)?.join("huggingface"))
    }

    fn cache(&self, home: Option<&Path>) -> Result<PathBuf> {
        let given = self.path("HF_HUB_CACHE", home).or_else(|| self.path("HUGGINGFACE_HUB_CACHE", home));
        given.map_or_else(|| Ok(self.hub_home(home)?.join("hub")), Ok)
    }

    fn endpoint(&self) -> Result<String> {
        let endpoint = self.text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.into());
        let endpoint = endpoint.trim().trim_end_matches('/');
        let address: Option<ureq::http::Uri> = endpoint.parse().ok();
        let fine = address.is_some_and(|address| {
            matches!(address.scheme_str(), Some("http" | "https"))
                && address.host().is_some_and(|host| !host.is_empty())
                && address.query().is_none()
        });
        let problem = || format!("`{endpoint}` is not an address like {ENDPOINT}");
        if fine {
            Ok(endpoint.to_owned())
        } else {
            Err(Error::Setting { name: "HF_ENDPOINT", problem: problem() })
        }
    }

    fn token(&self, home: Option<&Path>) -> Result<Option<String>> {
        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let Some(token) = self.text(name)? {
                return checked_token(name, &token);
            }
        }
        let beside = || self.hub_home(home).ok().map(|folder| folder.join("token"));
        // Without a home there is no token file either, and the cache may still be given.
        let Some(file) = self.path("HF_TOKEN_PATH", home).or_else(beside) else { return Ok(None) };
        match fs::read_to_string(&file) {
            Ok(token) => checked_token("HF_TOKEN_PATH", &token),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(source) => Err(Error::Io { path: file, source }),
        }
    }

    fn timeout(&self) -> Result<Duration> {
        let name = "HF_HUB_DOWNLOAD_TIMEOUT";
        let Some(text) = self.text(name)? else { return Ok(TIMEOUT) };
        match text.trim().parse::<u32>() {
            Ok(0) => Ok(TIMEOUT),
            Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
            Err(_) => Err(Error::Setting { name, problem: format!("`{text}` is not a number of seconds") }),
        }
    }

    fn settings(&self, home: Option<&Path>) -> Result<Settings> {
        Ok(Settings {
            endpoint: self.endpoint()?,
            cache: self.cache(home)?,
            token: self.token(home)?,
            offline: self.is_on("HF_HUB_OFFLINE"),
            timeout: self.timeout()?,
            certificates: self.path("SSL_CERT_FILE", home).or_else(|| self.path("REQUESTS_CA_BUNDLE", home)),
        })
    }
}

/// A token without the white space around it. The error must not show it.
fn checked_token(name: &'static str, text: &str) -> Result<Option<String>> {
    let token = text.trim();
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(Error::Setting { name, problem: "there are characters in it that no token has".into() });
    }
    Ok((!token.is_empty()).then(|| token.to_owned()))
}

impl Settings {
    /// What the environment says.
    pub fn from_env() -> Result<Settings> {
        Variables(&|name| env::var_os(name)).settings(env::home_dir().as_deref())
    }

    /// The folder of all fetched models.
    pub fn cache_folder() -> Result<PathBuf> {
        Variables(&|name| env::var_os(name)).cache(env::home_dir().as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings> {
        let get = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        };
        Variables(&get).settings(Some(Path::new("/somewhere")))
    }

    fn cache(variables: &[(&str, &str)]) -> PathBuf {
        read(variables).unwrap().cache
    }

    #[test]
    fn the_cache_folder() {
        assert_eq!(cache(&[]), Path::new("/somewhere/.cache/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/h")]), Path::new("/somewhere/h/hub"));
        assert_eq!(cache(&[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")]), Path::new("/old"));
        let both = [("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")];
        assert_eq!(cache(&both), Path::new("/new"));
        assert_eq!(cache(&[("HF_HUB_CACHE", "")]), Path::new("/somewhere/.cache/huggingface/hub"));
        let homeless = Variables(&|_| None).settings(None);
        assert!(homeless.is_err_and(|error| error.to_string().contains("HF_HOME")));
    }

    #[test]
    fn the_token() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        let token = |more: &[(&str, &str)]| read(&[&[("HF_HOME", home)], more].concat()).unwrap().token;
        assert_eq!(token(&[]), None);
        fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(token(&[]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HUGGING_FACE_HUB_TOKEN", "hf_old")]).as_deref(), Some("hf_old"));
        let both = [("HUGGING_FACE_HUB_TOKEN", "hf_old"), ("HF_TOKEN", " hf_new ")];
        assert_eq!(token(&both).as_deref(), Some("hf_new"));
        let other = folder.path().join("other");
        assert_eq!(token(&[("HF_TOKEN_PATH", other.to_str().unwrap())]), None);
        fs::write(&other, "hf_other").unwrap();
        assert_eq!(token(&[("HF_TOKEN_PATH", other.to_str().unwrap())]).as_deref(), Some("hf_other"));
        let error = read(&[("HF_TOKEN", "secret\u{e9}")]).err().unwrap().to_string();
        assert!(error.contains("HF_TOKEN") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn the_rest() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.endpoint.as_str(), settings.timeout), (ENDPOINT, TIMEOUT));
        assert!(!settings.offline);
        for on in ["1", "true", "Yes"] {
            assert!(read(&[("HF_HUB_OFFLINE", on)]).unwrap().offline, "{on}");
        }
        assert!(!read(&[("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        let mirror =
            read(&[("HF_ENDPOINT", "http://127.0.0.1:80/hub/"), ("HF_HUB_DOWNLOAD_TIMEOUT", "3")]).unwrap();
        assert_eq!((mirror.endpoint.as_str(), mirror.timeout.as_secs()), ("http://127.0.0.1:80/hub", 3));
        for bad in ["127.0.0.1", "ftp://x", "http://", "/x", "http://a b"] {
            assert!(read(&[("HF_ENDPOINT", bad)]).is_err(), "{bad}");
        }
        assert!(read(&[("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]).is_err());
    }
}
