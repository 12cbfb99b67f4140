//! What weights take: to read for a token, and to keep.

use std::collections::BTreeMap;

use crate::outline::ListedWeight;
use crate::stored::Stored;
use crate::weights::{Kind, Part, Role};

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

    /// Adds up all weights of a model. A drafting head is something beside it.
    pub(crate) fn of(weights: &[ListedWeight]) -> Self {
        // A table that is the head too is read whole; one that is not, or that belongs to the layers, by the row.
        let has_head = weights.iter().any(|weight| weight.spec.role == Role::Head);
        let mut traffic = Self::default();
        for ListedWeight { spec, stored } in weights {
            let part = match spec.part {
                Part::Attention => &mut traffic.attention,
                Part::Experts => &mut traffic.experts,
                Part::Dense => &mut traffic.dense,
                Part::Head => &mut traffic.head,
                Part::Drafter => continue,
            };
            let by_row = matches!(spec.role, Role::Embedding { .. }) && (has_head || spec.part != Part::Head);
            *part += match spec.kind {
                Kind::Matrix { rows, .. } if by_row => share(stored, 1, rows),
                Kind::Experts { shape: [count, ..], per_token, .. } => share(stored, per_token, count),
                _ => stored.bytes(),
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
    /// Adds up all weights, those of a drafting head too.
    pub(crate) fn of(weights: &[ListedWeight]) -> Self {
        let mut sizes = Self::default();
        // Of each of the matrices that an expert has, the largest.
        let mut parts = BTreeMap::<&str, u64>::new();
        for ListedWeight { spec, stored } in weights {
            match spec.kind {
                Kind::Experts { shape: [count, ..], .. } => {
                    sizes.experts += stored.bytes();
                    let part = parts.entry(spec.leaf()).or_default();
                    *part = share(stored, 1, count).max(*part);
                }
                _ => sizes.others += stored.bytes(),
            }
        }
        Self { expert: parts.values().sum(), ..sizes }
    }
}

/// `part` of `whole` of a weight's bytes.
fn share(stored: &Stored, part: usize, whole: usize) -> u64 {
    (u128::from(stored.bytes()) * part as u128 / whole.max(1) as u128) as u64
}

#[cfg(test)]
mod tests {
    use checkpoint::{Bytes, Float, Weight};

    use super::*;
    use crate::weights::WeightSpec;

    fn weight(path: &str, part: Part, role: Role, kind: Kind, count: usize) -> ListedWeight {
        let spec = WeightSpec { path: path.into(), kind, role, part };
        let shape = spec.shape();
        let (rows, cols) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let bytes: &'static [u8] = vec![0; 2 * count * rows * cols].leak();
        let weight = Weight::plain("w", count, rows, cols, Float::Bf16, Bytes::from_static(bytes)).unwrap();
        ListedWeight {
            spec,
            stored: Stored::Matrices { weight: Box::new(weight), transposed: false, bias: None },
        }
    }

    fn matrix(path: &str, part: Part, role: Role, rows: usize, cols: usize) -> ListedWeight {
        weight(path, part, role, Kind::Matrix { rows, cols }, 1)
    }

    fn stack(path: &str, part: Part) -> ListedWeight {
        let kind = Kind::Experts { shape: [8, 3, 4], per_token: 2, original: String::new() };
        weight(path, part, Role::Projection, kind, 8)
    }

    #[test]
    fn each_part_counts_what_a_token_reads() {
        let (table, linear) = (Role::Embedding { scale: 1.0 }, Role::Projection);
        let mut weights = vec![
            matrix("model.embed_tokens", Part::Head, table, 10, 4),
            matrix("model.layers.0.linear_attn.in_proj_z", Part::Attention, linear, 5, 4),
            matrix("model.layers.1.self_attn.q_proj", Part::Attention, linear, 3, 4),
            matrix("model.layers.1.mlp.gate", Part::Dense, Role::Router { normed: false }, 8, 4),
            stack("model.layers.1.mlp.switch_mlp.up_proj", Part::Experts),
            matrix("model.embed_tokens_per_layer", Part::Dense, table, 100, 6),
            ListedWeight {
                spec: WeightSpec {
                    path: "model.norm".into(),
                    kind: Kind::Norm { width: 4 },
                    role: Role::FACTOR,
                    part: Part::Dense,
                },
                stored: Stored::Values { values: vec![0.0; 4], float: Float::Bf16 },
            },
        ];
        let tied =
            Traffic { attention: 2 * (20 + 12), experts: 2 * 2 * 12, dense: 2 * 32 + 2 * 6 + 16, head: 80 };
        assert_eq!(Traffic::of(&weights), tied);
        assert_eq!(tied.total(), 64 + 48 + 92 + 80);
        let sizes = Sizes { experts: 2 * 96, expert: 2 * 12, others: 80 + 40 + 24 + 64 + 1200 + 16 };
        assert_eq!(Sizes::of(&weights), sizes);
        weights.push(matrix("lm_head", Part::Head, Role::Head, 10, 4));
        assert_eq!(Traffic::of(&weights), Traffic { head: 80 + 8, ..tied });
        // A drafting head takes memory; what a token reads stays.
        weights.push(stack("mtp.layers.0.mlp.switch_mlp.up_proj", Part::Drafter));
        assert_eq!(Traffic::of(&weights), Traffic { head: 80 + 8, ..tied });
        assert_eq!(Sizes::of(&weights), Sizes { experts: 4 * 96, others: sizes.others + 80, ..sizes });
    }
}
