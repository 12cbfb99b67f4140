//! What a Gemma 4 config declares.

use backend::{Pairing, RopeSpec};

use crate::config::{Fields, divisible, problem, rope};
use crate::layers::read_top_k;
use crate::words::counted;
use crate::{Error, Result};

/// Attention of one kind of layer.
#[derive(Clone, Debug)]
pub(super) struct AttentionConfig {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Tokens a query sees; `None`: all.
    pub window: Option<usize>,
    /// Whether values are the keys before their norm and rotation.
    pub keys_are_values: bool,
    pub rope: RopeSpec,
}

/// Experts beside the dense unit of every layer.
#[derive(Clone, Debug)]
pub(super) struct MoeConfig {
    pub experts: usize,
    pub top_k: usize,
    pub width: usize,
}

/// A whole text model.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub vocabulary: usize,
    pub hidden: usize,
    pub eps: f32,
    pub tied: bool,
    pub context: Option<usize>,
    /// Whether each layer sees only a window.
    pub sliding: Vec<bool>,
    pub local: AttentionConfig,
    pub global: AttentionConfig,
    /// Layers from here on read the caches of earlier ones.
    pub first_shared: usize,
    pub width: usize,
    /// Whether the dense units of these layers are twice as wide.
    pub shared_double: bool,
    pub moe: Option<MoeConfig>,
    /// Width of an extra input that every layer gets of every token, and entries of its table.
    pub per_layer: Option<(usize, usize)>,
    pub soft_cap: Option<f32>,
}

fn layer_kinds(fields: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    if let Some(sliding) = fields.layer_types(layers, ["sliding_attention", "full_attention"])? {
        return Ok(sliding);
    }
    // The default is mlx-lm's. transformers has 6, and makes the last layer full.
    let pattern = fields.size_or("sliding_window_pattern", 5)?;
    Ok((0..layers).map(|i| !(i + 1).is_multiple_of(pattern)).collect())
}

/// The fields of the first global layer in `per_layer_config`, which transformers 5.23 writes instead of
/// `global_head_dim` and `num_global_key_value_heads`. The shapes of the weights show whether the other
/// global layers are like it.
fn global_fields<'a>(fields: Fields<'a>, sliding: &[bool]) -> Option<Fields<'a>> {
    let first = sliding.iter().position(|sliding| !sliding)?;
    let layers = fields.get("per_layer_config")?.as_object()?;
    layers.iter().find(|(layer, _)| layer.parse() == Ok(first)).map(|(_, own)| Fields(own))
}

fn read_attention(fields: Fields<'_>, sliding: &[bool], global: bool) -> Result<AttentionConfig> {
    let heads = fields.size_or("num_attention_heads", 8)?;
    let keys_are_values = global && fields.flag("attention_k_eq_v", false)?;
    let mut kv_heads = fields.size_or("num_key_value_heads", 1)?;
    let mut head_dim = fields.size_or("head_dim", 256)?;
    if keys_are_values {
        kv_heads = fields.size_or("num_global_key_value_heads", kv_heads)?;
    }
    if let Some(own) = global_fields(fields, sliding).filter(|_| global) {
        kv_heads = own.size_or("num_key_value_heads", kv_heads)?;
        head_dim = own.size_or("head_dim", head_dim)?;
    } else if global {
        let wide = fields.or_default("global_head_dim", fields.count("global_head_dim")?, 512);
        head_dim = wide.filter(|wide| *wide > 0).unwrap_or(head_dim);
    }
    divisible("num_attention_heads", heads, "the number of key-value heads", kv_heads)?;
    let kind = if global { "full_attention" } else { "sliding_attention" };
    let parameters = fields.object("rope_parameters").and_then(|all| all.object(kind));
    let rope = match parameters {
        Some(parameters) => {
            let theta = parameters.positive("rope_theta")?.unwrap_or(10_000.0);
            rope(head_dim, theta, Pairing::Halves, Some(parameters))?
        }
        None if fields.object("rope_parameters").is_some() => {
            rope(head_dim, 10_000.0, Pairing::Halves, None)?
        }
        None if global => RopeSpec::proportional(head_dim, head_dim / 4, 1e6, Pairing::Halves, 1.0),
        None => rope(head_dim, 10_000.0, Pairing::Halves, None)?,
    };
    let window = if global { None } else { Some(fields.size_or("sliding_window", 512)?) };
    Ok(AttentionConfig { heads, kv_heads, head_dim, window, keys_are_values, rope })
}

impl Config {
    pub fn read(root: Fields<'_>, fields: Fields<'_>) -> Result<Self> {
        let layers = fields.size("num_hidden_layers")?;
        let sliding = layer_kinds(fields, layers)?;
        let shared = fields.count("num_kv_shared_layers")?.unwrap_or(20);
        let Some(first_shared) = layers.checked_sub(shared) else {
            return Err(problem(
                "num_kv_shared_layers",
                format!("is {shared}, but there are {layers} layers"),
            ));
        };
        for kind in [true, false] {
            let missing = sliding[first_shared..].contains(&kind) && !sliding[..first_shared].contains(&kind);
            if missing {
                let kind = if kind { "sliding" } else { "full" };
                return Err(problem(
                    "num_kv_shared_layers",
                    format!("leaves no {kind} layer with keys of its own"),
                ));
            }
        }
        let moe = match fields.flag("enable_moe_block", false)? {
            true => {
                let experts = fields.size("num_experts")?;
                let top_k = read_top_k(fields, "top_k_experts", experts)?;
                Some(MoeConfig { experts, top_k, width: fields.size("moe_intermediate_size")? })
            }
            false => None,
        };
        let vocabulary = match root.count("vocab_size")? {
            Some(_) => root.size("vocab_size")?,
            None => fields.size_or("vocab_size", 262_144)?,
        };
        let width = fields.count("hidden_size_per_layer_input")?;
        let per_layer = match fields.or_default("hidden_size_per_layer_input", width, 256) {
            None | Some(0) => None,
            Some(width) => Some((width, fields.size_or("vocab_size_per_layer_input", 262_144)?)),
        };
        // The default is mlx-lm's; transformers would cap nothing.
        let soft_cap = fields.positive("final_logit_softcapping")?;
        let soft_cap = fields.or_default("final_logit_softcapping", soft_cap, 30.0);
        Ok(Self {
            vocabulary,
            hidden: fields.size("hidden_size")?,
            eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            tied: fields.flag("tie_word_embeddings", true)?,
            context: fields.count("max_position_embeddings")?,
            local: read_attention(fields, &sliding, false)?,
            global: read_attention(fields, &sliding, true)?,
            sliding,
            first_shared,
            width: fields.size("intermediate_size")?,
            shared_double: fields.flag("use_double_wide_mlp", true)?,
            moe,
            per_layer,
            soft_cap: soft_cap.map(|cap| cap as f32),
        })
    }

    pub fn attention(&self, layer: usize) -> &AttentionConfig {
        if self.sliding[layer] { &self.local } else { &self.global }
    }

    /// The layer whose keys and values layer `i` reads: itself, or the last one of its kind that has its own.
    pub fn kv_layer(&self, i: usize) -> Result<usize> {
        if i < self.first_shared {
            return Ok(i);
        }
        let own = (0..self.first_shared).rfind(|j| self.sliding[*j] == self.sliding[i]);
        own.ok_or_else(|| Error::Config {
            field: "layer_types".into(),
            problem: format!("gives layer {i} no keys"),
        })
    }

    /// Width of a layer's dense unit.
    pub fn mlp_width(&self, layer: usize) -> usize {
        let double = self.shared_double && self.first_shared > 0 && layer >= self.first_shared;
        self.width * if double { 2 } else { 1 }
    }

    /// Lines for people.
    pub fn describe(&self) -> Vec<(String, String)> {
        let line = |config: &AttentionConfig, sliding: bool| {
            let layers = self.sliding.iter().filter(|s| **s == sliding).count();
            let AttentionConfig { heads, kv_heads, head_dim, window, .. } = config;
            let window = window.map_or(String::new(), |w| format!(", window of {w}"));
            let layers = counted(layers, "layer");
            format!("{layers}, {heads} query and {kv_heads} key-value heads of {head_dim}{window}")
        };
        let mut parts = vec![
            ("local attention".to_string(), line(&self.local, true)),
            ("global attention".to_string(), line(&self.global, false)),
        ];
        if self.first_shared < self.sliding.len() {
            let text = match self.sliding.len() - self.first_shared {
                1 => "the last layer reads an earlier layer's keys and values".into(),
                shared => format!("the last {shared} layers read earlier layers' keys and values"),
            };
            parts.push(("shared keys".into(), text));
        }
        if let Some(MoeConfig { experts, top_k, width }) = self.moe {
            let layers = counted(self.sliding.len(), "layer");
            parts.push((
                "experts".into(),
                format!(
                    "{layers}, {experts} of width {width}, {top_k} per token, dense unit of {}",
                    self.width
                ),
            ));
        }
        if let Some((width, _)) = self.per_layer {
            parts.push(("layer inputs".into(), format!("{width} values of every token for each layer")));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The config of 25 layers that names nothing optional, with `changes`.
    fn read(changes: Value) -> Config {
        let mut config = json!({ "num_hidden_layers": 25, "hidden_size": 64, "intermediate_size": 96 });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        Config::read(Fields(&config), Fields(&config)).unwrap()
    }

    #[test]
    fn absent_fields_have_mlx_lms_defaults() {
        let config = read(json!({}));
        assert_eq!((config.vocabulary, config.eps, config.tied), (262_144, 1e-6, true));
        assert_eq!((config.soft_cap, config.per_layer), (Some(30.0), Some((256, 262_144))));
        assert_eq!((config.first_shared, config.shared_double), (5, true));
        assert_eq!(config.sliding[..6], [true, true, true, true, false, true]);
        assert!(config.moe.is_none());

        let Config { local, global, .. } = config;
        assert_eq!((local.heads, local.kv_heads, local.head_dim, local.window), (8, 1, 256, Some(512)));
        assert_eq!((global.heads, global.kv_heads, global.head_dim, global.window), (8, 1, 512, None));
        assert!(!global.keys_are_values);
        assert_eq!(local.rope, RopeSpec::plain(256, 1e4, Pairing::Halves));
        assert_eq!(global.rope, RopeSpec::proportional(512, 128, 1e6, Pairing::Halves, 1.0));
    }

    #[test]
    fn a_global_layer_of_transformers_5_names_its_own_fields() {
        let layers = json!({ "4": { "head_dim": 128, "num_key_value_heads": 2 }, "09": { "head_dim": 128 } });
        let Config { local, global, .. } = read(json!({ "per_layer_config": layers }));
        assert_eq!((local.head_dim, local.kv_heads), (256, 1));
        assert_eq!((global.head_dim, global.kv_heads), (128, 2));
    }

    #[test]
    fn null_is_none_and_not_the_default() {
        let config = read(json!({
            "final_logit_softcapping": null, "global_head_dim": null, "hidden_size_per_layer_input": null,
            "use_double_wide_mlp": null,
        }));
        assert_eq!((config.soft_cap, config.global.head_dim, config.per_layer), (None, 256, None));
        assert!(!config.shared_double);
    }
}
