//! DeepSeek-V3: multi-head latent attention, dense layers first, then sigmoid-routed experts in groups.

use checkpoint::Float;
use serde_json::{Value, json};

use super::{plan::Branch, random::Fill};

/// A shape of the family. The widths of the attention are the same for all.
#[derive(Clone, Debug)]
pub(super) struct DeepSeek {
    pub hidden: usize,
    /// Layers without experts at the start, and their width.
    pub dense_layers: usize,
    pub dense_width: usize,
    pub heads: usize,
    pub experts: usize,
    pub top_k: usize,
    pub groups: usize,
    pub kept_groups: usize,
    /// Width of an expert, and of the shared one.
    pub width: usize,
    pub vocabulary: usize,
}

const Q_RANK: usize = 1536;
const KV_RANK: usize = 512;
const NOPE: usize = 128;
const ROPE: usize = 64;
const VALUE: usize = 128;

impl DeepSeek {
    /// A model of few layers keeps one with experts: they are what the family is about.
    fn dense_layers(&self, layers: usize) -> usize {
        self.dense_layers.min(layers - 1)
    }

    /// `config.json` without its `quantization`.
    pub fn config(&self, layers: usize) -> Value {
        json!({
            "architectures": ["DeepseekV3ForCausalLM"],
            "model_type": "deepseek_v3",
            "attention_bias": false,
            "first_k_dense_replace": self.dense_layers(layers),
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.dense_width,
            "kv_lora_rank": KV_RANK,
            "max_position_embeddings": 163_840,
            "moe_intermediate_size": self.width,
            "moe_layer_freq": 1,
            "n_group": self.groups,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "norm_topk_prob": true,
            "num_attention_heads": self.heads,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": layers,
            "num_key_value_heads": self.heads,
            "q_lora_rank": Q_RANK,
            "qk_nope_head_dim": NOPE,
            "qk_rope_head_dim": ROPE,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 40,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 4096,
                "type": "yarn",
            },
            "rope_theta": 10_000,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "tie_word_embeddings": false,
            "topk_group": self.kept_groups,
            "topk_method": "noaux_tc",
            "torch_dtype": "bfloat16",
            "v_head_dim": VALUE,
            "vocab_size": self.vocabulary,
        })
    }

    /// All tensors.
    pub fn tensors(&self, mut root: Branch<'_>, layers: usize) {
        let hidden = self.hidden;
        let mut model = root.at("model");
        // Rows are looked up, not summed over: values near 1, on a par with what the layers add.
        model.linear_with_gain("embed_tokens", self.vocabulary, hidden, (hidden as f32).sqrt());
        for i in 0..layers {
            let mut layer = model.at(format_args!("layers.{i}"));
            layer.norm("input_layernorm", hidden);
            self.attention(layer.at("self_attn"));
            layer.norm("post_attention_layernorm", hidden);
            match i < self.dense_layers(layers) {
                true => self.unit(layer.at("mlp"), self.dense_width),
                false => self.experts(layer.at("mlp")),
            }
        }
        model.norm("norm", hidden);
        root.linear_with_gain("lm_head", self.vocabulary, hidden, 2.0);
    }

    /// The tensors of a drafting head: one more layer.
    pub fn drafter(&self, mut root: Branch<'_>, layers: usize) {
        let hidden = self.hidden;
        let mut layer = root.at(format_args!("model.layers.{layers}"));
        layer.norm("enorm", hidden);
        layer.norm("hnorm", hidden);
        layer.linear("eh_proj", hidden, 2 * hidden);
        layer.norm("input_layernorm", hidden);
        self.attention(layer.at("self_attn"));
        layer.norm("post_attention_layernorm", hidden);
        self.experts(layer.at("mlp"));
        layer.norm("shared_head.norm", hidden);
    }

    fn attention(&self, mut layer: Branch<'_>) {
        let DeepSeek { hidden, heads, .. } = *self;
        layer.linear("q_a_proj", Q_RANK, hidden);
        layer.norm("q_a_layernorm", Q_RANK);
        layer.linear("q_b_proj", heads * (NOPE + ROPE), Q_RANK);
        layer.linear("kv_a_proj_with_mqa", KV_RANK + ROPE, hidden);
        layer.norm("kv_a_layernorm", KV_RANK);
        // The key half of kv_b_proj, transposed: what has to come out near 1 is its product with the latent.
        let transposed = (NOPE as f32 / KV_RANK as f32).sqrt();
        layer.stack_with_gain("embed_q", heads, KV_RANK, NOPE, transposed);
        layer.stack("unembed_out", heads, VALUE, KV_RANK);
        layer.linear("o_proj", hidden, heads * VALUE);
    }

    fn experts(&self, mut layer: Branch<'_>) {
        let DeepSeek { hidden, experts, width, .. } = *self;
        // A bare array in mlx-lm, which its quantiser does not see.
        let router = Fill::spread((hidden as f32).powf(-0.5));
        layer.plain("gate.weight", &[experts, hidden], Float::Bf16, router);
        let correction = Fill::Uniform { low: 0.0, high: 0.1 };
        layer.plain("gate.e_score_correction_bias", &[experts], Float::F32, correction);
        let mut stacks = layer.at("switch_mlp");
        stacks.stack("gate_proj", experts, width, hidden);
        stacks.stack("up_proj", experts, width, hidden);
        stacks.stack("down_proj", experts, hidden, width);
        self.unit(layer.at("shared_experts"), width);
    }

    fn unit(&self, mut layer: Branch<'_>, width: usize) {
        layer.linear("gate_proj", width, self.hidden);
        layer.linear("up_proj", width, self.hidden);
        layer.linear("down_proj", self.hidden, width);
    }
}
