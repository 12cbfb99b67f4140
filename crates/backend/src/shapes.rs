//! Plain descriptions: shapes of handles, caches and operations.

use std::fmt;

use crate::Backend;

/// Rows and columns of an activation or a matrix. Activations are row-major, one row per token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Tokens of an activation; outputs of a matrix.
    pub rows: usize,
    /// Channels of an activation; inputs of a matrix.
    pub cols: usize,
}

impl Shape {
    /// Number of values.
    pub fn len(self) -> usize {
        self.rows * self.cols
    }

    /// Whether there is no value at all.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {}]", self.rows, self.cols)
    }
}

/// A handle that knows its shape without waiting for its values.
pub trait Handle {
    /// Rows and columns.
    fn shape(&self) -> Shape;
}

/// The non-linearity of a gated unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`
    GeluTanh,
}

/// An optional factor on the result of a norm.
pub enum Factor<'a, T> {
    /// No factor.
    One,
    /// The same for every channel.
    Scalar(f32),
    /// One per channel.
    Channels(&'a T),
}

/// A norm that an operation begins with: `rms(x) * w`.
pub struct Norm<'a, T> {
    /// `[1, d]`
    pub w: &'a T,
    /// Added to the mean of squares.
    pub eps: f32,
}

// Not derived, which would ask the same of the tensor.
impl<T> Clone for Norm<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Norm<'_, T> {}

/// The shared expert's part of a layer of experts.
pub enum Shared<'a, T> {
    /// There is none.
    Absent,
    /// Added as it is (DeepSeek).
    Plain(&'a T),
    /// Weighted by the sigmoid of a logit per token (Qwen).
    Gated {
        /// The shared expert's output `[n, d]`.
        x: &'a T,
        /// The logits `[n, 1]`.
        gate: &'a T,
    },
}

/// Which keys a query sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mask {
    /// Every key in the cache.
    None,
    /// Keys at the query's position and before.
    Causal,
    /// The last `n` keys up to and with the query's position.
    Window(usize),
}

/// Parameters of grouped-query attention. Head counts and widths of keys and values come from the cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Query heads, a multiple of the cache's heads.
    pub heads: usize,
    /// Factor on `q . k`.
    pub scale: f32,
    /// Which keys a query sees.
    pub mask: Mask,
    /// `c * tanh(s / c)` on the scaled score, when given.
    pub soft_cap: Option<f32>,
}

/// Parameters of latent attention; widths come from the inputs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatentAttention {
    /// Query heads.
    pub heads: usize,
    /// Factor on the score, YaRN's `mscale^2` included.
    pub scale: f32,
}

/// What an attention layer knows besides its projections.
pub struct AttentionWeights<B: Backend> {
    /// The norm of a query head, `[1, width of a head]`.
    pub q_norm: B::Tensor,
    /// Of a layer with keys and values of its own.
    pub key_value: Option<KeyValueNorms<B::Tensor>>,
    /// The rotation of queries and keys.
    pub rope: B::Rope,
    /// Of all norms.
    pub eps: f32,
    /// Whether projections of queries are `[query | gate]` per head.
    pub gated: bool,
}

/// What becomes of keys and values before they are kept.
pub struct KeyValueNorms<T> {
    /// Heads of keys, and of values.
    pub heads: usize,
    /// The norm of a key head, `[1, width of a head]`.
    pub k_norm: T,
    /// Whether values are normalised too, without a weight.
    pub norm_values: bool,
}

/// The matrices between the latents of latent attention and its heads.
pub struct MlaWeights<H> {
    /// From the plain part of a query head to latent space: `[rank, nope]` per head.
    pub embed_q: H,
    /// From latent space to a value head: `[value width, rank]` per head.
    pub unembed_out: H,
}

/// What a latent attention layer knows besides its projections.
pub struct LatentWeights<B: Backend> {
    /// The norm of the latents, `[1, rank]`.
    pub norm: B::Tensor,
    /// Of that norm.
    pub eps: f32,
    /// The rotation of the parts of queries and keys that have positions.
    pub rope: B::Rope,
    /// Width of the part of a query head without position.
    pub nope: usize,
    /// Between latents and heads.
    pub mla: MlaWeights<B::HeadMatrices>,
}

/// Parameters of DeepSeek-V3's router.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GroupedSigmoid {
    /// Experts per token.
    pub top_k: usize,
    /// Equal groups the experts are divided into.
    pub groups: usize,
    /// Groups that stay in the choice.
    pub kept_groups: usize,
    /// Whether the chosen weights are normalised to sum 1.
    pub renormalise: bool,
    /// Factor on the weights, after that.
    pub scaling: f32,
}

/// How experts are chosen.
#[derive(Clone, Debug)]
pub enum Routing<T> {
    /// The largest of a softmax (Qwen).
    Softmax {
        /// Experts per token.
        top_k: usize,
        /// Whether the weights of the chosen experts are made to sum 1.
        renormalise: bool,
    },
    /// The same, renormalised, then a factor for each expert (Gemma).
    SoftmaxScaled {
        /// Experts per token.
        top_k: usize,
        /// The factors, `[1, experts]`.
        scale: T,
    },
    /// Biased sigmoids in groups (DeepSeek).
    GroupedSigmoid {
        /// Groups and weights.
        spec: GroupedSigmoid,
        /// Added to the sigmoids when experts are chosen, `[1, experts]`.
        bias: T,
    },
}

/// A gated unit: `Wdown (act(Wgate x) * (Wup x))`.
pub struct UnitWeights<B: Backend> {
    /// Both over one input.
    pub gate_up: [B::Matrix; 2],
    /// Back to the width of the input.
    pub down: B::Matrix,
    /// Of the gate.
    pub activation: Activation,
}

/// The norms at the end of one of Gemma's layers with experts.
pub struct EndNorms<T> {
    /// Of the dense half, of the routed one, and of their sum.
    pub each: [T; 3],
    /// These in a row, and the first norm of the next layer behind them: `[1, 4 * d]`. None in the last layer.
    pub with_next: Option<T>,
}

/// What such a layer leaves to the next: `h = (r + rms(rms(a) * wa + rms(b) * wb) * w) * factor`, not computed yet.
pub struct LayerEnd<'a, T> {
    /// The residual.
    pub r: T,
    /// The dense half and the routed one.
    pub halves: [T; 2],
    /// `wa`, `wb` and `w`.
    pub norms: &'a EndNorms<T>,
    /// Of all of them, and of the next layer's first.
    pub eps: f32,
    /// At the end.
    pub factor: f32,
}

/// What the next layer makes of it first.
pub struct LayerStart<T, const N: usize> {
    /// As a whole.
    pub h: T,
    /// `W_m (rms(h) * w)` for several matrices.
    pub products: [T; N],
}

/// A layer of experts.
pub struct MoeWeights<B: Backend> {
    /// From a token to a logit per expert.
    pub router: B::Matrix,
    /// The norm of what the router sees, where that is not what the experts see.
    pub router_norm: Option<B::Tensor>,
    /// From a token to the logit of the shared expert's weight.
    pub shared_gate: Option<B::Matrix>,
    /// From logits to experts.
    pub routing: Routing<B::Tensor>,
    /// The experts, with the shared one.
    pub experts: B::Experts,
    /// Inside them.
    pub activation: Activation,
}

/// How a cache stores its values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheFloat {
    /// 32-bit floats: exact.
    F32,
    /// 16-bit floats: half the memory and bandwidth.
    F16,
    /// 8-bit codes with a scale for every [`CacheFloat::GROUP`] channels: 8.5 bits a value.
    ///
    /// A row is one key or one value of one head at one position, or the `[c | k_pe]` of a latent cache. It is cut into groups, the last
    /// of which may be shorter. A group's scale `s` is the least half with `127 s >= max |v|`, so that no code is clipped, and its codes
    /// are `round(v / s)`, ties to even, from -127 to 127. What is kept is `code * s`. A group of zeros has `s = 0`; where a value is not finite,
    /// or too large for any scale, `s` is NaN and the codes are 0.
    Q8,
}

impl CacheFloat {
    /// Channels that share a scale in [`CacheFloat::Q8`].
    pub const GROUP: usize = 32;

    /// Bytes of a row of `width` channels.
    pub fn row_bytes(self, width: usize) -> usize {
        match self {
            CacheFloat::F32 => 4 * width,
            CacheFloat::F16 => 2 * width,
            CacheFloat::Q8 => width + 2 * width.div_ceil(Self::GROUP),
        }
    }
}

/// What a key-value cache of one layer holds per token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvShape {
    /// Key-value heads. 1 for a latent cache.
    pub heads: usize,
    /// Width of a key. A latent cache stores `[c | k_pe]` here.
    pub key_dim: usize,
    /// Width of a value. 0 for a latent cache, whose values are the `c` of its keys.
    pub value_dim: usize,
    /// How values are stored.
    pub float: CacheFloat,
    /// When given, only the last so many tokens (and those of the running step) are kept, in a ring.
    pub window: Option<usize>,
}

impl KvShape {
    /// Tokens that a cache has room for are a multiple of this, or a backend's own that is no smaller.
    pub const BLOCK: usize = 64;

    /// Bytes of one token.
    pub fn token_bytes(&self) -> usize {
        self.heads * (self.float.row_bytes(self.key_dim) + self.float.row_bytes(self.value_dim))
    }
}

/// A key-value cache on the host, in a form every backend reads: tokens `first..len`, token-major,
/// each `[head][width]` little-endian in the cache's own float. A row of [`CacheFloat::Q8`] is its codes, then its scales.
#[derive(Clone, Debug, PartialEq)]
pub struct KvImage {
    /// Position of the first token kept: 0 unless the cache is a ring that has turned over.
    pub first: usize,
    /// Tokens the cache has seen.
    pub len: usize,
    /// Keys of tokens `first..len`.
    pub keys: Vec<u8>,
    /// Values of the same.
    pub values: Vec<u8>,
}

/// Shape of a Gated DeltaNet layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GdnShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`; value head `h` reads key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub kernel: usize,
}

impl GdnShape {
    /// Width of all query heads, and of all key heads.
    pub fn key_total(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all value heads.
    pub fn value_total(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of `[q | k | v]`, which the convolution runs over.
    pub fn channels(&self) -> usize {
        2 * self.key_total() + self.value_total()
    }

    /// Values of the convolution window of one sequence.
    pub fn window_len(&self) -> usize {
        (self.kernel - 1) * self.channels()
    }

    /// Values of the recurrent matrices of one sequence: `S[value_head][dv][dk]`.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.value_dim * self.key_dim
    }
}

/// Learned vectors of a Gated DeltaNet layer's core.
pub struct GdnWeights<T> {
    /// Head counts and widths.
    pub shape: GdnShape,
    /// Convolution taps `[channels, kernel]`, the last one on the current token.
    pub conv: T,
    /// `A_log [1, value_heads]`
    pub a_log: T,
    /// `dt_bias [1, value_heads]`
    pub dt_bias: T,
}

/// The state of one Gated DeltaNet layer on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct RecurrentImage {
    /// The convolution's last `kernel - 1` inputs `[kernel - 1][channels]`, oldest first.
    pub window: Vec<f32>,
    /// `S[value_head][dv][dk]`
    pub state: Vec<f32>,
}
