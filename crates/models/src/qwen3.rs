//! Qwen3: grouped-query attention with query and key norms, dense or with experts.

use backend::Backend;
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::layers::{
    Attention, AttentionConfig, Decoder, DecoderConfig, FeedForward, Layer, Mixer, MoeConfig, SparseLayers,
};
use crate::loader::Loader;
use crate::model::{Built, Log};

pub(crate) fn load<B: Backend>(
    checkpoint: &Checkpoint,
    backend: &B,
    family: &str,
    log: Log<'_>,
) -> Result<Built<B>> {
    let fields = Fields(checkpoint.config().text());
    let frame = DecoderConfig::read(fields)?;
    let attention = AttentionConfig::read(fields, &frame, false, 1.0)?;
    let moe = match family {
        "qwen3_moe" => MoeConfig::read_qwen(fields, &frame, false, false, SparseLayers::read(fields)?)?,
        _ => None,
    };
    let count = fields.size("num_hidden_layers")?;

    let root = Loader::new(checkpoint, backend, "", log);
    let layer = |i: usize| {
        let layer = root.at("model").at("layers").at(i);
        let moe = moe.as_ref().filter(|moe| moe.covers(i));
        Ok(Layer {
            input_norm: layer.norm("input_layernorm", frame.hidden)?,
            mixer: Mixer::Attention(Attention::load(&layer.at("self_attn"), &attention)?),
            post_norm: layer.norm("post_attention_layernorm", frame.hidden)?,
            feed_forward: FeedForward::load(&layer.at("mlp"), fields, frame.hidden, moe)?,
        })
    };
    let layers = (0..count).map(layer).collect::<Result<_>>()?;
    let network = Decoder::load(&root, &frame, layers)?;

    let mut parts = vec![attention.describe(count)];
    parts.extend(moe.map(|moe| moe.describe(count)));
    Ok((Box::new(network), frame.summary(family, parts)))
}
