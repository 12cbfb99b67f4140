//! Routing: a workgroup per token.

use std::sync::Arc;

use ::backend::{GroupedSigmoid, Handle, Result, Shape};

use super::folded;
use crate::pool::Buffer;
use crate::shader::{Variant, kernels};
use crate::{Gpu, Tensor};

/// K experts and their weights for each token, on the device.
#[derive(Clone)]
pub struct Routes {
    /// Experts that were chosen from.
    pub(crate) experts: usize,
    pub(crate) top_k: usize,
    pub(crate) tokens: usize,
    /// `[token][k]`, best first.
    pub(crate) ids: Arc<Buffer>,
    pub(crate) weights: Arc<Buffer>,
}

impl Gpu {
    fn routes(&self, tokens: usize, experts: usize, top_k: usize) -> Result<Routes> {
        let len = 4 * (tokens * top_k) as u64;
        let (ids, weights) = (Arc::new(self.pool.take(len)?), Arc::new(self.pool.take(len)?));
        Ok(Routes { experts, top_k, tokens, ids, weights })
    }

    pub(crate) fn route_by_softmax(
        &self,
        logits: &Tensor,
        top_k: usize,
        renormalise: bool,
        factors: Option<&Tensor>,
    ) -> Result<Routes> {
        let Shape { rows, cols } = logits.shape();
        let routes = self.routes(rows, cols, top_k)?;
        let buffers = [logits.buffer(), factors.unwrap_or(logits).buffer(), &routes.ids, &routes.weights];
        let numbers =
            [rows, cols, top_k, usize::from(renormalise), usize::from(factors.is_some())].map(|n| n as u32);
        self.run(&Variant::new(&kernels::ROUTE_SOFTMAX, 256), &buffers, &numbers, folded(rows));
        Ok(routes)
    }

    pub(crate) fn route_by_groups(
        &self,
        logits: &Tensor,
        bias: &Tensor,
        spec: &GroupedSigmoid,
    ) -> Result<Routes> {
        let Shape { rows, cols } = logits.shape();
        let routes = self.routes(rows, cols, spec.top_k)?;
        let groups = 4 * (rows * spec.groups) as u64;
        let (scores, ranks) = (self.pool.take(groups)?, self.pool.take(groups)?);
        let buffers = [logits.buffer(), bias.buffer(), &routes.ids, &routes.weights, &scores, &ranks];
        let [tokens, experts, top_k, groups, kept, renormalise] =
            [rows, cols, spec.top_k, spec.groups, spec.kept_groups, usize::from(spec.renormalise)]
                .map(|n| n as u32);
        let numbers = [tokens, experts, top_k, groups, kept, renormalise, spec.scaling.to_bits()];
        self.run(&Variant::new(&kernels::ROUTE_GROUPED, 256), &buffers, &numbers, folded(rows));
        Ok(routes)
    }
}
