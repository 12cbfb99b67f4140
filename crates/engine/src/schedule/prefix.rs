//! What finished sequences leave for later prompts: their states, as long as there is memory for them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

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
}

impl<B: Backend> Prefixes<B> {
    /// Knows what an earlier run left in `folder`; a file that is no longer of use is passed over.
    pub fn new(engine: &Engine<B>, memory: u64, folder: Option<&Path>) -> Self {
        let entries =
            folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
        let paths =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == EXTENSION));
        let saved: Vec<_> =
            paths.filter_map(|path| Some((path.clone(), engine.saved_tokens(&path).ok()?))).collect();
        let files = saved.iter().map(|(path, _)| path.clone()).collect();
        Self { kept: VecDeque::new(), bytes: 0, saved, files, memory }
    }

    /// Bytes of the states.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The sequence that has the most in common with `prompt`, brought to a common beginning; an empty one where there is
    /// none. The last token of the prompt is never part of it: somebody has to ask for its logits.
    pub fn take(&mut self, engine: &Engine<B>, prompt: &[u32]) -> Result<Sequence<B>, Error> {
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
        if self.kept[i].tokens().len() - shared > WORTH_KEEPING
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
        let shared = crate::common_prefix(sequence.tokens(), prompt).min(prompt.len() - 1);
        sequence.rewind(engine.model().backend(), shared, || engine.fresh_state())
    }

    /// Keeps a sequence. Another one that is the beginning of this is of no more use.
    pub fn put(&mut self, engine: &Engine<B>, sequence: Sequence<B>) {
        if sequence.tokens().is_empty() {
            return;
        }
        self.kept.retain(|other| {
            let useful = !sequence.tokens().starts_with(other.tokens());
            self.bytes -= if useful { 0 } else { other.bytes(engine) };
            useful
        });
        self.bytes += sequence.bytes(engine);
        self.kept.push_back(sequence);
        self.shrink(engine, self.memory);
    }

    /// Gives up sequences until the rest takes at most `bytes`.
    pub fn shrink(&mut self, engine: &Engine<B>, bytes: u64) {
        while self.bytes > bytes
            && let Some(oldest) = self.kept.pop_front()
        {
            self.bytes -= oldest.bytes(engine);
        }
    }

    /// Writes all to `folder`, and removes this model's oldest files there beyond the memory for sequences. What cannot be
    /// written is lost, as it would be without a folder.
    pub fn save(mut self, engine: &Engine<B>, folder: &Path) {
        if std::fs::create_dir_all(folder).is_err() {
            return;
        }
        for sequence in &self.kept {
            let path = folder.join(format!("{:016x}.{EXTENSION}", fingerprint(sequence.tokens())));
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

/// A name for a sequence of tokens (FNV-1a).
fn fingerprint(tokens: &[u32]) -> u64 {
    let bytes = tokens.iter().flat_map(|id| id.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
