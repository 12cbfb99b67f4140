//! Names of models and revisions, checked before they become part of a path or an address.

use std::fmt;

use super::error::{Error, Result};

/// The name of a model on the hub: `org/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoId {
    org: String,
    name: String,
}

impl RepoId {
    /// By the hub's own rules: letters, digits, `-`, `_` and `.`, but no `--` or `..`, and neither `-` nor `.` at an end.
    pub fn parse(text: &str) -> Result<RepoId> {
        let bad = || Error::BadRepo(text.to_owned());
        let (org, name) = text.split_once('/').ok_or_else(bad)?;
        let fine = |part: &str| {
            let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let edge = |c: char| c == '-' || c == '.';
            !part.is_empty() && part.chars().all(inner) && !part.starts_with(edge) && !part.ends_with(edge)
        };
        let short = text.len() <= 96;
        let odd = text.contains("--") || text.contains("..") || text.ends_with(".git");
        if !(short && fine(org) && fine(name)) || odd {
            return Err(bad());
        }
        Ok(RepoId { org: org.to_owned(), name: name.to_owned() })
    }

    /// Its folder in the cache.
    pub fn folder(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)
    }
}

/// A branch, a tag or a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision(String);

impl Revision {
    /// `main` unless one is given. A revision may have slashes (`refs/pr/3`), and is a relative path in the cache.
    pub fn parse(text: Option<&str>) -> Result<Revision> {
        let text = text.unwrap_or("main");
        if text.len() > 256 || !is_inside(text) {
            return Err(Error::BadRevision(text.to_owned()));
        }
        Ok(Revision(text.to_owned()))
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names one commit for ever.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.0)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `text` is the full name of a commit.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hex(text)
}

/// Whether `text` is a hexadecimal number as hashes are written.
pub fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether `path` stays inside the folder it is taken from, on any system.
pub fn is_inside(path: &str) -> bool {
    let fine = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(fine) && !path.contains(|c: char| c == '\\' || c == ':' || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repos() {
        for good in ["mlx-community/Qwen3.6-35B-A3B-4bit", "a/b", "A_1/b.c-d"] {
            assert_eq!(RepoId::parse(good).map(|repo| repo.to_string()).ok().as_deref(), Some(good));
        }
        let long = format!("a/{}", "b".repeat(95));
        for bad in [
            "", "x", "/", "a/", "/b", "a/../b", "a/..", "../b", "a/b/c", "a--b/c", "a/b.git", "a/-b", "a/b.",
            "a b/c", "a/b\n", "ä/b", "a\\b/c", &long,
        ] {
            assert!(RepoId::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(RepoId::parse("org/na-me").unwrap().folder(), "models--org--na-me");
    }

    #[test]
    fn revisions() {
        assert_eq!(Revision::parse(None).unwrap().as_str(), "main");
        for good in ["main", "v1.0", "refs/pr/3", "0123456789012345678901234567890123456789"] {
            assert!(Revision::parse(Some(good)).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "../x", "a/../b", "/etc", "a//b", "a\\b", "c:x", "a\0", "a/"] {
            assert!(Revision::parse(Some(bad)).is_err(), "{bad}");
        }
    }
}
