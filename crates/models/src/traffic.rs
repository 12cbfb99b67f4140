//! What weights take: to read for a token, and to keep.

use std::collections::BTreeMap;

use checkpoint::Weight;

use crate::loader::Loaded;

/// Bytes of weights that one token reads, as stored: every matrix once, of a layer's experts those it passes through, of
/// an embedding table its row. With the speed of the memory this bounds how fast tokens can come one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Attention and linear attention.
    pub attention: u64,
    /// Routed experts.
    pub experts: u64,
    /// Everything else in the layers: dense units, shared experts, routers, norms.
    pub dense: u64,
    /// The matrix that makes logits.
    pub head: u64,
}

impl Traffic {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.attention + self.experts + self.dense + self.head
    }

    /// Adds up all weights of a model, under mlx-lm's names.
    pub(crate) fn of(weights: &[(String, Loaded)]) -> Self {
        // A table that is the head too is read whole; one that is not, or that belongs to the layers, by the row.
        let has_head = weights.iter().any(|(path, _)| leaf(path) == "lm_head");
        let mut traffic = Self::default();
        for (path, loaded) in weights {
            let part = match (loaded, leaf(path)) {
                (Loaded::Stack { .. }, _) => &mut traffic.experts,
                (_, "lm_head" | "embed_tokens") => &mut traffic.head,
                _ if in_attention(path) => &mut traffic.attention,
                _ => &mut traffic.dense,
            };
            *part += match (loaded, leaf(path)) {
                (Loaded::Matrix(table), "embed_tokens_per_layer") => share(table, 1, table.rows),
                (Loaded::Matrix(table), "embed_tokens") if has_head => share(table, 1, table.rows),
                (Loaded::Matrix(weight) | Loaded::Heads { weight, .. }, _) => share(weight, 1, 1),
                (Loaded::Stack { weight, per_token }, _) => share(weight, *per_token, weight.count),
                (Loaded::Values { values, .. }, _) => 4 * values.len() as u64,
            };
        }
        traffic
    }
}

/// Bytes of all weights, as stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// Routed experts.
    pub experts: u64,
    /// The largest expert.
    pub expert: u64,
    /// Everything else.
    pub others: u64,
}

impl Sizes {
    /// Adds up all weights of a model, under mlx-lm's names.
    pub(crate) fn of<'a>(weights: impl IntoIterator<Item = &'a (String, Loaded)>) -> Self {
        let mut sizes = Self::default();
        // Of each of the matrices that an expert has, the largest.
        let mut parts = BTreeMap::<&str, u64>::new();
        for (path, loaded) in weights {
            match loaded {
                Loaded::Stack { weight, .. } => {
                    sizes.experts += share(weight, 1, 1);
                    let part = parts.entry(leaf(path)).or_default();
                    *part = share(weight, 1, weight.count).max(*part);
                }
                Loaded::Matrix(weight) | Loaded::Heads { weight, .. } => sizes.others += share(weight, 1, 1),
                Loaded::Values { values, .. } => sizes.others += 4 * values.len() as u64,
            }
        }
        Self { expert: parts.values().sum(), ..sizes }
    }
}

fn leaf(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn in_attention(path: &str) -> bool {
    path.split('.').any(|part| ["self_attn", "linear_attn"].contains(&part))
}

/// `part` of `whole` of a weight's bytes.
fn share(weight: &Weight, part: usize, whole: usize) -> u64 {
    let bias = weight.bias.as_ref().map_or(0, |bias| 4 * bias.len() as u64);
    let bytes = u128::from(weight.stored_bytes() + bias);
    (bytes * part as u128 / whole.max(1) as u128) as u64
}

#[cfg(test)]
mod tests {
    use checkpoint::{Bytes, Float};

    use super::*;

    fn weight(count: usize, rows: usize, cols: usize) -> Weight {
        let bytes: &'static [u8] = vec![0; 2 * count * rows * cols].leak();
        Weight::plain("w", count, rows, cols, Float::Bf16, Bytes::from_static(bytes)).unwrap()
    }

    fn matrix(path: &str, rows: usize, cols: usize) -> (String, Loaded) {
        (path.into(), Loaded::Matrix(weight(1, rows, cols)))
    }

    #[test]
    fn each_part_counts_what_a_token_reads() {
        let stack = |path: &str| (path.into(), Loaded::Stack { weight: weight(8, 3, 4), per_token: 2 });
        let mut weights = vec![
            matrix("language_model.model.embed_tokens", 10, 4),
            matrix("language_model.model.layers.0.linear_attn.in_proj_z", 5, 4),
            matrix("language_model.model.layers.1.self_attn.q_proj", 3, 4),
            matrix("language_model.model.layers.1.mlp.gate", 8, 4),
            stack("language_model.model.layers.1.mlp.switch_mlp.up_proj"),
            matrix("language_model.model.embed_tokens_per_layer", 100, 6),
            (
                "language_model.model.norm.weight".into(),
                Loaded::Values { shape: vec![4], values: vec![0.0; 4] },
            ),
        ];
        let tied =
            Traffic { attention: 2 * (20 + 12), experts: 2 * 2 * 12, dense: 2 * 32 + 2 * 6 + 16, head: 80 };
        assert_eq!(Traffic::of(&weights), tied);
        assert_eq!(tied.total(), 64 + 48 + 92 + 80);
        let sizes = Sizes { experts: 2 * 96, expert: 2 * 12, others: 80 + 40 + 24 + 64 + 1200 + 16 };
        assert_eq!(Sizes::of(&weights), sizes);
        weights.push(matrix("language_model.lm_head", 10, 4));
        assert_eq!(Traffic::of(&weights), Traffic { head: 80 + 8, ..tied });
    }
}
