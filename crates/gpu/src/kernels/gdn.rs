//! Gated DeltaNet.

use crate::kernel::{consts, kernel, params};

/// Threads of a workgroup of the recurrence, and rows of a state it has.
pub(crate) const THREADS: usize = 128;
pub(crate) const ROWS: usize = 8;

/// Tokens that are taken at once in longer sequences, as in `pieces/chunk.wgsl`, the words kept for
/// them per head, and the widest head that fits a workgroup then.
pub(crate) const CHUNK: usize = 16;
pub(crate) const CHUNK_WORDS: usize = 2 * CHUNK * CHUNK + 2 * CHUNK;
pub(crate) const WIDEST: usize = 128;

/// Threads of a row of the state in a step of one token.
pub(crate) const STEP_LANES: usize = 16;

/// Most taps of its convolution.
pub(crate) const MOST_TAPS: usize = 4;

/// Widest keys that tests compile kernels for.
const WIDEST_KEY: usize = 512;

params! {
    /// A causal convolution over a sequence.
    Convolution { tokens: u32, first_row: u32, channels: u32, kernel: u32 }
}

params! {
    /// The recurrence over a sequence.
    Delta {
        tokens: u32, first_row: u32, key_heads: u32, value_heads: u32, key_dim: u32, value_dim: u32,
    }
}

kernel! {
    conv = "conv" [Conv]
    params Convolution
    bindings { x: read, weight: read, window: read, y: write }
    fixed { threads = 128 }
}

kernel! {
    conv_step = "conv_step" [Conv]
    params Convolution
    bindings { x: read, weight: read, window: write, y: write }
    fixed { threads = 128 }
}

kernel! {
    conv_window = "conv_window" [Conv]
    params Convolution
    bindings { x: read, window: write }
    fixed { threads = 128 }
}

kernel! {
    gdn_gates = "gdn_gates" [Gates]
    params { len: u32, heads: u32 }
    bindings { a: read, b: read, a_log: read, dt_bias: read, g: write, beta: write }
    fixed { threads = 128 }
}

kernel! {
    gdn_qk_norm = "gdn_qk_norm" [Sum]
    params { rows: u32, channels: u32, key_total: u32, key_dim: u32, slices: u32 }
    bindings { x: read, y: write }
    fixed {}
    consts SliceThreads in SliceThreads::all;
}

/// Threads that share a head of keys.
pub(crate) type SliceThreads = super::norm::RowThreads;

consts! {
    /// Columns of the state that a thread has.
    Columns { keys: u32 }
}

impl Columns {
    pub fn choose(key_dim: usize) -> Self {
        Self { keys: key_dim.div_ceil(THREADS / ROWS).next_power_of_two() as u32 }
    }

    pub fn all() -> Vec<Self> {
        (1..=WIDEST_KEY).map(Self::choose).collect()
    }
}

kernel! {
    /// Token by token, from normed queries and keys and finished gates.
    gdn = "gdn" [Delta, GatesReady]
    params Delta
    bindings { qkv: read, state: write, y: write, g: read, beta: read }
    fixed { threads = 128, rows = 8 }
    consts Columns in Columns::all;
}

kernel! {
    /// The same from queries, keys and gates as they leave their projections.
    gdn_raw = "gdn" [Delta, Gates, GatesRaw]
    params Delta
    bindings { qkv: read, state: write, y: write, a: read, b: read, a_log: read, dt_bias: read }
    fixed { threads = 128, rows = 8 }
    consts Columns in Columns::all;
}

kernel! {
    gdn_chunks = "gdn_chunks" [Delta, Chunk]
    params Delta
    bindings { qkv: read, g: read, beta: read, chunks: write }
    fixed { threads = 256 }
}

kernel! {
    gdn_scan = "gdn_scan" [Delta, Chunk]
    params Delta
    bindings { qkv: read, chunks: read, state: write, y: write }
    fixed { threads = 128 }
}

consts! {
    /// Fours of columns of a thread, and taps of the convolution.
    Step { quads: u32, taps: u32 }
}

impl Step {
    /// `None` where a head or the convolution is too wide.
    pub fn choose(key_dim: usize, taps: usize) -> Option<Self> {
        let fits = key_dim <= WIDEST && key_dim.is_multiple_of(4) && taps <= MOST_TAPS;
        let quads = key_dim.div_ceil(4 * STEP_LANES).next_power_of_two() as u32;
        fits.then_some(Self { quads, taps: taps as u32 })
    }

    pub fn all() -> Vec<Self> {
        let taps = |key_dim| (1..=MOST_TAPS).filter_map(move |taps| Self::choose(key_dim, taps));
        (1..=WIDEST).flat_map(taps).collect()
    }
}

kernel! {
    gdn_step = "gdn_step" [Chain, Lanes, Gates]
    params { key_heads: u32, value_heads: u32, key_dim: u32, value_dim: u32, a_at: u32, b_at: u32 }
    bindings {
        x: read, taps: read, a_log: read, dt_bias: read, window: read, next_window: write,
        state: write, y: write,
    }
    fixed { threads = 128, lanes = 16 }
    consts Step in Step::all;
}
