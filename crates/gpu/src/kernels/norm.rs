//! Norms: a workgroup per row.

use crate::device_profile::DeviceProfile;
use crate::kernel::{consts, kernel};

/// Values that a thread keeps from the sum of squares to the norm (`HELD` in pieces/rms.wgsl).
pub(crate) const HELD: usize = 4;

consts! {
    /// Threads that share a row.
    RowThreads { threads: u32 }
}

impl RowThreads {
    /// Threads that suit `count` rows of `width` values: a few long ones must come quickly, of
    /// many, many are at work at once.
    pub fn choose(profile: &DeviceProfile, width: usize, count: usize) -> Self {
        let threads = match width {
            ..=256 => 64,
            1025.. if count <= profile.few_slices && profile.limits.most_threads >= 1024 => 1024,
            _ => 256,
        };
        Self { threads }
    }

    pub fn all() -> Vec<Self> {
        let shapes = [(64, 1), (512, 1), (2048, 1), (2048, usize::MAX)];
        let of = |profile: DeviceProfile| shapes.map(|(width, count)| Self::choose(&profile, width, count));
        DeviceProfile::every().into_iter().flat_map(of).collect()
    }
}

consts! {
    /// Threads that share a row, and whether it is longer than they can keep.
    LongRowThreads { threads: u32, long: bool }
}

impl LongRowThreads {
    pub fn choose(profile: &DeviceProfile, width: usize, count: usize) -> Self {
        let RowThreads { threads } = RowThreads::choose(profile, width, count);
        Self { threads, long: width > HELD * threads as usize }
    }

    pub fn all() -> Vec<Self> {
        let shapes = [(64, 1), (512, 1), (2048, 1), (2048, usize::MAX), (8192, 1)];
        let of = |profile: DeviceProfile| shapes.map(|(width, count)| Self::choose(&profile, width, count));
        DeviceProfile::every().into_iter().flat_map(of).collect()
    }
}

kernel! {
    norm_add = "norm_add" [Sum, Rms]
    params { width: u32, rows: u32, eps: f32, factor: f32 }
    bindings { residual: read, x: read, weight: read, y: write }
    fixed {}
    consts RowThreads in RowThreads::all;
}

kernel! {
    rms_norm = "rms_norm" [Sum, Rms]
    params { width: u32, rows: u32, eps: f32, has_weight: u32 }
    bindings { x: read, weight: read or x, y: write }
    fixed {}
    consts RowThreads in RowThreads::all;
}

kernel! {
    gated_norm = "gated_norm" [Sum, Rms]
    params { width: u32, rows: u32, eps: f32 }
    bindings { v: read, z: read, weight: read, y: write }
    fixed {}
    consts RowThreads in RowThreads::all;
}

kernel! {
    combine_norm = "combine_norm" [Sum, Rms]
    params { width: u32, rows: u32, eps: f32 }
    bindings { a: read, a_weight: read, b: read, b_weight: read, y: write }
    fixed {}
    consts RowThreads in RowThreads::all;
}

kernel! {
    combine_norm_add = "combine_norm_add" [Chain, Sum, Rms]
    params { width: u32, rows: u32, eps: f32, factor: f32 }
    bindings {
        residual: read, a: read, b: read, a_weight: read, b_weight: read, weight: read, y: write,
    }
    fixed {}
    consts LongRowThreads in LongRowThreads::all;
}
