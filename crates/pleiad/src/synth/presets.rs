//! The shapes that can be made, whole or with fewer layers.

use checkpoint::{Mode, QuantSpec};
use models::{FAMILIES, Preset};
use serde_json::{Value, json};

use super::error::{Error, Result};

/// All presets.
pub(super) fn all() -> impl Iterator<Item = &'static Preset> {
    FAMILIES.iter().flat_map(|family| family.presets)
}

/// The preset of a name.
pub(super) fn find(name: &str) -> Result<&'static Preset> {
    all()
        .find(|preset| preset.name == name)
        .ok_or_else(|| Error::UnknownPreset { name: name.to_owned(), known: names().join(", ") })
}

/// The names of all presets.
pub fn names() -> Vec<&'static str> {
    all().map(|preset| preset.name).collect()
}

/// The `config.json` of a preset.
pub(super) fn config(preset: &Preset) -> Value {
    serde_json::from_str(preset.config).expect("a preset is JSON: a test reads all of them")
}

/// The fields of the text model.
pub(super) fn text(config: &mut Value) -> &mut Value {
    let inside = config.get("text_config").is_some();
    if inside { &mut config["text_config"] } else { config }
}

/// The number of layers.
pub(super) fn layers(config: &mut Value) -> usize {
    text(config)["num_hidden_layers"].as_u64().unwrap_or(0) as usize
}

/// Leaves only so many layers, if as many were asked for. One of them has experts and one, the last
/// at least, sees the whole context: these are what a family is about, and mlx-lm cannot run a Qwen
/// model without attention.
pub(super) fn shorten(name: &'static str, config: &mut Value, asked: Option<usize>) -> Result<()> {
    let all = layers(config);
    let n = asked.unwrap_or(all);
    if !(1..=all).contains(&n) {
        return Err(Error::Layers { preset: name, asked: n, all });
    }
    let text = text(config);
    text["num_hidden_layers"] = json!(n);
    for (field, most) in [("full_attention_interval", n), ("first_k_dense_replace", n - 1)] {
        if let Some(value) = text.get_mut(field) {
            *value = json!(value.as_u64().unwrap_or(0).min(most as u64));
        }
    }
    if let Some(kinds) = text.get_mut("layer_types").and_then(Value::as_array_mut) {
        kinds.truncate(n);
        if !kinds.contains(&json!("full_attention")) {
            kinds[n - 1] = json!("full_attention");
        }
    }
    Ok(())
}

/// A layout of MLX, if it is one.
pub(super) fn quantization(bits: u32, group: usize) -> Result<QuantSpec> {
    match (bits, group) {
        (1..=6 | 8, 32 | 64 | 128) => Ok(QuantSpec { mode: Mode::Affine, bits, group }),
        _ => Err(Error::Quantization { bits, group }),
    }
}
