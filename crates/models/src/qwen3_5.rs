//! Qwen3.5, Qwen3.6 and Qwen3-Next: Gated DeltaNet layers with a gated attention layer every so often, experts with a
//! shared one, or dense.

use backend::Backend;
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::layers::{
    Attention, AttentionConfig, Decoder, DecoderConfig, FeedForward, GatedDelta, GatedDeltaConfig, Layer,
    Mixer, MoeConfig, SparseLayers,
};
use crate::loader::Loader;
use crate::model::{Built, Log};

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
    let count = fields.size("num_hidden_layers")?;
    let is_attention = |i: usize| (i + 1).is_multiple_of(interval);

    let prefix = if next { "" } else { "language_model." };
    let root = Loader::new(checkpoint, backend, prefix, log).with_norm_offset(norm_offset(checkpoint));
    let layer = |i: usize| {
        let layer = root.at("model").at("layers").at(i);
        let moe = moe.as_ref().filter(|moe| moe.covers(i));
        Ok(Layer {
            input_norm: layer.norm("input_layernorm", frame.hidden)?,
            mixer: match is_attention(i) {
                true => Mixer::Attention(Attention::load(&layer.at("self_attn"), &attention)?),
                false => Mixer::GatedDelta(GatedDelta::load(&layer.at("linear_attn"), &delta)?),
            },
            post_norm: layer.norm("post_attention_layernorm", frame.hidden)?,
            feed_forward: FeedForward::load(&layer.at("mlp"), fields, frame.hidden, moe)?,
        })
    };
    let layers = (0..count).map(layer).collect::<Result<_>>()?;
    let network = Decoder::load(&root, &frame, layers)?;

    let attention_layers = (0..count).filter(|i| is_attention(*i)).count();
    let mut parts = vec![delta.describe(count - attention_layers), attention.describe(attention_layers)];
    parts.extend(moe.map(|moe| moe.describe(count)));
    Ok((Box::new(network), frame.summary(family, parts)))
}
