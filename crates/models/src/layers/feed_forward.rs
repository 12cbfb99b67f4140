//! The second half of a layer: a gated unit, or routed experts beside a shared one.

use backend::{Backend, MoeWeights, Norm, Routing, UnitWeights};

use crate::Result;
use crate::loader::Loader;
use crate::spec::{FeedForward as FeedForwardSpec, MlpSpec, MoeSpec, RoutingSpec};

/// `down(act(gate x) * up x)`
pub(crate) struct Mlp<B: Backend>(pub UnitWeights<B>);

impl<B: Backend> Mlp<B> {
    pub fn load(loader: &Loader<'_, B>, spec: &MlpSpec) -> Result<Self> {
        Ok(Self(UnitWeights {
            gate_up: loader.matrices(["gate_proj", "up_proj"])?,
            down: loader.matrix("down_proj")?,
            activation: spec.activation,
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

/// Routed experts, with or without a shared one. `layer` is the place of their layer.
pub(crate) fn load_moe<B: Backend>(layer: &Loader<'_, B>, spec: &MoeSpec) -> Result<MoeWeights<B>> {
    let MoeSpec { names, shared, activation, .. } = *spec;
    let (router, shared_gate) = match shared.and_then(|shared| shared.gate) {
        Some(gate) => {
            let [router, gate] = layer.matrices([names.router, gate])?;
            (router, Some(gate))
        }
        None => (layer.matrix(names.router)?, None),
    };
    let (routing, router_norm) = match spec.routing {
        RoutingSpec::Softmax { top_k, renormalise } => (Routing::Softmax { top_k, renormalise }, None),
        RoutingSpec::SoftmaxScaled { top_k } => {
            // The router's scale times `d^-0.5` is the weight of its norm.
            let mut scale = layer.values("router.scale")?;
            let hidden = scale.len();
            scale.iter_mut().for_each(|s| *s *= (hidden as f32).powf(-0.5));
            let norm = layer.backend.upload(1, hidden, &scale)?;
            (Routing::SoftmaxScaled { top_k, scale: layer.vector("router.per_expert_scale")? }, Some(norm))
        }
        RoutingSpec::GroupedSigmoid(spec) => {
            let bias = layer.at(names.router).vector("e_score_correction_bias")?;
            (Routing::GroupedSigmoid { spec, bias }, None)
        }
    };
    Ok(MoeWeights {
        router,
        router_norm,
        shared_gate,
        routing,
        experts: layer.experts(names.stacked, shared.map(|shared| shared.name))?,
        activation,
    })
}

/// What follows the mixer in a layer.
pub(crate) enum FeedForward<B: Backend> {
    Dense(Mlp<B>),
    Sparse(MoeWeights<B>),
}

impl<B: Backend> FeedForward<B> {
    /// `layer` is the place of the layer.
    pub fn load(layer: &Loader<'_, B>, spec: &FeedForwardSpec) -> Result<Self> {
        Ok(match spec {
            FeedForwardSpec::Moe(moe) => FeedForward::Sparse(load_moe(layer, moe)?),
            FeedForwardSpec::Mlp(mlp) => FeedForward::Dense(Mlp::load(&layer.at("mlp"), mlp)?),
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
