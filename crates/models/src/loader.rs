//! From a checkpoint's names to weights on a backend.
//!
//! Families ask by the names mlx-lm uses. Hugging Face's originals and older conversions keep the same weights under
//! other names and in other layouts; the differences are resolved here, so that families need not know.

use backend::Backend;
use checkpoint::{Checkpoint, Weight};

use crate::Result;
use crate::model::Log;

/// Where a checkpoint keeps the text model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Naming {
    /// `model.*` and `lm_head`: text models.
    Plain,
    /// `language_model.model.*` and `language_model.lm_head`: mlx-lm's conversions of multimodal models.
    Branch,
    /// `model.language_model.*` and `lm_head`: the multimodal originals.
    Inside,
}

/// A weight as a family asked for it, under mlx-lm's name.
pub enum Loaded {
    /// A linear layer or an embedding table: `{path}.weight` and its companions.
    Matrix(Weight),
    /// One matrix per expert.
    Stack {
        /// The matrices.
        weight: Weight,
        /// How many of them a token passes through.
        per_token: usize,
    },
    /// One matrix per head; mlx-lm stores it the other way round when `transposed`.
    Heads {
        /// The matrices.
        weight: Weight,
        /// Whether `y = W^T x`.
        transposed: bool,
    },
    /// Plain values under their full name.
    Values {
        /// Rows and columns, or one row.
        shape: Vec<usize>,
        /// Row after row.
        values: Vec<f32>,
    },
}

/// The names of a layer's experts: stacked by mlx-lm, and in the originals.
pub(crate) struct ExpertNames {
    /// Branch with the stacks `gate_proj`, `up_proj`, `down_proj`.
    pub stacked: &'static str,
    /// Branch with `gate_up_proj` and `down_proj` of all experts, or with a branch for each.
    pub original: &'static str,
}

/// The shape of a layer's experts.
pub(crate) struct ExpertShape {
    pub count: usize,
    /// Experts that each token passes through.
    pub per_token: usize,
    pub width: usize,
    pub hidden: usize,
}

/// A place in a checkpoint's tree of names, and the backend its weights go to.
pub(crate) struct Loader<'a, B> {
    pub checkpoint: &'a Checkpoint,
    pub backend: &'a B,
    naming: Naming,
    /// Prefix of mlx-lm's own names for this family.
    prefix: &'static str,
    /// Added to the weights of norms: 1 in originals that store them minus one.
    norm_offset: f32,
    path: String,
    log: Log<'a>,
    /// Whether this is a branch of the drafting head.
    drafting: bool,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// The root of the tree. `prefix` is where mlx-lm's class of this family keeps the text model.
    pub fn new(checkpoint: &'a Checkpoint, backend: &'a B, prefix: &'static str, log: Log<'a>) -> Self {
        let naming = if checkpoint.contains("language_model.model.norm.weight") {
            Naming::Branch
        } else if checkpoint.contains("model.language_model.norm.weight") {
            Naming::Inside
        } else {
            Naming::Plain
        };
        Self {
            checkpoint,
            backend,
            naming,
            prefix,
            norm_offset: 0.0,
            path: String::new(),
            log,
            drafting: false,
        }
    }

    /// The same, for a checkpoint that stores norm weights minus one.
    pub fn with_norm_offset(self, norm_offset: f32) -> Self {
        Self { norm_offset, ..self }
    }

    /// A branch of the tree.
    pub fn at(&self, branch: impl std::fmt::Display) -> Self {
        Self { path: format!("{}{branch}.", self.path), ..*self }
    }

    /// The branch of the drafting head, whose weights are noted down apart; `leaf` is one that it cannot lack. mlx-lm drops such
    /// heads, so that no file of its own says where one belongs: beside the text model's branch or in it.
    pub fn drafter(&self, branch: impl std::fmt::Display, leaf: &str) -> Self {
        let inside = Self { drafting: true, ..self.at(branch) };
        let naming = if inside.contains(leaf) { inside.naming } else { Naming::Plain };
        Self { naming, ..inside }
    }

    /// The name under which the checkpoint keeps a leaf of this branch.
    fn stored(&self, leaf: &str) -> String {
        let name = format!("{}{leaf}", self.path);
        match (self.naming, name.strip_prefix("model.")) {
            (Naming::Branch, _) => format!("language_model.{name}"),
            (Naming::Inside, Some(rest)) => format!("model.language_model.{rest}"),
            _ => name,
        }
    }

    fn note(&self, leaf: &str, loaded: Loaded) {
        let notes = if self.drafting { &self.log.drafter } else { &self.log.model };
        notes.borrow_mut().push((format!("{}{}{leaf}", self.prefix, self.path), loaded));
    }

    /// Whether the checkpoint has a tensor of this branch.
    pub fn contains(&self, leaf: &str) -> bool {
        self.checkpoint.contains(&self.stored(leaf))
    }

    /// A linear layer `[rows, cols]`.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<B::Matrix> {
        let weight = self.checkpoint.matrix(&self.stored(name), rows, cols)?;
        let matrix = self.backend.matrix(&weight)?;
        self.note(name, Loaded::Matrix(weight));
        Ok(matrix)
    }

    /// Linear layers over one input of `cols`: names and rows.
    pub fn matrices<const N: usize>(
        &self,
        layers: [(&str, usize); N],
        cols: usize,
    ) -> Result<[B::Matrix; N]> {
        let mut weights = Vec::with_capacity(N);
        for (name, rows) in layers {
            weights.push(self.checkpoint.matrix(&self.stored(name), rows, cols)?);
        }
        let weights: [Weight; N] = weights.try_into().unwrap_or_else(|_| unreachable!("one per layer"));
        let matrices = self.backend.matrices(weights.each_ref())?;
        for ((name, _), weight) in layers.into_iter().zip(weights) {
            self.note(name, Loaded::Matrix(weight));
        }
        Ok(matrices)
    }

    /// One matrix `[rows, cols]` per head.
    pub fn head_matrices(
        &self,
        name: &str,
        heads: usize,
        rows: usize,
        cols: usize,
    ) -> Result<B::HeadMatrices> {
        self.heads(name, self.checkpoint.stack(&self.stored(name), heads, rows, cols)?, false)
    }

    /// Some rows of every head's slice of a linear layer, under the name of their own that mlx-lm gives them.
    pub fn heads(&self, name: &str, weight: Weight, transposed: bool) -> Result<B::HeadMatrices> {
        let matrices = self.backend.head_matrices(&weight, transposed)?;
        self.note(name, Loaded::Heads { weight, transposed });
        Ok(matrices)
    }

    /// A linear layer as stored, that several weights are made from.
    pub fn weight(&self, name: &str, rows: usize, cols: usize) -> Result<Weight> {
        Ok(self.checkpoint.matrix(&self.stored(name), rows, cols)?)
    }

    /// The experts of a layer, however they are stored, and a shared one: its branch and width.
    pub fn experts(
        &self,
        names: &ExpertNames,
        shape: &ExpertShape,
        shared: Option<(&str, usize)>,
    ) -> Result<B::Experts> {
        const PARTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
        let [gate, up, down] = self.expert_stacks(names, shape)?;
        let shared = match shared {
            None => None,
            Some((branch, width)) => {
                let branch = self.at(branch);
                let gate = branch.weight("gate_proj", width, shape.hidden)?;
                let up = branch.weight("up_proj", width, shape.hidden)?;
                let down = branch.weight("down_proj", shape.hidden, width)?;
                Some((branch, [gate, up, down]))
            }
        };
        let shared_weights = shared.as_ref().map(|(_, weights)| weights.each_ref());
        let experts = self.backend.expert_weights([&gate, &up, &down], shared_weights)?;
        if let Some((branch, weights)) = shared {
            for (part, weight) in PARTS.into_iter().zip(weights) {
                branch.note(part, Loaded::Matrix(weight));
            }
        }
        for (part, weight) in PARTS.into_iter().zip([gate, up, down]) {
            self.note(
                &format!("{}.{part}", names.stacked),
                Loaded::Stack { weight, per_token: shape.per_token },
            );
        }
        Ok(experts)
    }

    fn expert_stacks(&self, names: &ExpertNames, shape: &ExpertShape) -> Result<[Weight; 3]> {
        let ExpertShape { count, width, hidden, .. } = *shape;
        let original = |part: &str| self.stored(&format!("{}.{part}", names.original));
        if self.checkpoint.contains(&original("gate_up_proj")) {
            let gate_up =
                self.checkpoint.tensor_weight(&original("gate_up_proj"), count, 2 * width, hidden)?;
            let down = self.checkpoint.tensor_weight(&original("down_proj"), count, hidden, width)?;
            return Ok([gate_up.row_range(0..width), gate_up.row_range(width..2 * width), down]);
        }
        let separate = self.checkpoint.contains(&original("0.gate_proj.weight"));
        let stack = |part: &str, rows, cols| match separate {
            true => {
                let paths: Vec<String> = (0..count).map(|e| original(&format!("{e}.{part}"))).collect();
                self.checkpoint.stack_of(&paths, rows, cols)
            }
            false => {
                self.checkpoint.stack(&self.stored(&format!("{}.{part}", names.stacked)), count, rows, cols)
            }
        };
        Ok([
            stack("gate_proj", width, hidden)?,
            stack("up_proj", width, hidden)?,
            stack("down_proj", hidden, width)?,
        ])
    }

    /// Plain values `shape`, under their full name.
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.offset_values(name, shape, 0.0)
    }

    fn offset_values(&self, name: &str, shape: &[usize], offset: f32) -> Result<Vec<f32>> {
        let mut values = self.checkpoint.vector(&self.stored(name), shape)?;
        values.iter_mut().for_each(|v| *v += offset);
        self.note(name, Loaded::Values { shape: shape.to_vec(), values: values.clone() });
        Ok(values)
    }

    /// A learned vector, under its full name.
    pub fn vector(&self, name: &str, len: usize) -> Result<B::Tensor> {
        Ok(self.backend.upload(1, len, &self.values(name, &[len])?)?)
    }

    /// The weight of a norm.
    pub fn norm(&self, name: &str, len: usize) -> Result<B::Tensor> {
        Ok(self.backend.upload(1, len, &self.norm_values(name, len)?)?)
    }

    /// The same on the host.
    pub fn norm_values(&self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.offset_values(&format!("{name}.weight"), &[len], self.norm_offset)
    }
}
