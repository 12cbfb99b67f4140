//! Key-value caches of one layer of one sequence.
//!
//! Tokens lie in blocks of [`BLOCK`] slots, all of a head's in one place, the way attention takes them in: a value is a row;
//! keys are turned round in panels of [`PANEL`] slots, `[channel][slot]`, so that scores need no sums across lanes. A
//! latent cache, whose keys are values too, keeps its keys as rows.
//!
//! With fast numerics a cache of halves keeps whole numbers and a scale per row (`ops/pairs.rs`), in pairs: of a key's channels, of
//! a value's slots. Its image is of halves all the same, and exact. A cache of codes (`ops/q8.rs`) has them as rows, but those of keys, with
//! fast numerics, in the same places; and their scales as `[group][slot]` of a block.

use ::backend::{CacheFloat, Error, Handle, KvImage, KvShape, Result};
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::Numerics;
use crate::aligned::Aligned;
use crate::ops::dense::PANEL;
use crate::ops::pairs::{Whole, round_row};
use crate::ops::q8::{self, Codes, GROUP};
use crate::ops::softmax::{BLOCK, Block, Numbers, Stored, Values};

/// Rows of numbers as the cache keeps them.
enum Store {
    F32(Aligned<f32>),
    F16(Aligned<f16>),
    Whole {
        numbers: Aligned<i16>,
        scales: Aligned<f32>,
    },
    /// Units are of use with fast numerics only.
    Codes {
        codes: Aligned<i8>,
        scales: Aligned<f16>,
        units: Option<Aligned<f32>>,
    },
}

/// Where a row lies: its first number, how many are neighbours (one, two or all), and the distance from these to the next such; and
/// its number, by which its scale is found.
#[derive(Clone, Copy)]
struct Place {
    at: usize,
    run: usize,
    step: usize,
    row: usize,
}

impl Place {
    /// Where the scales of a row of codes lie.
    fn scales(self, width: usize) -> impl Iterator<Item = usize> {
        let groups = width.div_ceil(GROUP);
        (0..groups).map(move |g| (self.row / BLOCK * groups + g) * BLOCK + self.row % BLOCK)
    }

    fn places(self, len: usize) -> impl Iterator<Item = usize> {
        let runs = (0..len.div_ceil(self.run)).map(move |i| (self.at + i * self.step, len - i * self.run));
        runs.flat_map(move |(at, left)| at..at + left.min(self.run))
    }

    /// Writes a row to where it belongs.
    fn write<T: Copy>(self, row: &[T], values: &mut [T]) {
        match self.run {
            1 => row.iter().enumerate().for_each(|(i, v)| values[self.at + i * self.step] = *v),
            2 => {
                let (pairs, odd) = row.as_chunks::<2>();
                for (i, pair) in pairs.iter().enumerate() {
                    values[self.at + i * self.step..][..2].copy_from_slice(pair);
                }
                odd.iter().for_each(|v| values[self.at + pairs.len() * self.step] = *v);
            }
            _ => values[self.at..][..row.len()].copy_from_slice(row),
        }
    }
}

/// Rows of a [`Store`].
enum Rows<'a> {
    Floats(Stored<'a>),
    Numbers(Numbers<'a>),
}

impl Store {
    fn new(float: CacheFloat, numerics: Numerics) -> Self {
        match (float, numerics) {
            (CacheFloat::F32, _) => Store::F32(Aligned::new()),
            (CacheFloat::F16, Numerics::Exact) => Store::F16(Aligned::new()),
            (CacheFloat::F16, Numerics::Fast) => {
                Store::Whole { numbers: Aligned::new(), scales: Aligned::new() }
            }
            (CacheFloat::Q8, numerics) => Store::Codes {
                codes: Aligned::new(),
                scales: Aligned::new(),
                units: (numerics == Numerics::Fast).then(Aligned::new),
            },
        }
    }

    /// Makes room for `rows` rows of `width`, and, where that takes new memory, for `spare` more.
    fn grow(&mut self, rows: usize, spare: usize, width: usize) -> Result<()> {
        let (len, room) = (rows * width, (rows + spare) * width);
        let (grown, bytes) = match self {
            Store::F32(values) => (values.grow(len, room), 4 * len),
            Store::F16(values) => (values.grow(len, room), 2 * len),
            Store::Whole { numbers, scales } => {
                let grown = numbers.grow(len, room).and_then(|()| scales.grow(rows, rows + spare));
                (grown, 2 * len + 4 * rows)
            }
            Store::Codes { codes, scales, units } => {
                let groups = width.div_ceil(GROUP);
                let grown = codes
                    .grow(len, room)
                    .and_then(|()| scales.grow(rows * groups, (rows + spare) * groups))
                    .and_then(|()| units.as_mut().map_or(Ok(()), |units| units.grow(rows, rows + spare)));
                (grown, len + 2 * rows * groups)
            }
        };
        grown.map_err(|_| Error::OutOfMemory(format!("a key-value cache of {bytes} bytes was refused")))
    }

    /// Has memory ready for so many rows of `width`, where there is room.
    fn expect(&mut self, rows: usize, width: usize) {
        match self {
            Store::F32(values) => values.expect(rows * width),
            Store::F16(values) => values.expect(rows * width),
            Store::Whole { numbers, .. } => numbers.expect(rows * width),
            Store::Codes { codes, .. } => codes.expect(rows * width),
        }
    }

    fn write(&mut self, place: Place, row: &[f32]) {
        let halves = || {
            let mut halves = vec![f16::ZERO; row.len()];
            halves.convert_from_f32_slice(row);
            halves
        };
        match self {
            Store::F32(values) => place.write(row, values),
            Store::F16(values) => place.write(&halves(), values),
            Store::Whole { numbers, scales } => {
                let mut rounded = vec![0; row.len()];
                scales[place.row] = round_row(&halves().to_f32_vec(), &mut rounded);
                place.write(&rounded, numbers);
            }
            Store::Codes { .. } => {
                let mut codes = vec![0; row.len()];
                let mut scales = vec![f16::ZERO; row.len().div_ceil(GROUP)];
                q8::round_row(row, &mut codes, &mut scales);
                self.write_codes(place, &codes, &scales);
            }
        }
    }

    /// Writes a row of codes and its scales; only where codes are kept.
    fn write_codes(&mut self, place: Place, row: &[i8], row_scales: &[f16]) {
        let Store::Codes { codes, scales, units } = self else { return };
        place.write(row, codes);
        place.scales(row.len()).zip(row_scales).for_each(|(at, scale)| scales[at] = *scale);
        if let Some(units) = units {
            units[place.row] = q8::unit(row, row_scales);
        }
    }

    /// `n` rows from the first of a block on, and the scales of the block.
    fn rows(&self, first: usize, n: usize, width: usize) -> Rows<'_> {
        let range = first * width..(first + n) * width;
        match self {
            Store::F32(values) => Rows::Floats(Stored::F32(&values[range])),
            Store::F16(values) => Rows::Floats(Stored::F16(&values[range])),
            Store::Whole { numbers, scales } => {
                let scales = &scales[first..first + BLOCK];
                Rows::Numbers(Numbers::Whole(Whole { numbers: &numbers[range], scales }))
            }
            Store::Codes { codes, scales, units } => {
                let groups = width.div_ceil(GROUP);
                let (codes, scales) = (&codes[range], &scales[first * groups..(first + BLOCK) * groups]);
                match units {
                    Some(units) => {
                        let units = &units[first..first + BLOCK];
                        Rows::Numbers(Numbers::Codes(Codes { codes, scales, units }))
                    }
                    None => Rows::Floats(Stored::Codes(Codes { codes, scales, units: &[] }, width)),
                }
            }
        }
    }

    fn push_bytes(&self, place: Place, len: usize, out: &mut Vec<u8>) {
        let places = place.places(len);
        match self {
            Store::F32(values) => places.for_each(|at| out.extend(values[at].to_le_bytes())),
            Store::F16(values) => places.for_each(|at| out.extend(values[at].to_le_bytes())),
            Store::Whole { numbers, scales } => {
                let half = |at: usize| f16::from_f32(f32::from(numbers[at]) * scales[place.row]);
                places.for_each(|at| out.extend(half(at).to_le_bytes()));
            }
            Store::Codes { codes, scales, .. } => {
                places.for_each(|at| out.extend(codes[at].to_le_bytes()));
                place.scales(len).for_each(|at| out.extend(scales[at].to_le_bytes()));
            }
        }
    }

    /// Takes a row of `len` channels from the front of `bytes`.
    fn write_bytes(&mut self, place: Place, len: usize, bytes: &mut &[u8]) {
        if let Store::Codes { .. } = self {
            let (now, later) = bytes.split_at(CacheFloat::Q8.row_bytes(len));
            *bytes = later;
            let (codes, scales) = now.split_at(len);
            let codes: Vec<i8> = codes.iter().map(|byte| byte.cast_signed()).collect();
            let scales: Vec<f16> = scales.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b)).collect();
            return self.write_codes(place, &codes, &scales);
        }
        let size = if matches!(self, Store::F32(_)) { 4 } else { 2 };
        let (now, later) = bytes.split_at(size * len);
        *bytes = later;
        let row: Vec<f32> = match size {
            4 => now.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            _ => now.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        };
        self.write(place, &row);
    }
}

/// Keys and values. Position `p` lives in slot `p % slots`; slots are whole blocks, so that neighbouring positions of a
/// block are neighbours here.
pub struct KvCache {
    pub(crate) shape: KvShape,
    numerics: Numerics,
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
    pub(crate) fn new(shape: &KvShape, numerics: Numerics) -> Self {
        let [keys, values] = [Store::new(shape.float, numerics), Store::new(shape.float, numerics)];
        Self { shape: *shape, numerics, len: 0, first: 0, kept: 0, slots: 0, keys, values }
    }

    /// Tokens seen.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether keys are values, too.
    fn latent(&self) -> bool {
        self.shape.value_dim == 0
    }

    /// Whether keys are kept as rows.
    fn rows_of_keys(&self) -> bool {
        self.latent() || matches!(self.keys, Store::Codes { units: None, .. })
    }

    /// Whether attention takes whole numbers.
    fn whole(&self) -> bool {
        matches!(self.keys, Store::Whole { .. } | Store::Codes { units: Some(_), .. })
    }

    /// The width of a key as it is kept: whole pairs of channels, where they are in pairs.
    fn key_width(&self) -> usize {
        if self.whole() && !self.latent() {
            self.shape.key_dim.next_multiple_of(2)
        } else {
            self.shape.key_dim
        }
    }

    /// The first of the rows of a head in the block of `position`.
    fn block(&self, position: usize, head: usize) -> usize {
        (position % self.slots / BLOCK * self.shape.heads + head) * BLOCK
    }

    fn key_place(&self, position: usize, head: usize) -> Place {
        let width = self.key_width();
        let (block, slot) = (self.block(position, head), position % BLOCK);
        let row = block + slot;
        if self.rows_of_keys() {
            return Place { at: row * width, run: width, step: width, row };
        }
        let run = if self.whole() { 2 } else { 1 };
        let panel = (block + slot / PANEL * PANEL) * width;
        Place { at: panel + slot % PANEL * run, run, step: PANEL * run, row }
    }

    fn value_place(&self, position: usize, head: usize) -> Place {
        let width = self.shape.value_dim;
        let (block, slot) = (self.block(position, head), position % BLOCK);
        let row = block + slot;
        if let Store::Whole { .. } = self.values {
            return Place { at: (block + slot / 2 * 2) * width + slot % 2, run: 1, step: 2, row };
        }
        Place { at: row * width, run: width.max(1), step: width, row }
    }

    /// Makes room for `kept` tokens, and perhaps for `spare` more.
    fn keep(&mut self, kept: usize, spare: usize) -> Result<()> {
        self.kept = kept;
        self.slots = self.slots.max(kept.max(1).next_multiple_of(BLOCK));
        let (heads, key_width) = (self.shape.heads, self.key_width());
        let (rows, spare) = (self.slots * heads, spare * heads);
        self.keys.grow(rows, spare, key_width)?;
        if self.latent() {
            return Ok(());
        }
        self.values.grow(rows, spare, self.shape.value_dim)
    }

    /// Makes room for `n` more tokens without losing one that they can see. With a prompt comes the memory of the block behind it: the first
    /// token of an answer would wait for it.
    pub(crate) fn reserve(&mut self, n: usize) -> Result<()> {
        self.make_room(n)?;
        if n > 1 {
            let rows = (self.slots + BLOCK) * self.shape.heads;
            self.keys.expect(rows, self.key_width());
            self.values.expect(rows, self.shape.value_dim);
        }
        Ok(())
    }

    fn make_room(&mut self, n: usize) -> Result<()> {
        let wanted = match self.shape.window {
            None => self.len + n,
            Some(window) => (self.len + n).min(window - 1 + n),
        };
        if wanted <= self.kept {
            return Ok(());
        }
        if wanted <= self.slots || self.first == 0 && self.len <= self.slots {
            // There are slots enough, or nothing has wrapped yet: tokens keep their places. Where they have to move, room for as many
            // again comes with it: pages that are not touched cost nothing, and to move what is here costs more than a step.
            return self.keep(wanted, wanted);
        }
        let image = self.image();
        *self = Self::from_image(&self.shape, self.numerics, &image, wanted)?;
        Ok(())
    }

    /// Appends one token; `reserve` has been called. A latent's key comes in two parts.
    pub(crate) fn push(&mut self, key: [&[f32]; 2], value: &[f32]) {
        let KvShape { heads, key_dim, value_dim, .. } = self.shape;
        let position = self.len;
        if self.latent() {
            self.keys.write(self.key_place(position, 0), &key.concat());
        } else {
            for head in 0..heads {
                self.keys.write(self.key_place(position, head), &key[0][head * key_dim..][..key_dim]);
                self.values.write(self.value_place(position, head), &value[head * value_dim..][..value_dim]);
            }
        }
        self.len += 1;
        self.first = self.first.max(self.len.saturating_sub(self.kept));
    }

    /// One head's keys and values of the `n` first positions of the block that begins at `start`, as they are kept. Where a position
    /// is no longer or not yet stored, what its slot holds.
    pub(crate) fn read(&self, start: usize, n: usize, head: usize) -> Block<'_> {
        let (first, key_width) = (self.block(start, head), self.key_width());
        if self.latent() {
            return match self.keys.rows(first, n.next_multiple_of(2), key_width) {
                Rows::Floats(keys) => Block::Rows { keys, values: Values::OfKeys },
                Rows::Numbers(rows) => Block::WholeRows(rows),
            };
        }
        let keys = self.keys.rows(first, n.next_multiple_of(PANEL), key_width);
        match (keys, self.values.rows(first, n.next_multiple_of(2), self.shape.value_dim)) {
            (Rows::Floats(keys), Rows::Floats(values)) if self.rows_of_keys() => {
                Block::Rows { keys, values: Values::Rows(values) }
            }
            (Rows::Floats(keys), Rows::Floats(values)) => Block::Panels { keys, values },
            (Rows::Numbers(keys), Rows::Numbers(values)) => Block::WholePanels { keys, values },
            _ => unreachable!("keys and values are stored alike"),
        }
    }

    /// Writes the first `n` rows of the block that begins at `start` of a latent cache.
    pub(crate) fn write_latents(&self, start: usize, n: usize, out: &mut [f32]) {
        let width = self.shape.key_dim;
        match self.keys.rows(self.block(start, 0), n, width) {
            Rows::Floats(rows) => rows.write(out),
            Rows::Numbers(Numbers::Codes(codes)) => codes.write(width, out),
            Rows::Numbers(Numbers::Whole(Whole { numbers, scales })) => {
                for ((out, row), scale) in
                    out.chunks_exact_mut(width).zip(numbers.chunks_exact(width)).zip(scales)
                {
                    out.iter_mut().zip(row).for_each(|(out, n)| *out = f32::from(*n) * scale);
                }
            }
        }
    }

    /// One head's keys in the block that begins at position `start`, to ask for them in advance; nothing if they are floats.
    pub(crate) fn ahead(&self, start: usize, head: usize) -> &[i16] {
        let n = BLOCK.min(self.len - start).next_multiple_of(PANEL);
        match self.keys.rows(self.block(start, head), n, self.key_width()) {
            Rows::Floats(_) => &[],
            Rows::Numbers(rows) => rows.words(),
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
        let bytes = |width: usize| (self.len - self.first) * heads * float.row_bytes(width);
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

    /// A cache from its checked image, with room for at least `kept` tokens; no more than it needs, since most are copies to be kept.
    pub(crate) fn from_image(
        shape: &KvShape,
        numerics: Numerics,
        image: &KvImage,
        kept: usize,
    ) -> Result<Self> {
        let mut cache = Self::new(shape, numerics);
        cache.keep(kept.max(image.len - image.first), 0)?;
        (cache.first, cache.len) = (image.first, image.len);
        let (mut keys, mut values) = (image.keys.as_slice(), image.values.as_slice());
        for position in image.first..image.len {
            for head in 0..shape.heads {
                cache.keys.write_bytes(cache.key_place(position, head), shape.key_dim, &mut keys);
                if !cache.latent() {
                    let place = cache.value_place(position, head);
                    cache.values.write_bytes(place, shape.value_dim, &mut values);
                }
            }
        }
        Ok(cache)
    }
}

impl Handle for KvCache {
    type Shape = (KvShape, usize);

    fn shape(&self) -> (KvShape, usize) {
        (self.shape, self.len)
    }
}
