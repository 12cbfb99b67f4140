//! An opened model folder.

use std::{
    collections::{BTreeMap, btree_map},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use safetensors::Dtype;

use crate::{Bytes, Config, Error, Result, header, shards};

/// One tensor as stored.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Axes, slowest first.
    pub shape: Vec<usize>,
    /// Elements, row-major, little-endian.
    pub bytes: Bytes,
}

/// An opened model folder: config read, all shards mapped, headers checked. No weight is read until it is
/// used, so a 20 GB model opens in milliseconds.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    config: Config,
    tensors: BTreeMap<String, Stored>,
}

#[derive(Debug)]
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Bytes,
    shard: usize,
    used: AtomicBool,
}

/// The tensors of one safetensors file, by name, sharing its mapping.
pub fn read_file(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let tensors = header::parse(path, &Bytes::map(path)?)?.into_iter().map(|entry| {
        let header::Entry { name, dtype, shape, bytes } = entry;
        (name.clone(), Tensor { name, dtype, shape, bytes })
    });
    Ok(tensors.collect())
}

/// The tensors of all files of a checkpoint; no two may have one name.
fn collect(paths: &[PathBuf], files: &[Bytes]) -> Result<BTreeMap<String, Stored>> {
    let mut tensors = BTreeMap::new();
    for (shard, (path, file)) in paths.iter().zip(files).enumerate() {
        for header::Entry { name, dtype, shape, bytes } in header::parse(path, file)? {
            match tensors.entry(name) {
                btree_map::Entry::Vacant(slot) => {
                    slot.insert(Stored { dtype, shape, bytes, shard, used: AtomicBool::new(false) });
                }
                btree_map::Entry::Occupied(slot) => {
                    let first: &Stored = slot.get();
                    return Err(Error::DuplicateTensor {
                        name: slot.key().clone(),
                        first: paths[first.shard].clone(),
                        second: path.clone(),
                    });
                }
            }
        }
    }
    Ok(tensors)
}

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors`, or `model.safetensors.index.json` and its
    /// shards, or any other safetensors files.
    pub fn open(folder: &Path) -> Result<Checkpoint> {
        let not_a_model =
            |problem: &str| Error::NotAModelFolder { path: folder.to_owned(), problem: problem.to_owned() };
        if !folder.exists() {
            return Err(not_a_model("there is nothing at this path"));
        }
        if !folder.is_dir() {
            return Err(not_a_model("it is a file; give the folder that holds config.json"));
        }
        let config_path = folder.join("config.json");
        if !config_path.exists() {
            return Err(not_a_model("it has no config.json"));
        }
        let config = Config::open(&config_path)?;
        let shards = shards::find(folder)?;
        let paths: Vec<PathBuf> = shards.files.iter().map(|file| folder.join(file)).collect();
        let files = paths.iter().map(|path| Bytes::map(path)).collect::<Result<Vec<_>>>()?;
        let tensors = collect(&paths, &files)?;
        for (name, shard) in shards.promised {
            let kept =
                tensors.get(&name).is_some_and(|stored| shards.files[stored.shard] == Path::new(&shard));
            if !kept {
                return Err(Error::NotInShard { name, shard, folder: folder.to_owned() });
            }
        }
        Ok(Checkpoint { folder: folder.to_owned(), config, tensors })
    }

    /// A checkpoint that is not in a folder: the text of its config and its one safetensors file. `name` stands for the
    /// folder in messages.
    pub fn from_parts(name: &str, config: &str, weights: Bytes) -> Result<Checkpoint> {
        let folder = PathBuf::from(name);
        let config = Config::from_str(config, &folder.join("config.json"))?;
        let tensors = collect(&[folder.join("model.safetensors")], &[weights])?;
        Ok(Checkpoint { folder, config, tensors })
    }

    /// The folder that was opened.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its `config.json`.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// All tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of this name. Does not count as use.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The axes of a tensor, when there is one of this name. Does not count as use.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|stored| stored.shape.as_slice())
    }

    /// A tensor as stored, sharing the mapped file.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let stored = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        stored.used.store(true, Ordering::Relaxed);
        Ok(Tensor {
            name: name.to_owned(),
            dtype: stored.dtype,
            shape: stored.shape.clone(),
            bytes: stored.bytes.clone(),
        })
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.values().map(|stored| stored.bytes.len() as u64).sum()
    }

    /// Names that were never asked for since opening, sorted. After a model has loaded, these are tensors it
    /// does not know: worth a word to the user.
    pub fn unused(&self) -> Vec<String> {
        let unused = |stored: &Stored| !stored.used.load(Ordering::Relaxed);
        self.tensors.iter().filter(|(_, stored)| unused(stored)).map(|(name, _)| name.clone()).collect()
    }

    /// A digest that tells one checkpoint from another: of the config, of every tensor's name, type and shape, and of
    /// the first bytes of a few tensors, so that two trainings of one shape differ. It costs a few page reads.
    pub fn identity(&self) -> String {
        const SAMPLES: usize = 8;
        let mut digest = Fnv::default();
        digest.add(self.config.root().to_string().as_bytes());
        let step = self.tensors.len().div_ceil(SAMPLES).max(1);
        for (i, (name, Stored { dtype, shape, bytes, .. })) in self.tensors.iter().enumerate() {
            digest.add(format!("{name} {dtype} {shape:?}").as_bytes());
            if i % step == 0 {
                digest.add(&bytes[..bytes.len().min(256)]);
            }
        }
        format!("{:016x}", digest.0)
    }

    pub(crate) fn missing(&self, name: &str) -> Error {
        Error::MissingTensor { name: name.to_owned(), folder: self.folder.clone() }
    }
}

/// The FNV-1a hash: not cryptographic, and the same on every platform and in every version.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
