//! Writing a model folder, tensor by tensor.

use std::{
    fs::{self, File},
    io::Write,
    ops::Range,
    path::{Component, Path, PathBuf},
};

use serde_json::{Map, Value, json};

use crate::{
    Error, Result, TensorSpec,
    out_file::{OutFile, check_plan, parent, plan, sync_folder},
    shards::INDEX,
};

/// Where a drafting head is written, which mlx-lm has no use for.
pub const DRAFTER_FILE: &str = "mtp.safetensors";

/// Writes a model folder that mlx-lm and [`crate::Checkpoint::open`] read: `config.json`, shards of at most
/// `shard_bytes` (a larger tensor has one to itself), and an index when there is more than one.
///
/// Everything goes to `{dst}.partial`, which [`FolderWriter::finish`] renames to `dst`: a run that is killed
/// leaves no folder that looks whole. A writer dropped before that removes what it wrote. Tensors are
/// streamed in the planned order, so memory stays bounded.
#[derive(Debug)]
pub struct FolderWriter {
    dst: PathBuf,
    partial: PathBuf,
    tensors: Vec<TensorSpec>,
    sizes: Vec<u64>,
    /// Tensors of each shard.
    shards: Vec<Range<usize>>,
    /// The name of the last shard, where it has one of its own.
    apart: Option<&'static str>,
    /// The shard being written; `None` when all are.
    current: Option<OutFile>,
    shard: usize,
    /// The tensor being written, and how much of it is there.
    tensor: usize,
    filled: u64,
    /// A write failed: what is in the files is no longer known, so they must not be published.
    failed: bool,
}

impl FolderWriter {
    /// Plans the shards and starts writing. Fails when `dst` or `{dst}.partial` exists.
    pub fn create(dst: &Path, config: &Value, tensors: Vec<TensorSpec>, shard_bytes: u64) -> Result<Self> {
        Self::create_apart(dst, config, tensors, ("", Vec::new()), shard_bytes)
    }

    /// The same with further tensors, which come after the others and go to a file of the name given with them. mlx-lm reads
    /// `model*.safetensors` alone, so that under another name it does not meet tensors that it would refuse; the index names the file.
    pub fn create_apart(
        dst: &Path,
        config: &Value,
        mut tensors: Vec<TensorSpec>,
        (file, apart): (&'static str, Vec<TensorSpec>),
        shard_bytes: u64,
    ) -> Result<Self> {
        let first = tensors.len();
        tensors.extend(apart);
        let sizes = check_plan(dst, &tensors)?;
        let Some(name) = dst.file_name() else {
            return Err(plan(dst, "the path has no folder name".to_owned()));
        };
        refuse_existing(dst)?;
        let mut partial = name.to_owned();
        partial.push(".partial");
        let partial = dst.with_file_name(partial);
        fs::create_dir_all(parent(dst)).map_err(Error::io(parent(dst)))?;
        // Never reused: another run may be writing into it at this moment.
        fs::create_dir(&partial).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Error::AlreadyExists {
                path: partial.clone(),
                hint: "an interrupted run left it, or another run is writing it; in the first case remove it",
            },
            _ => Error::Io { path: partial.clone(), source: error },
        })?;

        let mut shards = split(&sizes[..first], shard_bytes);
        let apart = (first < tensors.len()).then_some(file);
        shards.extend(apart.map(|_| first..tensors.len()));
        let mut writer = FolderWriter {
            dst: dst.to_owned(),
            partial,
            tensors,
            sizes,
            shards,
            apart,
            current: None,
            shard: 0,
            tensor: 0,
            filled: 0,
            failed: false,
        };
        // From here on, an error drops the writer, which removes the folder.
        writer.write_json("config.json", config)?;
        writer.open_shard()?;
        writer.settle()?;
        Ok(writer)
    }

    /// Appends bytes to the current tensor. When it is full the next one of the plan begins; bytes of two
    /// tensors come in two calls. Fails when a tensor gets more bytes than its shape needs. After a failure
    /// the folder cannot be finished.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.append(bytes).inspect_err(|_| self.failed = true)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(out) = &mut self.current else {
            return Err(plan(&self.dst, format!("{} bytes follow the last tensor", bytes.len())));
        };
        let left = self.sizes[self.tensor] - self.filled;
        if bytes.len() as u64 > left {
            let TensorSpec { name, shape, .. } = &self.tensors[self.tensor];
            let problem =
                format!("tensor `{name}` of shape {shape:?} lacks {left} bytes, got {}", bytes.len());
            return Err(plan(&self.dst, problem));
        }
        out.write(bytes)?;
        self.filled += bytes.len() as u64;
        self.settle()
    }

    /// Bytes of all planned tensors.
    pub fn total_bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Adds another file to the folder: a tokenizer, a chat template.
    pub fn add_file(&mut self, name: &str, contents: &[u8]) -> Result<()> {
        let mut parts = Path::new(name).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name) {
            return Err(plan(&self.dst, format!("`{name}` is not a plain file name")));
        }
        // Shards to come are not there yet, hence the check by name beside the one by existence.
        let path = self.partial.join(name);
        if name == INDEX
            || self.shards.iter().enumerate().any(|(i, _)| self.shard_name(i) == name)
            || path.exists()
        {
            return Err(plan(&self.dst, format!("`{name}` is written already, or will be")));
        }
        let mut file = File::create(&path).map_err(Error::io(&path))?;
        file.write_all(contents).and_then(|()| file.sync_all()).map_err(Error::io(&path))
    }

    /// Writes the index and gives the folder its name. Fails, and removes everything, when data is missing.
    pub fn finish(mut self) -> Result<()> {
        if self.failed {
            return Err(plan(&self.dst, "an earlier write failed".to_owned()));
        }
        if self.current.is_some() {
            let TensorSpec { name, .. } = &self.tensors[self.tensor];
            let (have, need) = (self.filled, self.sizes[self.tensor]);
            let after = self.tensors.len() - self.tensor - 1;
            let problem =
                format!("tensor `{name}` has {have} of {need} bytes, and {after} tensors come after it");
            return Err(plan(&self.dst, problem));
        }
        if self.shards.len() > 1 {
            let mut weight_map: Vec<(String, Value)> = Vec::with_capacity(self.tensors.len());
            for (i, shard) in self.shards.iter().enumerate() {
                let names = self.tensors[shard.clone()].iter().map(|spec| spec.name.clone());
                weight_map.extend(names.map(|name| (name, Value::String(self.shard_name(i)))));
            }
            weight_map.sort_by(|a, b| a.0.cmp(&b.0));
            let weight_map = Map::from_iter(weight_map);
            let index = json!({"metadata": {"total_size": self.total_bytes()}, "weight_map": weight_map});
            self.write_json(INDEX, &index)?;
        }
        sync_folder(&self.partial)?;
        refuse_existing(&self.dst)?;
        fs::rename(&self.partial, &self.dst).map_err(Error::io(&self.dst))?;
        // From here on there is nothing for Drop to remove.
        self.partial = PathBuf::new();
        sync_folder(parent(&self.dst))
    }

    fn write_json(&mut self, name: &str, value: &Value) -> Result<()> {
        let path = self.partial.join(name);
        let mut text = serde_json::to_vec_pretty(value).map_err(|error| plan(&path, error.to_string()))?;
        text.push(b'\n');
        let mut file = File::create(&path).map_err(Error::io(&path))?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(Error::io(&path))
    }

    fn open_shard(&mut self) -> Result<()> {
        let path = self.partial.join(self.shard_name(self.shard));
        self.current = Some(OutFile::create(&path, &self.tensors[self.shards[self.shard].clone()])?);
        Ok(())
    }

    /// Moves past full tensors (an empty one is full at once) and past full shards.
    fn settle(&mut self) -> Result<()> {
        loop {
            if self.tensor == self.shards[self.shard].end {
                if let Some(full) = self.current.take() {
                    full.close()?;
                }
                if self.shard + 1 == self.shards.len() {
                    return Ok(());
                }
                self.shard += 1;
                self.open_shard()?;
            }
            if self.tensor == self.tensors.len() || self.filled < self.sizes[self.tensor] {
                return Ok(());
            }
            self.tensor += 1;
            self.filled = 0;
        }
    }

    fn shard_name(&self, shard: usize) -> String {
        match (self.apart, self.shards.len() - usize::from(self.apart.is_some())) {
            (Some(name), n) if shard == n => name.to_owned(),
            (_, 1) => "model.safetensors".to_owned(),
            (_, n) => format!("model-{:05}-of-{n:05}.safetensors", shard + 1),
        }
    }
}

impl Drop for FolderWriter {
    fn drop(&mut self) {
        if !self.partial.as_os_str().is_empty() {
            // Windows does not remove open files.
            self.current = None;
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// Neighbouring tensors together as long as they fit; at least one shard, also without tensors. Empty tensors
/// always fit.
fn split(sizes: &[u64], shard_bytes: u64) -> Vec<Range<usize>> {
    let mut shards = Vec::new();
    let (mut start, mut filled) = (0, 0u64);
    for (i, &size) in sizes.iter().enumerate() {
        if filled > 0 && size > 0 && filled + size > shard_bytes {
            shards.push(start..i);
            (start, filled) = (i, 0);
        }
        filled += size;
    }
    shards.push(start..sizes.len());
    shards
}

fn refuse_existing(dst: &Path) -> Result<()> {
    if fs::symlink_metadata(dst).is_ok() {
        let hint = "remove it first, or give another name";
        return Err(Error::AlreadyExists { path: dst.to_owned(), hint });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn shards_hold_what_fits() {
        assert_eq!(split(&[], 10), from_ref(&(0..0)));
        assert_eq!(split(&[4, 6, 1], 10), [0..2, 2..3]);
        assert_eq!(split(&[50, 1, 50], 10), [0..1, 1..2, 2..3]);
        assert_eq!(split(&[0, 0, 11, 0], 10), from_ref(&(0..4)));
    }
}
