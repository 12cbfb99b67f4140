//! One file from the hub to the cache: what is there of it already is kept, and nothing counts that does not hash to what
//! the hub says.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use ureq::Body;
use ureq::http::Response;
use ureq::http::header::CONTENT_RANGE;

use super::cache::{RepoCache, create_parent};
use super::client::{Client, RETRIES, pause};
use super::error::{Error, Result};
use super::hash::{Hasher, RemoteFile};
use crate::progress::Progress;

/// Bytes read and written at a time.
const BLOCK: usize = 256 << 10;

/// Files of one commit on their way.
pub struct Download<'a> {
    /// Where they come from.
    pub client: &'a Client,
    /// Where they go.
    pub cache: &'a RepoCache,
    /// The commit.
    pub commit: &'a str,
    /// Who hears of every block.
    pub progress: &'a Mutex<Progress>,
}

impl Download<'_> {
    /// Fetches a file, unless it is there.
    pub fn fetch(&self, file: &RemoteFile) -> Result<()> {
        self.fetch_unless(file, &|| false)
    }

    /// Fetches a file, unless it is there or `stop` says that it is no longer wanted.
    pub fn fetch_unless(&self, file: &RemoteFile, stop: &dyn Fn() -> bool) -> Result<()> {
        if self.cache.has(self.commit, file) {
            self.progress().found(file.size);
            return Ok(());
        }
        let waiting =
            || self.progress().note(&format!("{}: waiting for another process that fetches it", file.name));
        let _lock = self.cache.lock(&file.hash, waiting)?;
        let new = !self.cache.has_blob(file);
        if new {
            self.fetch_blob(file, stop)?;
        } else {
            self.progress().found(file.size);
        }
        self.cache.link(self.commit, file, new)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Whoever panicked while counting left a number behind, nothing that could be half done.
        self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn fetch_blob(&self, file: &RemoteFile, stop: &dyn Fn() -> bool) -> Result<()> {
        let path = self.cache.incomplete(&file.hash);
        create_parent(&path)?;
        let mut part = Part::open(&path, file)?;
        self.progress().found(part.len);
        // Bytes of an earlier run are not trusted: if they turn out wrong, all is fetched anew, once.
        let mut fresh = part.len == 0;
        loop {
            self.fill(&mut part, file, stop)?;
            let found = part.hash();
            if found == file.hash {
                break;
            }
            let (lost, again) = (part.len, !fresh);
            part.restart()?;
            self.progress().lost(lost);
            if !again {
                drop(part);
                fs::remove_file(&path).map_err(Error::io(&path))?;
                let problem = format!("its hash is {}, but should be {}", found.as_str(), file.hash.as_str());
                return Err(Error::Damaged { file: file.name.clone(), problem });
            }
            self.progress()
                .note(&format!("{}: the part from an earlier run is damaged, fetching it again", file.name));
            fresh = true;
        }
        part.finish(&self.cache.blob(&file.hash))
    }

    /// Fetches what is missing, asking again after failures that may pass as long as that brings something.
    fn fill(&self, part: &mut Part, file: &RemoteFile, stop: &dyn Fn() -> bool) -> Result<()> {
        let mut tries = 0;
        while part.len < file.size {
            let before = part.len;
            let Err(error) = self.fill_once(part, file, stop) else { continue };
            if part.len > before {
                tries = 0;
            }
            if !error.may_pass() || tries == RETRIES {
                return Err(error);
            }
            self.progress().note(&format!("{error}; trying again"));
            pause(tries);
            tries += 1;
        }
        Ok(())
    }

    fn fill_once(&self, part: &mut Part, file: &RemoteFile, stop: &dyn Fn() -> bool) -> Result<()> {
        let mut response = self.client.open(self.commit, file, part.len)?;
        if part.len > 0 && !continues_at(&response, part.len) {
            // The server begins at the beginning, or elsewhere.
            self.progress().lost(part.len);
            part.restart()?;
            if response.status() != 200 {
                return Err(self.client.short(file));
            }
        }
        let mut body = response.body_mut().as_reader();
        let mut block = vec![0; BLOCK];
        while part.len < file.size {
            if stop() {
                return Err(Error::Stopped);
            }
            match body.read(&mut block) {
                Ok(0) => return Err(self.client.short(file)),
                Ok(n) => {
                    // What comes after the end is not part of the file; the hash decides whether the rest is.
                    let n = n.min(usize::try_from(file.size - part.len).unwrap_or(n));
                    part.write(&block[..n])?;
                    self.progress().add(n as u64);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.client.cut(file, &error)),
            }
        }
        Ok(())
    }
}

/// Whether a body is the part of the file that begins at `start`.
fn continues_at(response: &Response<Body>, start: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let first = range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok());
    response.status() == 206 && first == Some(start)
}

/// A file of which the first bytes are here.
struct Part<'a> {
    path: PathBuf,
    wanted: &'a RemoteFile,
    file: File,
    hasher: Hasher,
    len: u64,
}

impl<'a> Part<'a> {
    /// Takes up what an earlier run has left, or begins.
    fn open(path: &Path, wanted: &'a RemoteFile) -> Result<Part<'a>> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(Error::writing(path, wanted.size))?;
        let len = file.metadata().map_err(Error::io(path))?.len();
        let mut part =
            Part { path: path.to_owned(), wanted, file, hasher: wanted.hash.hasher(wanted.size), len };
        if len > wanted.size {
            part.restart()?;
        }
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        while at < part.len {
            let n = part.file.read(&mut block).map_err(Error::io(path))?;
            let n = n.min(usize::try_from(part.len - at).unwrap_or(n));
            if n == 0 {
                // Somebody has made it shorter just now.
                part.len = at;
                break;
            }
            part.hasher.update(&block[..n]);
            at += n as u64;
        }
        part.file.seek(SeekFrom::Start(part.len)).map_err(Error::io(path))?;
        Ok(part)
    }

    /// Forgets all bytes.
    fn restart(&mut self) -> Result<()> {
        if self.len > 0 {
            self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(Error::io(&self.path))?;
        }
        self.len = 0;
        self.hasher = self.wanted.hash.hasher(self.wanted.size);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let needed = self.wanted.size - self.len;
        self.file.write_all(bytes).map_err(Error::writing(&self.path, needed))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// The hash of all bytes; counts for the whole file only.
    fn hash(&mut self) -> super::hash::Hash {
        std::mem::replace(&mut self.hasher, self.wanted.hash.hasher(self.wanted.size)).finish()
    }

    /// Gives the file its name, once its bytes are on the disk itself.
    fn finish(self, blob: &Path) -> Result<()> {
        self.file.sync_all().map_err(Error::writing(&self.path, 0))?;
        drop(self.file);
        fs::rename(&self.path, blob).map_err(Error::io(blob))
    }
}
