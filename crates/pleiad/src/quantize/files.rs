//! What a model folder holds beside its weights.

use std::path::{Path, PathBuf};

use checkpoint::Float;
use serde_json::{Map, Value};

use super::error::{Error, Result};

/// How the names of files begin that text needs.
const COMPANIONS: [&str; 8] = [
    "tokenizer",
    "chat_template",
    "generation_config",
    "special_tokens_map",
    "added_tokens",
    "vocab",
    "merges",
    "spiece",
];

/// `config.json` as mlx-lm saves it: without what it does not use, with the quantisation under both its names, sorted.
pub fn config(source: &Value, quantization: Value, folder: &Path) -> Value {
    let mut root = source.as_object().cloned().unwrap_or_default();
    for unused in ["_name_or_path", "vision_config"] {
        root.remove(unused);
    }
    // mlx-lm reads the end of an answer from here, and remembers it in the config.
    if let Some(eos) = generation_eos(folder) {
        root.insert("eos_token_id".into(), eos);
    }
    root.insert("quantization".into(), quantization.clone());
    root.insert("quantization_config".into(), quantization);
    let mut entries: Vec<(String, Value)> = root.into_iter().collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    Value::Object(Map::from_iter(entries))
}

/// The type that floats are cast to: mlx-lm takes the config's word, and without one leaves every tensor its own.
pub(super) fn cast(config: &Value) -> Option<Float> {
    let text = || config.get("text_config").and_then(|text| text.get("dtype"));
    let named = config.get("torch_dtype").filter(|name| !name.is_null()).or_else(text)?;
    match named.as_str()? {
        "bfloat16" => Some(Float::Bf16),
        "float16" => Some(Float::F16),
        "float32" => Some(Float::F32),
        _ => None,
    }
}

fn generation_eos(folder: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(folder.join("generation_config.json")).ok()?;
    let eos = serde_json::from_str::<Value>(&text).ok()?.get("eos_token_id")?.clone();
    // What Python takes for false is no token to mlx-lm.
    let says_nothing = eos.is_null() || eos == 0 || eos.as_array().is_some_and(Vec::is_empty);
    (!says_nothing).then_some(eos)
}

/// Files of the source that belong to its text: tokenizer, chat template, settings for generation.
pub fn companions(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::file(folder))? {
        let path = entry.map_err(Error::file(folder))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let wanted = COMPANIONS.iter().any(|start| name.starts_with(start))
            || name.ends_with(".jinja")
            || name.ends_with(".tiktoken");
        if wanted && path.is_file() && !name.ends_with(".safetensors") {
            files.push((name.to_owned(), path));
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn floats_are_cast_to_what_the_config_says() {
        for (config, float) in [
            (json!({"torch_dtype": "float16", "text_config": {"dtype": "bfloat16"}}), Some(Float::F16)),
            (json!({"torch_dtype": null, "text_config": {"dtype": "bfloat16"}}), Some(Float::Bf16)),
            (json!({"dtype": "bfloat16"}), None),
            (json!({"torch_dtype": "auto"}), None),
        ] {
            assert_eq!(cast(&config), float, "{config}");
        }
    }

    #[test]
    fn the_config_is_what_mlx_lm_saves() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [1, 2]}"#).unwrap();
        let source = json!({
            "vocab_size": 3, "model_type": "x", "vision_config": {}, "_name_or_path": "p", "eos_token_id": 1,
            "quantization_config": {"quant_method": "fp8"}
        });
        let saved = config(&source, json!({"bits": 4}), folder.path());
        let expected = json!({
            "eos_token_id": [1, 2], "model_type": "x", "quantization": {"bits": 4}, "quantization_config": {"bits": 4},
            "vocab_size": 3
        });
        assert_eq!(saved.to_string(), expected.to_string());
    }
}
