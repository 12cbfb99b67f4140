//! Gemma 4: layers that see a window and, every so often, one that sees all; a norm before and
//! after everything; a dense unit and experts side by side, or the dense unit alone; small models
//! give every layer an input of its own.

use backend::{Activation, Pairing, RopeSpec};

use crate::Result;
use crate::config::{Fields, divisible, problem, rope};
use crate::family::{Family, Quantise, no_offset};
use crate::spec::{
    AttentionSpec, Beside, FeedForward, LayerInputs, LayerSpec, Mixer, MlpSpec, MoeNames, MoeSpec, Norms,
    RoutingSpec, Spec, eps, read_top_k,
};

use super::preset;

/// With a vision tower beside the text model.
pub const FAMILY: Family = Family {
    types: &["gemma4"],
    prefix: "language_model.",
    read,
    norm_offset: no_offset,
    router: Quantise::WIDE,
    keeps_type: &[],
    presets: &[preset!("gemma-4-26b-a4b")],
};

/// The text model alone.
pub const TEXT: Family = Family { types: &["gemma4_text"], prefix: "", presets: &[], ..FAMILY };

const MOE_NAMES: MoeNames =
    MoeNames { router: "router.proj", stacked: "experts.switch_glu", original: "experts" };

/// Whether each layer sees only a window.
fn sliding_layers(fields: Fields<'_>, layers: usize) -> Result<Vec<bool>> {
    if let Some(sliding) = fields.layer_types(layers, ["sliding_attention", "full_attention"])? {
        return Ok(sliding);
    }
    // The default is mlx-lm's. transformers has 6, and makes the last layer full.
    let pattern = fields.size_or("sliding_window_pattern", 5)?;
    Ok((0..layers).map(|i| !(i + 1).is_multiple_of(pattern)).collect())
}

/// The fields of the first global layer in `per_layer_config`, which transformers 5.23 writes
/// instead of `global_head_dim` and `num_global_key_value_heads`. The shapes of the weights show
/// whether the other global layers are like it.
fn global_fields<'a>(fields: Fields<'a>, sliding: &[bool]) -> Option<Fields<'a>> {
    let first = sliding.iter().position(|sliding| !sliding)?;
    let layers = fields.get("per_layer_config")?.as_object()?;
    layers.iter().find(|(layer, _)| layer.parse() == Ok(first)).map(|(_, own)| Fields(own))
}

/// Attention of the global layers, or of those that are sliding.
fn read_attention(fields: Fields<'_>, sliding: &[bool], global: bool) -> Result<AttentionSpec> {
    let heads = fields.size_or("num_attention_heads", 8)?;
    let k_is_v = global && fields.flag("attention_k_eq_v", false)?;
    let mut kv_heads = fields.size_or("num_key_value_heads", 1)?;
    if k_is_v {
        kv_heads = fields.size_or("num_global_key_value_heads", kv_heads)?;
    }
    let mut head_dim = fields.size_or("head_dim", 256)?;
    if let Some(own) = global_fields(fields, sliding).filter(|_| global) {
        kv_heads = own.size_or("num_key_value_heads", kv_heads)?;
        head_dim = own.size_or("head_dim", head_dim)?;
    } else if global {
        let wide = fields.or_default("global_head_dim", fields.count("global_head_dim")?, 512);
        head_dim = wide.filter(|wide| *wide > 0).unwrap_or(head_dim);
    }
    divisible("num_attention_heads", heads, "the number of key-value heads", kv_heads)?;
    let kind = if global { "full_attention" } else { "sliding_attention" };
    let parameters = fields.object("rope_parameters").and_then(|all| all.object(kind));
    let rope = match parameters {
        Some(parameters) => {
            let theta = parameters.positive("rope_theta")?.unwrap_or(10_000.0);
            rope(head_dim, theta, Pairing::Halves, Some(parameters))?
        }
        None if global && fields.object("rope_parameters").is_none() => {
            let plain = rope(head_dim, 1e6, Pairing::Halves, None)?;
            RopeSpec::proportional(plain.rotary_dim(), head_dim / 4, 1e6, Pairing::Halves, 1.0)
        }
        None => rope(head_dim, 10_000.0, Pairing::Halves, None)?,
    };
    Ok(AttentionSpec {
        heads,
        kv_heads,
        head_dim,
        gated: false,
        v_norm: true,
        k_is_v,
        window: if global { None } else { Some(fields.size_or("sliding_window", 512)?) },
        reads_cache_of: None,
        scale: 1.0,
        rope,
    })
}

/// The first of the layers that read the caches of earlier ones: of the last one of their kind that
/// has its own.
fn first_shared(fields: Fields<'_>, sliding: &[bool]) -> Result<usize> {
    const FIELD: &str = "num_kv_shared_layers";
    let shared = fields.count(FIELD)?.unwrap_or(20);
    let Some(first) = sliding.len().checked_sub(shared) else {
        return Err(problem(FIELD, format!("is {shared}, but there are {} layers", sliding.len())));
    };
    for (kind, name) in [(true, "sliding"), (false, "full")] {
        if sliding[first..].contains(&kind) && !sliding[..first].contains(&kind) {
            return Err(problem(FIELD, format!("leaves no {name} layer with keys of its own")));
        }
    }
    Ok(first)
}

fn read(fields: Fields<'_>, root: Fields<'_>) -> Result<Spec> {
    const INPUT: &str = "hidden_size_per_layer_input";
    const CAP: &str = "final_logit_softcapping";
    let sliding = sliding_layers(fields, fields.layers()?)?;
    let first_shared = first_shared(fields, &sliding)?;
    let (local, global) = (read_attention(fields, &sliding, false)?, read_attention(fields, &sliding, true)?);
    let mlp = MlpSpec::read(fields, Activation::GeluTanh)?;
    let shared_double = fields.flag("use_double_wide_mlp", true)? && first_shared > 0;
    let moe = match fields.flag("enable_moe_block", false)? {
        true => {
            let experts = fields.size("num_experts")?;
            Some((
                experts,
                read_top_k(fields, "top_k_experts", experts)?,
                fields.size("moe_intermediate_size")?,
            ))
        }
        false => None,
    };
    let layer = |i: usize| {
        let attention = if sliding[i] { &local } else { &global };
        let own = |j: &usize| sliding[*j] == sliding[i];
        let reads_cache_of = if i < first_shared { None } else { (0..first_shared).rfind(own) };
        let double = shared_double && i >= first_shared;
        let mlp = MlpSpec { width: mlp.width * if double { 2 } else { 1 }, ..mlp };
        LayerSpec {
            norms: Norms::SANDWICH,
            mixer: Mixer::Attention(AttentionSpec { reads_cache_of, ..attention.clone() }),
            feed: match moe {
                None => FeedForward::Mlp(mlp),
                Some((experts, top_k, width)) => FeedForward::Moe(MoeSpec {
                    names: MOE_NAMES,
                    experts,
                    width,
                    activation: Activation::GeluTanh,
                    routing: RoutingSpec::SoftmaxScaled { top_k },
                    shared: None,
                    beside: Some(Beside {
                        mlp,
                        before: "pre_feedforward_layernorm_2",
                        after: ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2"],
                    }),
                }),
            },
            scalar: true,
        }
    };
    let hidden = fields.size("hidden_size")?;
    Ok(Spec {
        // mlx-lm reads this one and overrules the one inside.
        vocabulary: match root.count("vocab_size")? {
            Some(_) => root.size("vocab_size")?,
            None => fields.size_or("vocab_size", 262_144)?,
        },
        hidden,
        eps: eps(fields)?,
        tied: fields.flag("tie_word_embeddings", true)?,
        context: fields.count("max_position_embeddings")?,
        embed_scale: (hidden as f32).sqrt(),
        // The default is mlx-lm's; transformers would cap nothing.
        soft_cap: fields.or_default(CAP, fields.positive(CAP)?, 30.0).map(|cap| cap as f32),
        layers: (0..sliding.len()).map(layer).collect(),
        layer_inputs: match fields.or_default(INPUT, fields.count(INPUT)?, 256) {
            None | Some(0) => None,
            Some(width) => {
                Some(LayerInputs { width, entries: fields.size_or("vocab_size_per_layer_input", 262_144)? })
            }
        },
        drafter: None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The config of 25 layers that names nothing optional, with `changes`.
    fn spec(changes: Value) -> Spec {
        let mut config = json!({ "num_hidden_layers": 25, "hidden_size": 64, "intermediate_size": 96 });
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        read(Fields(&config), Fields(&config)).unwrap()
    }

    fn attention(spec: &Spec, layer: usize) -> &AttentionSpec {
        let Mixer::Attention(attention) = &spec.layers[layer].mixer else { panic!("{:?}", spec.layers) };
        attention
    }

    fn width(spec: &Spec, layer: usize) -> usize {
        let FeedForward::Mlp(mlp) = spec.layers[layer].feed else { panic!("layer {layer} has experts") };
        mlp.width
    }

    #[test]
    fn absent_fields_have_mlx_lms_defaults() {
        let spec = spec(json!({}));
        assert_eq!((spec.vocabulary, spec.eps, spec.tied), (262_144, 1e-6, true));
        assert_eq!(spec.layer_inputs, Some(LayerInputs { width: 256, entries: 262_144 }));
        assert_eq!(spec.soft_cap, Some(30.0));
        let windows: Vec<_> = (0..6).map(|i| attention(&spec, i).window).collect();
        assert_eq!(windows, [Some(512), Some(512), Some(512), Some(512), None, Some(512)]);
        assert_eq!([4, 5].map(|i| width(&spec, i)), [96, 192]);
        let reads: Vec<_> = (3..11).map(|i| attention(&spec, i).reads_cache_of).collect();
        assert_eq!(reads, [None, None, Some(3), Some(3), Some(3), Some(3), Some(4), Some(3)]);
        assert_eq!(spec.states()[3..11], [3, 4, 3, 3, 3, 3, 4, 3]);

        let (local, global) = (attention(&spec, 0), attention(&spec, 4));
        assert_eq!((local.heads, local.kv_heads, local.head_dim), (8, 1, 256));
        assert_eq!((global.heads, global.kv_heads, global.head_dim, global.k_is_v), (8, 1, 512, false));
        assert_eq!(local.rope, RopeSpec::plain(256, 1e4, Pairing::Halves));
        assert_eq!(global.rope, RopeSpec::proportional(512, 128, 1e6, Pairing::Halves, 1.0));
    }

    #[test]
    fn a_global_layer_of_transformers_5_names_its_own_fields() {
        let layers = json!({ "4": { "head_dim": 128, "num_key_value_heads": 2 }, "09": { "head_dim": 128 } });
        let spec = spec(json!({ "per_layer_config": layers }));
        let (local, global) = (attention(&spec, 0), attention(&spec, 4));
        assert_eq!((local.head_dim, local.kv_heads), (256, 1));
        assert_eq!((global.head_dim, global.kv_heads), (128, 2));
    }

    #[test]
    fn null_is_none_and_not_the_default() {
        let spec = spec(json!({
            "final_logit_softcapping": null, "global_head_dim": null, "hidden_size_per_layer_input": null,
            "use_double_wide_mlp": null,
        }));
        assert_eq!((spec.soft_cap, spec.layer_inputs), (None, None));
        assert_eq!((attention(&spec, 4).head_dim, width(&spec, 20)), (256, 96));
    }
}
