//! One file per family.

pub mod deepseek_v3;
pub mod gemma4;
pub mod qwen3;
pub mod qwen3_5;

use backend::Activation;

use crate::Result;
use crate::config::{Fields, problem};
use crate::spec::{FeedForward, MlpSpec, MoeNames, MoeSpec, RoutingSpec, SharedSpec, read_top_k};

/// Where mlx-lm and the originals of most families keep a layer's experts.
const MOE_NAMES: MoeNames =
    MoeNames { router: "mlp.gate", stacked: "mlp.switch_mlp", original: "mlp.experts" };

/// A preset whose config is the file of its name.
macro_rules! preset {
    ($name:literal) => {
        $crate::family::Preset {
            name: $name,
            config: include_str!(concat!("../../presets/", $name, ".json")),
            files: &[],
        }
    };
}
use preset;

/// The experts a Qwen config declares, if any: `shared` when each layer has a shared one; `number`
/// and `renormalise` are the family's defaults, and without a `number` the config must name one.
/// transformers 5 writes `num_local_experts` for Qwen3-MoE.
fn read_qwen_moe(
    fields: Fields<'_>,
    shared: bool,
    number: Option<usize>,
    renormalise: bool,
) -> Result<Option<MoeSpec>> {
    let experts = match fields.count("num_experts")? {
        None => fields.count("num_local_experts")?,
        experts => experts,
    };
    let experts = experts.or(number).ok_or_else(|| problem("num_experts", "is missing"))?;
    if experts == 0 {
        return Ok(None);
    }
    let shared = match shared {
        true => {
            let width = fields.size("shared_expert_intermediate_size")?;
            Some(SharedSpec { name: "mlp.shared_expert", width, gate: Some("mlp.shared_expert_gate") })
        }
        false => None,
    };
    Ok(Some(MoeSpec {
        names: MOE_NAMES,
        experts,
        width: fields.size("moe_intermediate_size")?,
        activation: Activation::Silu,
        routing: RoutingSpec::Softmax {
            top_k: read_top_k(fields, "num_experts_per_tok", experts)?,
            renormalise: fields.flag("norm_topk_prob", renormalise)?,
        },
        shared,
        beside: None,
    }))
}

/// Which layers have experts: from `first` on, those whose number plus `phase` is a multiple of
/// `step`, but not those listed.
struct SparseLayers {
    first: usize,
    step: usize,
    phase: usize,
    dense: Vec<usize>,
}

impl SparseLayers {
    /// Every layer.
    const ALL: SparseLayers = SparseLayers { first: 0, step: 1, phase: 0, dense: Vec::new() };

    /// Qwen's fields.
    fn read(fields: Fields<'_>) -> Result<Self> {
        let step = fields.size_or("decoder_sparse_step", 1)?;
        Ok(Self { first: 0, step, phase: 1, dense: fields.counts("mlp_only_layers")? })
    }

    /// What a layer has: the experts, if there are any and the layer is not dense, else a unit of
    /// `intermediate_size`.
    fn feed(&self, layer: usize, moe: Option<&MoeSpec>, fields: Fields<'_>) -> Result<FeedForward> {
        let sparse = layer >= self.first
            && (layer + self.phase).is_multiple_of(self.step)
            && !self.dense.contains(&layer);
        Ok(match moe {
            Some(moe) if sparse => FeedForward::Moe(*moe),
            _ => FeedForward::Mlp(MlpSpec::read(fields, Activation::Silu)?),
        })
    }
}

/// The dense unit that the config declares, if it does.
fn dense(fields: Fields<'_>) -> Option<MlpSpec> {
    MlpSpec::read(fields, Activation::Silu).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(field: &str) -> Value {
        let mut config =
            json!({ "intermediate_size": 8, "moe_intermediate_size": 4, "num_experts_per_tok": 2 });
        config[field] = json!(6);
        config
    }

    #[test]
    fn experts_are_counted_under_both_names() {
        for name in ["num_experts", "num_local_experts"] {
            let config = config(name);
            assert_eq!(read_qwen_moe(Fields(&config), false, None, false).unwrap().unwrap().experts, 6);
        }
    }

    #[test]
    fn absent_fields_have_mlx_lms_defaults() {
        let (other, named) = (config("other"), config("num_experts"));
        assert!(read_qwen_moe(Fields(&other), false, Some(0), true).unwrap().is_none());
        let error = read_qwen_moe(Fields(&other), false, None, true).unwrap_err();
        assert!(error.to_string().contains("num_experts"), "{error}");
        let sparse = SparseLayers::read(Fields(&named)).unwrap();
        for default in [false, true] {
            let moe = read_qwen_moe(Fields(&named), false, None, default).unwrap();
            for layer in 0..2 {
                let FeedForward::Moe(moe) = sparse.feed(layer, moe.as_ref(), Fields(&named)).unwrap() else {
                    panic!("layer {layer} is dense")
                };
                assert_eq!(moe.routing, RoutingSpec::Softmax { top_k: 2, renormalise: default });
            }
        }
    }
}
