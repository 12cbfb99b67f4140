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
    let Some(kinds) = fields.get("layer_types") else {
        let pattern = fields.size_or("sliding_window_pattern", 5)?;
        return Ok((0..layers).map(|i| !(i + 1).is_multiple_of(pattern)).collect());
    };
    let sliding = |kind: &serde_json::Value| match kind.as_str() {
        Some("sliding_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    let kinds: Option<Vec<bool>> = kinds.as_array().and_then(|list| list.iter().map(sliding).collect());
    match kinds {
        Some(kinds) if kinds.len() >= layers => Ok(kinds[..layers].to_vec()),
        _ => Err(problem(
            "layer_types",
            format!("is not a list of {layers} times sliding_attention or full_attention"),
        )),
    }
}

fn read_attention(fields: Fields<'_>, global: bool) -> Result<AttentionConfig> {
    let heads = fields.size_or("num_attention_heads", 8)?;
    let keys_are_values = global && fields.flag("attention_k_eq_v", false)?;
    let mut kv_heads = fields.size_or("num_key_value_heads", 1)?;
    if keys_are_values {
        kv_heads = fields.size_or("num_global_key_value_heads", kv_heads)?;
    }
    divisible("num_attention_heads", heads, "the number of key-value heads", kv_heads)?;
    let mut head_dim = fields.size_or("head_dim", 256)?;
    if global {
        head_dim = match fields.count("global_head_dim")? {
            Some(0) => head_dim,
            Some(wide) => wide,
            None if fields.get("global_head_dim").is_none() => 512,
            None => head_dim,
        };
    }
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
        let per_layer = match fields.count("hidden_size_per_layer_input")?.unwrap_or(256) {
            0 => None,
            width => Some((width, fields.size_or("vocab_size_per_layer_input", 262_144)?)),
        };
        Ok(Self {
            vocabulary,
            hidden: fields.size("hidden_size")?,
            eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            tied: fields.flag("tie_word_embeddings", true)?,
            context: fields.count("max_position_embeddings")?,
            sliding,
            local: read_attention(fields, false)?,
            global: read_attention(fields, true)?,
            first_shared,
            width: fields.size("intermediate_size")?,
            shared_double: fields.flag("use_double_wide_mlp", true)?,
            moe,
            per_layer,
            soft_cap: fields.positive("final_logit_softcapping")?.map(|cap| cap as f32),
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
