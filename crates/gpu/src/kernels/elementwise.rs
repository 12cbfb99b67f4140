//! Kernels in which every thread works for itself.

use ::backend::Activation;

use crate::kernel::{consts, kernel};

/// Threads of a workgroup, as each of them declares.
pub(crate) const THREADS: usize = 128;

consts! {
    /// What is done to a gate.
    Activated { activation: Activation }
}

impl Activated {
    pub fn all() -> Vec<Self> {
        [Activation::Silu, Activation::GeluTanh].map(|activation| Self { activation }).to_vec()
    }
}

kernel! {
    glu = "glu" [Activation]
    params { len: u32 }
    bindings { gate: read, up: read, y: write }
    fixed { threads = 128 }
    consts Activated in Activated::all;
}

kernel! {
    soft_cap = "soft_cap" []
    params { len: u32, cap: f32 }
    bindings { x: read, y: write }
    fixed { threads = 128 }
}

kernel! {
    sigmoid_gate = "sigmoid_gate" []
    params { len: u32 }
    bindings { x: read, gate: read, y: write }
    fixed { threads = 128 }
}

kernel! {
    combine = "combine" []
    params { len: u32, width: u32, kind: u32 }
    bindings { h: read, moe: read, shared_part: read or h, gate: read or h, y: write }
    fixed { threads = 128 }
}

kernel! {
    weighted_sum = "weighted_sum" []
    params { len: u32, width: u32, top_k: u32 }
    bindings { values: read, weights: read, y: write }
    fixed { threads = 128 }
}

kernel! {
    part_of_heads = "part_of_heads" []
    params {
        tokens: u32, heads: u32, cols: u32, stride: u32, offset: u32, width: u32, out_cols: u32,
        out_start: u32,
    }
    bindings { x: read, y: write }
    fixed { threads = 128 }
}

kernel! {
    rope = "rope" []
    params { len: u32, cols: u32, width: u32, pairs: u32, first_angle: u32, interleaved: u32 }
    bindings { x: read, angles: read, y: write }
    fixed { threads = 128 }
}
