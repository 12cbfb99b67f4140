//! Gemma 4 with experts: sliding and global attention of different widths, a dense unit beside the experts.

use checkpoint::Float;
use serde_json::{Value, json};

use super::{plan::Branch, random::Fill};

/// A shape of the family.
#[derive(Clone, Debug)]
pub(super) struct Gemma {
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub global_kv_heads: usize,
    pub global_head_dim: usize,
    pub window: usize,
    pub experts: usize,
    pub top_k: usize,
    /// Width of an expert.
    pub width: usize,
    /// Width of the dense unit.
    pub dense_width: usize,
    pub vocabulary: usize,
}

/// Every so many layers one sees the whole context.
const INTERVAL: usize = 6;

/// With fewer layers than an interval the last one is global still.
fn is_global(layer: usize, layers: usize) -> bool {
    (layer + 1).is_multiple_of(INTERVAL.min(layers))
}

impl Gemma {
    /// `config.json` without its `quantization`.
    pub fn config(&self, layers: usize) -> Value {
        let kind = |i| if is_global(i, layers) { "full_attention" } else { "sliding_attention" };
        json!({
            "architectures": ["Gemma4ForConditionalGeneration"],
            "model_type": "gemma4",
            "text_config": {
                "attention_bias": false,
                "attention_k_eq_v": true,
                "dtype": "bfloat16",
                "enable_moe_block": true,
                "final_logit_softcapping": 30.0,
                "global_head_dim": self.global_head_dim,
                "head_dim": self.head_dim,
                "hidden_activation": "gelu_pytorch_tanh",
                "hidden_size": self.hidden,
                "hidden_size_per_layer_input": 0,
                "intermediate_size": self.dense_width,
                "layer_types": (0..layers).map(kind).collect::<Vec<_>>(),
                "max_position_embeddings": 262_144,
                "model_type": "gemma4_text",
                "moe_intermediate_size": self.width,
                "num_attention_heads": self.heads,
                "num_experts": self.experts,
                "num_global_key_value_heads": self.global_kv_heads,
                "num_hidden_layers": layers,
                "num_key_value_heads": self.kv_heads,
                "num_kv_shared_layers": 0,
                "rms_norm_eps": 1e-6,
                "rope_parameters": {
                    "full_attention": {
                        "partial_rotary_factor": 0.25,
                        "rope_theta": 1_000_000.0,
                        "rope_type": "proportional",
                    },
                    "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
                },
                "sliding_window": self.window,
                "tie_word_embeddings": true,
                "top_k_experts": self.top_k,
                "use_double_wide_mlp": false,
                "vocab_size": self.vocabulary,
            },
            "tie_word_embeddings": true,
            // mlx-lm reads this one and overrules the one inside.
            "vocab_size": self.vocabulary,
        })
    }

    /// All tensors.
    pub fn tensors(&self, mut root: Branch<'_>, layers: usize) {
        let hidden = self.hidden;
        let mut text = root.at("language_model");
        let mut model = text.at("model");
        // Looked up times sqrt(hidden), and the head as it is: this spread is right for both.
        model.linear("embed_tokens", self.vocabulary, hidden);
        for i in 0..layers {
            let mut layer = model.at(format_args!("layers.{i}"));
            layer.norm("input_layernorm", hidden);
            self.attention(layer.at("self_attn"), is_global(i, layers));
            layer.norm("post_attention_layernorm", hidden);
            layer.norm("pre_feedforward_layernorm", hidden);
            self.dense(layer.at("mlp"));
            layer.norm("post_feedforward_layernorm_1", hidden);
            self.router(layer.at("router"));
            layer.norm("pre_feedforward_layernorm_2", hidden);
            self.experts(layer.at("experts").at("switch_glu"));
            layer.norm("post_feedforward_layernorm_2", hidden);
            layer.norm("post_feedforward_layernorm", hidden);
            layer.plain("layer_scalar", &[1], Float::Bf16, Fill::around(1.0));
        }
        model.norm("norm", hidden);
    }

    fn attention(&self, mut layer: Branch<'_>, global: bool) {
        let (kv_heads, head_dim) = match global {
            true => (self.global_kv_heads, self.global_head_dim),
            false => (self.kv_heads, self.head_dim),
        };
        layer.linear("q_proj", self.heads * head_dim, self.hidden);
        layer.linear("k_proj", kv_heads * head_dim, self.hidden);
        if !global {
            layer.linear("v_proj", kv_heads * head_dim, self.hidden);
        }
        layer.linear("o_proj", self.hidden, self.heads * head_dim);
        layer.norm("q_norm", head_dim);
        // Scores are not scaled: the norms' weights do it.
        layer.norm_around("k_norm", head_dim, (head_dim as f32).powf(-0.5));
    }

    fn dense(&self, mut layer: Branch<'_>) {
        layer.linear("gate_proj", self.dense_width, self.hidden);
        layer.linear("up_proj", self.dense_width, self.hidden);
        layer.linear("down_proj", self.hidden, self.dense_width);
    }

    fn router(&self, mut layer: Branch<'_>) {
        let Gemma { hidden, experts, .. } = *self;
        layer.plain("scale", &[hidden], Float::Bf16, Fill::around(1.0));
        // The input comes divided by sqrt(hidden).
        layer.router("proj", experts, hidden, (hidden as f32).sqrt());
        layer.plain("per_expert_scale", &[experts], Float::Bf16, Fill::around(1.0));
    }

    fn experts(&self, mut stacks: Branch<'_>) {
        let Gemma { hidden, experts, width, .. } = *self;
        stacks.stack("gate_proj", experts, width, hidden);
        stacks.stack("up_proj", experts, width, hidden);
        stacks.stack("down_proj", experts, hidden, width);
    }
}
