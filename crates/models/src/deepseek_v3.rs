//! DeepSeek-V3, R1 and models of their shape (Cogito V2, Kimi K2): latent attention, a few dense layers, then experts
//! chosen by biased sigmoids in groups, beside shared ones.

use backend::{Backend, GroupedSigmoid};
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::{Fields, problem};
use crate::layers::{
    Decoder, DecoderConfig, FeedForward, LatentAttention, LatentConfig, Layer, Mixer, MoeConfig, Routing,
    SharedConfig, SparseLayers, read_top_k,
};
use crate::loader::Loader;
use crate::model::{Built, Log};

fn read_moe(fields: Fields<'_>, frame: &DecoderConfig) -> Result<Option<MoeConfig>> {
    let Some(experts) = fields.count("n_routed_experts")?.filter(|n| *n > 0) else { return Ok(None) };
    for (field, known) in [("topk_method", "noaux_tc"), ("scoring_func", "sigmoid")] {
        if let Some(other) = fields.text(field)?.filter(|value| *value != known) {
            return Err(problem(field, format!("is {other:?}; supported is {known:?}")));
        }
    }
    let width = fields.size("moe_intermediate_size")?;
    let top_k = read_top_k(fields, "num_experts_per_tok", experts)?;
    let routing = GroupedSigmoid {
        top_k,
        groups: fields.size_or("n_group", 1)?,
        kept_groups: fields.size_or("topk_group", 1)?,
        renormalise: top_k > 1 && fields.flag("norm_topk_prob", true)?,
        scaling: fields.number("routed_scaling_factor")?.unwrap_or(1.0) as f32,
    };
    let shared = fields.count("n_shared_experts")?.filter(|n| *n > 0);
    Ok(Some(MoeConfig {
        hidden: frame.hidden,
        experts,
        width,
        routing: Routing::GroupedSigmoid(routing),
        shared: shared.map(|n| SharedConfig { name: "shared_experts", width: n * width, gated: false }),
        layers: SparseLayers {
            first: fields.count("first_k_dense_replace")?.unwrap_or(0),
            step: fields.size_or("moe_layer_freq", 1)?,
            phase: 0,
            dense: Vec::new(),
        },
    }))
}

pub(crate) fn load<B: Backend>(
    checkpoint: &Checkpoint,
    backend: &B,
    family: &str,
    log: Log<'_>,
) -> Result<Built<B>> {
    let fields = Fields(checkpoint.config().text());
    let frame = DecoderConfig::read(fields)?;
    let attention = LatentConfig::read(fields, &frame)?;
    let moe = read_moe(fields, &frame)?;
    let count = fields.size("num_hidden_layers")?;

    let root = Loader::new(checkpoint, backend, "", log);
    let layer = |i: usize| {
        let layer = root.at("model").at("layers").at(i);
        let moe = moe.as_ref().filter(|moe| moe.covers(i));
        Ok(Layer {
            input_norm: layer.norm("input_layernorm", frame.hidden)?,
            mixer: Mixer::Latent(LatentAttention::load(&layer.at("self_attn"), &attention)?),
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
