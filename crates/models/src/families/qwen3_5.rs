//! Qwen3.5, Qwen3.6 and Qwen3-Next: Gated DeltaNet layers with a gated attention layer every so
//! often, experts with a shared one, or dense.

use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::family::{Family, Preset, Quantise};
use crate::spec::{
    AttentionDefaults, AttentionSpec, DrafterNames, DrafterSpec, GatedDeltaSpec, LayerSpec, Mixer, Norms,
    Spec, eps,
};
use crate::weights::Role;

use super::{SparseLayers, dense, preset, read_qwen_moe};

/// Split projections, weights and config one level down, beside a vision tower.
pub const FAMILY: Family = Family {
    types: &["qwen3_5_moe", "qwen3_5"],
    prefix: "language_model.",
    read: |fields, _| read(fields, false),
    norm_offset,
    router: Quantise::WIDE,
    keeps_type: &[Role::Decay],
    presets: &[
        preset!("qwen3.6-35b-a3b"),
        preset!("qwen3.5-397b-a17b"),
        // Small enough to make in a moment, with every part of the family.
        Preset { files: TOKENIZER, ..preset!("tiny") },
    ],
};

/// Fused projections, weights at the root.
pub const NEXT: Family = Family {
    types: &["qwen3_next"],
    prefix: "",
    read: |fields, _| read(fields, true),
    keeps_type: &[],
    presets: &[preset!("qwen3-next-80b-a3b")],
    ..FAMILY
};

const TOKENIZER: &[(&str, &[u8])] = &[
    ("tokenizer.json", include_bytes!("../../../../fixtures/tokenizer/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../../fixtures/tokenizer/tokenizer_config.json")),
    ("generation_config.json", include_bytes!("../../../../fixtures/tokenizer/generation_config.json")),
];

/// The head below `mtp`. In the originals its norms are stored minus one like the model's, those
/// before `fc` included. mlx-lm's conversions have no head; ours store all norms as they are used,
/// those of the head too. So one rule holds for a whole checkpoint: [`norm_offset`].
const DRAFTER: DrafterNames = DrafterNames {
    embedding_norm: "pre_fc_norm_embedding",
    hidden_norm: "pre_fc_norm_hidden",
    join: "fc",
    layer: Some("layers.0"),
    norm: "norm",
};

/// 1 in the originals, which store the weights of all norms but the gated one minus one. They are
/// known by the layout of their convolutions: `[channels, 1, kernel]`, where mlx-lm has `[channels,
/// kernel, 1]`.
fn norm_offset(checkpoint: &Checkpoint) -> f32 {
    let conv = checkpoint.names().find(|name| name.ends_with(".linear_attn.conv1d.weight"));
    match conv.and_then(|name| checkpoint.shape(name)) {
        Some([_, 1, _]) => 1.0,
        _ => 0.0,
    }
}

/// Qwen3-Next's are transformers', because mlx-lm requires these fields. The base must be named, as the
/// weights would not show that it is wrong.
const NEXT_DEFAULTS: AttentionDefaults =
    AttentionDefaults { kv_heads: Some(2), head_dim: Some(256), theta: None, rotated_share: 0.25 };
/// Qwen3.5's are mlx-lm's. transformers has heads of 256, 4 key-value heads (2 with experts), and 1e4.
const DEFAULTS: AttentionDefaults =
    AttentionDefaults { kv_heads: Some(8), head_dim: None, theta: Some(1e5), rotated_share: 0.25 };

/// Which layers have full attention: every so many, or those that `layer_types` says. mlx-lm reads
/// only the first field, transformers 5 writes only the second.
fn attention_layers(fields: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    if fields.get("full_attention_interval").is_none()
        && let Some(full) = fields.layer_types(layers, ["full_attention", "linear_attention"])?
    {
        return Ok(full);
    }
    let interval = fields.size_or("full_attention_interval", 4)?;
    Ok((0..layers).map(|i| (i + 1).is_multiple_of(interval)).collect())
}

fn read(fields: Fields<'_>, next: bool) -> Result<Spec> {
    let attention = AttentionSpec::read(fields, if next { &NEXT_DEFAULTS } else { &DEFAULTS })?;
    let attention = Mixer::Attention(AttentionSpec { gated: true, ..attention });
    let delta = Mixer::GatedDelta(GatedDeltaSpec::read(fields, next, eps(fields)?)?);
    let full_attention = attention_layers(fields, fields.layers()?)?;
    let sparse = if next { SparseLayers::read(fields)? } else { SparseLayers::ALL };
    let moe = read_qwen_moe(fields, true, (!next).then_some(0), !next)?;
    let layer =
        |mixer: &Mixer, feed| LayerSpec { norms: Norms::PRE, mixer: mixer.clone(), feed, scalar: false };
    let layers = full_attention.into_iter().enumerate().map(|(i, full)| {
        Ok(layer(if full { &attention } else { &delta }, sparse.feed(i, moe.as_ref(), fields)?))
    });
    let spec = Spec::read(fields, layers.collect::<Result<_>>()?)?;
    let head = layer(&attention, SparseLayers::ALL.feed(0, moe.as_ref(), fields)?);
    let drafter = DrafterSpec { names: DRAFTER, branch: "mtp".into(), layer: head, dense: dense(fields) };
    Ok(Spec { drafter: Some(drafter), ..spec })
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
            "linear_num_value_heads": 32, "linear_key_head_dim": 64, "intermediate_size": 64,
        });
        let spec = read(Fields(&config), false).unwrap();
        assert_eq!((spec.eps, spec.tied, spec.context), (1e-6, false, None));
        let (Mixer::GatedDelta(delta), Mixer::Attention(attention)) =
            (&spec.layers[0].mixer, &spec.layers[3].mixer)
        else {
            panic!("{:?}", spec.layers)
        };
        assert_eq!((attention.kv_heads, attention.head_dim), (8, 64));
        assert_eq!(attention.rope, RopeSpec::plain(16, 1e5, Pairing::Halves));
        assert_eq!((delta.shape.key_heads, delta.shape.value_dim, delta.shape.kernel), (16, 128, 4));
        let error = read(Fields(&config), true).unwrap_err();
        assert!(error.to_string().contains("rope_theta"), "{error}");
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
