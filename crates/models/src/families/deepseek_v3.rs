//! DeepSeek-V3, R1 and models of their shape (Cogito V2, Kimi K2): latent attention, a few dense
//! layers, then experts chosen by biased sigmoids in groups, beside shared ones.

use backend::{Activation, GroupedSigmoid};

use crate::Result;
use crate::config::{Fields, problem};
use crate::family::{Family, Quantise, no_offset};
use crate::spec::{
    DrafterNames, DrafterSpec, LatentSpec, LayerSpec, Mixer, MoeSpec, Norms, RoutingSpec, SharedSpec, Spec,
    read_top_k,
};
use crate::weights::Role;

use super::{MOE_NAMES, SparseLayers, dense, preset};

/// The whole family.
pub const FAMILY: Family = Family {
    types: &["deepseek_v3"],
    prefix: "",
    read: |fields, _| read(fields),
    norm_offset: no_offset,
    // A bare array in mlx-lm, which its quantiser does not see.
    router: Quantise::Never,
    keeps_type: &[Role::RouterBias],
    presets: &[
        preset!("deepseek-v3"),
        // For machines that cannot hold the full shape.
        preset!("deepseek-mini"),
    ],
};

/// The head is one more layer behind the last. Its files repeat the embedding table and `lm_head`
/// below it (`embed_tokens`, `shared_head.head`); both are the model's own by DeepSeek's report,
/// and are not loaded twice.
const DRAFTER: DrafterNames = DrafterNames {
    embedding_norm: "enorm",
    hidden_norm: "hnorm",
    join: "eh_proj",
    layer: None,
    norm: "shared_head.norm",
};

fn read_moe(fields: Fields<'_>) -> Result<Option<MoeSpec>> {
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
    Ok(Some(MoeSpec {
        names: MOE_NAMES,
        experts,
        width,
        activation: Activation::Silu,
        routing: RoutingSpec::GroupedSigmoid(routing),
        shared: shared.map(|n| SharedSpec { name: "mlp.shared_experts", width: n * width, gate: None }),
        beside: None,
    }))
}

fn read(fields: Fields<'_>) -> Result<Spec> {
    let layers = fields.layers()?;
    let attention = LatentSpec::read(fields)?;
    let moe = read_moe(fields)?;
    let sparse = SparseLayers {
        first: fields.count("first_k_dense_replace")?.unwrap_or(0),
        step: fields.size_or("moe_layer_freq", 1)?,
        phase: 0,
        dense: Vec::new(),
    };
    let layer =
        |feed| LayerSpec { norms: Norms::PRE, mixer: Mixer::Latent(attention.clone()), feed, scalar: false };
    let specs = (0..layers).map(|i| Ok(layer(sparse.feed(i, moe.as_ref(), fields)?)));
    let spec = Spec::read(fields, specs.collect::<Result<_>>()?)?;
    let drafter = DrafterSpec {
        names: DRAFTER,
        branch: format!("model.layers.{layers}"),
        layer: layer(SparseLayers::ALL.feed(0, moe.as_ref(), fields)?),
        dense: dense(fields),
    };
    Ok(Spec { drafter: Some(drafter), ..spec })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::FeedForward;

    #[test]
    fn absent_fields_have_mlx_lms_defaults() {
        let mut config = json!({
            "vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "n_routed_experts": 8,
            "moe_intermediate_size": 16,
        });
        let latent = LatentSpec::read(Fields(&config)).unwrap();
        assert_eq!((latent.q_rank, latent.rank), (Some(1536), 512));
        assert_eq!((latent.nope, latent.pe, latent.value_dim), (128, 64, 128));

        // Every layer has experts, and no shared one.
        let spec = read(Fields(&config)).unwrap();
        let routing =
            GroupedSigmoid { top_k: 1, groups: 1, kept_groups: 1, renormalise: false, scaling: 1.0 };
        for layer in &spec.layers {
            let FeedForward::Moe(moe) = &layer.feed else { panic!("{layer:?}") };
            assert_eq!((moe.routing, moe.shared), (RoutingSpec::GroupedSigmoid(routing), None));
        }
        config["num_experts_per_tok"] = json!(2);
        let moe = read_moe(Fields(&config)).unwrap().unwrap();
        let routing = GroupedSigmoid { top_k: 2, renormalise: true, ..routing };
        assert_eq!(moe.routing, RoutingSpec::GroupedSigmoid(routing));

        // Null is no rank, not the default.
        config["q_lora_rank"] = json!(null);
        assert_eq!(LatentSpec::read(Fields(&config)).unwrap().q_rank, None);
    }
}
