//! Models from the Hugging Face hub, in the cache folder that its Python library uses too: what either has fetched, the
//! other finds.
//!
//! `settings` reads the variables, `repo` checks names, `client` speaks to the hub, `select` says which files a model
//! needs, `download` fetches one of them and `cache` knows where it goes.
//!
//! The hub's own crate is not used: version 1.0 stands on 205 others, version 0.5 on 51, both need a C compiler, and 0.5
//! does not check what it has fetched.

mod cache;
mod client;
mod download;
mod error;
mod hash;
mod repo;
mod select;
mod settings;
mod tls;

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::bytes;

pub use error::Error;

use crate::progress::Progress;
use cache::{Cache, RepoCache};
use client::{Client, Listing};
use download::Download;
use error::Result;
use hash::RemoteFile;
use repo::{RepoId, Revision};
use settings::Settings;

/// Files fetched at the same time: the hub limits each connection.
const WORKERS: usize = 4;

/// The folder of a model that has been fetched whole, by its name on the hub (`org/name`). The revision is `main` unless
/// one is given. Never asks the network.
pub fn find_local(repo_id: &str, revision: Option<&str>) -> Option<PathBuf> {
    let repo = RepoId::parse(repo_id).ok()?;
    let revision = Revision::parse(revision).ok()?;
    let cache = Cache::new(Settings::cache_folder().ok()?);
    cache.repo(&repo).complete_snapshot(&revision)
}

/// Fetches the files a model needs, as far as they are not there yet, and returns their folder.
pub fn pull(repo_id: &str, revision: Option<&str>) -> Result<PathBuf> {
    let repo = RepoId::parse(repo_id)?;
    let revision = Revision::parse(revision)?;
    let settings = Settings::from_env()?;
    let cache = Cache::new(settings.cache.clone()).repo(&repo);
    if settings.offline {
        let missing = || Error::Offline { repo: repo.to_string(), cache: settings.cache.clone() };
        return cache.complete_snapshot(&revision).ok_or_else(missing);
    }

    let client = Client::new(&settings, &repo)?;
    let listing = client.list(&revision)?;
    fetch(&client, &cache, &listing)?;
    // Last, so that the name leads to a whole model at any time.
    cache.write_ref(&revision, &listing.commit)?;
    Ok(cache.snapshot(&listing.commit))
}

/// Fetches one commit: first what is small, then the weights, so that a folder with all its weights is whole.
fn fetch(client: &Client, cache: &RepoCache, listing: &Listing) -> Result<()> {
    let not_a_model = |problem| Error::NotAModel { repo: client.repo().to_string(), problem };
    let names: Vec<&str> = listing.names.iter().map(String::as_str).collect();
    select::check_model(&names).map_err(not_a_model)?;

    let index = match names.contains(&select::INDEX) {
        true => Some(fetch_index(client, cache, listing)?),
        false => None,
    };
    let weights = select::weights(&names, index.as_deref()).map_err(not_a_model)?;
    let small = names.iter().copied().filter(|name| select::is_small(name));
    let small: Vec<RemoteFile> = small.map(|name| client.describe(listing, name)).collect::<Result<_>>()?;
    let mut weights: Vec<RemoteFile> =
        weights.iter().map(|name| client.describe(listing, name)).collect::<Result<_>>()?;
    // The longest first: nothing long is left for one worker at the end.
    weights.sort_by_key(|file| std::cmp::Reverse(file.size));

    let total = small.iter().chain(&weights).fold(0u64, |sum, file| sum.saturating_add(file.size));
    let count = small.len() + weights.len();
    eprintln!(
        "{} at {}: {count} files, {}",
        client.repo(),
        &listing.commit[..listing.commit.len().min(10)],
        bytes(total)
    );
    let progress = Mutex::new(Progress::new(total));
    let download = Download { client, cache, commit: &listing.commit, progress: &progress };
    for file in &small {
        download.fetch(file)?;
    }
    fetch_all(&download, &weights)
}

/// The text of the index, which says what weights there are.
fn fetch_index(client: &Client, cache: &RepoCache, listing: &Listing) -> Result<String> {
    let file = client.describe(listing, select::INDEX)?;
    let progress = Mutex::new(Progress::new(file.size));
    Download { client, cache, commit: &listing.commit, progress: &progress }.fetch(&file)?;
    let path = cache.pointer(&listing.commit, select::INDEX);
    fs::read_to_string(&path).map_err(Error::io(&path))
}

/// Several files at a time. The first error ends the others where they are; what they have stays for the next run.
fn fetch_all(download: &Download, files: &[RemoteFile]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let failed = || failure.lock().map_or(true, |failure| failure.is_some());
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = download.fetch_unless(file, &failed);
            if let Err(error) = result
                && let Ok(mut failure) = failure.lock()
            {
                failure.get_or_insert(error);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(files.len()) {
            scope.spawn(work);
        }
    });
    match failure.into_inner() {
        Ok(None) => Ok(()),
        Ok(Some(error)) => Err(error),
        Err(poisoned) => poisoned.into_inner().map_or(Ok(()), Err),
    }
}
