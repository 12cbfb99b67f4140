//! Which files of a folder hold the weights.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs,
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use crate::{Error, Result, json::read_text};

const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The files that hold the weights, and what the index promises about them.
pub(crate) struct Shards {
    /// File names, sorted.
    pub files: Vec<PathBuf>,
    /// Tensor name to file name; empty without an index.
    pub promised: BTreeMap<String, String>,
}

/// `model.safetensors` alone, the files of the index, or else whatever safetensors files there are.
pub(crate) fn find(folder: &Path) -> Result<Shards> {
    let single = folder.join(SINGLE).is_file();
    let index = folder.join(INDEX);
    if index.is_file() {
        let promised = read_index(&index)?;
        // mlx-lm writes an index for a single file too; one that does not name the file beside it is a
        // leftover.
        if !single || promised.values().any(|shard| shard == SINGLE) {
            return from_index(folder, promised);
        }
    }
    let files = if single { vec![PathBuf::from(SINGLE)] } else { list(folder)? };
    if files.is_empty() {
        let problem = format!("it has no {SINGLE}, no {INDEX} and no other safetensors file");
        return Err(Error::NotAModelFolder { path: folder.to_owned(), problem });
    }
    Ok(Shards { files, promised: BTreeMap::new() })
}

fn from_index(folder: &Path, promised: BTreeMap<String, String>) -> Result<Shards> {
    let names: BTreeSet<&String> = promised.values().collect();
    let (present, missing): (Vec<&String>, Vec<&String>) =
        names.iter().partition(|name| folder.join(name.as_str()).is_file());
    if let Some(shard) = missing.first() {
        return Err(Error::MissingShard {
            folder: folder.to_owned(),
            shard: shard.to_string(),
            present: present.len(),
            total: names.len(),
        });
    }
    let files = present.into_iter().map(PathBuf::from).collect();
    Ok(Shards { files, promised })
}

fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }

    let bad = |problem: String| Error::BadIndex { path: path.to_owned(), problem };
    let text = read_text(path)?.map_err(bad)?;
    let index: Index = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    if index.weight_map.is_empty() {
        return Err(bad("its weight_map is empty".to_owned()));
    }
    for shard in index.weight_map.values() {
        // A downloaded index must not make us map files elsewhere on the machine.
        let inside = Path::new(shard).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside || shard.is_empty() {
            return Err(bad(format!("the shard `{shard}` is not a file of this folder")));
        }
    }
    Ok(index.weight_map)
}

/// `model*.safetensors`, or any safetensors file when no name starts so: adapters often lie beside the model.
fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.extension() == Some(OsStr::new("safetensors")) && path.is_file() {
            all.extend(path.file_name().map(PathBuf::from));
        }
    }
    all.sort();
    let of_model = |name: &PathBuf| name.as_os_str().as_encoded_bytes().starts_with(b"model");
    if all.iter().any(of_model) {
        all.retain(of_model);
    }
    Ok(all)
}
