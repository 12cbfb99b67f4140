//! The list of a model's weights: names, shapes and roles, without a checkpoint or a backend.

use std::fmt::Display;
use std::ops::Range;

use crate::spec::MoeNames;

/// One weight under mlx-lm's name. Drafting heads, which mlx-lm drops, have the original's names
/// and mlx-lm's layouts.
#[derive(Clone, PartialEq, Debug)]
pub struct WeightSpec {
    /// The path of a matrix, without `.weight`; the whole name of values.
    pub path: String,
    /// Its shape.
    pub kind: Kind,
    /// What it does.
    pub role: Role,
    /// Where it counts.
    pub part: Part,
}

/// The shape of a weight.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// A linear layer or a table: `{path}.weight` and its companions.
    Matrix {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
    },
    /// One matrix per expert.
    Experts {
        /// Experts, outputs and inputs of each.
        shape: [usize; 3],
        /// Experts that a token passes through.
        per_token: usize,
        /// The branch where the original keeps them.
        original: String,
    },
    /// One matrix per head.
    Heads {
        /// Heads, outputs and inputs of each.
        shape: [usize; 3],
        /// Rows of the linear layer that older files have instead.
        fused: FusedRows,
    },
    /// Plain values.
    Values {
        /// As mlx-lm has it.
        shape: Vec<usize>,
    },
    /// Plain values that some originals store minus one.
    Norm {
        /// Channels.
        width: usize,
    },
}

/// The part of a linear layer of all heads that is one of the matrices per head.
#[derive(Clone, PartialEq, Debug)]
pub struct FusedRows {
    /// The linear layer, beside the matrices.
    pub name: &'static str,
    /// Its rows for each head.
    pub per_head: usize,
    /// Those of the part.
    pub rows: Range<usize>,
    /// Whether the part is the transposed matrix.
    pub transposed: bool,
}

/// What a weight does, as far as anybody treats it differently.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Role {
    /// A linear layer like most.
    Projection,
    /// A table of rows, which are looked up and multiplied by `scale`.
    Embedding {
        /// See above.
        scale: f32,
    },
    /// Makes logits.
    Head,
    /// Chooses experts.
    Router {
        /// Whether its input is normalised to a length of 1.
        normed: bool,
    },
    /// Weighs a shared expert.
    SharedGate,
    /// Takes a query to the space of latents.
    IntoLatent,
    /// Factors, which lie about this number in trained models: norms, scales.
    Factor {
        /// See above.
        about: f32,
    },
    /// Corrects the choice of experts.
    RouterBias,
    /// The taps of a convolution.
    Convolution,
    /// `A_log` of a recurrent layer.
    Decay,
    /// `dt_bias` of a recurrent layer.
    TimeStep,
}

impl Role {
    /// Factors about 1.
    pub const FACTOR: Role = Role::Factor { about: 1.0 };
}

/// The part of a model that a weight belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Attention and linear attention.
    Attention,
    /// Routed experts.
    Experts,
    /// Everything else in the layers: dense units, shared experts, routers, norms.
    Dense,
    /// Embedding table and head.
    Head,
    /// The drafting head, whatever it is there.
    Drafter,
}

impl WeightSpec {
    /// The last part of its path.
    pub fn leaf(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or(&self.path)
    }

    /// Its tensor's shape in mlx-lm's layout, before it is quantised.
    pub fn shape(&self) -> Vec<usize> {
        match &self.kind {
            Kind::Matrix { rows, cols } => vec![*rows, *cols],
            Kind::Experts { shape, .. } | Kind::Heads { shape, .. } => shape.to_vec(),
            Kind::Values { shape } => shape.clone(),
            Kind::Norm { width } => vec![*width],
        }
    }

    /// Whether it is one or several matrices.
    pub fn is_matrix(&self) -> bool {
        !matches!(self.kind, Kind::Values { .. } | Kind::Norm { .. })
    }

    /// The name of its first tensor.
    pub fn tensor(&self) -> String {
        match self.kind {
            Kind::Values { .. } => self.path.clone(),
            _ => format!("{}.weight", self.path),
        }
    }
}

/// A place in the tree of names, and the list that its weights are added to.
pub(crate) struct Branch<'a> {
    list: &'a mut Vec<WeightSpec>,
    path: String,
    part: Part,
}

impl<'a> Branch<'a> {
    /// The root; `prefix` stands before all names.
    pub fn root(list: &'a mut Vec<WeightSpec>, prefix: &str) -> Self {
        Self { list, path: prefix.to_owned(), part: Part::Dense }
    }

    /// A branch of this one.
    pub fn at(&mut self, name: impl Display) -> Branch<'_> {
        Branch { path: format!("{}{name}.", self.path), list: self.list, part: self.part }
    }

    /// The same place in another part of the model. What belongs to a drafting head stays there.
    pub fn part(&mut self, part: Part) -> Branch<'_> {
        let part = if self.part == Part::Drafter { self.part } else { part };
        Branch { path: self.path.clone(), list: self.list, part }
    }

    /// A linear layer.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize, role: Role) {
        self.add(name, Kind::Matrix { rows, cols }, role);
    }

    /// One of the three projections of all experts of a layer.
    pub fn experts(&mut self, names: &MoeNames, name: &str, shape: [usize; 3], per_token: usize) {
        let original = format!("{}{}", self.path, names.original);
        let kind = Kind::Experts { shape, per_token, original };
        self.part(Part::Experts).at(names.stacked).add(name, kind, Role::Projection);
    }

    /// One matrix per head.
    pub fn heads(&mut self, name: &str, shape: [usize; 3], fused: FusedRows, role: Role) {
        self.add(name, Kind::Heads { shape, fused }, role);
    }

    /// Plain values under their full name.
    pub fn values(&mut self, name: &str, shape: &[usize], role: Role) {
        self.add(name, Kind::Values { shape: shape.to_vec() }, role);
    }

    /// The weight of a norm.
    pub fn norm(&mut self, name: &str, width: usize) {
        self.norm_about(name, width, 1.0);
    }

    /// The weight of a norm that also scales.
    pub fn norm_about(&mut self, name: &str, width: usize, about: f32) {
        self.add(name, Kind::Norm { width }, Role::Factor { about });
    }

    fn add(&mut self, name: &str, kind: Kind, role: Role) {
        self.list.push(WeightSpec { path: format!("{}{name}", self.path), kind, role, part: self.part });
    }
}
