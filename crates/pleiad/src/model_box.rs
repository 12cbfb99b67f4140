//! The model in the box: a small real model inside the program, so that a fresh machine without a network answers.

use checkpoint::Checkpoint;
use engine::Tokenizer;

use crate::error::Error;

#[cfg(feature = "box")]
mod files {
    use std::path::Path;

    use super::*;
    use checkpoint::Bytes;

    /// Stands for a folder in messages.
    const NAME: &str = "(the model in the box)";

    const CONFIG: &str = include_str!("../../../box/model/config.json");
    const WEIGHTS: &[u8] = include_bytes!("../../../box/model/model.safetensors");

    fn text(name: &str) -> Option<&'static str> {
        match name {
            "config.json" => Some(CONFIG),
            "tokenizer.json" => Some(include_str!("../../../box/model/tokenizer.json")),
            "tokenizer_config.json" => Some(include_str!("../../../box/model/tokenizer_config.json")),
            "generation_config.json" => Some(include_str!("../../../box/model/generation_config.json")),
            _ => None,
        }
    }

    /// Its weights, in place.
    pub fn checkpoint() -> Result<Checkpoint, Error> {
        Ok(Checkpoint::from_parts(NAME, CONFIG, Bytes::from_static(WEIGHTS))?)
    }

    /// Its tokenizer.
    pub fn tokenizer() -> Result<Tokenizer, Error> {
        Ok(Tokenizer::from_files(Path::new(NAME), |name| Ok(text(name).map(Into::into)))?)
    }
}

#[cfg(not(feature = "box"))]
mod files {
    use super::*;

    fn absent<T>() -> Result<T, Error> {
        Err(Error::Usage("this program was built without the model in the box: give a MODEL".into()))
    }

    /// There is none.
    pub fn checkpoint() -> Result<Checkpoint, Error> {
        absent()
    }

    /// There is none.
    pub fn tokenizer() -> Result<Tokenizer, Error> {
        absent()
    }
}

pub use files::{checkpoint, tokenizer};
