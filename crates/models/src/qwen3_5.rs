//! Qwen3.5, Qwen3.6 and Qwen3-Next: Gated DeltaNet layers with a gated attention layer every so often, experts with a
//! shared one, or dense.

use backend::Backend;
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::layers::{
    Attention, AttentionConfig, Decoder, DecoderConfig, FeedForward, GatedDelta, GatedDeltaConfig, Layer,
    Mixer, MoeConfig,
};
use crate::loader::Loader;
use crate::model::{Network, Summary};

pub(crate) fn load<B: Backend>(
    checkpoint: &Checkpoint,
    backend: &B,
    family: &str,
) -> Result<(Box<dyn Network<B>>, Summary)> {
    let fields = Fields(checkpoint.config().text());
    let next = family == "qwen3_next";
    let frame = DecoderConfig::read(fields)?;
    let attention = AttentionConfig::read(fields, &frame, true, 0.25)?;
    let delta = GatedDeltaConfig::read(fields, &frame, next)?;
    let moe = MoeConfig::read(fields, &frame, true, !next, !next)?;
    let interval = fields.size_or("full_attention_interval", 4)?;
    let count = fields.size("num_hidden_layers")?;
    let is_attention = |i: usize| (i + 1).is_multiple_of(interval);

    // Conversions of the multimodal originals keep the text model in a branch of its own.
    let prefix = if checkpoint.contains("language_model.model.norm.weight") { "language_model." } else { "" };
    let root = Loader::new(checkpoint, backend, prefix);
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
