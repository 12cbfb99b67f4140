//! What finished sequences leave for later prompts: their states, as long as there is memory for
//! them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backend::Backend;

use super::request::Request;
use crate::sequence::{Sequence, common_prefix};
use crate::{Engine, Error};

/// A sequence that would lose more tokens than this by serving another prompt is copied instead.
const WORTH_KEEPING: usize = 256;

/// A prompt that shares fewer tokens than this starts anew.
const WORTH_SHARING: usize = 8;

/// Sequences that nobody is writing, the least recently used first.
pub(super) struct Prefixes {
    kept: VecDeque<Sequence>,
    /// Bytes that nobody else holds.
    bytes: u64,
    /// Sequences of an earlier run, not read yet.
    saved: Vec<(PathBuf, Vec<u32>)>,
    /// Files of earlier runs of this model, read or not.
    files: Vec<PathBuf>,
    memory: u64,
    /// Most sequences to keep.
    most: usize,
}

/// Where the beginning of a prompt is.
enum Source {
    Kept(usize),
    /// A request that runs.
    Running(usize),
    Saved(usize),
}

impl Prefixes {
    /// Room for `most` sequences in so many bytes. Knows what an earlier run left in `folder`; a
    /// file that is no longer of use is passed over.
    pub fn new<B: Backend>(engine: &Engine<B>, memory: u64, most: usize, folder: Option<&Path>) -> Self {
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

    /// Bytes that nobody else holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The sequence that was kept last.
    pub fn latest(&self) -> Option<&Sequence> {
        self.kept.back()
    }

    /// How many tokens of a prompt somebody has seen who can be forked there, or is of no other use. The last token of
    /// the prompt is never one of them: somebody has to ask for its logits.
    fn best<B: Backend>(
        &self,
        engine: &Engine<B>,
        running: &[Request],
        prompt: &[u32],
    ) -> Option<(Source, usize)> {
        let most = prompt.len() - 1;
        let reach = |sequence: &Sequence, tokens: &[u32]| {
            let common = common_prefix(tokens, prompt).min(sequence.len).min(most);
            sequence.reachable(engine, common)
        };
        let kept = self.kept.iter().enumerate();
        let kept = kept.map(|(i, sequence)| (Source::Kept(i), reach(sequence, &sequence.tokens)));
        let running = running.iter().enumerate().filter_map(|(i, request)| {
            Some((Source::Running(i), reach(request.sequence.as_ref()?, request.writer.tokens())))
        });
        let saved = self.saved.iter().enumerate().filter(|(_, (_, tokens))| prompt.starts_with(tokens));
        let saved = saved.map(|(i, (_, tokens))| (Source::Saved(i), tokens.len().min(most)));
        let worth = |(_, shared): &(Source, usize)| *shared >= WORTH_SHARING;
        // Of equals the last: a kept sequence rather than a file, the latest rather than an old one.
        saved.chain(running).chain(kept).filter(worth).max_by_key(|(_, shared)| *shared)
    }

    /// How many tokens of a request's prompt need not be computed.
    pub fn longest<B: Backend>(&self, engine: &Engine<B>, running: &[Request], request: &Request) -> usize {
        self.best(engine, running, request.writer.tokens()).map_or(0, |(_, shared)| shared)
    }

    /// A sequence that has seen the longest beginning of `prompt` that anybody knows; an empty one where there is none,
    /// `None` where memory is missing.
    pub fn take<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        running: &[Request],
        prompt: &[u32],
    ) -> Result<Option<Sequence>, Error> {
        let begun = match self.best(engine, running, prompt) {
            Some((Source::Kept(i), shared)) => self.take_kept(engine, i, &prompt[..shared])?,
            Some((Source::Running(i), shared)) => match &running[i].sequence {
                Some(sequence) => sequence.fork(engine, &prompt[..shared])?,
                None => None,
            },
            Some((Source::Saved(i), shared)) => {
                let (path, _) = self.saved.remove(i);
                // What cannot be read is computed.
                match engine.load(&path).ok().flatten() {
                    Some(sequence) => sequence.rewind(engine, shared)?,
                    None => None,
                }
            }
            None => None,
        };
        match begun {
            Some(sequence) => Ok(Some(sequence)),
            None => Sequence::create(engine),
        }
    }

    /// A fork of a kept sequence, or the sequence itself where it loses little.
    fn take_kept<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        i: usize,
        shared: &[u32],
    ) -> Result<Option<Sequence>, Error> {
        if self.kept[i].len - shared.len() > WORTH_KEEPING
            && self.most > 1
            && let Some(copy) = self.kept[i].fork(engine, shared)?
        {
            return Ok(Some(copy));
        }
        let Some(sequence) = self.kept.remove(i) else { return Ok(None) };
        let drafts = sequence.draft.as_ref().map(|draft| draft.slot);
        let taken = engine.pools().bytes_of(sequence.slots(), drafts);
        self.bytes = self.bytes.saturating_sub(taken);
        sequence.rewind(engine, shared.len())
    }

    /// Keeps a sequence beside those of running requests. Another one that is the beginning of this is of no more use.
    pub fn put<B: Backend>(&mut self, engine: &mut Engine<B>, running: &[Request], sequence: Sequence) {
        if sequence.len == 0 || sequence.len != sequence.tokens.len() {
            return sequence.release(engine);
        }
        let of_use = |other: &Sequence| !sequence.tokens.starts_with(&other.tokens);
        let (kept, beginnings): (Vec<_>, Vec<_>) = self.kept.drain(..).partition(of_use);
        self.kept = kept.into();
        beginnings.into_iter().for_each(|beginning| beginning.release(engine));
        self.kept.push_back(sequence);
        let others = || running.iter().filter_map(|request| request.sequence.as_ref());
        let drafts = others().filter_map(|sequence| Some(sequence.draft.as_ref()?.slot));
        let held = engine.pools().bytes_of(others().flat_map(Sequence::slots), drafts);
        self.bytes = engine.pools().used().saturating_sub(held);
        self.shrink(engine, self.memory);
    }

    /// Gives up sequences until the rest takes at most `bytes`.
    pub fn shrink<B: Backend>(&mut self, engine: &mut Engine<B>, bytes: u64) {
        while (self.bytes > bytes || self.kept.len() > self.most) && self.drop_oldest(engine) {}
    }

    /// Gives up the least recently used sequence; whether there was one.
    pub fn drop_oldest<B: Backend>(&mut self, engine: &mut Engine<B>) -> bool {
        let Some(oldest) = self.kept.pop_front() else { return false };
        let before = engine.pools().used();
        oldest.release(engine);
        self.bytes = self.bytes.saturating_sub(before - engine.pools().used());
        true
    }

    /// Writes all to `folder`, and removes this model's oldest files there beyond the memory for
    /// sequences. What cannot be written is lost, as it would be without a folder.
    pub fn save<B: Backend>(mut self, engine: &Engine<B>, folder: &Path) {
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
