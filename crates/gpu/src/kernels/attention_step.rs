//! Attention of spans of one token.

use std::ops::RangeInclusive;

use ::backend::CacheFloat;
use checkpoint::Format;

use super::attention::CACHES;
pub(crate) use super::attention::Cache;
use super::product::ANY;
pub(crate) use super::product::FormatOnly;
use crate::device_profile::DeviceProfile;
use crate::kernel::{WeightParams, consts, kernel};
use crate::slabs;

/// Threads of a workgroup, of a position, and positions that it takes at a time.
pub(crate) const THREADS: usize = 256;
pub(crate) const LANES: usize = 8;
pub(crate) const CHUNK: usize = THREADS / LANES;

/// Quads of queries that fit the shared memory of a workgroup, whatever the device.
pub(crate) const QUERY_QUADS: usize = 640;

/// Workgroups that may share the positions of a head, where the product behind puts them together.
pub(crate) const MOST_SPLITS: usize = 4;

/// Threads of a workgroup, and lanes of a position, where workgroups may have as many.
const WIDE_THREADS: usize = 512;
const WIDE_LATENT_LANES: usize = 16;

/// The widest part without a position of a query of latents, and the widest latent.
pub(crate) const WIDEST_PLAIN: usize = 128;
pub(crate) const WIDEST_LATENT: usize = 512;

/// On matrix units: positions of a workgroup, rows of queries and the fewest of them that are worth
/// it, channels of a slice of keys and of values.
pub(crate) const GROUP_SPLIT: usize = 128;
pub(crate) const GROUP_ROWS: RangeInclusive<usize> = 4..=16;
const KEY_SLICE: usize = 64;
const VALUE_SLICE: usize = 128;

/// Threads that norm and turn a head of a single token, and its widest.
const HEAD_THREADS: usize = 128;
pub(crate) const WIDEST_HEAD: usize = 1024;

/// Threads that share a value.
const VALUE_LANES: [usize; 5] = [8, 16, 32, 64, 128];

/// Widths of heads between which choices differ.
fn widths() -> impl Iterator<Item = usize> + Clone {
    (4..=WIDEST_HEAD + 128).step_by(4).filter(|width| width % 32 <= 4)
}

/// The smallest of some sizes that is enough.
fn enough(sizes: &[usize], wanted: usize) -> Option<u32> {
    sizes.iter().copied().find(|size| wanted <= *size).map(|size| size as u32)
}

consts! {
    /// Rows of queries of a workgroup, fours of a key that a thread has, threads of a value, and
    /// room for queries.
    GroupRows { cache: CacheFloat, rows: u32, key_steps: u32, value_lanes: u32, query_quads: u32 }
}

impl GroupRows {
    /// For `group` query heads that share a key head; `None` where heads do not fit.
    pub fn choose(
        profile: &DeviceProfile,
        cache: CacheFloat,
        group: usize,
        [key_dim, value_dim]: [usize; 2],
    ) -> Option<Self> {
        let key_fours = slabs::fours(cache, key_dim);
        let quads = key_fours * slabs::values_in_four(cache) / 4;
        let rows = [8, 4, 2].into_iter().find(|r| r * quads <= QUERY_QUADS && *r < 2 * group).unwrap_or(1);
        let value_fours = value_dim.div_ceil(slabs::values_in_four(cache));
        let fits = rows * quads <= QUERY_QUADS;
        Some(Self {
            cache,
            rows: rows as u32,
            key_steps: enough(&[1, 2, 4, 8, 9, 16, 18], key_fours.div_ceil(LANES))?,
            value_lanes: enough(&VALUE_LANES, value_fours)?,
            query_quads: if profile.has_wide_workgroups() { 1024 } else { QUERY_QUADS as u32 },
        })
        .filter(|_| fits)
    }

    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for profile in [DeviceProfile::smallest(), DeviceProfile::largest()] {
            for (cache, group) in CACHES.into_iter().flat_map(|c| [1, 2, 4, 8].map(|group| (c, group))) {
                for key_dim in widths() {
                    let of = |value_dim| Self::choose(&profile, cache, group, [key_dim, value_dim]);
                    all.extend(widths().filter_map(of));
                }
            }
        }
        all
    }
}

kernel! {
    attention_step = "attention_step" [Lanes, Steps, Seen, Fours, Attend]
    params {
        heads: u32, key_heads: u32, width: u32, width_more: u32, key_fours: u32, value_stride: u32,
        value_fours: u32, value_width: u32, window: u32, scale: f32, soft_cap: f32, first_span: u32,
        spans: u32, table: u32, table_stride: u32, parts: u32, part_len: u32, gate_row: u32,
        gate_stride: u32, gate_at: u32,
    }
    bindings {
        q: read, q_more: read or q, keys: read, values: read, gates: read or q, y: write, steps: read,
    }
    fixed { threads = 256, lanes = 8 }
    consts GroupRows in GroupRows::all;
}

consts! {
    /// Slices of keys and of values.
    GroupSlices { key_slices: u32, value_slices: u32 }
}

impl GroupSlices {
    /// `None` where heads are too wide, or the memory that threads share too small.
    pub fn choose(profile: &DeviceProfile, [key_dim, value_dim]: [usize; 2]) -> Option<Self> {
        let key_slices = enough(&[2, 4, 8, 10], key_dim.div_ceil(KEY_SLICE))?;
        let value_slices = enough(&[1, 2, 4], value_dim.div_ceil(VALUE_SLICE))?;
        // Fours of halves of 16 queries, or of their weights, and of a slice; scores.
        let halves = 16 * (16 * key_slices + 2).max(34) + 128 * 18;
        let shared = 8 * halves + 4 * 16 * 132;
        let fits = profile.limits.matrices && shared <= profile.limits.shared_memory;
        fits.then_some(Self { key_slices, value_slices })
    }

    pub fn all() -> Vec<Self> {
        let profile = DeviceProfile::largest();
        let of = |key_dim| widths().filter_map(move |value_dim| Self::choose(&profile, [key_dim, value_dim]));
        widths().flat_map(of).collect()
    }
}

kernel! {
    attention_group = "attention_group" [Steps, Seen]
    params {
        heads: u32, key_heads: u32, quads: u32, quads_more: u32, key_eights: u32, value_eights: u32,
        value_width: u32, window: u32, scale: f32, soft_cap: f32, first_span: u32, spans: u32, table: u32,
        table_stride: u32, part_len: u32,
    }
    bindings { q: read, q_more: read or q, keys: read, values: read, y: write, steps: read }
    fixed { threads = 256, matrices = 1 }
    consts GroupSlices in GroupSlices::all;
}

consts! {
    /// Fours of a key that a thread has, threads of a value, channels of a head that a thread has,
    /// and whether positions are shared.
    Heads { threads: u32, cache: CacheFloat, key_steps: u32, value_lanes: u32, each: u32, split: bool }
}

impl Heads {
    /// `None` where heads do not fit.
    pub fn choose(
        profile: &DeviceProfile,
        cache: CacheFloat,
        [key_dim, value_dim]: [usize; 2],
        split: bool,
    ) -> Option<Self> {
        let threads = if profile.has_wide_workgroups() { WIDE_THREADS } else { THREADS };
        let fours = [key_dim, value_dim].map(|dim| slabs::fours(cache, dim));
        let fits = heads_fit([key_dim, value_dim]);
        Some(Self {
            threads: threads as u32,
            cache,
            key_steps: enough(&[1, 2, 4, 8, 16], fours[0].div_ceil(LANES))?,
            value_lanes: enough(&VALUE_LANES, fours[1])?,
            each: enough(&[1, 2, 4, 8], key_dim.max(value_dim).div_ceil(threads / 4))?,
            split,
        })
        .filter(|_| fits)
    }

    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for profile in [DeviceProfile::smallest(), DeviceProfile::largest()] {
            for (cache, key_dim) in CACHES.into_iter().flat_map(|c| widths().map(move |width| (c, width))) {
                for value_dim in widths() {
                    let of = |split| Self::choose(&profile, cache, [key_dim, value_dim], split);
                    // Splits are put together eight values at a time.
                    all.extend(of(false).into_iter().chain(of(true).filter(|_| value_dim % 8 == 0)));
                }
            }
        }
        all
    }
}

/// Whether heads of a single token are narrow enough to be taken at once.
pub(crate) fn heads_fit([key_dim, value_dim]: [usize; 2]) -> bool {
    key_dim.max(value_dim) <= WIDEST_HEAD && key_dim.div_ceil(4) <= QUERY_QUADS && value_dim > 0
}

kernel! {
    attention_heads = "attention_heads" [
        Chain, Lanes, Steps, Seen, Store, Fours, NewRows, Attend, Turn, Sum, Rms,
    ]
    params {
        heads: u32, key_heads: u32, width: u32, stride: u32, row_stride: u32, value_width: u32, k_at: u32,
        v_at: u32, key_fours: u32, value_stride: u32, value_fours: u32, first_span: u32, table: u32,
        table_stride: u32, window: u32, pairs: u32, first_angle: u32, interleaved: u32, norm_values: u32,
        gated: u32, eps: f32, scale: f32, soft_cap: f32, part_len: u32,
    }
    bindings {
        x: read, q_norm: read, k_norm: read, steps: read, keys: write, values: write, y: write,
    }
    fixed { lanes = 8, rows = 1, query_quads = 1 }
    consts Heads in Heads::all;
}

consts! {
    /// Channels of a head that a thread has.
    HeadChannels { cache: CacheFloat, each: u32 }
}

impl HeadChannels {
    pub fn choose(cache: CacheFloat, [key_dim, value_dim]: [usize; 2]) -> Self {
        let each = key_dim.max(value_dim).div_ceil(HEAD_THREADS).next_power_of_two();
        Self { cache, each: each as u32 }
    }

    pub fn all() -> Vec<Self> {
        let of = |cache| {
            let fits = widths().map(|width| [width; 2]).filter(|dims| heads_fit(*dims));
            fits.map(move |dims| Self::choose(cache, dims))
        };
        CACHES.into_iter().flat_map(of).collect()
    }
}

kernel! {
    heads_step = "heads_step" [Steps, Store, Words, Turn, Sum, Rms]
    params {
        rows: u32, spans: u32, heads: u32, key_heads: u32, width: u32, stride: u32, row_stride: u32,
        value_width: u32, k_at: u32, v_at: u32, key_words: u32, value_words: u32, table: u32,
        table_stride: u32, pairs: u32, first_angle: u32, interleaved: u32, norm_values: u32, eps: f32,
    }
    bindings { x: read, q_norm: read, k_norm: read, steps: read, q: write, keys: write, values: write }
    fixed { threads = 128 }
    consts HeadChannels in HeadChannels::all;
}

consts! {
    /// Threads, of which so many share a position, fours of a latent that each has, and threads of
    /// a value.
    LatentHeads {
        format: Format, threads: u32, lanes: u32, cache: CacheFloat, key_steps: u32, value_lanes: u32,
    }
}

impl LatentHeads {
    /// For latents of `rank` values behind which `pe` have a position; `None` where they do not
    /// fit. Latents of codes are appended and attended one after the other.
    pub fn choose(
        profile: &DeviceProfile,
        format: Format,
        cache: CacheFloat,
        [rank, pe]: [usize; 2],
    ) -> Option<Self> {
        let wide = profile.has_wide_workgroups();
        let (threads, lanes) = if wide { (WIDE_THREADS, WIDE_LATENT_LANES) } else { (THREADS, LANES) };
        let [key_fours, value_fours] = [rank + pe, rank].map(|width| slabs::words(cache, width).div_ceil(4));
        let fits =
            cache != CacheFloat::Q8 && pe <= THREADS && rank <= WIDEST_LATENT && rank.is_multiple_of(8);
        Some(Self {
            format,
            threads: threads as u32,
            lanes: lanes as u32,
            cache,
            key_steps: enough(&[1, 2, 4, 5, 9, 18], key_fours.div_ceil(lanes))?,
            value_lanes: enough(&VALUE_LANES, value_fours.max(lanes))?,
        })
        .filter(|_| fits)
    }

    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for profile in [DeviceProfile::smallest(), DeviceProfile::largest()] {
            for cache in CACHES {
                for rank in (8..=WIDEST_LATENT).step_by(8) {
                    let of = |pe| Self::choose(&profile, ANY, cache, [rank, pe]);
                    all.extend((4..=THREADS).step_by(4).filter_map(of));
                }
            }
        }
        all
    }
}

kernel! {
    latent_heads = "latent_heads" [
        Chain, WholeCodes, Lanes, Quads, Rounding, Steps, Seen, Store, Fours, Attend, LatentTurn, Sum,
        Rms,
    ]
    params {
        weight: WeightParams, nope: u32, pe: u32, rank: u32, key_heads: u32, key_fours: u32,
        value_stride: u32, value_fours: u32, first_span: u32, spans: u32, table: u32, table_stride: u32,
        window: u32, first_angle: u32, interleaved: u32, eps: f32, scale: f32, soft_cap: f32, heads: u32,
        part_len: u32,
    }
    bindings {
        codes: read, scales: read, q: read, kv: read, norm: read, steps: read, keys: write,
        partial: write,
    }
    fixed { rows = 1, query_quads = 1 }
    consts LatentHeads in LatentHeads::all;
}

kernel! {
    latent_step = "latent_step" [Steps, Store, Words, LatentTurn, Sum, Rms]
    params {
        rows: u32, spans: u32, heads: u32, nope: u32, pe: u32, rank: u32, key_words: u32, table: u32,
        table_stride: u32, first_angle: u32, interleaved: u32, eps: f32,
    }
    bindings {
        q: read, kv: read, norm: read, steps: read, q_plain: write, q_turned: write, keys: write,
    }
    fixed { threads = 128 }
    consts Cache in Cache::all;
}

consts! {
    /// Threads that share a row, and rows of a workgroup.
    MergedRows { format: Format, threads: u32, rows: u32 }
}

impl MergedRows {
    /// For rows of so many eights; `None` where they are too long.
    pub fn choose(profile: &DeviceProfile, format: Format, eights: usize) -> Option<Self> {
        let chains = profile.limits.chains;
        let rows = if chains { profile.latent_out_rows_in_chains } else { profile.latent_out_rows };
        Some(Self { format, threads: enough(&[64, 128], eights)?, rows: rows as u32 })
    }

    pub fn all() -> Vec<Self> {
        let of = |profile: DeviceProfile| (1..=128).filter_map(move |n| Self::choose(&profile, ANY, n));
        DeviceProfile::every().into_iter().flat_map(of).collect()
    }
}

kernel! {
    heads_merged = "heads_merged" [Chain, Codes, Totals, Steps, Seen]
    params {
        weight: WeightParams, head_rows: u32, heads: u32, first_span: u32, spans: u32, window: u32,
        part_len: u32,
    }
    bindings { codes: read, scales: read, partial: read, steps: read, y: write }
    fixed {}
    consts MergedRows in MergedRows::all;
}

kernel! {
    heads_turned = "heads_turned" [Codes]
    params {
        weight: WeightParams, first: u32, end: u32, head_rows: u32, tokens: u32, heads: u32, add: u32,
    }
    bindings { codes: read, scales: read, x: read, y: write }
    fixed { threads = 64 }
    consts FormatOnly in FormatOnly::all;
}
