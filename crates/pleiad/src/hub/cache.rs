//! The hub's cache folder.
//!
//! ```text
//! models--org--name/
//!   blobs/HASH               contents, by their hash; HASH.incomplete while they arrive
//!   refs/main                the commit that a branch or tag was when it was last fetched
//!   snapshots/COMMIT/FILE    links to blobs; the files themselves where there are no links
//! .locks/models--org--name/HASH.lock
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::error::{Error, Result};
use super::hash::{Hash, RemoteFile};
use super::repo::{RepoId, Revision, is_commit};
use super::select;

/// The folder of all models.
pub struct Cache(PathBuf);

impl Cache {
    /// The cache at `folder`, which need not be there yet.
    pub fn new(folder: PathBuf) -> Cache {
        Cache(folder)
    }

    /// The part of one model.
    pub fn repo(&self, repo: &RepoId) -> RepoCache {
        let name = repo.folder();
        RepoCache { locks: self.0.join(".locks").join(&name), root: self.0.join(name) }
    }
}

/// The folder of one model, with all that was fetched of its commits.
pub struct RepoCache {
    root: PathBuf,
    locks: PathBuf,
}

/// Keeps other processes from fetching the same file; given back when dropped.
pub struct Lock(#[allow(dead_code)] Option<File>);

impl RepoCache {
    /// Where the contents of a file are.
    pub fn blob(&self, hash: &Hash) -> PathBuf {
        self.root.join("blobs").join(hash.as_str())
    }

    /// Where they arrive.
    pub fn incomplete(&self, hash: &Hash) -> PathBuf {
        self.root.join("blobs").join(format!("{}.incomplete", hash.as_str()))
    }

    /// The files of one commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// One of them.
    pub fn pointer(&self, commit: &str, name: &str) -> PathBuf {
        self.snapshot(commit).join(name)
    }

    /// Whether the commit has the file whole.
    pub fn has(&self, commit: &str, file: &RemoteFile) -> bool {
        is_file_of(&self.pointer(commit, &file.name), file.size)
    }

    /// Whether the contents are here whole, for any commit.
    pub fn has_blob(&self, file: &RemoteFile) -> bool {
        is_file_of(&self.blob(&file.hash), file.size)
    }

    /// Makes the contents a file of the commit. Where the system has no links, contents that are `new` are moved, as
    /// no other commit has them.
    pub fn link(&self, commit: &str, file: &RemoteFile, new: bool) -> Result<()> {
        self.link_by(|to, at| symlink(to, at), commit, file, new)
    }

    fn link_by(
        &self,
        symlink: impl Fn(&Path, &Path) -> io::Result<()>,
        commit: &str,
        file: &RemoteFile,
        new: bool,
    ) -> Result<()> {
        let (blob, pointer) = (self.blob(&file.hash), self.pointer(commit, &file.name));
        create_parent(&pointer)?;
        if fs::symlink_metadata(&pointer).is_ok() {
            // It leads nowhere, or to something else.
            fs::remove_file(&pointer).map_err(Error::io(&pointer))?;
        }
        // Relative, so that the cache can be moved: up from the folder of the file to that of the model.
        let ups = file.name.split('/').count() + 1;
        let target = Path::new(&"../".repeat(ups)).join("blobs").join(file.hash.as_str());
        match symlink(&target, &pointer) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && self.has(commit, file) => Ok(()),
            Err(_) if new => fs::rename(&blob, &pointer).map_err(Error::io(&pointer)),
            Err(_) => copy_whole(&blob, &pointer, file.size),
        }
    }

    /// Keeps other processes, Python's too, from fetching the same file. Calls `waiting` if one does already.
    pub fn lock(&self, hash: &Hash, waiting: impl FnOnce()) -> Result<Lock> {
        let path = self.locks.join(format!("{}.lock", hash.as_str()));
        create_parent(&path)?;
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(Error::writing(&path, 0))?;
        match file.try_lock() {
            Ok(()) => Ok(Lock(Some(file))),
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().map_err(Error::io(&path))?;
                Ok(Lock(Some(file)))
            }
            // Some network disks have no locks. The hash tells if two have written at once.
            Err(TryLockError::Error(_)) => Ok(Lock(None)),
        }
    }

    /// Remembers what commit a branch or tag is.
    pub fn write_ref(&self, revision: &Revision, commit: &str) -> Result<()> {
        if revision.as_str() == commit || self.read_ref(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision.as_str());
        create_parent(&path)?;
        let mut temporary = path.clone().into_os_string();
        temporary.push(format!(".{}.partial", std::process::id()));
        let temporary = PathBuf::from(temporary);
        fs::write(&temporary, commit).map_err(Error::writing(&temporary, 0))?;
        fs::rename(&temporary, &path).map_err(Error::io(&path))
    }

    fn read_ref(&self, revision: &Revision) -> Option<String> {
        let commit = fs::read_to_string(self.root.join("refs").join(revision.as_str())).ok()?;
        let commit = commit.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// The folder of a revision, if it has all that a model needs.
    pub fn complete_snapshot(&self, revision: &Revision) -> Option<PathBuf> {
        let named = || revision.is_commit().then(|| revision.as_str().to_owned());
        let folder = self.snapshot(&self.read_ref(revision).or_else(named)?);
        is_complete(&folder).then_some(folder)
    }
}

/// Whether a folder has a config and all its weights. Links that lead nowhere do not count.
fn is_complete(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    let names = entries.flatten().filter(|entry| entry.path().is_file());
    let names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    if select::check_model(&names).is_err() {
        return false;
    }
    let index = match names.contains(&select::INDEX) {
        true => match fs::read_to_string(folder.join(select::INDEX)) {
            Ok(index) => Some(index),
            Err(_) => return false,
        },
        false => None,
    };
    names.sort_unstable();
    select::weights(&names, index.as_deref()).is_ok()
}

fn is_file_of(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.len() == size)
}

/// Makes the folder that `path` is to be in.
pub fn create_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), |folder| fs::create_dir_all(folder).map_err(Error::writing(folder, 0)))
}

/// A copy that appears whole or not at all.
fn copy_whole(from: &Path, to: &Path, size: u64) -> Result<()> {
    let mut temporary = to.to_owned().into_os_string();
    temporary.push(format!(".{}.partial", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let copy = fs::copy(from, &temporary).map_err(Error::writing(&temporary, size));
    let done = copy.and_then(|_| fs::rename(&temporary, to).map_err(Error::io(to)));
    done.inspect_err(|_| {
        // The error at hand matters more than one about tidying up.
        let _ = fs::remove_file(&temporary);
    })
}

#[cfg(unix)]
use std::os::unix::fs::symlink;
#[cfg(windows)]
use std::os::windows::fs::symlink_file as symlink;

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache(folder: &Path) -> RepoCache {
        Cache::new(folder.to_owned()).repo(&RepoId::parse("org/name").unwrap())
    }

    fn file(name: &str) -> RemoteFile {
        let hash = Hash::parse(&format!("{:064x}", name.len())).unwrap();
        RemoteFile { name: name.into(), size: 4, hash }
    }

    #[cfg(unix)]
    #[test]
    fn files_are_links_to_contents() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        for name in ["config.json", "sub/deep/model.safetensors"] {
            let file = file(name);
            create_parent(&cache.blob(&file.hash)).unwrap();
            fs::write(cache.blob(&file.hash), "text").unwrap();
            assert!(cache.has_blob(&file) && !cache.has(COMMIT, &file));
            cache.link(COMMIT, &file, true).unwrap();
            cache.link(COMMIT, &file, false).unwrap();
            assert!(cache.has_blob(&file) && cache.has(COMMIT, &file));
            let link = fs::read_link(cache.pointer(COMMIT, name)).unwrap();
            assert!(link.starts_with("../..") && link.ends_with(file.hash.as_str()), "{}", link.display());
        }
    }

    #[test]
    fn without_links_contents_are_moved_or_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, file) = (cache(folder.path()), file("config.json"));
        let none = |_: &Path, _: &Path| Err(io::Error::from(ErrorKind::PermissionDenied));
        create_parent(&cache.blob(&file.hash)).unwrap();
        fs::write(cache.blob(&file.hash), "text").unwrap();
        cache.link_by(none, COMMIT, &file, false).unwrap();
        assert!(cache.has(COMMIT, &file) && cache.has_blob(&file));
        cache.link_by(none, COMMIT, &file, true).unwrap();
        assert!(cache.has(COMMIT, &file) && !cache.has_blob(&file));
        assert_eq!(fs::read_dir(cache.snapshot(COMMIT)).unwrap().count(), 1);
    }

    #[test]
    fn only_whole_models_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path());
        let snapshot = cache.snapshot(COMMIT);
        let main = Revision::parse(None).unwrap();
        let found = || cache.complete_snapshot(&main);
        assert_eq!(found(), None);
        cache.write_ref(&main, COMMIT).unwrap();
        assert_eq!(fs::read_to_string(cache.root.join("refs/main")).unwrap(), COMMIT);
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(snapshot.join("config.json"), "{}").unwrap();
        let index = "{\"weight_map\": {\"a\": \"a.safetensors\", \"b\": \"b.safetensors\"}}";
        fs::write(snapshot.join(select::INDEX), index).unwrap();
        fs::write(snapshot.join("a.safetensors"), "").unwrap();
        assert_eq!(found(), None);
        fs::write(snapshot.join("b.safetensors"), "").unwrap();
        assert_eq!(found().as_ref(), Some(&snapshot));
        let by_commit = Revision::parse(Some(COMMIT)).unwrap();
        assert_eq!(cache.complete_snapshot(&by_commit).as_ref(), Some(&snapshot));
        assert_eq!(cache.complete_snapshot(&Revision::parse(Some("v1")).unwrap()), None);
        // A reference is a file like any other.
        for bad in ["../../elsewhere", "", "/etc"] {
            fs::write(cache.root.join("refs/main"), bad).unwrap();
            assert_eq!(found(), None, "{bad}");
        }
    }

    #[test]
    fn one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, file) = (cache(folder.path()), file("x"));
        let first = cache.lock(&file.hash, || panic!("nobody has it")).unwrap();
        let (told, tell) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| cache.lock(&file.hash, || told.send(()).unwrap()).map(drop));
            tell.recv().unwrap();
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}
