//! Gated DeltaNet.

use crate::device_profile::DeviceProfile;
use crate::kernel::{consts, kernel, params};

/// Threads of a workgroup of the recurrence, and rows of a state it has.
pub(crate) const THREADS: usize = 128;
pub(crate) const ROWS: usize = 8;

/// Tokens that are taken at once in longer sequences, as in `pieces/chunk.wgsl`, the words kept for
/// them per head, and the widest head that fits a workgroup then.
pub(crate) const CHUNK: usize = 16;
pub(crate) const CHUNK_WORDS: usize = 2 * CHUNK * CHUNK + 2 * CHUNK;
pub(crate) const WIDEST: usize = 128;

/// Threads of a row of the state in a step of one token, and rows that a workgroup takes at a time.
pub(crate) const STEP_LANES: usize = 16;
pub(crate) const STEP_ROWS: usize = THREADS / STEP_LANES;
/// How often it does so where sequences are many.
const STEP_TURNS: [usize; 2] = [16, 4];

/// Most taps of its convolution.
pub(crate) const MOST_TAPS: usize = 4;

/// Widest keys that tests compile kernels for.
const WIDEST_KEY: usize = 512;

params! {
    /// A causal convolution over each of some spans.
    Convolution {
        spans: u32, first_span: u32, shortest: u32, longest: u32, first_row: u32, rows: u32, channels: u32,
        stride: u32, kernel: u32,
    }
}

params! {
    /// The recurrence over each of some spans.
    Delta {
        first_span: u32, shortest: u32, longest: u32, first_row: u32, key_heads: u32, value_heads: u32,
        key_dim: u32, value_dim: u32, gate_stride: u32,
    }
}

kernel! {
    conv = "conv" [Steps, Conv]
    params Convolution
    bindings { x: read, steps: read, weight: read, windows: read, y: write }
    fixed { threads = 128 }
}

kernel! {
    conv_step = "conv_step" [Steps, Conv]
    params Convolution
    bindings { x: read, steps: read, weight: read, windows: write, y: write }
    fixed { threads = 128 }
}

kernel! {
    conv_window = "conv_window" [Steps, Conv]
    params Convolution
    bindings { x: read, steps: read, windows: write }
    fixed { threads = 128 }
}

kernel! {
    gdn_gates = "gdn_gates" [Gates]
    params { len: u32, heads: u32, stride: u32 }
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
    gdn = "gdn" [Steps, Delta, GatesReady]
    params Delta
    bindings { qkv: read, steps: read, state: write, y: write, g: read, beta: read }
    fixed { threads = 128, rows = 8 }
    consts Columns in Columns::all;
}

kernel! {
    /// The same from queries, keys and gates as they leave their projections.
    gdn_raw = "gdn" [Steps, Delta, Gates, GatesRaw]
    params Delta
    bindings {
        qkv: read, steps: read, state: write, y: write, a: read, b: read, a_log: read, dt_bias: read,
    }
    fixed { threads = 128, rows = 8 }
    consts Columns in Columns::all;
}

kernel! {
    gdn_chunks = "gdn_chunks" [Steps, Delta, Chunk]
    params Delta
    bindings { qkv: read, steps: read, g: read, beta: read, chunks: write }
    fixed { threads = 256 }
}

kernel! {
    gdn_scan = "gdn_scan" [Steps, Delta, Chunk]
    params Delta
    bindings { qkv: read, steps: read, chunks: read, state: write, y: write }
    fixed { threads = 128 }
}

consts! {
    /// Fours of columns of a thread, taps of the convolution, and how often a workgroup takes rows.
    Step { quads: u32, taps: u32, turns: u32 }
}

impl Step {
    /// For so many heads of all sequences. `None` where a head or the convolution is too wide.
    pub fn choose(
        profile: &DeviceProfile,
        [key_dim, value_dim]: [usize; 2],
        taps: usize,
        heads: usize,
    ) -> Option<Self> {
        let fits = key_dim <= WIDEST && key_dim.is_multiple_of(4) && taps <= MOST_TAPS;
        let quads = key_dim.div_ceil(4 * STEP_LANES).next_power_of_two() as u32;
        let blocks = heads.saturating_mul(value_dim.div_ceil(STEP_ROWS));
        let turns = STEP_TURNS.into_iter().find(|turns| blocks / turns >= profile.delta_workgroups);
        let turns = turns.unwrap_or(1);
        fits.then_some(Self { quads, taps: taps as u32, turns: turns as u32 })
    }

    pub fn all() -> Vec<Self> {
        let profile = DeviceProfile::smallest();
        let of = |key_dim| {
            let heads = [1, 4 * profile.delta_workgroups, usize::MAX];
            (1..=MOST_TAPS).flat_map(move |taps| heads.map(|heads| (key_dim, taps, heads)))
        };
        let all = (1..=WIDEST).flat_map(of);
        all.filter_map(|(key_dim, taps, heads)| Self::choose(&profile, [key_dim, 1], taps, heads)).collect()
    }
}

kernel! {
    gdn_step = "gdn_step" [Chain, Lanes, Steps, Gates]
    params {
        first_span: u32, key_heads: u32, value_heads: u32, key_dim: u32, value_dim: u32, stride: u32,
        a_at: u32, b_at: u32,
    }
    bindings {
        x: read, taps: read, a_log: read, dt_bias: read, steps: read, windows: write, state: write,
        y: write,
    }
    fixed { threads = 128, lanes = 16 }
    consts Step in Step::all;
}
