//! Products with weights, and tiles of experts.

use ::backend::Activation;
use checkpoint::{Float, Format};

use crate::device_profile::DeviceProfile;
use crate::kernel::{InputRows, WeightParams, consts, kernel, params};

/// Rows of a workgroup of a product with few tokens.
pub(crate) const ROWS: usize = 4;

/// Threads of a workgroup of a product with few tokens' experts or heads.
pub(crate) const THREADS: usize = 64;

/// Rows of a workgroup that norms its input.
pub(crate) const NORM_ROWS: usize = 2;

/// Columns of rows of halves are filled up to so many, which kernels take at a time.
pub(crate) const HALVES: usize = 64;

/// Rows of a tile.
const TILE_ROWS: usize = 64;
const MATRIX_TILE_ROWS: usize = 128;

/// Stands for any format where a chooser does not look at it.
pub(crate) const ANY: Format = Format::Plain(Float::F32);

/// Rows of a tile.
pub(crate) fn tile_rows(profile: &DeviceProfile) -> usize {
    if profile.limits.matrices { MATRIX_TILE_ROWS } else { TILE_ROWS }
}

/// Tokens of a tile, by sixteens: no more than are needed.
pub(crate) fn share(profile: &DeviceProfile, tokens: usize) -> usize {
    let most = if profile.limits.matrices { 8 } else { 4 };
    [1, 2, 4].into_iter().find(|share| tokens <= 16 * share).unwrap_or(most)
}

/// The same for a product with so many rows: rather small tiles than too few to keep the device
/// busy.
fn share_for(profile: &DeviceProfile, rows: usize, tokens: usize) -> usize {
    let mut share = share(profile, tokens);
    let tiles = |share: usize| rows.div_ceil(tile_rows(profile)) * tokens.div_ceil(16 * share);
    while profile.limits.matrices && share > 2 && tiles(share) < profile.tile_workgroups {
        share /= 2;
    }
    share
}

/// How rows of `cols` inputs lie, as kernels take them that read rows.
pub(crate) fn rows_of(cols: usize) -> InputRows {
    if cols.is_multiple_of(8) { InputRows::Aligned } else { InputRows::Ragged }
}

/// The same of kernels that make tiles.
fn tile_input(profile: &DeviceProfile, cols: usize) -> InputRows {
    if profile.limits.matrices { InputRows::Halves } else { rows_of(cols) }
}

/// Widths of inputs between which choices differ.
const WIDTHS: [usize; 2] = [8, 9];

consts! {
    /// The format of a weight.
    FormatOnly { format: Format }
}

impl FormatOnly {
    pub fn all() -> Vec<Self> {
        vec![Self { format: ANY }]
    }
}

kernel! {
    embed = "embed" [Codes]
    params { weight: WeightParams, first: u32, end: u32, tokens: u32, tokens_at: u32, factor: f32 }
    bindings { codes: read, scales: read, steps: read, last: read, y: write }
    fixed { threads = 128 }
    consts FormatOnly in FormatOnly::all;
}

params! {
    /// A linear layer.
    Linear {
        weight: WeightParams, rows: u32, first: u32, tokens: u32, out_cols: u32, has_bias: u32,
        has_residual: u32, skip: u32,
    }
}

consts! {
    /// Threads that share rows, tokens of a workgroup, and how these lie.
    RowProduct { format: Format, threads: u32, tokens: u32, input: InputRows }
}

impl RowProduct {
    /// For `tokens` tokens and a weight of so many rows and columns. Of few rows each must come
    /// quickly; of many, more are at work at once the fewer threads each takes
    /// (docs/performance.md).
    pub fn choose(profile: &DeviceProfile, format: Format, [rows, cols]: [usize; 2], tokens: usize) -> Self {
        let threads = match rows {
            _ if rows >= profile.narrow_team_rows => 32,
            _ if rows <= profile.wide_team_rows && cols.div_ceil(8) >= 256 => 256,
            _ => 128,
        };
        let tokens = [1, 2, 4].into_iter().find(|t| tokens <= *t).unwrap_or(8);
        Self { format, threads, tokens: tokens as u32, input: rows_of(cols) }
    }

    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for profile in DeviceProfile::every() {
            for rows in [1, profile.wide_team_rows + 1, profile.narrow_team_rows] {
                for cols in [8, 9, 2048, 2049] {
                    let of = |tokens| Self::choose(&profile, ANY, [rows, cols], tokens);
                    all.extend((1..=profile.row_product_tokens).map(of));
                }
            }
        }
        all
    }
}

kernel! {
    matvec = "matvec" [Linear, Codes, Input, Totals]
    params Linear
    bindings {
        codes: read, scales: read, x: read, bias: read or x, residual: read or x, y: write,
    }
    fixed { rows = 4 }
    consts RowProduct in RowProduct::all;
}

consts! {
    /// Tokens of a tile, by sixteens, and how these lie.
    TileProduct { format: Format, share: u32, input: InputRows }
}

impl TileProduct {
    pub fn choose(profile: &DeviceProfile, format: Format, [rows, cols]: [usize; 2], tokens: usize) -> Self {
        let share = share_for(profile, rows, tokens) as u32;
        Self { format, share, input: tile_input(profile, cols) }
    }

    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for profile in DeviceProfile::every() {
            let sizes = WIDTHS.into_iter().flat_map(|cols| [64, 1 << 20].map(|rows| [rows, cols]));
            for size in sizes {
                all.extend([16, 32, 64, 65, 1024].map(|n| Self::choose(&profile, ANY, size, n)));
            }
        }
        all
    }
}

kernel! {
    matmul = "matmul" [Linear, Codes, Input, Tile]
    params Linear
    bindings {
        codes: read, scales: read, x: read, bias: read or x, residual: read or x, factors: read or x,
        y: write,
    }
    fixed { threads = 256 }
    consts TileProduct in TileProduct::all;
}

kernel! {
    norm_matvec = "norm_matvec" [Chain, Codes, Totals, Quads, Rounding, Sum, Rms, Digits]
    params {
        weight: WeightParams, rows: u32, skip: u32, has_bias: u32, eps: f32, groups: u32, digits_at: u32,
        digit_bits: u32,
    }
    bindings {
        codes: read, scales: read, x: read, norm: read, expert_norm: read, bias: read or x, y: write,
    }
    fixed { threads = 256, rows = 2 }
    consts FormatOnly in FormatOnly::all;
}

consts! {
    /// How rows of inputs lie.
    Input { format: Format, input: InputRows }
}

impl Input {
    pub fn choose(format: Format, cols: usize) -> Self {
        Self { format, input: rows_of(cols) }
    }

    pub fn all() -> Vec<Self> {
        WIDTHS.map(|cols| Self::choose(ANY, cols)).to_vec()
    }
}

kernel! {
    heads = "heads" [Codes, Input, Totals]
    params { weight: WeightParams, first: u32, end: u32, head_rows: u32, tokens: u32, heads: u32 }
    bindings { codes: read, scales: read, x: read, y: write }
    fixed { threads = 64, rows = 4 }
    consts Input in Input::all;
}

kernel! {
    experts_down = "experts_down" [Codes, Input, Totals]
    params {
        weight: WeightParams, first: u32, end: u32, expert_rows: u32, tokens: u32, top_k: u32, add: u32,
    }
    bindings { codes: read, scales: read, x: read, ids: read, weights: read, y: write }
    fixed { threads = 128, rows = 4 }
    consts Input in Input::all;
}

/// What becomes of products of experts: with an activation, rows of gate and up alternate and
/// become one.
const ACTIVATIONS: [Option<Activation>; 3] = [None, Some(Activation::Silu), Some(Activation::GeluTanh)];

consts! {
    /// What becomes of products, and how rows of inputs lie.
    GatedInput { format: Format, gated: bool, activation: Activation, input: InputRows }
}

impl GatedInput {
    pub fn choose(format: Format, cols: usize, activation: Option<Activation>) -> Self {
        let gated = activation.is_some();
        Self { format, gated, activation: activation.unwrap_or(Activation::Silu), input: rows_of(cols) }
    }

    pub fn all() -> Vec<Self> {
        let of = |activation| WIDTHS.map(|cols| Self::choose(ANY, cols, activation));
        ACTIVATIONS.into_iter().flat_map(of).collect()
    }
}

kernel! {
    experts_up = "experts_up" [Codes, Input, Totals, Activation]
    params {
        weight: WeightParams, first: u32, end: u32, expert_rows: u32, pairs: u32, top_k: u32,
    }
    bindings { codes: read, scales: read, x: read, ids: read, h: write }
    fixed { threads = 64, rows = 4 }
    consts GatedInput in GatedInput::all;
}

consts! {
    /// Tokens of a tile, by sixteens, what becomes of products, and how rows of inputs lie.
    ExpertTiles { format: Format, share: u32, gated: bool, activation: Activation, input: InputRows }
}

/// Tokens of a tile of experts, by sixteens, where each has about so many: experts rarely have as
/// many as fill several wide tiles.
pub(crate) fn expert_share(profile: &DeviceProfile, tokens: usize) -> usize {
    share(profile, tokens).min(4)
}

impl ExpertTiles {
    pub fn choose(
        profile: &DeviceProfile,
        format: Format,
        cols: usize,
        (share, activation): (usize, Option<Activation>),
    ) -> Self {
        let gated = activation.is_some();
        let input = tile_input(profile, cols);
        Self { format, share: share as u32, gated, activation: activation.unwrap_or(Activation::Silu), input }
    }

    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (profile, cols) in DeviceProfile::every().iter().flat_map(|p| WIDTHS.map(|cols| (p, cols))) {
            for tokens in [16, 32, 64, 1024] {
                let experts = expert_share(profile, tokens);
                all.extend(ACTIVATIONS.map(|act| Self::choose(profile, ANY, cols, (experts, act))));
                // Heads are experts that every token chooses, where there are matrix units.
                if profile.limits.matrices {
                    all.push(Self::choose(profile, ANY, cols, (share(profile, tokens), None)));
                }
            }
        }
        all
    }
}

kernel! {
    experts_tiled = "experts_tiled" [Codes, Input, Tile, Activation]
    params {
        weight: WeightParams, first: u32, end: u32, expert_rows: u32, share: u32,
    }
    bindings {
        codes: read, scales: read, x: read, list: read, tiles: read, factors: read or x, h: write,
    }
    fixed { threads = 256 }
    consts ExpertTiles in ExpertTiles::all;
}

kernel! {
    expert_lists = "expert_lists" []
    params { pairs: u32, experts: u32 }
    bindings { ids: read, list: write, spans: write }
    fixed { threads = 64 }
}

kernel! {
    expert_tiles = "expert_tiles" []
    params { experts: u32, tiles: u32, tile_tokens: u32 }
    bindings { spans: read, tiles: write }
    fixed { threads = 256 }
}

kernel! {
    head_tiles = "head_tiles" []
    params { tokens: u32, heads: u32, tile_tokens: u32 }
    bindings { list: write, tiles: write }
    fixed { threads = 128 }
}

kernel! {
    halves = "halves" []
    params { tokens: u32, first: u32, heads: u32, group: u32, width_a: u32, width_b: u32, pairs: u32 }
    bindings { a: read, b: read or a, halves: write, factors: write }
    fixed { threads = 256, matrices = 1 }
}
