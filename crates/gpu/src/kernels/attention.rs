//! Attention of several tokens, appending, and putting parts together.

use ::backend::CacheFloat;

use crate::kernel::{consts, kernel};

/// Types of caches.
pub(crate) const CACHES: [CacheFloat; 3] = [CacheFloat::F32, CacheFloat::F16, CacheFloat::Q8];

/// Threads of a workgroup: positions it takes at a time.
pub(crate) const THREADS: usize = 128;

/// Quads of queries that fit the shared memory of a workgroup.
pub(crate) const QUERY_QUADS: usize = 512;

/// Channels of a workgroup that puts parts together.
pub(crate) const MERGED_CHANNELS: usize = 32;

/// The same on matrix units: query rows of a workgroup, which takes as many positions and channels
/// at a time, and the most channels of a value.
pub(crate) const TILE: usize = 64;
pub(crate) const WIDEST_VALUE: usize = 512;

consts! {
    /// How a cache stores values.
    Cache { cache: CacheFloat }
}

impl Cache {
    pub fn all() -> Vec<Self> {
        CACHES.map(|cache| Self { cache }).to_vec()
    }
}

kernel! {
    append = "append" [Steps, Store, Words]
    params {
        rows: u32, spans: u32, heads: u32, width_a: u32, width_b: u32, words: u32, table: u32,
        table_stride: u32,
    }
    bindings { a: read, b: read or a, steps: read, slab: write }
    fixed { threads = 128 }
    consts Cache in Cache::all;
}

consts! {
    /// Query rows of a workgroup, and words of values of a thread.
    QueryRows { cache: CacheFloat, rows: u32, words: u32 }
}

impl QueryRows {
    /// For `count` rows of queries of `quads` fours, and values of so many words; `None` where not
    /// even one row fits.
    pub fn choose(cache: CacheFloat, count: usize, quads: usize, value_words: usize) -> Option<Self> {
        // No more rows than there are, nor than their queries have room.
        let rows = [8, 4, 2].into_iter().find(|r| r * quads <= QUERY_QUADS && *r < 2 * count).unwrap_or(1);
        let words = [1, 2].into_iter().find(|words| value_words <= words * THREADS).unwrap_or(4);
        (rows * quads <= QUERY_QUADS).then_some(Self { cache, rows: rows as u32, words: words as u32 })
    }

    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for (count, quads) in [(1, 1), (2, 1), (4, 1), (8, 1)] {
            for value_words in [THREADS, 2 * THREADS, 4 * THREADS] {
                all.extend(CACHES.iter().filter_map(|c| Self::choose(*c, count, quads, value_words)));
            }
        }
        all
    }
}

kernel! {
    attention = "attention" [Steps, Rows, Seen]
    params {
        first_span: u32, shortest: u32, longest: u32, first_row: u32, rows: u32, heads: u32,
        key_heads: u32, width: u32, width_more: u32, key_words: u32, value_stride: u32, value_words: u32,
        value_width: u32, table: u32, table_stride: u32, window: u32, scale: f32, soft_cap: f32,
        parts: u32, part_len: u32, chunks: u32,
    }
    bindings { q: read, q_more: read or q, keys: read, values: read, y: write, steps: read }
    fixed { threads = 128, query_quads = 512 }
    consts QueryRows in QueryRows::all;
}

consts! {
    /// Tiles of channels of a value.
    Slices { slices: u32 }
}

impl Slices {
    pub fn choose(value_width: usize) -> Self {
        Self { slices: [1, 2, 4].into_iter().find(|s| value_width <= *s as usize * TILE).unwrap_or(8) }
    }

    pub fn all() -> Vec<Self> {
        (1..=WIDEST_VALUE).map(Self::choose).collect()
    }
}

kernel! {
    attention_tiles = "attention_tiles" [Steps, Seen]
    params {
        first_span: u32, first_row: u32, rows: u32, group: u32, heads: u32, key_heads: u32,
        query_eights: u32, key_eights: u32, value_eights: u32, value_width: u32, table: u32,
        table_stride: u32, window: u32, scale: f32, soft_cap: f32, parts: u32, part_len: u32,
    }
    bindings { queries: read, factors: read, keys: read, values: read, y: write, steps: read }
    fixed { threads = 256, matrices = 1 }
    consts Slices in Slices::all;
}

kernel! {
    attention_merge = "attention_merge" [Steps, Seen]
    params {
        spans: u32, items: u32, first: u32, by_span: u32, shortest: u32, longest: u32, heads: u32,
        width: u32, window: u32, part_len: u32, gate_row: u32, gate_stride: u32, gate_at: u32,
    }
    bindings { partial: read, gates: read or partial, y: write, steps: read }
    fixed { threads = 256 }
}
