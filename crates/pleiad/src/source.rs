//! Where a model is: in a folder, in the hub's cache, or in this program.

use std::fmt;
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use engine::Tokenizer;

use crate::error::Error;
use crate::{hub, model_box};

/// The name of the model in the box, for MODEL.
const BOX: &str = "box";

/// A model that can be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A folder.
    Folder(PathBuf),
    /// The model in the box.
    Box,
}

impl Source {
    /// What a user means by MODEL: a folder, the hub's name of one that was fetched, or `box`.
    pub fn find(text: &str) -> Result<Self, String> {
        if text == BOX && !Path::new(text).join("config.json").exists() {
            return Ok(Source::Box);
        }
        find_folder(text).map(Source::Folder)
    }

    /// Opens the weights.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        match self {
            Source::Folder(folder) => Ok(Checkpoint::open(folder)?),
            Source::Box => model_box::checkpoint(),
        }
    }

    /// Opens the tokenizer.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        match self {
            Source::Folder(folder) => Ok(Tokenizer::open(folder)?),
            Source::Box => model_box::tokenizer(),
        }
    }

    /// Whether there is a tokenizer at all.
    pub fn has_tokenizer(&self) -> bool {
        match self {
            Source::Folder(folder) => folder.join("tokenizer.json").exists(),
            Source::Box => true,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Folder(folder) => write!(f, "{}", folder.display()),
            Source::Box => f.write_str("the model in the box"),
        }
    }
}

/// A folder as it is, or where the model of this name was fetched to.
pub fn find_folder(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_name = text.split('/').count() == 2 && !text.starts_with(['.', '/']) && !text.ends_with('/');
    if path.exists() || !is_name {
        return Ok(path);
    }
    hub::find_local(text, None).ok_or_else(|| {
        format!(
            "there is no such folder, and no model of this name has been fetched; try `pleiad pull {text}`"
        )
    })
}
