//! The second half of a layer: a gated unit, or routed experts beside a shared one.

use backend::{Activation, Backend, GroupedSigmoid, MoeWeights, Norm, Routing as Choice, UnitWeights};

use super::DecoderConfig;
use crate::Result;
use crate::config::{Fields, problem};
use crate::loader::{ExpertNames, ExpertShape, Loader};
use crate::words::counted;

/// `down(act(gate x) * up x)`
pub(crate) struct Mlp<B: Backend>(pub UnitWeights<B>);

impl<B: Backend> Mlp<B> {
    pub fn load(loader: &Loader<'_, B>, hidden: usize, width: usize, activation: Activation) -> Result<Self> {
        Ok(Self(UnitWeights {
            gate_up: loader.matrices([("gate_proj", width), ("up_proj", width)], hidden)?,
            down: loader.matrix("down_proj", hidden, width)?,
            activation,
        }))
    }

    /// `h = r + rms(x) * post`, and `f(norm(h))`.
    pub fn forward_after(
        &self,
        b: &B,
        r: &B::Tensor,
        x_post: [&B::Tensor; 2],
        norm: Norm<'_, B::Tensor>,
    ) -> Result<(B::Tensor, B::Tensor)> {
        let UnitWeights { gate_up, down, activation } = &self.0;
        let (h, hidden) = b.norm_add_gate_up(r, x_post, norm, gate_up.each_ref(), *activation)?;
        Ok((h, b.matmul(&hidden, down)?))
    }

    /// `h + f(norm(h))`
    fn forward_add(&self, b: &B, h: B::Tensor, norm: Norm<'_, B::Tensor>) -> Result<B::Tensor> {
        let UnitWeights { gate_up, down, activation } = &self.0;
        let hidden = b.norm_gate_up(&h, norm, gate_up.each_ref(), *activation)?;
        Ok(b.matmul_add(&hidden, down, h)?)
    }
}

/// How experts are chosen.
#[derive(Clone, Debug)]
pub(crate) enum Routing {
    /// The largest of a softmax (Qwen).
    Softmax {
        top_k: usize,
        /// Whether the weights of the chosen experts are made to sum 1.
        renormalise: bool,
    },
    /// Biased sigmoids in groups (DeepSeek).
    GroupedSigmoid(GroupedSigmoid),
}

/// The expert that every token passes through.
#[derive(Clone, Debug)]
pub(crate) struct SharedConfig {
    pub name: &'static str,
    pub width: usize,
    /// Whether a projection of the token weighs it (Qwen).
    pub gated: bool,
}

/// Shape of a layer of experts.
#[derive(Clone, Debug)]
pub(crate) struct MoeConfig {
    pub hidden: usize,
    pub experts: usize,
    pub width: usize,
    pub routing: Routing,
    pub shared: Option<SharedConfig>,
    pub layers: SparseLayers,
}

/// Which layers have experts: from `first` on, those whose number plus `phase` is a multiple of `step`, but not those
/// listed.
#[derive(Clone, Debug)]
pub(crate) struct SparseLayers {
    pub first: usize,
    pub step: usize,
    pub phase: usize,
    pub dense: Vec<usize>,
}

impl SparseLayers {
    /// Every layer.
    pub fn all() -> Self {
        Self { first: 0, step: 1, phase: 0, dense: Vec::new() }
    }

    /// Qwen's fields.
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        let step = fields.size_or("decoder_sparse_step", 1)?;
        Ok(Self { first: 0, step, phase: 1, dense: fields.counts("mlp_only_layers")? })
    }

    fn contain(&self, layer: usize) -> bool {
        layer >= self.first && (layer + self.phase).is_multiple_of(self.step) && !self.dense.contains(&layer)
    }
}

impl MoeConfig {
    /// The experts a Qwen config declares, if any: `shared` when each layer has a shared one; `number`
    /// and `renormalise` are the family's defaults, and without a `number` the config must name one.
    /// transformers 5 writes `num_local_experts` for Qwen3-MoE.
    pub fn read_qwen(
        fields: Fields<'_>,
        frame: &DecoderConfig,
        shared: bool,
        number: Option<usize>,
        renormalise: bool,
        layers: SparseLayers,
    ) -> Result<Option<Self>> {
        let experts = match fields.count("num_experts")? {
            None => fields.count("num_local_experts")?,
            experts => experts,
        };
        let experts = experts.or(number).ok_or_else(|| problem("num_experts", "is missing"))?;
        if experts == 0 {
            return Ok(None);
        }
        let shared = match shared {
            true => {
                let width = fields.size("shared_expert_intermediate_size")?;
                Some(SharedConfig { name: "shared_expert", width, gated: true })
            }
            false => None,
        };
        Ok(Some(Self {
            hidden: frame.hidden,
            experts,
            width: fields.size("moe_intermediate_size")?,
            routing: Routing::Softmax {
                top_k: read_top_k(fields, "num_experts_per_tok", experts)?,
                renormalise: fields.flag("norm_topk_prob", renormalise)?,
            },
            shared,
            layers,
        }))
    }

    /// Whether a layer has experts.
    pub fn covers(&self, layer: usize) -> bool {
        self.layers.contain(layer)
    }

    fn top_k(&self) -> usize {
        match &self.routing {
            Routing::Softmax { top_k, .. } => *top_k,
            Routing::GroupedSigmoid(spec) => spec.top_k,
        }
    }

    /// A line for people.
    pub fn describe(&self, layers: usize) -> (String, String) {
        let covered = (0..layers).filter(|i| self.covers(*i)).count();
        let shared =
            self.shared.as_ref().map_or(String::new(), |s| format!(", shared expert of {}", s.width));
        let Self { experts, width, .. } = self;
        (
            "experts".into(),
            format!(
                "{}, {experts} of width {width}, {} per token{shared}",
                counted(covered, "layer"),
                self.top_k()
            ),
        )
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

const NAMES: ExpertNames = ExpertNames { stacked: "switch_mlp", original: "experts" };

/// Routed experts, with or without a shared one.
fn load_moe<B: Backend>(loader: &Loader<'_, B>, config: &MoeConfig) -> Result<MoeWeights<B>> {
    let MoeConfig { hidden, experts, width, .. } = *config;
    let shared = config.shared.as_ref();
    let (router, shared_gate) = match shared.filter(|shared| shared.gated) {
        Some(shared) => {
            let gate = format!("{}_gate", shared.name);
            let [router, gate] = loader.matrices([("gate", experts), (&gate, 1)], hidden)?;
            (router, Some(gate))
        }
        None => (loader.matrix("gate", experts, hidden)?, None),
    };
    let shape = ExpertShape { count: experts, per_token: config.top_k(), width, hidden };
    Ok(MoeWeights {
        router,
        router_norm: None,
        shared_gate,
        routing: match &config.routing {
            Routing::Softmax { top_k, renormalise } => {
                Choice::Softmax { top_k: *top_k, renormalise: *renormalise }
            }
            Routing::GroupedSigmoid(spec) => Choice::GroupedSigmoid {
                spec: *spec,
                bias: loader.at("gate").vector("e_score_correction_bias", experts)?,
            },
        },
        experts: loader.experts(&NAMES, &shape, shared.map(|shared| (shared.name, shared.width)))?,
        activation: Activation::Silu,
    })
}

/// What follows the mixer in a layer.
pub(crate) enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Sparse(MoeWeights<B>),
}

impl<B: Backend> FeedForward<B> {
    /// Experts where `moe` is given, else a dense unit of the config's `intermediate_size`.
    pub fn load(
        loader: &Loader<'_, B>,
        fields: Fields<'_>,
        hidden: usize,
        moe: Option<&MoeConfig>,
    ) -> Result<Self> {
        Ok(match moe {
            Some(moe) => FeedForward::Sparse(load_moe(loader, moe)?),
            None => {
                let width = fields.size("intermediate_size")?;
                FeedForward::Dense(Mlp::load(loader, hidden, width, Activation::Silu)?)
            }
        })
    }

    /// `h + f(norm(h))`
    pub fn forward(&self, b: &B, h: B::Tensor, norm: Norm<'_, B::Tensor>) -> Result<B::Tensor> {
        match self {
            FeedForward::Dense(mlp) => mlp.forward_add(b, h, norm),
            FeedForward::Sparse(moe) => Ok(b.moe(&h, norm, moe, true)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(config: &Value, number: Option<usize>, renormalise: bool) -> Result<Option<MoeConfig>> {
        let fields = Fields(config);
        let layers = SparseLayers::read(fields)?;
        MoeConfig::read_qwen(fields, &DecoderConfig::read(fields)?, false, number, renormalise, layers)
    }

    fn config(field: &str) -> Value {
        let mut config = json!({
            "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 2, "moe_intermediate_size": 4,
            "num_experts_per_tok": 2,
        });
        config[field] = json!(6);
        config
    }

    #[test]
    fn experts_are_counted_under_both_names() {
        for name in ["num_experts", "num_local_experts"] {
            assert_eq!(read(&config(name), None, false).unwrap().unwrap().experts, 6);
        }
    }

    #[test]
    fn absent_fields_have_mlx_lms_defaults() {
        assert!(read(&config("other"), Some(0), true).unwrap().is_none());
        let error = read(&config("other"), None, true).unwrap_err();
        assert!(error.to_string().contains("num_experts"), "{error}");

        let named = config("num_experts");
        for default in [false, true] {
            let moe = read(&named, None, default).unwrap().unwrap();
            assert!((0..2).all(|layer| moe.covers(layer)));
            let Routing::Softmax { top_k: 2, renormalise } = moe.routing else { panic!("{:?}", moe.routing) };
            assert_eq!(renormalise, default);
        }
    }
}
