//! Choosing a token from each row of logits.

use crate::kernel::{consts, kernel, params};

/// Logits of a block, and of a wide one, as the kernels declare.
pub(crate) const BLOCK: usize = 1024;
pub(crate) const WIDE_BLOCK: usize = 4096;

/// Bins of a histogram of likelihoods, and tokens that are listed, as `pieces/choices.wgsl` has them.
pub(crate) const BINS: usize = 1024;
pub(crate) const LISTED: usize = 16_384;

/// What stands for no place (`pieces/order.wgsl`).
pub(crate) const NOBODY: u32 = u32::MAX;

/// The repetition penalty applies to a token (`choose_max.wgsl`).
pub(crate) const SEEN: u32 = 1 << 31;

params! {
    /// How a token is chosen from a row: `Choice` of `pieces/choices.wgsl`.
    RowChoice {
        slot: u32,
        counted: u32,
        adjusted: u32,
        changes_at: u32,
        allowed_at: u32,
        allowed_len: u32,
        draws: u32,
        top_k: u32,
        key_first: u32,
        key_second: u32,
        repetition: f32,
        reciprocal: f32,
        presence: f32,
        frequency: f32,
        factor: f32,
        top_p: f32,
        floor: f32,
    }
}

params! {
    /// What all but the greedy kernel take.
    ChooseParams { rows: u32, cols: u32, blocks: u32, wide_blocks: u32, stride: u32, scale: f32 }
}

kernel! {
    choose_max = "choose_max" [Order, Best, Choices]
    params ChooseParams
    bindings { x: read, choices: read, lists: read, last: read, adjusted: write, work: write }
    fixed { threads = 256, block = 1024 }
}

kernel! {
    choose_histogram = "choose_histogram" [Order, Best, Choices, Largest]
    params ChooseParams
    bindings { x: read, choices: read, adjusted: read, work: write }
    fixed { threads = 256, block = 4096 }
}

kernel! {
    choose_noisy = "choose_noisy" [Order, Best, Choices, Largest, Noise, Likelihoods]
    params ChooseParams
    bindings { x: read, choices: read, adjusted: read, work: write }
    fixed { threads = 256, block = 4096 }
}

consts! {
    /// Whether some row's token is drawn.
    Draws { draws: bool }
}

impl Draws {
    pub fn all() -> Vec<Self> {
        [false, true].map(|draws| Self { draws }).to_vec()
    }
}

kernel! {
    choose_token = "choose_token" [Order, Best, Choices, Largest, Noise, Likelihoods]
    params ChooseParams
    bindings { x: read, choices: read, adjusted: read, work: read, last: write, chosen: write }
    fixed { threads = 256 }
    consts Draws in Draws::all;
}

kernel! {
    choose_greedy = "choose_greedy" [Order, Best]
    params { rows: u32, blocks: u32, slot: u32 }
    bindings { ids: read, values: read, slots: read or ids, last: write, chosen: write }
    fixed { threads = 256 }
}
