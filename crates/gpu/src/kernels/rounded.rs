//! Products of one token with weights whose codes are multiplied as integers.

use ::backend::Activation;
use checkpoint::{Float, Format};

use super::product::ANY;
use crate::device_profile::DeviceProfile;
use crate::kernel::{WeightParams, consts, kernel, params};

/// Threads of a workgroup, or half of them.
pub(crate) const THREADS: usize = 256;

/// Values that share a scale after rounding.
pub(crate) const GROUP: usize = 32;

/// Rows that threads share of an expert's gate and up, and of all experts' down.
const UP_ROWS: usize = 4;
pub(crate) const DOWN_ROWS: usize = 4;

/// Experts that come into question after each block of 32 has chosen, at most, and experts of a
/// token.
pub(crate) const MOST_CANDIDATES: usize = 256;
pub(crate) const MOST_CHOSEN: usize = 32;

/// Experts of a token are chosen from among so many at most.
const MOST_EXPERTS: usize = 32 * 16;

/// Bits of a code of a format that [has integer codes](has_integer_codes).
pub(crate) fn bits_of(format: Format) -> u32 {
    match format {
        Format::Affine { bits, .. } => bits,
        _ => 0,
    }
}

/// Whether codes of a format are multiplied as integers.
pub(crate) fn has_integer_codes(format: Format) -> bool {
    matches!(format, Format::Affine { bits: 4 | 8, .. })
}

/// A format of codes of so many bits.
fn affine(bits: u32) -> Format {
    Format::Affine { bits, group: 64, scale: Float::Bf16 }
}

/// Threads that share a row of so many groups, and groups that each has of it at a time.
pub(crate) fn team(groups: usize) -> [usize; 2] {
    if groups <= 8 {
        return [8, 1];
    }
    [32, groups.div_ceil(32).min(4)]
}

/// The same of a head, where the next rows are asked for while these are multiplied: fewer threads
/// have more of each.
fn head_team(groups: usize) -> [usize; 2] {
    if groups <= 8 { [8, 1] } else { [16, groups.div_ceil(16)] }
}

/// Whether workgroups have twice the threads, where the device allows, so that none has more than
/// eight values of an input to prepare: half the instructions for that, and they have to stay in a
/// cache with those of all kernels of a layer.
fn is_wide(profile: &DeviceProfile, cols: usize) -> bool {
    cols > 8 * THREADS && profile.has_wide_workgroups()
}

params! {
    /// One token's product; zeros for what its prologue does not take.
    Rounded {
        weight: WeightParams, rows: u32, skip: u32, first: u32, up: u32, has_bias: u32,
        has_residual: u32, blocks: u32, groups: u32, eps: f32, slice_width: u32, splits: u32, factor: f32,
        h_at: u32, digits_at: u32, digit_bits: u32, dense_norm_at: u32, routed_norm_at: u32, post_norm_at: u32,
        norm_at: u32,
    }
}

consts! {
    /// Threads, of which so many share rows, groups and rows that each has at a time, whether it
    /// asks for the next rows meanwhile, whether a row is longer than its threads have at a time,
    /// and what becomes of two rows' products.
    Team {
        format: Format, threads: u32, lanes: u32, steps: u32, rows: u32, ahead: bool, long: bool,
        gated: bool, activation: Activation,
    }
}

/// How a product of one token is shared by workgroups.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub team: Team,
    /// Whether it is a model's head.
    head: bool,
    /// Whether workgroups have twice the threads.
    wide: bool,
    /// Workgroups that are enough.
    many: usize,
}

/// What a product of one token is.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub format: Format,
    pub cols: usize,
    pub rows: usize,
    /// The second half of the rows is multiplied with the activated first.
    pub glu: Option<Activation>,
}

impl Product {
    pub fn results(&self) -> usize {
        if self.glu.is_some() { self.rows / 2 } else { self.rows }
    }
}

impl Plan {
    pub fn choose(profile: &DeviceProfile, product: &Product) -> Self {
        let Product { format, cols, rows, glu } = *product;
        let groups = cols / GROUP;
        let head = rows >= profile.head_rows && groups <= profile.head_groups && glu.is_none();
        let [lanes, steps] = if head { head_team(groups) } else { team(groups) };
        let wide = is_wide(profile, cols);
        let threads = if wide { 2 * THREADS } else { THREADS };
        // Measured on an H200 (docs/performance.md).
        let each = match rows {
            _ if head => 8 / bits_of(format) as usize,
            _ if rows >= profile.paired_rows && !wide => 2,
            _ if glu.is_some() => 2,
            _ => 1,
        };
        let long = groups > lanes * steps;
        let chains = profile.limits.chains;
        // As many threads, where kernels wait for each other, and where each has many turns.
        let many = profile.product_workgroups;
        let many = if head || chains { many * THREADS / threads } else { many };
        // Who has several blocks of wide rows asks for the next while it multiplies, as heads do.
        let block = threads / lanes * each;
        let several = wide && chains && !long && glu.is_none() && product.results() > many * block;
        let team = Team {
            format,
            threads: threads as u32,
            lanes: lanes as u32,
            steps: steps as u32,
            rows: each as u32,
            ahead: head || several,
            long,
            gated: glu.is_some(),
            activation: glu.unwrap_or(Activation::Silu),
        };
        Self { team, head, wide, many }
    }

    /// Blocks of rows that so many results are, and workgroups that take turns with them.
    pub fn blocks(&self, profile: &DeviceProfile, results: usize) -> [usize; 2] {
        let Team { threads, lanes, rows, gated, .. } = self.team;
        let blocks = results.div_ceil((threads / lanes * rows) as usize / if gated { 2 } else { 1 });
        let workgroups = if self.team.long {
            blocks
        } else if self.head {
            blocks.min(self.many)
        } else if self.wide && profile.limits.chains {
            // No more than one for each part of the device, so that others find room.
            blocks.div_ceil(blocks.div_ceil(self.many))
        } else {
            blocks.div_ceil((blocks / self.many).max(1))
        };
        [blocks, workgroups]
    }

    /// Whether the whole input is prepared at a time.
    pub fn holds(cols: usize) -> bool {
        let groups = cols / GROUP;
        let [lanes, steps] = team(groups);
        groups <= lanes * steps
    }

    /// Teams of products that `fit`.
    fn teams(fit: impl Fn(&Product) -> bool) -> Vec<Team> {
        let mut all = Vec::new();
        let sizes = [1, 4095, 4096, 16_384, 32_767, 32_768, 1 << 20];
        for profile in DeviceProfile::every() {
            for groups in 1..=32 * 4 + 1 {
                for (rows, bits) in sizes.into_iter().flat_map(|rows| [(rows, 4), (rows, 8)]) {
                    for glu in [None, Some(Activation::Silu), Some(Activation::GeluTanh)] {
                        let product = Product { format: affine(bits), cols: GROUP * groups, rows, glu };
                        if fit(&product) {
                            all.push(Self::choose(&profile, &product).team);
                        }
                    }
                }
            }
        }
        all
    }
}

impl Team {
    fn of_any() -> Vec<Self> {
        Plan::teams(|_| true)
    }

    fn of_ungated() -> Vec<Self> {
        Plan::teams(|product| product.glu.is_none())
    }

    /// Of gates and ups whose input is prepared as a whole.
    fn of_gated_held() -> Vec<Self> {
        Plan::teams(|product| product.glu.is_some() && Plan::holds(product.cols))
    }

    fn of_ungated_held() -> Vec<Self> {
        Plan::teams(|product| product.glu.is_none() && Plan::holds(product.cols))
    }

    /// Of experts and a shared one's gate.
    fn of_router() -> Vec<Self> {
        Plan::teams(|product| product.glu.is_none() && product.rows <= MOST_EXPERTS + 1)
    }

    fn of_router_held() -> Vec<Self> {
        let fits = |product: &Product| product.rows <= MOST_EXPERTS + 1 && Plan::holds(product.cols);
        Plan::teams(|product| product.glu.is_none() && fits(product))
    }
}

kernel! {
    /// Of an input that is there.
    rounded_plain = "matvec_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, ProloguePlain, Added,
        DigitsNone, Activation,
    ]
    params Rounded
    bindings {
        codes: read, scales: read, y: write, bias: read or scales, residual: read or scales, x: read,
    }
    fixed {}
    consts Team in Team::of_any;
}

kernel! {
    /// Of `rms(x) * norm`.
    rounded_norm = "matvec_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, PrologueNorm, Added,
        DigitsNone, Activation,
    ]
    params Rounded
    bindings {
        codes: read, scales: read, y: write, bias: read or scales, residual: read or scales, x: read,
        norm: read,
    }
    fixed {}
    consts Team in Team::of_any;
}

kernel! {
    /// The same of a router, with its experts' input beside.
    rounded_norm_router = "matvec_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, PrologueNorm, Added,
        Digits, DigitsBeside, Activation,
    ]
    params Rounded
    bindings {
        codes: read, scales: read, y: write, bias: read or scales, residual: read or scales, x: read,
        norm: read, expert_norm: read,
    }
    fixed {}
    consts Team in Team::of_router;
}

kernel! {
    /// Of `rms(x) * norm * silu(gate)`, the norm over slices.
    rounded_gated_norm = "matvec_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, PrologueGatedNorm, Added,
        DigitsNone, Activation,
    ]
    params Rounded
    bindings {
        codes: read, scales: read, y: write, bias: read or scales, residual: read or scales, x: read,
        norm: read, gate: read,
    }
    fixed {}
    consts Team in Team::of_ungated;
}

kernel! {
    /// Of `rms(h) * norm`, where `h = stream + rms(x) * post_norm`.
    rounded_norm_add = "matvec_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, PrologueNormAdd,
        AddedNone, DigitsNone, Activation,
    ]
    params Rounded
    bindings {
        codes: read, scales: read, y: write, stream: read, x: read, post_norm: read, norm: read,
    }
    fixed {}
    consts Team in Team::of_gated_held;
}

kernel! {
    /// The same of a router, with its experts' input beside.
    rounded_norm_add_router = "matvec_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, PrologueNormAdd,
        AddedNone, Digits, DigitsBeside, Activation,
    ]
    params Rounded
    bindings {
        codes: read, scales: read, y: write, stream: read, x: read, post_norm: read, norm: read,
        expert_norm: read,
    }
    fixed {}
    consts Team in Team::of_router_held;
}

kernel! {
    /// Of attention whose positions were shared.
    rounded_splits = "matvec_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, PrologueSplits, Added,
        DigitsNone, Activation,
    ]
    params Rounded
    bindings {
        codes: read, scales: read, y: write, bias: read or scales, residual: read or scales, parts: read,
    }
    fixed {}
    consts Team in Team::of_ungated;
}

kernel! {
    /// Of `rms(h) * norm`, where `h` is what the layer in front leaves.
    rounded_layer_end = "matvec_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, RoundedInput, Sum, Rms, PrologueLayerEnd,
        AddedNone, DigitsNone, Activation,
    ]
    params Rounded
    bindings {
        codes: read, scales: read, y: write, dense: read, routed: read, stream: read, vectors: read,
    }
    fixed {}
    consts Team in Team::of_ungated_held;
}

consts! {
    /// Threads, groups and rows of each, logits of a thread that chooses experts, whether a row is
    /// longer than threads have at a time, blocks of rows of a workgroup, and what results are
    /// rounded for.
    ExpertsUp {
        format: Format, threads: u32, steps: u32, rows: u32, keys: u32, long: bool, blocks: u32,
        activation: Activation, down: u32,
    }
}

/// Experts of one token before their last product.
#[derive(Clone, Copy)]
pub(crate) struct UpProduct {
    pub format: Format,
    pub cols: usize,
    /// Rows of an expert, of gate and up.
    pub rows: usize,
    /// Chosen experts and the shared one.
    pub slots: usize,
    pub experts: usize,
    pub activation: Activation,
    /// Of the weights behind.
    pub down: Format,
}

/// Logits of so many experts that a thread has when a subgroup chooses; `None` if they are too
/// many.
pub(crate) fn keys_for(experts: usize) -> Option<u32> {
    [2, 4, 8, 16].into_iter().find(|keys| experts <= 32 * *keys as usize)
}

impl ExpertsUp {
    /// With it, workgroups of each slot; `None` for too many experts.
    pub fn choose(profile: &DeviceProfile, product: &UpProduct) -> Option<(Self, usize)> {
        let UpProduct { format, cols, rows, slots, experts, activation, down } = *product;
        let groups = cols / GROUP;
        // Room for what choosing needs.
        let steps = team(groups)[1].max(2);
        let wide = is_wide(profile, cols);
        // As many rows in a workgroup, whatever its threads.
        let each = if wide { UP_ROWS / 2 } else { UP_ROWS };
        let long = groups > 32 * steps;
        let workgroups = rows.div_ceil(UP_ROWS * THREADS / 32);
        let blocks = if wide && !long && workgroups * slots > profile.product_workgroups { 2 } else { 1 };
        let consts = Self {
            format,
            threads: (UP_ROWS / each * THREADS) as u32,
            steps: steps as u32,
            rows: each as u32,
            keys: keys_for(experts)?,
            long,
            blocks: blocks as u32,
            activation,
            down: bits_of(down),
        };
        Some((consts, workgroups.div_ceil(blocks)))
    }

    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        let kinds = [Activation::Silu, Activation::GeluTanh];
        for (profile, activation) in DeviceProfile::every().iter().flat_map(|p| kinds.map(|kind| (p, kind))) {
            for (bits, experts) in
                [4, 8].into_iter().flat_map(|bits| [64, 128, 256, MOST_EXPERTS].map(|n| (bits, n)))
            {
                for (groups, rows) in (1..=32 * 4 + 1).flat_map(|groups| [(groups, 64), (groups, 1 << 16)]) {
                    let (format, down) = (affine(4), affine(bits));
                    let cols = GROUP * groups;
                    let product = UpProduct { format, cols, rows, slots: 8, experts, activation, down };
                    all.extend(Self::choose(profile, &product).map(|(consts, _)| consts));
                }
            }
        }
        all
    }
}

kernel! {
    experts_up_rounded = "experts_up_rounded" [
        Chain, Lanes, Quads, WholeCodes, Rounding, Rounded, Order, Choose, Sum, Activation,
    ]
    params {
        weight: WeightParams, expert_rows: u32, experts: u32, top_k: u32, slots: u32, kind: u32,
        renormalise: u32, scaling: f32, gated: u32, gate_at: u32, groups: u32,
    }
    bindings {
        codes: read, scales: read, x: read, logits: read, choice_bias: read or logits,
        expert_scale: read or logits, h: write, routes: write,
    }
    fixed { lanes = 32 }
    consts ExpertsUp in ExpertsUp::all;
}

consts! {
    /// Threads, and whether there are more groups than these.
    ExpertsDown { format: Format, threads: u32, long: bool }
}

/// Threads of which each has a group of a row, where there may be as many.
const DOWN_THREADS: [u32; 12] = [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 512];

impl ExpertsDown {
    /// For rows of so many groups, of all slots.
    pub fn choose(profile: &DeviceProfile, format: Format, groups: usize) -> Self {
        let fits = |threads: &u32| groups <= *threads as usize && *threads <= profile.limits.most_threads;
        let threads = DOWN_THREADS.into_iter().find(fits);
        Self { format, threads: threads.unwrap_or(THREADS as u32), long: threads.is_none() }
    }

    pub fn all() -> Vec<Self> {
        let of = |profile: DeviceProfile| (1..=513).map(move |n| Self::choose(&profile, ANY, n));
        DeviceProfile::every().into_iter().flat_map(of).collect()
    }
}

kernel! {
    experts_down_rounded = "experts_down_rounded" [Chain, WholeCodes, Totals]
    params { weight: WeightParams, expert_rows: u32, slots: u32, has_residual: u32 }
    bindings {
        codes: read, scales: read, h: read, routes: read, residual: read or scales, y: write,
    }
    fixed { rows = 4 }
    consts ExpertsDown in ExpertsDown::all;
}
