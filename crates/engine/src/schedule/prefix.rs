//! What finished sequences leave for later prompts: their states, as long as there is memory for
//! them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backend::Backend;

use crate::sequence::Sequence;
use crate::{Engine, Error};

/// A sequence that would lose more tokens than this by serving another prompt is copied instead.
const WORTH_KEEPING: usize = 256;

/// A prompt that shares fewer tokens than this starts anew.
const WORTH_SHARING: usize = 8;

/// Sequences that nobody is writing, the least recently used first.
pub(super) struct Prefixes<B: Backend> {
    kept: VecDeque<Sequence<B>>,
    /// Bytes of their states.
    bytes: u64,
    /// Sequences of an earlier run, not read yet.
    saved: Vec<(PathBuf, Vec<u32>)>,
    /// Files of earlier runs of this model, read or not.
    files: Vec<PathBuf>,
    memory: u64,
    /// Most sequences to keep.
    most: usize,
}

impl<B: Backend> Prefixes<B> {
    /// Room for `most` sequences in so many bytes. Knows what an earlier run left in `folder`; a
    /// file that is no longer of use is passed over.
    pub fn new(engine: &Engine<B>, memory: u64, most: usize, folder: Option<&Path>) -> Self {
        folder.into_iter().for_each(tidy);
        let entries =
            folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let paths =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == EXTENSION));
        let saved: Vec<_> =
            paths.filter_map(|path| Some((path.clone(), engine.saved_tokens(&path).ok()?))).collect();
        let files = saved.iter().map(|(path, _)| path.clone()).collect();
        Self { kept: VecDeque::new(), bytes: 0, saved, files, memory, most }
    }

    /// Bytes of the states.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The sequence that was kept last.
    pub fn latest(&self) -> Option<&Sequence<B>> {
        self.kept.back()
    }

    /// The sequence that has the most in common with `prompt`, brought to a common beginning; an
    /// empty one where there is none. The last token of the prompt is never part of it: somebody
    /// has to ask for its logits. It is a copy only if all that is kept is within `free` bytes
    /// beside it.
    pub fn take(&mut self, engine: &Engine<B>, prompt: &[u32], free: u64) -> Result<Sequence<B>, Error> {
        let b = engine.model().backend();
        let reach = |sequence: &Sequence<B>| sequence.reachable(prompt).min(prompt.len() - 1);
        let best = (0..self.kept.len()).max_by_key(|i| reach(&self.kept[*i]));
        let best = best.map(|i| (i, reach(&self.kept[i]))).filter(|(_, shared)| *shared >= WORTH_SHARING);
        let from_disk = |tokens: &[u32]| if prompt.starts_with(tokens) { tokens.len() } else { 0 };
        let saved = (0..self.saved.len()).max_by_key(|i| from_disk(&self.saved[*i].1));
        if let Some(i) = saved
            && from_disk(&self.saved[i].1) > best.map_or(WORTH_SHARING, |(_, shared)| shared)
        {
            let (path, _) = self.saved.remove(i);
            if let Ok(mut sequence) = engine.load(&path)
                && self.rewind(engine, &mut sequence, prompt)? > 0
            {
                return Ok(sequence);
            }
        }
        let Some((i, shared)) = best else { return engine.sequence() };
        let loses = self.kept[i].tokens.len() - shared;
        if loses > WORTH_KEEPING
            && self.most > 1
            && self.bytes <= free
            && let Some(copy) = self.kept[i].copy(b, shared)?
        {
            return Ok(copy);
        }
        let Some(mut sequence) = self.kept.remove(i) else { return engine.sequence() };
        self.bytes -= sequence.bytes(engine);
        self.rewind(engine, &mut sequence, prompt)?;
        Ok(sequence)
    }

    fn rewind(&self, engine: &Engine<B>, sequence: &mut Sequence<B>, prompt: &[u32]) -> Result<usize, Error> {
        let shared = crate::common_prefix(&sequence.tokens, prompt).min(prompt.len() - 1);
        sequence.rewind(engine.model().backend(), shared, || engine.fresh_state())
    }

    /// Keeps a sequence. Another one that is the beginning of this is of no more use.
    pub fn put(&mut self, engine: &Engine<B>, sequence: Sequence<B>) {
        if sequence.tokens.is_empty() {
            return;
        }
        self.kept.retain(|other| {
            let useful = !sequence.tokens.starts_with(&other.tokens);
            self.bytes -= if useful { 0 } else { other.bytes(engine) };
            useful
        });
        self.bytes += sequence.bytes(engine);
        self.kept.push_back(sequence);
        self.shrink(engine, self.memory);
    }

    /// Gives up sequences until the rest takes at most `bytes`.
    pub fn shrink(&mut self, engine: &Engine<B>, bytes: u64) {
        while (self.bytes > bytes || self.kept.len() > self.most)
            && let Some(oldest) = self.kept.pop_front()
        {
            self.bytes -= oldest.bytes(engine);
        }
    }

    /// Writes all to `folder`, and removes this model's oldest files there beyond the memory for
    /// sequences. What cannot be written is lost, as it would be without a folder.
    pub fn save(mut self, engine: &Engine<B>, folder: &Path) {
        if std::fs::create_dir_all(folder).is_err() {
            return;
        }
        for sequence in &self.kept {
            let path = folder.join(format!("{:016x}.{EXTENSION}", fingerprint(&sequence.tokens)));
            if engine.save(sequence, &path).is_ok() && !self.files.contains(&path) {
                self.files.push(path);
            }
        }
        let known = |path: PathBuf| {
            let metadata = path.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), path))
        };
        let mut files: Vec<_> = self.files.into_iter().filter_map(known).collect();
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in files {
            if bytes <= self.memory {
                break;
            }
            bytes -= len;
            let _ = std::fs::remove_file(path);
        }
    }
}

const EXTENSION: &str = "safetensors";

/// How old a half-written file must be before it is certain that nobody goes on writing it.
const STALE: Duration = Duration::from_secs(3600);

/// Removes what runs that were killed have left half written. Another run may be writing here just
/// now: only what is old.
fn tidy(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|m| m.modified()).map(|t| t.elapsed().unwrap_or_default());
        if is_partial(&entry.file_name().to_string_lossy()) && age.is_ok_and(|age| age > STALE) {
            // It stays where it is then, and harms nobody.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a file's name is what one of ours has until it is whole.
fn is_partial(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let [fingerprint, EXTENSION, process, "partial"] = parts[..] else { return false };
    fingerprint.len() == 16
        && fingerprint.bytes().all(|b| b.is_ascii_hexdigit())
        && process.bytes().all(|b| b.is_ascii_digit())
}

/// A name for a sequence of tokens (FNV-1a).
fn fingerprint(tokens: &[u32]) -> u64 {
    let bytes = tokens.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_old_half_written_files_of_ours_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let make = |name: &str, age: Duration| {
            let path = folder.path().join(name);
            let file = File::create(&path).expect("a file");
            file.set_modified(SystemTime::now() - age).expect("a time");
            path
        };
        let gone = make("0123456789abcdef.safetensors.77.partial", 2 * STALE);
        let kept = [
            make("0123456789abcdef.safetensors.78.partial", Duration::ZERO),
            make("0123456789abcdef.safetensors", 2 * STALE),
            make("model.safetensors.77.partial", 2 * STALE),
            make("notes.partial", 2 * STALE),
        ];
        tidy(folder.path());
        assert!(!gone.exists());
        kept.iter().for_each(|path| assert!(path.exists(), "{path:?}"));
    }
}
