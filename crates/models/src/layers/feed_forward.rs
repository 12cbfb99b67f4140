//! The second half of a layer: a gated unit, or routed experts beside a shared one.

use backend::{Activation, Backend};

use super::DecoderConfig;
use crate::Result;
use crate::config::{Fields, problem};
use crate::loader::Loader;

/// `down(silu(gate x) * up x)`
pub(crate) struct Mlp<B: Backend> {
    gate_proj: B::Matrix,
    up_proj: B::Matrix,
    down_proj: B::Matrix,
}

impl<B: Backend> Mlp<B> {
    pub fn load(loader: &Loader<'_, B>, hidden: usize, width: usize) -> Result<Self> {
        Ok(Self {
            gate_proj: loader.matrix("gate_proj", width, hidden)?,
            up_proj: loader.matrix("up_proj", width, hidden)?,
            down_proj: loader.matrix("down_proj", hidden, width)?,
        })
    }

    fn hidden(&self, b: &B, x: &B::Tensor) -> Result<B::Tensor> {
        Ok(b.gate_up(x, &self.gate_proj, &self.up_proj, Activation::Silu)?)
    }
}

/// Shape of a layer of experts.
#[derive(Clone, Debug)]
pub(crate) struct MoeConfig {
    pub hidden: usize,
    pub experts: usize,
    pub top_k: usize,
    pub width: usize,
    /// Width of the shared expert, when there is one.
    pub shared_width: Option<usize>,
    /// Whether the weights of the chosen experts are made to sum 1.
    pub renormalise: bool,
    layers: SparseLayers,
}

/// Which layers have experts: every `step`-th but those listed.
#[derive(Clone, Debug)]
struct SparseLayers {
    step: usize,
    dense: Vec<usize>,
}

impl MoeConfig {
    /// The experts a config declares, if any: `shared` when each layer has a shared one; `renormalise` is the family's
    /// default; `every_layer` for families that have no dense layers among them, whatever the config says.
    pub fn read(
        fields: Fields<'_>,
        frame: &DecoderConfig,
        shared: bool,
        renormalise: bool,
        every_layer: bool,
    ) -> Result<Option<Self>> {
        let experts = fields.count("num_experts")?.unwrap_or(0);
        if experts == 0 {
            return Ok(None);
        }
        let top_k = fields.size("num_experts_per_tok")?;
        if top_k > experts {
            return Err(problem(
                "num_experts_per_tok",
                format!("is {top_k}, more than num_experts = {experts}"),
            ));
        }
        let layers = match every_layer {
            true => SparseLayers { step: 1, dense: Vec::new() },
            false => SparseLayers {
                step: fields.size_or("decoder_sparse_step", 1)?,
                dense: fields.counts("mlp_only_layers")?,
            },
        };
        Ok(Some(Self {
            hidden: frame.hidden,
            experts,
            top_k,
            width: fields.size("moe_intermediate_size")?,
            shared_width: if shared { Some(fields.size("shared_expert_intermediate_size")?) } else { None },
            renormalise: fields.flag("norm_topk_prob", renormalise)?,
            layers,
        }))
    }

    /// Whether a layer has experts.
    pub fn covers(&self, layer: usize) -> bool {
        !self.layers.dense.contains(&layer) && (layer + 1).is_multiple_of(self.layers.step)
    }

    /// A line for people.
    pub fn describe(&self, layers: usize) -> (String, String) {
        let Self { experts, top_k, width, shared_width, .. } = self;
        let covered = (0..layers).filter(|i| self.covers(*i)).count();
        let shared = shared_width.map_or(String::new(), |w| format!(", shared expert of {w}"));
        ("experts".into(), format!("{covered} layers, {experts} of width {width}, {top_k} per token{shared}"))
    }
}

/// A shared expert and the projection that gates it.
struct Shared<B: Backend> {
    mlp: Mlp<B>,
    gate: B::Matrix,
}

/// Softmax-routed experts, with or without a shared one.
pub(crate) struct Moe<B: Backend> {
    config: MoeConfig,
    router: B::Matrix,
    experts: B::Experts,
    shared: Option<Shared<B>>,
}

impl<B: Backend> Moe<B> {
    pub fn load(loader: &Loader<'_, B>, config: &MoeConfig) -> Result<Self> {
        let MoeConfig { hidden, experts, width, .. } = *config;
        let stacks = loader.at("switch_mlp");
        let gate = stacks.stack("gate_proj", experts, width, hidden)?;
        let up = stacks.stack("up_proj", experts, width, hidden)?;
        let down = stacks.stack("down_proj", experts, hidden, width)?;
        let shared = |width| {
            let mlp = Mlp::load(&loader.at("shared_expert"), hidden, width)?;
            Ok::<_, crate::Error>(Shared { mlp, gate: loader.matrix("shared_expert_gate", 1, hidden)? })
        };
        Ok(Self {
            router: loader.matrix("gate", experts, hidden)?,
            experts: loader.backend.expert_weights(&gate, &up, &down)?,
            shared: config.shared_width.map(shared).transpose()?,
            config: config.clone(),
        })
    }
}

impl<B: Backend> Moe<B> {
    fn forward(&self, b: &B, x: &B::Tensor, residual: B::Tensor) -> Result<B::Tensor> {
        let routed = |logits: &B::Tensor| {
            let routes = b.route_softmax(logits, self.config.top_k, self.config.renormalise)?;
            b.experts(x, &routes, &self.experts, Activation::Silu)
        };
        let Some(Shared { mlp, gate }) = &self.shared else {
            let y = routed(&b.matmul(x, &self.router)?)?;
            return Ok(b.combine(&residual, &y, backend::Shared::Absent)?);
        };
        let [logits, gate] = b.matmuls(x, [&self.router, gate])?;
        let y = routed(&logits)?;
        let shared = b.matmul(&mlp.hidden(b, x)?, &mlp.down_proj)?;
        Ok(b.combine(&residual, &y, backend::Shared::Gated { x: &shared, gate: &gate })?)
    }
}

/// What follows the mixer in a layer.
pub(crate) enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Sparse(Moe<B>),
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
            Some(moe) => FeedForward::Sparse(Moe::load(loader, moe)?),
            None => FeedForward::Dense(Mlp::load(loader, hidden, fields.size("intermediate_size")?)?),
        })
    }

    /// `residual + f(x)`
    pub fn forward(&self, b: &B, x: &B::Tensor, residual: B::Tensor) -> Result<B::Tensor> {
        match self {
            FeedForward::Dense(mlp) => Ok(b.matmul_add(&mlp.hidden(b, x)?, &mlp.down_proj, residual)?),
            FeedForward::Sparse(moe) => moe.forward(b, x, residual),
        }
    }
}
