//! Qwen3: grouped-query attention with query and key norms, dense or with experts.

use backend::Backend;
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::layers::{Attention, AttentionConfig, Decoder, DecoderConfig, Mixer, MoeConfig, SparseLayers};
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

    let root = Loader::new(checkpoint, backend, "", log);
    let mixer =
        |layer: &Loader<'_, B>, _| Ok(Mixer::Attention(Attention::load(&layer.at("self_attn"), &attention)?));
    let network = Decoder::load(&root, fields, &frame, moe.as_ref(), mixer)?;

    let mut parts = vec![attention.describe(frame.layers)];
    parts.extend(moe.map(|moe| moe.describe(frame.layers)));
    Ok((Box::new(network), frame.summary(family, parts)))
}
