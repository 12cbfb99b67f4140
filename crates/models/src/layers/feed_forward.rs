//! Loading gated units and experts.

use backend::{Backend, DenseBranch, Mlp, Moe, Norm, Residual, Routing};

use crate::Result;
use crate::loader::Loader;
use crate::spec::{MlpSpec, MoeSpec, RoutingSpec};

/// The gated unit at `mlp` below `layer`, behind `norm`.
pub(super) fn load_mlp<B: Backend>(
    layer: &Loader<'_, B>,
    spec: &MlpSpec,
    norm: Norm<B::Tensor>,
    residual: Residual<B::Tensor>,
) -> Result<Mlp<B>> {
    let loader = layer.at("mlp");
    Ok(Mlp {
        norm,
        gate_up: loader.linear(&["gate_proj", "up_proj"])?,
        down: loader.linear(&["down_proj"])?,
        activation: spec.activation,
        residual,
    })
}

/// The experts of `layer`, behind `norm`; a dense unit beside them has that norm, and the experts one of their own.
pub(super) fn load_moe<B: Backend>(
    layer: &Loader<'_, B>,
    spec: &MoeSpec,
    norm: Norm<B::Tensor>,
    residual: Residual<B::Tensor>,
) -> Result<Moe<B>> {
    let MoeSpec { names, shared, activation, .. } = *spec;
    let eps = norm.eps;
    let router = match shared.and_then(|shared| shared.gate) {
        Some(gate) => layer.linear(&[names.router, gate])?,
        None => layer.linear(&[names.router])?,
    };
    let (routing, router_norm) = match spec.routing {
        RoutingSpec::Softmax { top_k, renormalise } => (Routing::Softmax { top_k, renormalise }, None),
        RoutingSpec::SoftmaxScaled { top_k } => {
            // The router's scale times `d^-0.5` is the weight of its norm.
            let mut scale = layer.values("router.scale")?;
            let hidden = scale.len();
            scale.iter_mut().for_each(|s| *s *= (hidden as f32).powf(-0.5));
            let own = Norm { w: layer.backend.vector(1, hidden, &scale)?, eps };
            let scale = layer.vector("router.per_expert_scale")?;
            (Routing::SoftmaxScaled { top_k, scale }, Some(own))
        }
        RoutingSpec::GroupedSigmoid(spec) => {
            let bias = layer.at(names.router).vector("e_score_correction_bias")?;
            (Routing::GroupedSigmoid { spec, bias }, None)
        }
    };
    let (norm, dense) = match &spec.beside {
        None => (norm, None),
        Some(beside) => {
            let branch = DenseBranch {
                mlp: load_mlp(layer, &beside.mlp, norm, Residual::Plain)?,
                mlp_norm: layer.norm(beside.after[0], eps)?,
                experts_norm: layer.norm(beside.after[1], eps)?,
            };
            (layer.norm(beside.before, eps)?, Some(Box::new(branch)))
        }
    };
    Ok(Moe {
        norm,
        router,
        router_norm,
        routing,
        experts: layer.experts(names.stacked, shared.map(|shared| shared.name))?,
        activation,
        dense,
        residual,
    })
}
