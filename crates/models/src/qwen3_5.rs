//! Qwen3.5, Qwen3.6 and Qwen3-Next: Gated DeltaNet layers with a gated attention layer every so often, experts with a
//! shared one, or dense.

use backend::Backend;
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::layers::{
    Attention, AttentionConfig, AttentionDefaults, Decoder, DecoderConfig, Drafter, DrafterNames, GatedDelta,
    GatedDeltaConfig, Mixer, MoeConfig, SparseLayers,
};
use crate::loader::Loader;
use crate::model::{Built, Log};

/// The head below `mtp`. In the originals its norms are stored minus one like the model's, those before `fc` included. mlx-lm's conversions
/// have no head; ours store all norms as they are used, those of the head too. So one rule holds for a whole checkpoint: [`norm_offset`].
const DRAFTER: DrafterNames = DrafterNames {
    embedding_norm: "pre_fc_norm_embedding",
    hidden_norm: "pre_fc_norm_hidden",
    join: "fc",
    layer: Some("layers.0"),
    norm: "norm",
};

/// 1 in the originals, which store the weights of all norms but the gated one minus one. They are known by the layout
/// of their convolutions: `[channels, 1, kernel]`, where mlx-lm has `[channels, kernel, 1]`.
fn norm_offset(checkpoint: &Checkpoint) -> f32 {
    let conv = checkpoint.names().find(|name| name.ends_with(".linear_attn.conv1d.weight"));
    match conv.and_then(|name| checkpoint.shape(name)) {
        Some([_, 1, _]) => 1.0,
        _ => 0.0,
    }
}

/// Qwen3-Next's are transformers', because mlx-lm requires these fields. The base must be named, as the
/// weights would not show that it is wrong.
const NEXT: AttentionDefaults =
    AttentionDefaults { kv_heads: Some(2), head_dim: Some(256), theta: None, rotated_share: 0.25 };
/// Qwen3.5's are mlx-lm's. transformers has heads of 256, 4 key-value heads (2 with experts), and 1e4.
const DEFAULTS: AttentionDefaults =
    AttentionDefaults { kv_heads: Some(8), head_dim: None, theta: Some(1e5), rotated_share: 0.25 };

/// Which layers have full attention: every so many, or those that `layer_types` says. mlx-lm reads only
/// the first field, transformers 5 writes only the second.
fn attention_layers(fields: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    if fields.get("full_attention_interval").is_none()
        && let Some(full) = fields.layer_types(layers, ["full_attention", "linear_attention"])?
    {
        return Ok(full);
    }
    let interval = fields.size_or("full_attention_interval", 4)?;
    Ok((0..layers).map(|i| (i + 1).is_multiple_of(interval)).collect())
}

pub(crate) fn load<B: Backend>(
    checkpoint: &Checkpoint,
    backend: &B,
    family: &str,
    log: Log<'_>,
) -> Result<Built<B>> {
    let fields = Fields(checkpoint.config().text());
    let next = family == "qwen3_next";
    let frame = DecoderConfig::read(fields)?;
    let attention = AttentionConfig::read(fields, &frame, true, if next { &NEXT } else { &DEFAULTS })?;
    let delta = GatedDeltaConfig::read(fields, &frame, next)?;
    let sparse = if next { SparseLayers::read(fields)? } else { SparseLayers::all() };
    let moe = MoeConfig::read_qwen(fields, &frame, true, (!next).then_some(0), !next, sparse)?;
    let full_attention = attention_layers(fields, frame.layers)?;
    let is_attention = |i: usize| full_attention[i];

    let prefix = if next { "" } else { "language_model." };
    let root = Loader::new(checkpoint, backend, prefix, log).with_norm_offset(norm_offset(checkpoint));
    let attend =
        |layer: &Loader<'_, B>| Ok(Mixer::Attention(Attention::load(&layer.at("self_attn"), &attention)?));
    let mixer = |layer: &Loader<'_, B>, i: usize| {
        Ok(match is_attention(i) {
            true => attend(layer)?,
            false => Mixer::GatedDelta(GatedDelta::load(&layer.at("linear_attn"), &delta)?),
        })
    };
    let network = Decoder::load(&root, fields, &frame, moe.as_ref(), mixer)?;
    let drafter = match log.drafting {
        true => {
            Drafter::load(&root.drafter("mtp", "fc.weight"), &DRAFTER, fields, &frame, moe.as_ref(), attend)?
        }
        false => None,
    };

    let attention_layers = (0..frame.layers).filter(|i| is_attention(*i)).count();
    let mut parts =
        vec![delta.describe(frame.layers - attention_layers), attention.describe(attention_layers)];
    parts.extend(moe.map(|moe| moe.describe(frame.layers)));
    Ok((Box::new(network.with_drafter(drafter)), frame.summary(family, parts)))
}

#[cfg(test)]
mod tests {
    use backend::{Pairing, RopeSpec};
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_fields_have_the_familys_defaults() {
        let config = json!({
            "vocab_size": 8, "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
            "linear_num_value_heads": 32, "linear_key_head_dim": 64,
        });
        let fields = Fields(&config);
        let frame = DecoderConfig::read(fields).unwrap();
        assert_eq!((frame.eps, frame.tied, frame.context), (1e-6, false, None));

        let attention = AttentionConfig::read(fields, &frame, true, &DEFAULTS).unwrap();
        assert_eq!((attention.kv_heads, attention.head_dim), (8, 64));
        assert_eq!(attention.rope, RopeSpec::plain(16, 1e5, Pairing::Halves));
        let error = AttentionConfig::read(fields, &frame, true, &NEXT).unwrap_err();
        assert!(error.to_string().contains("rope_theta"), "{error}");

        let shape = GatedDeltaConfig::read(fields, &frame, false).unwrap().shape;
        assert_eq!((shape.key_heads, shape.value_dim, shape.kernel), (16, 128, 4));
    }

    #[test]
    fn full_attention_is_counted_or_listed() {
        let read = |config| attention_layers(Fields(&config), 5).unwrap();
        assert_eq!(read(json!({})), [false, false, false, true, false]);
        assert_eq!(read(json!({ "full_attention_interval": 2 })), [false, true, false, true, false]);
        let kinds = ["full_attention", "linear_attention"].map(|kind| json!(kind));
        let list: Vec<_> = (0..5).map(|i| kinds[i % 2].clone()).collect();
        assert_eq!(read(json!({ "layer_types": list })), [true, false, true, false, true]);
        for list in [json!(["full_attention"]), json!([1, 2, 3, 4, 5]), json!("full_attention")] {
            assert!(attention_layers(Fields(&json!({ "layer_types": list })), 5).is_err());
        }
    }
}
