//! The blocks that models are made of.

use crate::{Activation, Batch, Checked, GdnShape, GdnVectors, Ops, Result, Routing, Weights, reference};

/// A norm: `rms(x) * w`.
#[derive(Clone, Debug)]
pub struct Norm<T> {
    /// `[1, d]`
    pub w: T,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// How what a block computes joins the residual stream `h`.
#[derive(Clone, Debug)]
pub enum Residual<T> {
    /// `h + y`
    Plain,
    /// `(h + rms(y) * w) * factor` (Gemma).
    PostNorm {
        /// The norm behind the block.
        norm: Norm<T>,
        /// On the sum.
        factor: f32,
    },
}

/// Keys and values of an attention layer that has its own.
#[derive(Clone, Debug)]
pub struct KeyValues<T> {
    /// Heads of keys, and of values.
    pub heads: usize,
    /// The norm of a key head.
    pub k_norm: Norm<T>,
    /// Whether values are normalised too, without a weight and with the same eps.
    pub norm_values: bool,
}

/// Grouped-query attention: `x = rms(h) w; q, k, v = W x`, norms per head, rotation, attention over the cache, an
/// output gate per head where there is one, `Wo y`.
pub struct Attention<B: Weights> {
    /// The norm in front.
    pub norm: Norm<B::Tensor>,
    /// `q`, with its gate `[query | gate]` per head where `gated`; then `k` and `v` of a layer that has its own, or
    /// `k` alone where keys are values too.
    pub projections: B::Linear,
    /// The norm of a query head.
    pub q_norm: Norm<B::Tensor>,
    /// `None`: an earlier layer's cache is read.
    pub key_values: Option<KeyValues<B::Tensor>>,
    /// The rotation of queries and keys.
    pub rope: B::Rope,
    /// The output projection.
    pub out: B::Linear,
    /// How the result joins the residual stream.
    pub residual: Residual<B::Tensor>,
    /// Query heads, a multiple of the cache's heads.
    pub heads: usize,
    /// Whether each query head comes with a gate: `y * sigmoid(gate)`.
    pub gated: bool,
    /// Factor on `q . k`.
    pub scale: f32,
    /// How many of the last keys, its own included, a query sees.
    pub window: Option<usize>,
    /// `c * tanh(s / c)` on the scaled score.
    pub soft_cap: Option<f32>,
}

/// Multi-head latent attention (DeepSeek): the cache keeps one latent and one rotated key part per token.
pub struct LatentAttention<B: Weights> {
    /// The norm in front.
    pub norm: Norm<B::Tensor>,
    /// Queries or their latents, and `[latent | k_pe]`.
    pub projections: B::Linear,
    /// From the queries' latents to queries, where they have such: a norm, and the matrix behind it.
    pub query: Option<(Norm<B::Tensor>, B::Linear)>,
    /// The norm of the latents, `[1, rank]`.
    pub latent_norm: Norm<B::Tensor>,
    /// The rotation of the parts of queries and keys that have positions.
    pub rope: B::Rope,
    /// Width of the part of a query head without position.
    pub nope: usize,
    /// From that part of a query head to latent space: `[rank, nope]` per head.
    pub embed_q: B::HeadMatrices,
    /// From latent space to a value head: `[value width, rank]` per head.
    pub unembed_out: B::HeadMatrices,
    /// The output projection.
    pub out: B::Linear,
    /// Query heads.
    pub heads: usize,
    /// Factor on the score, YaRN's `mscale^2` included.
    pub scale: f32,
}

/// How the projections of a Gated DeltaNet layer lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GdnLayout {
    /// Four matrices: `[q | k | v]`, `z`, `b`, `a`.
    Split,
    /// Two, interleaved by key head: `[q | k | v.. | z..]` and `[b.. | a..]` (Qwen3-Next).
    ByKeyHead,
}

/// Gated DeltaNet: linear attention with a decaying, corrected memory. `x = rms(h) w`, projections, causal
/// convolution, norms of queries and keys, recurrence, a norm per head gated by `z`, `Wo y`.
pub struct GatedDelta<B: Weights> {
    /// The norm in front.
    pub norm: Norm<B::Tensor>,
    /// See `layout`.
    pub projections: B::Linear,
    /// How the projections lie.
    pub layout: GdnLayout,
    /// Head counts and widths.
    pub shape: GdnShape,
    /// Learned vectors of the core.
    pub vectors: GdnVectors<B::Tensor>,
    /// The gated norm of a value head.
    pub out_norm: Norm<B::Tensor>,
    /// The output projection.
    pub out: B::Linear,
}

/// A gated unit: `Wdown (act(Wgate x) * (Wup x))`, `x = rms(h) w`.
pub struct Mlp<B: Weights> {
    /// The norm in front.
    pub norm: Norm<B::Tensor>,
    /// Gate and up.
    pub gate_up: B::Linear,
    /// Back to the width of the input.
    pub down: B::Linear,
    /// Of the gate.
    pub activation: Activation,
    /// How the result joins the residual stream.
    pub residual: Residual<B::Tensor>,
}

/// A dense unit beside the experts of a layer: `y = rms(mlp(h)) * mlp_norm + rms(experts(h)) * experts_norm`.
pub struct DenseBranch<B: Weights> {
    /// The unit; its residual is not used.
    pub mlp: Mlp<B>,
    /// Behind the unit.
    pub mlp_norm: Norm<B::Tensor>,
    /// Behind the experts; with the same eps.
    pub experts_norm: Norm<B::Tensor>,
}

/// A layer of experts: `x = rms(h) w; y = experts(x) + shared expert(x)`. The router sees `x`, or its own norm of `h`.
pub struct Moe<B: Weights> {
    /// The norm in front.
    pub norm: Norm<B::Tensor>,
    /// From a token to a logit per expert; then, where the shared expert has a gate, to the logit of its weight.
    pub router: B::Linear,
    /// The norm of what the router sees, where that is not what the experts see.
    pub router_norm: Option<Norm<B::Tensor>>,
    /// From logits to experts.
    pub routing: Routing<B::Tensor>,
    /// The experts, with the shared one.
    pub experts: B::Experts,
    /// Inside the experts.
    pub activation: Activation,
    /// A dense unit beside the experts (Gemma).
    pub dense: Option<Box<DenseBranch<B>>>,
    /// How the result joins the residual stream.
    pub residual: Residual<B::Tensor>,
}

/// From hidden states to logits: `cap(W (rms(h) * w))`.
pub struct Head<'a, B: Weights> {
    /// The final norm.
    pub norm: &'a Norm<B::Tensor>,
    /// The matrix, which may be the embedding table.
    pub linear: &'a B::Linear,
    /// `c * tanh(x / c)` on the logits.
    pub soft_cap: Option<f32>,
}

/// What models call: a layer is two or three of these.
///
/// Default bodies compose [`Ops`] (see [`reference`](mod@reference)); a machine that can do better overrides a block. A machine
/// without a fused kernel for some combination of options calls the composition; it never ignores an option.
pub trait Blocks: Ops {
    /// The residual stream, plus what is still to be added to it: the only place where the end of one block can fuse
    /// with the beginning of the next. On the CPU it is a tensor.
    type Hidden: Send;

    /// Hidden states from a tensor.
    fn hidden(&self, h: Self::Tensor) -> Self::Hidden;

    /// Hidden states as a tensor: adds what is still to be added.
    fn tensor(&self, h: Self::Hidden) -> Result<Self::Tensor>;

    /// See [`Attention`].
    fn attention(
        &self,
        h: Self::Hidden,
        w: &Attention<Self>,
        batch: &Batch<Self>,
        slabs: &mut Self::Slabs,
        layer: usize,
    ) -> Result<Self::Hidden> {
        Ok(self.hidden(reference::attention(&Checked(self), self.tensor(h)?, w, batch, slabs, layer)?))
    }

    /// See [`LatentAttention`].
    fn latent_attention(
        &self,
        h: Self::Hidden,
        w: &LatentAttention<Self>,
        batch: &Batch<Self>,
        slabs: &mut Self::Slabs,
        layer: usize,
    ) -> Result<Self::Hidden> {
        Ok(self.hidden(reference::latent_attention(&Checked(self), self.tensor(h)?, w, batch, slabs, layer)?))
    }

    /// See [`GatedDelta`].
    fn gated_delta(
        &self,
        h: Self::Hidden,
        w: &GatedDelta<Self>,
        batch: &Batch<Self>,
        slabs: &mut Self::Slabs,
        layer: usize,
    ) -> Result<Self::Hidden> {
        Ok(self.hidden(reference::gated_delta(&Checked(self), self.tensor(h)?, w, batch, slabs, layer)?))
    }

    /// See [`Mlp`].
    fn mlp(&self, h: Self::Hidden, w: &Mlp<Self>) -> Result<Self::Hidden> {
        Ok(self.hidden(reference::mlp(&Checked(self), self.tensor(h)?, w)?))
    }

    /// See [`Moe`].
    fn moe(&self, h: Self::Hidden, w: &Moe<Self>) -> Result<Self::Hidden> {
        Ok(self.hidden(reference::moe(&Checked(self), self.tensor(h)?, w)?))
    }

    /// Says that [`moe`](Self::moe) will soon be called with something like `h`. Where experts are read from disk,
    /// its choices are worth reading in advance. Changes no result.
    fn prefetch(&self, _h: &Self::Hidden, _w: &Moe<Self>) -> Result<()> {
        Ok(())
    }

    /// See [`Head`].
    fn logits(&self, h: &Self::Tensor, w: &Head<'_, Self>) -> Result<Self::Tensor> {
        reference::logits(&Checked(self), h, w)
    }
}
