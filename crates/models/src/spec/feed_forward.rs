//! The second half of a layer: a gated unit, or routed experts beside a shared one or a dense unit.

use backend::{Activation, GroupedSigmoid};

use crate::Result;
use crate::config::{Fields, problem};
use crate::weights::{Branch, Role};
use crate::words::counted;

/// What follows the mixer in a layer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum FeedForward {
    Mlp(MlpSpec),
    Moe(MoeSpec),
}

/// `down(act(gate x) * up x)`, at `mlp`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct MlpSpec {
    pub width: usize,
    pub activation: Activation,
}

/// How experts are chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum RoutingSpec {
    /// The largest of a softmax; `renormalise`: the weights of the chosen experts are made to sum 1.
    Softmax { top_k: usize, renormalise: bool },
    /// The same, renormalised, of a normalised and scaled input, then a learned factor for each
    /// expert.
    SoftmaxScaled { top_k: usize },
    /// Biased sigmoids in groups.
    GroupedSigmoid(GroupedSigmoid),
}

impl RoutingSpec {
    /// Experts per token.
    pub fn top_k(&self) -> usize {
        match self {
            Self::Softmax { top_k, .. } | Self::SoftmaxScaled { top_k } => *top_k,
            Self::GroupedSigmoid(spec) => spec.top_k,
        }
    }
}

/// Where a layer keeps the parts of its experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MoeNames {
    /// The projection to logits; a correction bias lies below it.
    pub router: &'static str,
    /// Branch with mlx-lm's stacks `gate_proj`, `up_proj`, `down_proj`.
    pub stacked: &'static str,
    /// Branch with the original's `gate_up_proj` and `down_proj` of all experts, or with a branch
    /// for each.
    pub original: &'static str,
}

/// The expert that every token passes through.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct SharedSpec {
    pub name: &'static str,
    pub width: usize,
    /// The projection of the token that weighs it, where there is one.
    pub gate: Option<&'static str>,
}

/// A dense unit with the same input as the experts, and the norms that they need beside the layer's
/// own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Beside {
    pub mlp: MlpSpec,
    pub before: &'static str,
    /// The norms after the unit and after the experts.
    pub after: [&'static str; 2],
}

/// Shape of a layer of experts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct MoeSpec {
    pub names: MoeNames,
    pub experts: usize,
    pub width: usize,
    pub activation: Activation,
    pub routing: RoutingSpec,
    pub shared: Option<SharedSpec>,
    pub beside: Option<Beside>,
}

impl MlpSpec {
    /// A dense unit of `intermediate_size`.
    pub fn read(fields: Fields<'_>, activation: Activation) -> Result<Self> {
        Ok(Self { width: fields.size("intermediate_size")?, activation })
    }

    fn weights(&self, mut at: Branch<'_>, hidden: usize) {
        at.matrix("gate_proj", self.width, hidden, Role::Projection);
        at.matrix("up_proj", self.width, hidden, Role::Projection);
        at.matrix("down_proj", hidden, self.width, Role::Projection);
    }
}

impl MoeSpec {
    fn weights(&self, layer: &mut Branch<'_>, hidden: usize) {
        let Self { names, experts, width, routing, shared, beside, .. } = *self;
        let normed = matches!(routing, RoutingSpec::SoftmaxScaled { .. });
        layer.matrix(names.router, experts, hidden, Role::Router { normed });
        match routing {
            RoutingSpec::Softmax { .. } => {}
            RoutingSpec::SoftmaxScaled { .. } => {
                layer.values("router.scale", &[hidden], Role::FACTOR);
                layer.values("router.per_expert_scale", &[experts], Role::FACTOR);
            }
            RoutingSpec::GroupedSigmoid(_) => {
                layer.at(names.router).values("e_score_correction_bias", &[experts], Role::RouterBias);
            }
        }
        for (name, rows, cols) in
            [("gate_proj", width, hidden), ("up_proj", width, hidden), ("down_proj", hidden, width)]
        {
            layer.experts(&names, name, [experts, rows, cols], routing.top_k());
        }
        if let Some(SharedSpec { name, width, gate }) = shared {
            MlpSpec { width, activation: self.activation }.weights(layer.at(name), hidden);
            if let Some(gate) = gate {
                layer.matrix(gate, 1, hidden, Role::SharedGate);
            }
        }
        if let Some(Beside { mlp, before, after }) = beside {
            mlp.weights(layer.at("mlp"), hidden);
            [before, after[0], after[1]].iter().for_each(|norm| layer.norm(norm, hidden));
        }
    }

    /// A line for people.
    pub(super) fn describe(&self, layers: usize) -> String {
        let Self { experts, width, routing, .. } = self;
        let shared = self.shared.map_or(String::new(), |s| format!(", shared expert of {}", s.width));
        let beside = self.beside.map_or(String::new(), |b| format!(", dense unit of {}", b.mlp.width));
        let (layers, top_k) = (counted(layers, "layer"), routing.top_k());
        format!("{layers}, {experts} of width {width}, {top_k} per token{shared}{beside}")
    }
}

impl FeedForward {
    /// `layer` is the branch of the layer.
    pub(super) fn weights(&self, layer: &mut Branch<'_>, hidden: usize) {
        match self {
            Self::Mlp(mlp) => mlp.weights(layer.at("mlp"), hidden),
            Self::Moe(moe) => moe.weights(layer, hidden),
        }
    }
}

/// Experts per token, no more than there are.
pub(crate) fn read_top_k(fields: Fields<'_>, field: &str, experts: usize) -> Result<usize> {
    match fields.size(field)? {
        top_k if top_k > experts => {
            Err(problem(field, format!("is {top_k}, but there are {experts} experts")))
        }
        top_k => Ok(top_k),
    }
}
