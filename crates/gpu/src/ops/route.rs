//! Routing: a workgroup per token.

use ::backend::{GroupedSigmoid, Handle, Result, RoutedShape, Routing, Shape};

use super::{folded, word};
use crate::kernels::route::{route_grouped, route_softmax};
use crate::pool::Buffer;
use crate::{Gpu, Tensor};

/// K experts and their weights for each token, on the device.
#[derive(Clone)]
pub struct Routes {
    /// Experts that were chosen from.
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) tokens: usize,
    /// `[token][k]`, best first.
    pub(crate) ids: Buffer,
    pub(crate) weights: Buffer,
}

impl Gpu {
    fn routes(&self, tokens: usize, experts: usize, top_k: usize) -> Result<Routes> {
        let len = 4 * (tokens * top_k) as u64;
        Ok(Routes { experts, top_k, tokens, ids: self.pool.take(len)?, weights: self.pool.take(len)? })
    }

    /// All tokens to one expert, with weight 1.
    pub(crate) fn routes_to(&self, expert: usize, tokens: usize) -> Result<Routes> {
        let routes = self.routes(tokens, expert + 1, 1)?;
        self.recorder.write(&routes.ids, bytemuck::cast_slice(&vec![expert as u32; tokens]));
        self.recorder.write(&routes.weights, bytemuck::cast_slice(&vec![1f32; tokens]));
        Ok(routes)
    }

    /// Routes by logits of the experts and, with a `shared` one that is weighted, its own.
    pub(crate) fn route_of(
        &self,
        logits: &Tensor,
        routing: &Routing<Tensor>,
        shared: Option<Shared>,
    ) -> Result<Routes> {
        match routing {
            Routing::Softmax { top_k, renormalise } => {
                self.route_by_softmax(logits, (*top_k, *renormalise), None, shared)
            }
            Routing::SoftmaxScaled { top_k, scale } => {
                self.route_by_softmax(logits, (*top_k, true), Some(scale), shared)
            }
            Routing::GroupedSigmoid { spec, bias } => self.route_by_groups(logits, bias, spec, shared),
        }
    }

    fn route_by_softmax(
        &self,
        logits: &Tensor,
        (top_k, renormalise): (usize, bool),
        factors: Option<&Tensor>,
        shared: Option<Shared>,
    ) -> Result<Routes> {
        let Shape { rows, cols } = logits.shape();
        let (experts, slots) = counts(cols, top_k, shared);
        let routes = self.routes(rows, experts + slots - top_k, slots)?;
        let params = route_softmax::Params {
            tokens: word(rows),
            experts: word(experts),
            top_k: word(top_k),
            renormalise: renormalise.into(),
            has_factors: factors.is_some().into(),
            row: word(cols),
            slots: word(slots),
        };
        let bindings = route_softmax::Bindings {
            logits: logits.buffer(),
            factors: factors.map(Tensor::buffer),
            ids: &routes.ids,
            weights: &routes.weights,
        };
        self.run(route_softmax::call(params, bindings), folded(rows));
        Ok(routes)
    }

    fn route_by_groups(
        &self,
        logits: &Tensor,
        bias: &Tensor,
        spec: &GroupedSigmoid,
        shared: Option<Shared>,
    ) -> Result<Routes> {
        let Shape { rows, cols } = logits.shape();
        let (experts, slots) = counts(cols, spec.top_k, shared);
        let routes = self.routes(rows, experts + slots - spec.top_k, slots)?;
        let groups = 4 * (rows * spec.groups) as u64;
        let params = route_grouped::Params {
            tokens: word(rows),
            experts: word(experts),
            top_k: word(spec.top_k),
            groups: word(spec.groups),
            kept: word(spec.kept_groups),
            renormalise: spec.renormalise.into(),
            scaling: spec.scaling,
            row: word(cols),
            slots: word(slots),
        };
        let bindings = route_grouped::Bindings {
            logits: logits.buffer(),
            bias: bias.buffer(),
            ids: &routes.ids,
            weights: &routes.weights,
            group_scores: &self.pool.take(groups)?,
            group_ranks: &self.pool.take(groups)?,
        };
        self.run(route_grouped::call(params, bindings), folded(rows));
        Ok(routes)
    }
}

impl Handle for Routes {
    type Shape = RoutedShape;

    fn shape(&self) -> RoutedShape {
        RoutedShape { tokens: self.tokens, experts: self.experts }
    }
}

/// A shared expert that comes after the chosen ones.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    /// Whether its logit follows the experts'.
    pub gated: bool,
}

/// Experts to choose from among `cols` logits, and slots of a token.
fn counts(cols: usize, top_k: usize, shared: Option<Shared>) -> (usize, usize) {
    let gated = shared.is_some_and(|shared| shared.gated);
    (cols - usize::from(gated), top_k + usize::from(shared.is_some()))
}
