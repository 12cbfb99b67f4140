//! Plain descriptions: shapes of handles, caches and operations.

use std::fmt;

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
    /// What describes it.
    type Shape;

    /// The shape.
    fn shape(&self) -> Self::Shape;
}

/// Widths of matrices over one input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinearShape {
    /// Width of the input.
    pub inputs: usize,
    outputs: [usize; LinearShape::MOST],
    len: usize,
}

impl LinearShape {
    /// Matrices that one linear layer may have.
    pub const MOST: usize = 4;

    /// The shape of some matrices `[out, in]`, at most [`MOST`](Self::MOST); what is beyond these is not seen.
    pub fn new(inputs: usize, rows: impl IntoIterator<Item = usize>) -> Self {
        let (mut outputs, mut len) = ([0; Self::MOST], 0);
        for (output, rows) in outputs.iter_mut().zip(rows) {
            *output = rows;
            len += 1;
        }
        Self { inputs, outputs, len }
    }

    /// Number of matrices.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Width of the result of each matrix.
    pub fn outputs(&self) -> &[usize] {
        &self.outputs[..self.len]
    }
}

/// Shape of one matrix per head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadShape {
    /// Number of heads.
    pub heads: usize,
    /// `[out, in]` of a head's product.
    pub matrix: Shape,
}

/// Shape of the experts of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpertShape {
    /// Number of experts, the shared one not counted.
    pub count: usize,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Width inside an expert.
    pub width: usize,
}

/// For how many tokens experts have been chosen, and among how many experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoutedShape {
    /// Tokens.
    pub tokens: usize,
    /// Experts to choose from.
    pub experts: usize,
}

/// The non-linearity of a gated unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`
    GeluTanh,
}

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

/// Parameters of grouped-query attention. Head counts and widths of keys and values come from the cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scores {
    /// Query heads, a multiple of the cache's heads.
    pub heads: usize,
    /// Factor on `q . k`.
    pub scale: f32,
    /// How many of the last keys, its own included, a query sees; all when absent.
    pub window: Option<usize>,
    /// `c * tanh(s / c)` on the scaled score, when given.
    pub soft_cap: Option<f32>,
}

/// Parameters of latent attention; widths come from the inputs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LatentScores {
    /// Query heads.
    pub heads: usize,
    /// Factor on the score, YaRN's `mscale^2` included.
    pub scale: f32,
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
    /// `p = softmax(logits[t])`, the `top_k` largest (ties to the lower index), optionally renormalised to sum 1 (Qwen).
    Softmax {
        /// Experts per token.
        top_k: usize,
        /// Whether the weights of the chosen experts are made to sum 1.
        renormalise: bool,
    },
    /// The same, renormalised, then each weight times `scale[e]`, and not renormalised again (Gemma).
    SoftmaxScaled {
        /// Experts per token.
        top_k: usize,
        /// The factors, `[1, experts]`.
        scale: T,
    },
    /// `p = sigmoid(logits[t])`; choose by `p + bias`; with several groups only the `kept_groups` with the largest sum
    /// of their two best stay; weights are the unbiased `p` of the chosen, normalised, times `scaling` (DeepSeek-V3).
    GroupedSigmoid {
        /// Groups and weights.
        spec: GroupedSigmoid,
        /// Added to the sigmoids when experts are chosen, `[1, experts]`.
        bias: T,
    },
}

impl<T> Routing<T> {
    /// Experts per token.
    pub fn top_k(&self) -> usize {
        match self {
            Routing::Softmax { top_k, .. } | Routing::SoftmaxScaled { top_k, .. } => *top_k,
            Routing::GroupedSigmoid { spec, .. } => spec.top_k,
        }
    }
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
    /// When given, a query sees only the last so many tokens, its own included.
    pub window: Option<usize>,
}

impl KvShape {
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
#[derive(Clone, Debug)]
pub struct GdnVectors<T> {
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
