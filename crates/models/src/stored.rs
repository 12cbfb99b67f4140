//! From the list of weights to what a checkpoint has of them.
//!
//! The list has mlx-lm's names and layouts. Hugging Face's originals and older conversions keep the
//! same weights under other names and in other layouts; the differences are resolved here and
//! nowhere else.

use checkpoint::{Checkpoint, Float, Weight};

use crate::Result;
use crate::config::problem;
use crate::spec::{DrafterNames, DrafterSpec, FeedForward};
use crate::weights::{FusedRows, Kind, Part, WeightSpec};

/// A weight as a checkpoint has it, checked against the shape in the list.
pub enum Stored {
    /// Of all kinds but values.
    Matrices {
        /// The matrix, or one per expert or head.
        weight: Box<Weight>,
        /// Whether these are the transposed matrices of those in the list.
        transposed: bool,
        /// The type of the linear layer's bias in the checkpoint, where there is one.
        bias: Option<Float>,
    },
    /// Plain values, as they are used.
    Values {
        /// Row after row.
        values: Vec<f32>,
        /// Their type in the checkpoint.
        float: Float,
    },
}

impl Stored {
    /// Bytes in the checkpoint; values and biases count as 32-bit floats, as which they are used.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Matrices { weight, .. } => {
                weight.stored_bytes() + weight.bias.as_ref().map_or(0, |bias| 4 * bias.len() as u64)
            }
            Self::Values { values, .. } => 4 * values.len() as u64,
        }
    }
}

/// Where a checkpoint keeps the text model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Naming {
    /// `model.*` and `lm_head`: text models.
    Plain,
    /// `language_model.model.*` and `language_model.lm_head`: mlx-lm's conversions of multimodal
    /// models.
    Branch,
    /// `model.language_model.*` and `lm_head`: the multimodal originals.
    Inside,
}

impl Naming {
    /// A checkpoint's name for what mlx-lm calls `name`, below its class's prefix.
    fn stored(self, name: &str) -> String {
        match (self, name.strip_prefix("model.")) {
            (Naming::Branch, _) => format!("language_model.{name}"),
            (Naming::Inside, Some(rest)) => format!("model.language_model.{rest}"),
            _ => name.to_owned(),
        }
    }
}

/// A checkpoint as a family keeps its weights in it.
pub(crate) struct Source<'a> {
    checkpoint: &'a Checkpoint,
    /// mlx-lm's prefix of all names.
    prefix: &'static str,
    /// Added to the weights of norms: 1 in originals that store them minus one.
    norm_offset: f32,
    naming: Naming,
    /// The same for the drafting head. mlx-lm drops such heads, so that no file of its own says
    /// where one belongs: beside the text model's branch or in it.
    drafter: Naming,
}

impl<'a> Source<'a> {
    pub fn new(checkpoint: &'a Checkpoint, prefix: &'static str, norm_offset: f32) -> Self {
        let naming = if checkpoint.contains("language_model.model.norm.weight") {
            Naming::Branch
        } else if checkpoint.contains("model.language_model.norm.weight") {
            Naming::Inside
        } else {
            Naming::Plain
        };
        Self { checkpoint, prefix, norm_offset, naming, drafter: naming }
    }

    /// The drafting head as it is here. `None` where the checkpoint lacks one of the weights around
    /// its layer: then there is no head, or a part of one that nobody could use. The layer has
    /// experts where its files have a router.
    pub fn find_drafter(&mut self, mut head: DrafterSpec) -> Result<Option<DrafterSpec>> {
        let DrafterNames { embedding_norm, hidden_norm, join, layer, norm } = head.names;
        let stored = |naming: Naming, leaf: &str| naming.stored(&format!("{}.{leaf}.weight", head.branch));
        if !self.checkpoint.contains(&stored(self.naming, join)) {
            self.drafter = Naming::Plain;
        }
        let has = |leaf: &str| self.checkpoint.contains(&stored(self.drafter, leaf));
        if ![embedding_norm, hidden_norm, join, norm].into_iter().all(has) {
            return Ok(None);
        }
        let layer = layer.map_or(String::new(), |layer| format!("{layer}."));
        let no_router = matches!(&head.layer.feed, FeedForward::Moe(moe) if !has(&format!("{layer}{}", moe.names.router)));
        if no_router {
            let dense = head.dense.ok_or_else(|| problem("intermediate_size", "is missing"))?;
            head.layer.feed = FeedForward::Mlp(dense);
        }
        Ok(Some(head))
    }

    /// Finds a weight and checks its shape. Nothing but values is read.
    pub fn open(&self, spec: &WeightSpec) -> Result<Stored> {
        let naming = if spec.part == Part::Drafter { self.drafter } else { self.naming };
        let stored = |path: &str| naming.stored(path.strip_prefix(self.prefix).unwrap_or(path));
        let path = stored(&spec.path);
        let matrices = |weight: Weight, transposed| {
            let bias = weight.bias.is_some().then(|| self.float(&format!("{path}.bias")));
            Stored::Matrices { weight: Box::new(weight), transposed, bias }
        };
        Ok(match &spec.kind {
            Kind::Matrix { rows, cols } => matrices(self.checkpoint.matrix(&path, *rows, *cols)?, false),
            Kind::Experts { shape, original, .. } => {
                matrices(self.experts(&path, &stored(original), spec.leaf(), *shape)?, false)
            }
            Kind::Heads { shape, fused } => {
                let (weight, transposed) = self.heads(&path, spec.leaf(), *shape, fused)?;
                matrices(weight, transposed)
            }
            Kind::Values { shape } => self.values(&path, shape, 0.0)?,
            Kind::Norm { width } => self.values(&format!("{path}.weight"), &[*width], self.norm_offset)?,
        })
    }

    /// The type of a tensor, if it is a float's.
    fn float(&self, name: &str) -> Float {
        let tensor = self.checkpoint.tensor(name).ok();
        tensor.and_then(|tensor| Float::from_dtype(tensor.dtype)).unwrap_or(Float::F32)
    }

    /// One projection of all experts: `leaf` of the branch `original`, fused with another or in a
    /// branch for each expert, or mlx-lm's stack.
    fn experts(
        &self,
        path: &str,
        original: &str,
        leaf: &str,
        [count, rows, cols]: [usize; 3],
    ) -> Result<Weight> {
        let gate_up = format!("{original}.gate_up_proj");
        let fused = || self.checkpoint.tensor_weight(&gate_up, count, 2 * rows, cols);
        let one = |expert: usize| format!("{original}.{expert}.{leaf}");
        Ok(match (self.checkpoint.contains(&gate_up), leaf) {
            (true, "gate_proj") => fused()?.row_range(0..rows),
            (true, "up_proj") => fused()?.row_range(rows..2 * rows),
            (true, _) => self.checkpoint.tensor_weight(&format!("{original}.{leaf}"), count, rows, cols)?,
            (false, _) if self.checkpoint.contains(&format!("{}.weight", one(0))) => {
                let paths: Vec<String> = (0..count).map(one).collect();
                self.checkpoint.stack_of(&paths, rows, cols)?
            }
            (false, _) => self.checkpoint.stack(path, count, rows, cols)?,
        })
    }

    /// One matrix per head: of its own, or rows of the older linear layer of all heads. And whether
    /// they are transposed.
    fn heads(&self, path: &str, leaf: &str, shape: [usize; 3], fused: &FusedRows) -> Result<(Weight, bool)> {
        let FusedRows { name, per_head, rows, transposed } = fused;
        let [heads, outputs, inputs] = shape;
        let older = format!("{}{name}", path.strip_suffix(leaf).unwrap_or(path));
        if !self.checkpoint.contains(&format!("{older}.weight")) {
            return Ok((self.checkpoint.stack(path, heads, outputs, inputs)?, false));
        }
        let cols = if *transposed { outputs } else { inputs };
        let weight = self.checkpoint.matrix(&older, heads * per_head, cols)?;
        Ok((weight.head_rows(heads, rows.clone()), *transposed))
    }

    fn values(&self, name: &str, shape: &[usize], offset: f32) -> Result<Stored> {
        let mut values = self.checkpoint.vector(name, shape)?;
        values.iter_mut().for_each(|value| *value += offset);
        Ok(Stored::Values { values, float: self.float(name) })
    }
}
