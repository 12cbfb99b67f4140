//! The shapes that can be made.

use checkpoint::{Mode, QuantSpec};
use serde_json::Value;

use super::{
    deepseek::DeepSeek,
    error::{Error, Result},
    gemma::Gemma,
    plan::Plan,
    qwen::{Generation, Qwen},
};

/// A file beside the weights.
pub(super) type ExtraFile = (&'static str, &'static [u8]);

/// A shape under a name.
pub(super) struct Preset {
    pub name: &'static str,
    /// Layers of the whole model.
    pub layers: usize,
    pub family: Family,
    /// Tokenizer files, where there are any.
    pub files: &'static [ExtraFile],
}

/// The shape of a family.
#[derive(Clone, Debug)]
pub(super) enum Family {
    Qwen(Qwen),
    DeepSeek(DeepSeek),
    Gemma(Gemma),
}

const QWEN_36_35B: Qwen = Qwen {
    generation: Generation::Three5,
    hidden: 2048,
    heads: 16,
    kv_heads: 2,
    head_dim: 256,
    key_heads: 16,
    value_heads: 32,
    linear_dim: 128,
    experts: 256,
    top_k: 8,
    width: 512,
    vocabulary: 248_320,
    context: 262_144,
};

const QWEN_35_397B: Qwen =
    Qwen { hidden: 4096, heads: 32, value_heads: 64, experts: 512, top_k: 10, width: 1024, ..QWEN_36_35B };

const QWEN_NEXT_80B: Qwen =
    Qwen { generation: Generation::Next, experts: 512, top_k: 10, vocabulary: 151_936, ..QWEN_36_35B };

const DEEPSEEK_V3: DeepSeek = DeepSeek {
    hidden: 7168,
    dense_layers: 3,
    dense_width: 18_432,
    heads: 128,
    experts: 256,
    top_k: 8,
    groups: 8,
    kept_groups: 4,
    width: 2048,
    vocabulary: 129_280,
};

const DEEPSEEK_MINI: DeepSeek = DeepSeek {
    hidden: 2048,
    dense_layers: 1,
    dense_width: 8192,
    heads: 32,
    experts: 64,
    groups: 1,
    kept_groups: 1,
    width: 1024,
    ..DEEPSEEK_V3
};

const GEMMA_4_26B: Gemma = Gemma {
    hidden: 2816,
    heads: 16,
    kv_heads: 8,
    head_dim: 256,
    global_kv_heads: 2,
    global_head_dim: 512,
    window: 1024,
    experts: 128,
    top_k: 8,
    width: 704,
    dense_width: 2112,
    vocabulary: 262_144,
};

/// Small enough to make in a moment, with every part of the family.
const TINY: Qwen = Qwen {
    hidden: 128,
    heads: 4,
    head_dim: 32,
    key_heads: 2,
    value_heads: 4,
    linear_dim: 32,
    experts: 8,
    top_k: 2,
    width: 128,
    vocabulary: 512,
    context: 4096,
    ..QWEN_36_35B
};

const TINY_FILES: &[ExtraFile] = &[
    ("tokenizer.json", include_bytes!("../../../../fixtures/tokenizer/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../../../fixtures/tokenizer/tokenizer_config.json")),
    ("generation_config.json", include_bytes!("../../../../fixtures/tokenizer/generation_config.json")),
];

/// All presets, the small one last.
pub(super) const PRESETS: &[Preset] = &[
    preset("qwen3.6-35b-a3b", 40, Family::Qwen(QWEN_36_35B)),
    preset("qwen3.5-397b-a17b", 60, Family::Qwen(QWEN_35_397B)),
    preset("qwen3-next-80b-a3b", 48, Family::Qwen(QWEN_NEXT_80B)),
    preset("deepseek-v3", 61, Family::DeepSeek(DEEPSEEK_V3)),
    preset("deepseek-mini", 28, Family::DeepSeek(DEEPSEEK_MINI)),
    preset("gemma-4-26b-a4b", 30, Family::Gemma(GEMMA_4_26B)),
    Preset { files: TINY_FILES, ..preset("tiny", 4, Family::Qwen(TINY)) },
];

const fn preset(name: &'static str, layers: usize, family: Family) -> Preset {
    Preset { name, layers, family, files: &[] }
}

/// The preset of a name.
pub(super) fn find(name: &str) -> Result<&'static Preset> {
    PRESETS
        .iter()
        .find(|preset| preset.name == name)
        .ok_or_else(|| Error::UnknownPreset { name: name.to_owned(), known: names().join(", ") })
}

/// The names of all presets.
pub fn names() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}

impl Preset {
    /// The number of layers to make: as many as asked for, or all.
    pub fn layers(&self, asked: Option<usize>) -> Result<usize> {
        match asked {
            None => Ok(self.layers),
            Some(n) if (1..=self.layers).contains(&n) => Ok(n),
            Some(asked) => Err(Error::Layers { preset: self.name, asked, all: self.layers }),
        }
    }
}

impl Family {
    /// `config.json` and the tensors of a model of at least one layer, with a drafting head where the family has such.
    pub fn plan(&self, layers: usize, quant: QuantSpec, drafter: bool) -> (Value, Plan) {
        let mut plan = Plan::new(quant);
        let mut config = match self {
            Family::Qwen(shape) => {
                shape.tensors(plan.root(), layers);
                if drafter {
                    shape.drafter(plan.drafter());
                }
                shape.config(layers)
            }
            Family::DeepSeek(shape) => {
                shape.tensors(plan.root(), layers);
                if drafter {
                    shape.drafter(plan.drafter(), layers);
                }
                shape.config(layers)
            }
            Family::Gemma(shape) => {
                shape.tensors(plan.root(), layers);
                shape.config(layers)
            }
        };
        // mlx-lm writes it under both names.
        config["quantization"] = plan.quantization();
        config["quantization_config"] = plan.quantization();
        (config, plan)
    }
}

/// A layout of MLX, if it is one.
pub(super) fn quantization(bits: u32, group: usize) -> Result<QuantSpec> {
    match (bits, group) {
        (1..=6 | 8, 32 | 64 | 128) => Ok(QuantSpec { mode: Mode::Affine, bits, group }),
        _ => Err(Error::Quantization { bits, group }),
    }
}
