//! Key-value caches and recurrent states of one layer of one sequence.

use ::backend::{CacheFloat, Error, GdnShape, KvImage, KvShape, RecurrentImage, Result};
use half::f16;
use half::slice::HalfFloatSliceExt;

/// Rows of floats in the cache's own type.
enum Store {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl Store {
    fn new(float: CacheFloat) -> Self {
        match float {
            CacheFloat::F32 => Store::F32(Vec::new()),
            CacheFloat::F16 => Store::F16(Vec::new()),
        }
    }

    fn resize(&mut self, len: usize) -> Result<()> {
        fn grow<T: Clone + Default>(values: &mut Vec<T>, len: usize) -> Result<()> {
            values.try_reserve(len.saturating_sub(values.len())).map_err(|_| {
                Error::OutOfMemory(format!("a key-value cache of {} bytes was refused", len * size_of::<T>()))
            })?;
            values.resize(len, T::default());
            Ok(())
        }
        match self {
            Store::F32(values) => grow(values, len),
            Store::F16(values) => grow(values, len),
        }
    }

    fn write(&mut self, at: usize, row: &[f32]) {
        match self {
            Store::F32(values) => values[at..at + row.len()].copy_from_slice(row),
            Store::F16(values) => values[at..at + row.len()].convert_from_f32_slice(row),
        }
    }

    fn read(&self, at: usize, out: &mut [f32]) {
        match self {
            Store::F32(values) => out.copy_from_slice(&values[at..at + out.len()]),
            Store::F16(values) => values[at..at + out.len()].convert_to_f32_slice(out),
        }
    }

    fn push_bytes(&self, at: usize, len: usize, out: &mut Vec<u8>) {
        match self {
            Store::F32(values) => values[at..at + len].iter().for_each(|v| out.extend(v.to_le_bytes())),
            Store::F16(values) => values[at..at + len].iter().for_each(|v| out.extend(v.to_le_bytes())),
        }
    }

    fn write_bytes(&mut self, at: usize, bytes: &[u8]) {
        match self {
            Store::F32(values) => {
                for (value, b) in values[at..].iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*b);
                }
            }
            Store::F16(values) => {
                for (value, b) in values[at..].iter_mut().zip(bytes.as_chunks().0) {
                    *value = f16::from_le_bytes(*b);
                }
            }
        }
    }
}

/// Keys and values, token-major. Position `p` lives in slot `p % slots`; without a window there are as many slots as
/// tokens, with one the slots stop growing at the window plus the longest step.
pub struct KvCache {
    pub(crate) shape: KvShape,
    len: usize,
    /// Oldest position still stored.
    first: usize,
    slots: usize,
    keys: Store,
    values: Store,
}

impl KvCache {
    pub(crate) fn new(shape: &KvShape) -> Self {
        let (keys, values) = (Store::new(shape.float), Store::new(shape.float));
        Self { shape: *shape, len: 0, first: 0, slots: 0, keys, values }
    }

    /// Tokens seen.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn key_row(&self) -> usize {
        self.shape.heads * self.shape.key_dim
    }

    fn value_row(&self) -> usize {
        self.shape.heads * self.shape.value_dim
    }

    /// Makes room for `n` more tokens without losing one that they can see.
    pub(crate) fn reserve(&mut self, n: usize) -> Result<()> {
        let wanted = match self.shape.window {
            None => self.len + n,
            Some(window) => (self.len + n).min(window - 1 + n),
        };
        if wanted <= self.slots {
            return Ok(());
        }
        if self.first == 0 && self.len <= self.slots {
            // Nothing has wrapped yet: slots keep their places.
            self.slots = wanted;
            self.keys.resize(wanted * self.key_row())?;
            return self.values.resize(wanted * self.value_row());
        }
        let image = self.image();
        *self = Self::from_image(&self.shape, &image, wanted)?;
        Ok(())
    }

    /// Appends one token; `reserve` has been called.
    pub(crate) fn push(&mut self, key: &[f32], value: &[f32]) {
        let slot = self.len % self.slots;
        self.keys.write(slot * self.key_row(), key);
        self.values.write(slot * self.value_row(), value);
        self.len += 1;
        self.first = self.first.max(self.len.saturating_sub(self.slots));
    }

    /// One head's key at a position.
    pub(crate) fn key(&self, position: usize, head: usize, out: &mut [f32]) {
        self.keys.read((position % self.slots) * self.key_row() + head * self.shape.key_dim, out);
    }

    /// One head's value at a position.
    pub(crate) fn value(&self, position: usize, head: usize, out: &mut [f32]) {
        self.values.read((position % self.slots) * self.value_row() + head * self.shape.value_dim, out);
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
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for position in self.first..self.len {
            let slot = position % self.slots;
            self.keys.push_bytes(slot * self.key_row(), self.key_row(), &mut keys);
            self.values.push_bytes(slot * self.value_row(), self.value_row(), &mut values);
        }
        KvImage { first: self.first, len: self.len, keys, values }
    }

    /// A cache from its checked image, with at least `slots` slots.
    pub(crate) fn from_image(shape: &KvShape, image: &KvImage, slots: usize) -> Result<Self> {
        let mut cache = Self::new(shape);
        cache.slots = slots.max(image.len - image.first).max(1);
        cache.keys.resize(cache.slots * cache.key_row())?;
        cache.values.resize(cache.slots * cache.value_row())?;
        (cache.first, cache.len) = (image.first, image.len);
        let row_bytes = |row: usize| row * shape.float.bytes();
        for (i, position) in (image.first..image.len).enumerate() {
            let slot = position % cache.slots;
            let (k, v) = (row_bytes(cache.key_row()), row_bytes(cache.value_row()));
            cache.keys.write_bytes(slot * cache.key_row(), &image.keys[i * k..(i + 1) * k]);
            cache.values.write_bytes(slot * cache.value_row(), &image.values[i * v..(i + 1) * v]);
        }
        Ok(cache)
    }
}

/// Convolution window and recurrent matrices of a Gated DeltaNet layer.
#[derive(Clone)]
pub struct Recurrent {
    pub(crate) shape: GdnShape,
    /// The last `kernel - 1` inputs `[kernel - 1][channels]`, oldest first.
    pub(crate) window: Vec<f32>,
    /// `S[value_head][dv][dk]`
    pub(crate) state: Vec<f32>,
}

impl Recurrent {
    pub(crate) fn new(shape: &GdnShape) -> Self {
        Self { shape: *shape, window: vec![0.0; shape.window_len()], state: vec![0.0; shape.state_len()] }
    }

    pub(crate) fn image(&self) -> RecurrentImage {
        RecurrentImage { window: self.window.clone(), state: self.state.clone() }
    }

    pub(crate) fn from_image(shape: &GdnShape, image: &RecurrentImage) -> Self {
        Self { shape: *shape, window: image.window.clone(), state: image.state.clone() }
    }
}
