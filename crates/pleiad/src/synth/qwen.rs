//! Qwen3.5, Qwen3.6 and Qwen3-Next: Gated DeltaNet with gated attention every so often, experts and a shared one.

use checkpoint::Float;
use serde_json::{Value, json};

use super::{plan::Branch, random::Fill};

/// Which of the two ways of storing the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generation {
    /// `qwen3_next`: fused projections, weights at the root.
    Next,
    /// `qwen3_5_moe`: split projections, weights and config one level down, beside a vision tower that we leave out.
    Three5,
}

/// A shape of the family.
#[derive(Clone, Debug)]
pub(super) struct Qwen {
    pub generation: Generation,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    /// Width of key and value heads of the DeltaNet.
    pub linear_dim: usize,
    pub experts: usize,
    pub top_k: usize,
    /// Width of an expert, and of the shared one.
    pub width: usize,
    pub vocabulary: usize,
    pub context: usize,
}

/// Every so many layers one is attention.
const INTERVAL: usize = 4;
/// Width of the convolution.
const KERNEL: usize = 4;

/// With fewer layers than an interval the last one is attention still: mlx-lm cannot run a model without.
fn interval(layers: usize) -> usize {
    INTERVAL.min(layers)
}

impl Qwen {
    /// `config.json` without its `quantization`.
    pub fn config(&self, layers: usize) -> Value {
        let interval = interval(layers);
        let kind =
            |i: usize| if (i + 1).is_multiple_of(interval) { "full_attention" } else { "linear_attention" };
        let mut text = json!({
            "attention_bias": false,
            "dtype": "bfloat16",
            "full_attention_interval": interval,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "layer_types": (0..layers).map(kind).collect::<Vec<_>>(),
            "linear_conv_kernel_dim": KERNEL,
            "linear_key_head_dim": self.linear_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_value_head_dim": self.linear_dim,
            "max_position_embeddings": self.context,
            "moe_intermediate_size": self.width,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6,
            "shared_expert_intermediate_size": self.width,
            "tie_word_embeddings": false,
            "vocab_size": self.vocabulary,
        });
        match self.generation {
            Generation::Next => {
                text["architectures"] = json!(["Qwen3NextForCausalLM"]);
                text["model_type"] = json!("qwen3_next");
                text["decoder_sparse_step"] = json!(1);
                // No layer is dense, but the field is required.
                text["intermediate_size"] = json!(10 * self.width);
                text["mlp_only_layers"] = json!([]);
                text["norm_topk_prob"] = json!(true);
                text["partial_rotary_factor"] = json!(0.25);
                text["rope_scaling"] = Value::Null;
                text["rope_theta"] = json!(10_000_000);
                text
            }
            Generation::Three5 => {
                // Pairs of the rotated quarter, shared out among time, height and width; text has one position for all.
                let pairs = self.head_dim / 8;
                let side = pairs / 3;
                text["model_type"] = json!("qwen3_5_moe_text");
                text["rope_parameters"] = json!({
                    "mrope_interleaved": true,
                    "mrope_section": [pairs - 2 * side, side, side],
                    "partial_rotary_factor": 0.25,
                    "rope_theta": 10_000_000,
                    "rope_type": "default",
                });
                json!({
                    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
                    "model_type": "qwen3_5_moe",
                    "text_config": text,
                    "tie_word_embeddings": false,
                })
            }
        }
    }

    /// All tensors.
    pub fn tensors(&self, mut root: Branch<'_>, layers: usize) {
        match self.generation {
            Generation::Next => self.text(root, layers),
            Generation::Three5 => self.text(root.at("language_model"), layers),
        }
    }

    fn text(&self, mut root: Branch<'_>, layers: usize) {
        let hidden = self.hidden;
        let mut model = root.at("model");
        // Rows are looked up, not summed over: values near 1, on a par with what the layers add.
        model.linear_with_gain("embed_tokens", self.vocabulary, hidden, (hidden as f32).sqrt());
        for i in 0..layers {
            let mut layer = model.at(format_args!("layers.{i}"));
            layer.norm("input_layernorm", hidden);
            match (i + 1).is_multiple_of(interval(layers)) {
                true => self.attention(layer.at("self_attn")),
                false => self.delta(layer.at("linear_attn")),
            }
            layer.norm("post_attention_layernorm", hidden);
            self.experts(layer.at("mlp"));
        }
        model.norm("norm", hidden);
        root.linear_with_gain("lm_head", self.vocabulary, hidden, 2.0);
    }

    /// The tensors of a drafting head.
    pub fn drafter(&self, mut root: Branch<'_>) {
        let mut head = match self.generation {
            Generation::Next => root.at("mtp"),
            Generation::Three5 => root.at("language_model.mtp"),
        };
        let hidden = self.hidden;
        head.norm("pre_fc_norm_embedding", hidden);
        head.norm("pre_fc_norm_hidden", hidden);
        head.linear("fc", hidden, 2 * hidden);
        let mut layer = head.at("layers.0");
        layer.norm("input_layernorm", hidden);
        self.attention(layer.at("self_attn"));
        layer.norm("post_attention_layernorm", hidden);
        self.experts(layer.at("mlp"));
        head.norm("norm", hidden);
    }

    fn attention(&self, mut layer: Branch<'_>) {
        let Qwen { hidden, heads, kv_heads, head_dim, .. } = *self;
        // Query and gate.
        layer.linear("q_proj", 2 * heads * head_dim, hidden);
        layer.linear("k_proj", kv_heads * head_dim, hidden);
        layer.linear("v_proj", kv_heads * head_dim, hidden);
        layer.linear("o_proj", hidden, heads * head_dim);
        layer.norm("q_norm", head_dim);
        layer.norm("k_norm", head_dim);
    }

    fn delta(&self, mut layer: Branch<'_>) {
        let Qwen { hidden, value_heads, linear_dim, .. } = *self;
        let values = value_heads * linear_dim;
        let channels = 2 * self.key_heads * linear_dim + values;
        let mut decay_float = Float::F32;
        match self.generation {
            Generation::Next => {
                layer.linear("in_proj_qkvz", channels + values, hidden);
                layer.linear("in_proj_ba", 2 * value_heads, hidden);
                // mlx-lm keeps A_log from being rounded in the later generation only.
                decay_float = Float::Bf16;
            }
            Generation::Three5 => {
                layer.linear("in_proj_qkv", channels, hidden);
                layer.linear("in_proj_z", values, hidden);
                layer.linear("in_proj_b", value_heads, hidden);
                layer.linear("in_proj_a", value_heads, hidden);
            }
        }
        let conv = Fill::spread((KERNEL as f32).powf(-0.5));
        layer.plain("conv1d.weight", &[channels, KERNEL, 1], Float::Bf16, conv);
        layer.plain("A_log", &[value_heads], decay_float, Fill::DecayRate);
        layer.plain("dt_bias", &[value_heads], Float::Bf16, Fill::TimeStep);
        layer.norm("norm", linear_dim);
        layer.linear("out_proj", hidden, values);
    }

    fn experts(&self, mut layer: Branch<'_>) {
        let Qwen { hidden, experts, width, .. } = *self;
        layer.router("gate", experts, hidden, 1.0);
        let mut stacks = layer.at("switch_mlp");
        stacks.stack("gate_proj", experts, width, hidden);
        stacks.stack("up_proj", experts, width, hidden);
        stacks.stack("down_proj", experts, hidden, width);
        let mut shared = layer.at("shared_expert");
        shared.linear("gate_proj", width, hidden);
        shared.linear("up_proj", width, hidden);
        shared.linear("down_proj", hidden, width);
        layer.router("shared_expert_gate", 1, hidden, 1.0);
    }
}
