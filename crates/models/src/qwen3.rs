//! Qwen3: grouped-query attention with query and key norms, dense or with experts.

use backend::Backend;
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::layers::{
    Attention, AttentionConfig, AttentionDefaults, Decoder, DecoderConfig, Mixer, MoeConfig, SparseLayers,
};
use crate::loader::Loader;
use crate::model::{Built, Log};

/// mlx-lm has no defaults for these families. Those of transformers are taken for what the shapes of the
/// weights confirm: the width of a head.
fn defaults(family: &str) -> AttentionDefaults {
    let head_dim = (family == "qwen3").then_some(128);
    AttentionDefaults { kv_heads: None, head_dim, theta: None, rotated_share: 1.0 }
}

pub(crate) fn load<B: Backend>(
    checkpoint: &Checkpoint,
    backend: &B,
    family: &str,
    log: Log<'_>,
) -> Result<Built<B>> {
    let fields = Fields(checkpoint.config().text());
    let frame = DecoderConfig::read(fields)?;
    let attention = AttentionConfig::read(fields, &frame, false, &defaults(family))?;
    let moe = match family {
        "qwen3_moe" => MoeConfig::read_qwen(fields, &frame, false, None, false, SparseLayers::read(fields)?)?,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_fields_have_the_familys_defaults() {
        let config = json!({
            "vocab_size": 8, "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "rope_theta": 1e6,
        });
        let frame = DecoderConfig::read(Fields(&config)).unwrap();
        for (family, width) in [("qwen3", 128), ("qwen3_moe", 64)] {
            let read = AttentionConfig::read(Fields(&config), &frame, false, &defaults(family)).unwrap();
            assert_eq!((read.kv_heads, read.head_dim, read.rope.rotary_dim()), (16, width, width));
        }
    }
}
