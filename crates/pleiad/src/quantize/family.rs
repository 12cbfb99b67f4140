//! What mlx-lm's class of each family says of its own weights.

use checkpoint::{Float, Mode, QuantSpec};
use serde_json::Value;

/// How mlx-lm quantises routers and gates of shared experts, whatever the rest has.
const ROUTER: QuantSpec = QuantSpec { mode: Mode::Affine, bits: 8, group: 64 };

/// A matrix in the eyes of its family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Quantised like the rest.
    Ordinary,
    /// Quantised so, unless a recipe says otherwise.
    Decides(QuantSpec),
    /// Not a layer that mlx-lm can quantise.
    Fixed,
}

/// The role of the matrix at `path`: `quant_predicate` of mlx-lm's class, and which of its weights are no layers.
pub fn role(family: &str, path: &str) -> Role {
    let ends = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
    match family {
        "deepseek_v3" if ends(&["mlp.gate"]) => Role::Fixed,
        "gemma4" | "gemma4_text" if ends(&["router.proj"]) => Role::Decides(ROUTER),
        "qwen3_5_moe" | "qwen3_5" | "qwen3_next" | "qwen3_moe"
            if ends(&["mlp.gate", "shared_expert_gate"]) =>
        {
            Role::Decides(ROUTER)
        }
        _ => Role::Ordinary,
    }
}

/// The type that floats are cast to: mlx-lm takes the config's word, and without one leaves every tensor its own.
pub fn cast(config: &Value) -> Option<Float> {
    let text = || config.get("text_config").and_then(|text| text.get("dtype"));
    let named = config.get("torch_dtype").filter(|name| !name.is_null()).or_else(text)?;
    match named.as_str()? {
        "bfloat16" => Some(Float::Bf16),
        "float16" => Some(Float::F16),
        "float32" => Some(Float::F32),
        _ => None,
    }
}

/// Whether a tensor keeps its type even so: `cast_predicate` of mlx-lm's class.
pub fn keeps_its_type(family: &str, name: &str) -> bool {
    match family {
        "qwen3_5_moe" | "qwen3_5" => name.ends_with("A_log"),
        "deepseek_v3" => name.contains("e_score_correction_bias"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn roles() {
        assert_eq!(role("qwen3_moe", "model.layers.0.mlp.gate"), Role::Decides(ROUTER));
        assert_eq!(role("qwen3_5_moe", "language_model.model.layers.0.mlp.gate_proj"), Role::Ordinary);
        assert_eq!(role("qwen3_next", "model.layers.0.mlp.shared_expert_gate"), Role::Decides(ROUTER));
        assert_eq!(role("deepseek_v3", "model.layers.3.mlp.gate"), Role::Fixed);
        assert_eq!(role("gemma4", "language_model.model.layers.3.router.proj"), Role::Decides(ROUTER));
    }

    #[test]
    fn types() {
        assert_eq!(
            cast(&json!({"torch_dtype": "float16", "text_config": {"dtype": "bfloat16"}})),
            Some(Float::F16)
        );
        assert_eq!(
            cast(&json!({"torch_dtype": null, "text_config": {"dtype": "bfloat16"}})),
            Some(Float::Bf16)
        );
        assert_eq!(cast(&json!({"dtype": "bfloat16"})), None);
        assert_eq!(cast(&json!({"torch_dtype": "auto"})), None);
        assert!(keeps_its_type("qwen3_5", "language_model.model.layers.0.linear_attn.A_log"));
        assert!(!keeps_its_type("qwen3_next", "model.layers.0.linear_attn.A_log"));
    }
}
