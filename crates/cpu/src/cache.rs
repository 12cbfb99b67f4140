//! Key-value caches of one layer of one sequence.
//!
//! Tokens lie in blocks of [`BLOCK`] slots, all of a head's in one place, the way attention takes them in: a value is a row;
//! keys are turned round in panels of [`PANEL`] slots, `[channel][slot]`, so that scores need no sums across lanes. A
//! latent cache, whose keys are values too, keeps its keys as rows.

use ::backend::{CacheFloat, Error, KvImage, KvShape, Result};
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::aligned::Aligned;
use crate::ops::dense::PANEL;
use crate::ops::softmax::{BLOCK, Stored};

/// Floats in the cache's own type.
enum Store {
    F32(Aligned<f32>),
    F16(Aligned<f16>),
}

/// Where a row of floats lies: the first, and the distance from one to the next.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    step: usize,
}

impl Place {
    fn places(self, len: usize) -> impl Iterator<Item = usize> {
        (0..len).map(move |i| self.at + i * self.step)
    }
}

impl Store {
    fn new(float: CacheFloat) -> Self {
        match float {
            CacheFloat::F32 => Store::F32(Aligned::new()),
            CacheFloat::F16 => Store::F16(Aligned::new()),
        }
    }

    fn grow(&mut self, len: usize) -> Result<()> {
        let (grown, bytes) = match self {
            Store::F32(values) => (values.grow(len), 4 * len),
            Store::F16(values) => (values.grow(len), 2 * len),
        };
        grown.map_err(|_| Error::OutOfMemory(format!("a key-value cache of {bytes} bytes was refused")))
    }

    fn write(&mut self, place: Place, row: &[f32]) {
        match (self, place) {
            (Store::F32(values), Place { at, step: 1 }) => values[at..at + row.len()].copy_from_slice(row),
            (Store::F16(values), Place { at, step: 1 }) => {
                values[at..at + row.len()].convert_from_f32_slice(row);
            }
            (Store::F32(values), _) => {
                place.places(row.len()).zip(row).for_each(|(at, v)| values[at] = *v);
            }
            (Store::F16(values), _) => {
                let mut halves = [f16::ZERO; 64];
                for (i, row) in row.chunks(64).enumerate() {
                    let halves = &mut halves[..row.len()];
                    halves.convert_from_f32_slice(row);
                    let place = Place { at: place.at + i * 64 * place.step, ..place };
                    place.places(row.len()).zip(halves).for_each(|(at, v)| values[at] = *v);
                }
            }
        }
    }

    /// `len` floats from `at` on.
    fn range(&self, at: usize, len: usize) -> Stored<'_> {
        match self {
            Store::F32(values) => Stored::F32(&values[at..at + len]),
            Store::F16(values) => Stored::F16(values[at..at + len].reinterpret_cast()),
        }
    }

    fn push_bytes(&self, place: Place, len: usize, out: &mut Vec<u8>) {
        match self {
            Store::F32(values) => place.places(len).for_each(|at| out.extend(values[at].to_le_bytes())),
            Store::F16(values) => place.places(len).for_each(|at| out.extend(values[at].to_le_bytes())),
        }
    }

    /// Takes as many floats from the front of `bytes`.
    fn write_bytes(&mut self, place: Place, len: usize, bytes: &mut &[u8]) {
        match self {
            Store::F32(values) => {
                let (now, later) = bytes.split_at(4 * len);
                let floats = now.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
                place.places(len).zip(floats).for_each(|(at, v)| values[at] = v);
                *bytes = later;
            }
            Store::F16(values) => {
                let (now, later) = bytes.split_at(2 * len);
                let floats = now.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b));
                place.places(len).zip(floats).for_each(|(at, v)| values[at] = v);
                *bytes = later;
            }
        }
    }
}

/// Keys and values. Position `p` lives in slot `p % slots`; slots are whole blocks, so that neighbouring positions of a
/// block are neighbours here.
pub struct KvCache {
    pub(crate) shape: KvShape,
    len: usize,
    /// Oldest position still stored.
    first: usize,
    /// Tokens that are kept at most: without a window all there are, with one the window and the longest step.
    kept: usize,
    slots: usize,
    keys: Store,
    values: Store,
}

impl KvCache {
    pub(crate) fn new(shape: &KvShape) -> Self {
        let (keys, values) = (Store::new(shape.float), Store::new(shape.float));
        Self { shape: *shape, len: 0, first: 0, kept: 0, slots: 0, keys, values }
    }

    /// Tokens seen.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether keys are kept as rows.
    fn latent(&self) -> bool {
        self.shape.value_dim == 0
    }

    /// Where the block of `position` begins for a head of `width` channels.
    fn block(&self, position: usize, head: usize, width: usize) -> usize {
        (position % self.slots / BLOCK * self.shape.heads + head) * BLOCK * width
    }

    fn key_place(&self, position: usize, head: usize) -> Place {
        let width = self.shape.key_dim;
        let (block, slot) = (self.block(position, head, width), position % BLOCK);
        if self.latent() {
            return Place { at: block + slot * width, step: 1 };
        }
        Place { at: block + slot / PANEL * PANEL * width + slot % PANEL, step: PANEL }
    }

    fn value_place(&self, position: usize, head: usize) -> Place {
        let width = self.shape.value_dim;
        Place { at: self.block(position, head, width) + position % BLOCK * width, step: 1 }
    }

    /// Makes room for `kept` tokens.
    fn keep(&mut self, kept: usize) -> Result<()> {
        self.kept = kept;
        self.slots = self.slots.max(kept.max(1).next_multiple_of(BLOCK));
        self.keys.grow(self.slots * self.shape.heads * self.shape.key_dim)?;
        self.values.grow(self.slots * self.shape.heads * self.shape.value_dim)
    }

    /// Makes room for `n` more tokens without losing one that they can see.
    pub(crate) fn reserve(&mut self, n: usize) -> Result<()> {
        let wanted = match self.shape.window {
            None => self.len + n,
            Some(window) => (self.len + n).min(window - 1 + n),
        };
        if wanted <= self.kept {
            return Ok(());
        }
        if wanted <= self.slots || self.first == 0 && self.len <= self.slots {
            // There are slots enough, or nothing has wrapped yet: tokens keep their places.
            return self.keep(wanted);
        }
        let image = self.image();
        *self = Self::from_image(&self.shape, &image, wanted)?;
        Ok(())
    }

    /// Appends one token; `reserve` has been called. A latent's key comes in two parts.
    pub(crate) fn push(&mut self, key: [&[f32]; 2], value: &[f32]) {
        let KvShape { heads, key_dim, value_dim, .. } = self.shape;
        let position = self.len;
        if self.latent() {
            let Place { at, step } = self.key_place(position, 0);
            self.keys.write(Place { at, step }, key[0]);
            self.keys.write(Place { at: at + key[0].len(), step }, key[1]);
        } else {
            for head in 0..heads {
                self.keys.write(self.key_place(position, head), &key[0][head * key_dim..][..key_dim]);
                self.values.write(self.value_place(position, head), &value[head * value_dim..][..value_dim]);
            }
        }
        self.len += 1;
        self.first = self.first.max(self.len.saturating_sub(self.kept));
    }

    /// One head's keys in the block that begins at position `start`, as they are kept: two panels, or `n` rows of a
    /// latent cache. Where a position is no longer or not yet stored, what its slot holds.
    pub(crate) fn keys(&self, start: usize, n: usize, head: usize) -> Stored<'_> {
        let width = self.shape.key_dim;
        let n = if self.latent() { n } else { n.next_multiple_of(PANEL) };
        self.keys.range(self.block(start, head, width), n * width)
    }

    /// The first `n` of one head's values in the block that begins at position `start`.
    pub(crate) fn values(&self, start: usize, n: usize, head: usize) -> Stored<'_> {
        let width = self.shape.value_dim;
        self.values.range(self.block(start, head, width), n * width)
    }

    /// One head's keys in the block that begins at position `start`, to ask for them in advance; nothing if they are not
    /// halves.
    pub(crate) fn ahead(&self, start: usize, head: usize) -> &[u16] {
        match self.keys(start, BLOCK.min(self.len - start), head) {
            Stored::F32(_) => &[],
            Stored::F16(halves) => halves,
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

    pub(crate) fn image(&self) -> KvImage {
        let KvShape { heads, key_dim, value_dim, float, .. } = self.shape;
        let bytes = |width: usize| (self.len - self.first) * heads * width * float.bytes();
        let (mut keys, mut values) =
            (Vec::with_capacity(bytes(key_dim)), Vec::with_capacity(bytes(value_dim)));
        for position in self.first..self.len {
            for head in 0..heads {
                self.keys.push_bytes(self.key_place(position, head), key_dim, &mut keys);
                self.values.push_bytes(self.value_place(position, head), value_dim, &mut values);
            }
        }
        KvImage { first: self.first, len: self.len, keys, values }
    }

    /// A cache from its checked image, with room for at least `kept` tokens.
    pub(crate) fn from_image(shape: &KvShape, image: &KvImage, kept: usize) -> Result<Self> {
        let mut cache = Self::new(shape);
        cache.keep(kept.max(image.len - image.first))?;
        (cache.first, cache.len) = (image.first, image.len);
        let (mut keys, mut values) = (image.keys.as_slice(), image.values.as_slice());
        for position in image.first..image.len {
            for head in 0..shape.heads {
                cache.keys.write_bytes(cache.key_place(position, head), shape.key_dim, &mut keys);
                cache.values.write_bytes(cache.value_place(position, head), shape.value_dim, &mut values);
            }
        }
        Ok(cache)
    }
}
