//! The model to measure: one that is there, or a shape of `pleiad synth` made for the occasion.

use std::env;
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use models::counted;

use crate::error::Error;
use crate::source::Source;
use crate::synth::{self, SynthArgs};

/// A model and its name; what was made for it goes when this is dropped.
pub struct Target {
    pub name: String,
    source: Source,
    /// Only held.
    _made: Option<Made>,
}

/// A folder that was made for this run.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.0) {
            Ok(()) => eprintln!("removed {}", self.0.display()),
            Err(error) => eprintln!("pleiad: {} is left over: {error}", self.0.display()),
        }
    }
}

impl Target {
    /// What a user means by MODEL or PRESET; the model in the box when absent.
    pub fn find(text: Option<&str>, layers: Option<usize>) -> Result<Self, Error> {
        let presets = synth::names();
        let preset = text.filter(|name| presets.contains(name) && !Path::new(name).exists());
        if let Some(preset) = preset {
            return Self::make(preset, layers);
        }
        if layers.is_some() {
            return Err(Error::Usage(format!("--layers goes with a preset: {}", presets.join(", "))));
        }
        let source = match text {
            None => Source::Box,
            Some(text) => Source::find(text).map_err(|problem| Error::Usage(format!("{text}: {problem}")))?,
        };
        if let Source::Folder(folder) = &source
            && !folder.exists()
        {
            return Err(Error::Usage(format!(
                "{}: there is no such folder and no such preset; there are {}",
                folder.display(),
                presets.join(", ")
            )));
        }
        // As it was given: where the hub's cache keeps a model says nothing to people.
        let name = match (&source, text) {
            (Source::Folder(_), Some(text)) => text.into(),
            _ => source.to_string(),
        };
        Ok(Self { name, source, _made: None })
    }

    fn make(preset: &str, layers: Option<usize>) -> Result<Self, Error> {
        let folder = cache_folder().join(format!("bench-{preset}-{}", std::process::id()));
        let (preset_name, dst) = (preset.into(), folder.clone());
        let args =
            SynthArgs { preset: preset_name, dst, layers, seed: 0, bits: 4, group: 64, drafter: false };
        synth::make(&args)?;
        eprintln!("made {}, to be removed at the end", folder.display());
        let layers = layers.map_or(String::new(), |n| format!(", {}", counted(n, "layer")));
        let name = format!("{preset}{layers}, random weights");
        Ok(Self { name, source: Source::Folder(folder.clone()), _made: Some(Made(folder)) })
    }

    /// Opens the weights.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        self.source.checkpoint()
    }
}

/// Where caches go. Not the system's folder for temporary files if there is another: that is often memory, and a model
/// in it would be there twice.
fn cache_folder() -> PathBuf {
    let given = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let cache = given.or_else(|| Some(env::home_dir()?.join(".cache")));
    cache.unwrap_or_else(env::temp_dir).join("pleiad")
}
