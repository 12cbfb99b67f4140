//! Qwen3.5, Qwen3.6 and Qwen3-Next: Gated DeltaNet layers with a gated attention layer every so often, experts with a
//! shared one, or dense.

use backend::Backend;
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::layers::{
    Attention, AttentionConfig, Decoder, DecoderConfig, Drafter, DrafterNames, GatedDelta, GatedDeltaConfig,
    Mixer, MoeConfig, SparseLayers,
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

pub(crate) fn load<B: Backend>(
    checkpoint: &Checkpoint,
    backend: &B,
    family: &str,
    log: Log<'_>,
) -> Result<Built<B>> {
    let fields = Fields(checkpoint.config().text());
    let next = family == "qwen3_next";
    let frame = DecoderConfig::read(fields)?;
    let attention = AttentionConfig::read(fields, &frame, true, 0.25)?;
    let delta = GatedDeltaConfig::read(fields, &frame, next)?;
    let sparse = if next { SparseLayers::read(fields)? } else { SparseLayers::all() };
    let moe = MoeConfig::read_qwen(fields, &frame, true, !next, sparse)?;
    let interval = fields.size_or("full_attention_interval", 4)?;
    let is_attention = |i: usize| (i + 1).is_multiple_of(interval);

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
