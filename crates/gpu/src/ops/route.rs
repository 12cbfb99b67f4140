//! Routing: a workgroup per token.

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

    /// Logits are those of the experts and, with a `shared` one that is weighted, its own.
    pub(crate) fn route_by_softmax(
        &self,
        logits: &Tensor,
        (top_k, renormalise): (usize, bool),
        factors: Option<&Tensor>,
        shared: Option<Shared>,
    ) -> Result<Routes> {
        let Shape { rows, cols } = logits.shape();
        let (experts, slots) = counts(cols, top_k, shared);
        let routes = self.routes(rows, experts + slots - top_k, slots)?;
        let buffers = [logits.buffer(), factors.unwrap_or(logits).buffer(), &routes.ids, &routes.weights];
        let numbers =
            [rows, experts, top_k, usize::from(renormalise), usize::from(factors.is_some()), cols, slots]
                .map(|n| n as u32);
        self.run(&Variant::new(&kernels::ROUTE_SOFTMAX, 256), &buffers, &numbers, folded(rows));
        Ok(routes)
    }

    pub(crate) fn route_by_groups(
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
        let (scores, ranks) = (self.pool.take(groups)?, self.pool.take(groups)?);
        let buffers = [logits.buffer(), bias.buffer(), &routes.ids, &routes.weights, &scores, &ranks];
        let [tokens, experts, top_k, groups, kept, renormalise, row, slots] = [
            rows,
            experts,
            spec.top_k,
            spec.groups,
            spec.kept_groups,
            usize::from(spec.renormalise),
            cols,
            slots,
        ]
        .map(|n| n as u32);
        let numbers = [tokens, experts, top_k, groups, kept, renormalise, spec.scaling.to_bits(), row, slots];
        self.run(&Variant::new(&kernels::ROUTE_GROUPED, 256), &buffers, &numbers, folded(rows));
        Ok(routes)
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
