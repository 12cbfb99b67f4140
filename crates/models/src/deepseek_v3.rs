//! DeepSeek-V3, R1 and models of their shape (Cogito V2, Kimi K2): latent attention, a few dense layers, then experts
//! chosen by biased sigmoids in groups, beside shared ones.

use backend::{Backend, GroupedSigmoid};
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::{Fields, problem};
use crate::layers::{
    Decoder, DecoderConfig, Drafter, DrafterNames, LatentAttention, LatentConfig, Mixer, MoeConfig, Routing,
    SharedConfig, SparseLayers, read_top_k,
};
use crate::loader::Loader;
use crate::model::{Built, Log};

/// The head is one more layer behind the last. Its files repeat the embedding table and `lm_head` below it (`embed_tokens`,
/// `shared_head.head`); both are the model's own by DeepSeek's report, and are not loaded twice.
const DRAFTER: DrafterNames = DrafterNames {
    embedding_norm: "enorm",
    hidden_norm: "hnorm",
    join: "eh_proj",
    layer: None,
    norm: "shared_head.norm",
};

fn read_moe(fields: Fields<'_>, frame: &DecoderConfig) -> Result<Option<MoeConfig>> {
    let Some(experts) = fields.count("n_routed_experts")?.filter(|n| *n > 0) else { return Ok(None) };
    for (field, known) in [("topk_method", "noaux_tc"), ("scoring_func", "sigmoid")] {
        if let Some(other) = fields.text(field)?.filter(|value| *value != known) {
            return Err(problem(field, format!("is {other:?}; supported is {known:?}")));
        }
    }
    let width = fields.size("moe_intermediate_size")?;
    // Defaults are mlx-lm's. transformers has those of the published models: 8 experts from 4 of 8
    // groups, a scale of 2.5, one shared expert, three dense layers.
    let top_k = match fields.get("num_experts_per_tok") {
        Some(_) => read_top_k(fields, "num_experts_per_tok", experts)?,
        None => 1,
    };
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

    let root = Loader::new(checkpoint, backend, "", log);
    let attend =
        |layer: &Loader<'_, B>| Ok(Mixer::Latent(LatentAttention::load(&layer.at("self_attn"), &attention)?));
    let network = Decoder::load(&root, fields, &frame, moe.as_ref(), |layer, _| attend(layer))?;
    let drafter = match log.drafting {
        true => {
            let branch = root.drafter(format_args!("model.layers.{}", frame.layers), "eh_proj.weight");
            Drafter::load(&branch, &DRAFTER, fields, &frame, moe.as_ref(), attend)?
        }
        false => None,
    };

    let mut parts = vec![attention.describe(frame.layers)];
    parts.extend(moe.map(|moe| moe.describe(frame.layers)));
    Ok((Box::new(network.with_drafter(drafter)), frame.summary(family, parts)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_fields_have_mlx_lms_defaults() {
        let mut config = json!({
            "vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "n_routed_experts": 8,
            "moe_intermediate_size": 16,
        });
        let frame = DecoderConfig::read(Fields(&config)).unwrap();
        let latent = LatentConfig::read(Fields(&config), &frame).unwrap();
        assert_eq!((latent.q_rank, latent.rank), (Some(1536), 512));
        assert_eq!((latent.nope, latent.pe, latent.value_dim), (128, 64, 128));

        let moe = read_moe(Fields(&config), &frame).unwrap().unwrap();
        let Routing::GroupedSigmoid(routing) = moe.routing else { panic!("{:?}", moe.routing) };
        let expected =
            GroupedSigmoid { top_k: 1, groups: 1, kept_groups: 1, renormalise: false, scaling: 1.0 };
        assert_eq!(routing, expected);
        assert!(moe.shared.is_none() && moe.layers.first == 0 && moe.layers.step == 1);
        config["num_experts_per_tok"] = json!(2);
        let Some(MoeConfig { routing: Routing::GroupedSigmoid(routing), .. }) =
            read_moe(Fields(&config), &frame).unwrap()
        else {
            panic!("no experts in groups")
        };
        assert!(routing.renormalise);

        // Null is no rank, not the default.
        config["q_lora_rank"] = json!(null);
        assert_eq!(LatentConfig::read(Fields(&config), &frame).unwrap().q_rank, None);
    }
}
