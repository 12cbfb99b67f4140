//! Key-value caches of one layer of one sequence.
//!
//! Position `p` lives in slot `p % slots`, as a row of all heads' channels; a head's are filled up to a multiple of four. In a cache of
//! codes, a head's codes are filled up to a multiple of 16, and followed by its scales, these to a multiple of 8.

use ::backend::{CacheFloat, Handle, KvImage, KvShape, Result};

use crate::Gpu;
use crate::pool::Buffer;
use crate::recorder::Copy;

/// Slots that a cache grows by at least.
const GROWTH: usize = 256;

/// Keys and values on the device.
pub struct KvCache {
    pub(crate) shape: KvShape,
    len: usize,
    /// Oldest position still stored.
    first: usize,
    slots: usize,
    /// Absent while there are no slots.
    keys: Option<Buffer>,
    /// Absent, too, where keys are values.
    values: Option<Buffer>,
}

impl KvCache {
    pub(crate) fn new(shape: &KvShape) -> Self {
        Self { shape: *shape, len: 0, first: 0, slots: 0, keys: None, values: None }
    }

    /// Tokens seen.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Words that a head of `width` channels takes.
    pub(crate) fn words(&self, width: usize) -> usize {
        words(self.shape.float, width)
    }

    /// The parts of a head of `width` channels in words and in an image: where each begins here, and its bytes.
    fn parts(&self, width: usize) -> Vec<(usize, usize)> {
        match self.shape.float {
            CacheFloat::Q8 => {
                vec![(0, width), (4 * code_words(width), 2 * width.div_ceil(CacheFloat::GROUP))]
            }
            float => vec![(0, float.row_bytes(width))],
        }
    }

    /// What kernels that take a single token read at once of a head of `width` channels: four words, or two of codes.
    pub(crate) fn fours(&self, width: usize) -> usize {
        fours(self.shape.float, width)
    }

    /// Channels of these.
    pub(crate) fn values_in_four(&self) -> usize {
        values_in_four(self.shape.float)
    }

    /// Bytes of one slot of a plane whose heads have `width` channels.
    fn slot_bytes(&self, width: usize) -> u64 {
        4 * (self.shape.heads * self.words(width)) as u64
    }

    pub(crate) fn keys(&self) -> &Buffer {
        self.keys.as_ref().expect("attention comes after an append")
    }

    /// The plane of values, unless keys are values.
    pub(crate) fn values(&self) -> Option<&Buffer> {
        self.values.as_ref()
    }

    /// Where attention finds values, and the channels of a head there: keys, where these are values.
    pub(crate) fn value_plane(&self) -> (&Buffer, usize) {
        match self.values() {
            Some(values) => (values, self.shape.value_dim),
            None => (self.keys(), self.shape.key_dim),
        }
    }

    pub(crate) fn truncate(&mut self, len: usize) -> bool {
        let needed = self.shape.window.map_or(0, |window| (len + 1).saturating_sub(window));
        if len > self.len || self.first > needed {
            return false;
        }
        self.len = len;
        true
    }

    /// Counts `n` appended tokens.
    pub(crate) fn advance(&mut self, n: usize) {
        self.len += n;
        self.first = self.first.max(self.len.saturating_sub(self.slots));
    }
}

/// Words that a head of `width` channels takes.
pub(crate) fn words(float: CacheFloat, width: usize) -> usize {
    match float {
        CacheFloat::F32 => width.next_multiple_of(4),
        CacheFloat::F16 => width.next_multiple_of(4) / 2,
        CacheFloat::Q8 => code_words(width) + (width.div_ceil(CacheFloat::GROUP)).div_ceil(8) * 4,
    }
}

/// What kernels that take a single token read at once of a head of `width` channels: four words, or two of codes.
pub(crate) fn fours(float: CacheFloat, width: usize) -> usize {
    match float {
        CacheFloat::F32 | CacheFloat::F16 => words(float, width) / 4,
        CacheFloat::Q8 => code_words(width) / 2,
    }
}

/// Channels of these.
pub(crate) fn values_in_four(float: CacheFloat) -> usize {
    if float == CacheFloat::F32 { 4 } else { 8 }
}

/// Words of the codes of a head of `width` channels.
fn code_words(width: usize) -> usize {
    width.next_multiple_of(16) / 4
}

/// Runs of positions `first..len` that are neighbours both among `from` and among `to` slots.
fn runs(first: usize, len: usize, from: usize, to: usize) -> Vec<(usize, usize, usize)> {
    let mut runs = Vec::new();
    let mut position = first;
    while position < len {
        let n = (len - position).min(from - position % from).min(to - position % to);
        runs.push((position % from, position % to, n));
        position += n;
    }
    runs
}

impl Gpu {
    /// Makes room for `n` more tokens without losing one that they can see.
    pub(crate) fn reserve(&self, cache: &mut KvCache, n: usize) -> Result<()> {
        let wanted = match cache.shape.window {
            None => cache.len + n,
            Some(window) => (cache.len + n).min(window - 1 + n),
        };
        if wanted <= cache.slots {
            return Ok(());
        }
        let slots = match cache.shape.window {
            None => wanted.next_multiple_of(GROWTH).max(cache.slots * 3 / 2),
            Some(window) => wanted.next_multiple_of(GROWTH).min((window - 1 + n).max(wanted)),
        };
        // Room to grow, but no further than a kernel reaches.
        let widest = cache.slot_bytes(cache.shape.key_dim.max(cache.shape.value_dim));
        let slots = slots.min((self.device.largest_binding / widest) as usize).max(wanted);
        let grow = |old: Option<&Buffer>, width: usize| -> Result<Buffer> {
            let bytes = cache.slot_bytes(width);
            let new = self.pool.fresh("a key-value cache", slots as u64 * bytes)?;
            if let Some(old) = old {
                let copy = |(from, to, n): (usize, usize, usize)| Copy {
                    from: from as u64 * bytes,
                    to: to as u64 * bytes,
                    len: n as u64 * bytes,
                };
                let copies: Vec<Copy> =
                    runs(cache.first, cache.len, cache.slots, slots).into_iter().map(copy).collect();
                self.recorder.copy(old, &new, &copies);
            }
            Ok(new)
        };
        let keys = grow(cache.keys.as_ref(), cache.shape.key_dim)?;
        let values = match cache.shape.value_dim {
            0 => None,
            width => Some(grow(cache.values.as_ref(), width)?),
        };
        (cache.keys, cache.values, cache.slots) = (Some(keys), values, slots);
        Ok(())
    }

    pub(crate) fn image(&self, cache: &KvCache) -> Result<KvImage> {
        let KvShape { heads, key_dim, value_dim, float, .. } = cache.shape;
        let plane = |buffer: Option<&Buffer>, width: usize| -> Result<Vec<u8>> {
            let Some(buffer) = buffer else { return Ok(Vec::new()) };
            let slot = cache.slot_bytes(width) as usize;
            let [bytes] = self.recorder.read([(buffer, (cache.slots * slot) as u64)])?;
            let mut out = Vec::with_capacity((cache.len - cache.first) * heads * float.row_bytes(width));
            let parts = cache.parts(width);
            for position in cache.first..cache.len {
                let row = &bytes[position % cache.slots * slot..][..slot];
                for head in row.chunks_exact(4 * cache.words(width)) {
                    parts.iter().for_each(|(at, len)| out.extend(&head[*at..at + len]));
                }
            }
            Ok(out)
        };
        let keys = plane(cache.keys.as_ref(), key_dim)?;
        let values = plane(cache.values.as_ref(), value_dim)?;
        Ok(KvImage { first: cache.first, len: cache.len, keys, values })
    }

    /// A cache from its checked image of `tokens` tokens.
    pub(crate) fn cache_of(&self, shape: &KvShape, image: &KvImage, tokens: usize) -> Result<KvCache> {
        let mut cache = KvCache::new(shape);
        if tokens == 0 {
            (cache.first, cache.len) = (image.first, image.len);
            return Ok(cache);
        }
        cache.slots = tokens;
        let plane = |bytes: &[u8], width: usize| -> Result<Buffer> {
            let slot = cache.slot_bytes(width) as usize;
            let buffer = self.pool.fresh("a key-value cache", (tokens * slot) as u64)?;
            let mut out = vec![0; tokens * slot];
            let (head, parts) = (shape.float.row_bytes(width), cache.parts(width));
            for (i, position) in (image.first..image.len).enumerate() {
                let row = &mut out[position % tokens * slot..][..slot];
                let heads = bytes[i * shape.heads * head..].chunks_exact(head);
                for (to, mut from) in row.chunks_exact_mut(4 * cache.words(width)).zip(heads) {
                    for (at, len) in &parts {
                        let (part, rest) = from.split_at(*len);
                        to[*at..at + len].copy_from_slice(part);
                        from = rest;
                    }
                }
            }
            self.recorder.write(&buffer, &out);
            Ok(buffer)
        };
        let keys = plane(&image.keys, shape.key_dim)?;
        let values = match shape.value_dim {
            0 => None,
            width => Some(plane(&image.values, width)?),
        };
        (cache.keys, cache.values) = (Some(keys), values);
        (cache.first, cache.len) = (image.first, image.len);
        Ok(cache)
    }
}

impl Handle for KvCache {
    type Shape = (KvShape, usize);

    fn shape(&self) -> (KvShape, usize) {
        (self.shape, self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_every_position_once() {
        for (first, len, from, to) in [(0, 10, 16, 32), (20, 33, 16, 19), (5, 5, 8, 9), (7, 23, 16, 40)] {
            let mut seen = Vec::new();
            for (a, b, n) in runs(first, len, from, to) {
                assert!(a + n <= from && b + n <= to);
                seen.extend((0..n).map(|i| (a + i, b + i)));
            }
            let expected: Vec<_> = (first..len).map(|p| (p % from, p % to)).collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn heads_are_whole_quads() {
        let shape = KvShape { heads: 2, key_dim: 6, value_dim: 3, float: CacheFloat::F16, window: None };
        let cache = KvCache::new(&shape);
        assert_eq!((cache.words(6), cache.words(3), cache.slot_bytes(6)), (4, 2, 32));
    }

    #[test]
    fn codes_are_followed_by_their_scales() {
        let shape = KvShape { heads: 2, key_dim: 256, value_dim: 33, float: CacheFloat::Q8, window: None };
        let cache = KvCache::new(&shape);
        for (width, words, fours, parts) in [
            (256, 64 + 4, 32, [(0, 256), (256, 16)]),
            (33, 12 + 4, 6, [(0, 33), (48, 4)]),
            (128, 32 + 4, 16, [(0, 128), (128, 8)]),
            (576, 144 + 12, 72, [(0, 576), (576, 36)]),
        ] {
            assert_eq!((cache.words(width), cache.fours(width)), (words, fours), "{width}");
            assert_eq!(cache.parts(width), parts, "{width}");
            // Kernels find the one by the other.
            assert_eq!(words - words.div_ceil(68) * 4, 2 * fours);
            assert_eq!(2 * (fours + fours.div_ceil(32) * 2), words);
        }
    }
}
