//! What the JSON files beside the weights say about text: special tokens, chat templates, sampling defaults.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value as Json;

use crate::{Error, SamplingParams};

/// The JSON of a file's text; `path` is for messages.
pub(super) fn parse_json(path: &Path, text: &str) -> Result<Json, Error> {
    serde_json::from_str(text).map_err(|e| Error::InvalidFile { path: path.into(), reason: e.to_string() })
}

/// Reads a text file; `None` where there is none.
pub(super) fn read_text(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == ErrorKind::InvalidData => {
            Err(Error::InvalidFile { path: path.into(), reason: "it is not UTF-8 text".into() })
        }
        Err(source) => Err(Error::Read { path: path.into(), source }),
    }
}

/// A special token: a string, or an object with its `content`.
pub(super) fn token_text(config: &Json, name: &str) -> Option<String> {
    let token = config.get(name)?;
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_string)
}

/// Ids under `eos_token_id`: one number, or a list.
pub(super) fn eos_ids(config: &Json) -> Vec<u32> {
    let id = |json: &Json| json.as_u64().and_then(|id| u32::try_from(id).ok());
    match config.get("eos_token_id") {
        Some(Json::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(json) => id(json).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The templates of a model by name; most have only one, "default".
#[derive(Debug, Clone, Default)]
pub(super) struct TemplateSources(Vec<(String, String)>);

impl TemplateSources {
    /// chat_template.jinja where there is one, else `chat_template` of tokenizer_config.json: the source, or a list of
    /// named sources.
    pub(super) fn new(template_file: Option<String>, tokenizer_config: &Json) -> Self {
        if let Some(source) = template_file {
            return Self(vec![("default".into(), source)]);
        }
        Self(match tokenizer_config.get("chat_template") {
            Some(Json::String(source)) => vec![("default".into(), source.clone())],
            Some(Json::Array(list)) => (list.iter())
                .filter_map(|entry| {
                    Some((
                        entry.get("name")?.as_str()?.to_string(),
                        entry.get("template")?.as_str()?.to_string(),
                    ))
                })
                .collect(),
            _ => Vec::new(),
        })
    }

    /// The source to use; models with a template of its own for tools call it "tool_use".
    pub(super) fn choose(&self, with_tools: bool) -> Option<&str> {
        let find =
            |wanted: &str| self.0.iter().find(|(name, _)| name == wanted).map(|(_, source)| source.as_str());
        with_tools.then(|| find("tool_use")).flatten().or_else(|| find("default"))
    }
}

/// What generation_config.json recommends; absent values are the program's choice.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GenerationDefaults {
    /// Whether to sample at all; `false` means greedy.
    pub do_sample: Option<bool>,
    /// See [`SamplingParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`SamplingParams::top_k`].
    pub top_k: Option<usize>,
    /// See [`SamplingParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`SamplingParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`SamplingParams::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
}

impl GenerationDefaults {
    /// Puts the recommended values in the place of the program's defaults.
    pub fn apply(&self, params: &mut SamplingParams) {
        let Self { do_sample, temperature, top_k, top_p, min_p, repetition_penalty } = *self;
        if let Some(temperature) = temperature {
            params.temperature = temperature;
        }
        // Hugging Face ignores the temperature of a model that says it should not be sampled.
        if do_sample == Some(false) {
            params.temperature = 0.0;
        }
        params.top_k = top_k.unwrap_or(params.top_k);
        params.top_p = top_p.unwrap_or(params.top_p);
        params.min_p = min_p.unwrap_or(params.min_p);
        params.repetition_penalty = repetition_penalty.unwrap_or(params.repetition_penalty);
    }
}
