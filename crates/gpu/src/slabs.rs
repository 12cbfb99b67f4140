//! The memory of a pool: for each layer the blocks or state rows of all sequences, in one buffer or two.
//!
//! Position `p` of a sequence is row `block * 64 + p % 64` of a slab of keys or values, `block` being what
//! its table says: a row of all heads' channels, a head's filled up to a multiple of four. In a cache of
//! codes, a head's codes are filled up to a multiple of 16, and followed by its scales, these to a multiple
//! of 8.

use std::ops::Range;

use ::backend::pool::{BLOCK, Copies, LayerShape, Layers, Places, Table};
use ::backend::{CacheFloat, Error, GdnShape, KvImage, KvShape, RecurrentImage, Result, Span};

use crate::Gpu;
use crate::pool::Buffer;
use crate::recorder::Copy;
use crate::tensor::floats;

/// Blocks that a slab of keys grows by at least.
const GROWTH: usize = 4;

/// Slots that the last chosen tokens have room for at first.
const SLOTS: usize = 64;

/// Caches and recurrent states of all sequences, on the device.
pub struct Slabs {
    layers: Vec<Slab>,
    /// The group of each layer with keys.
    groups: Vec<Option<usize>>,
    /// The token that was chosen last for each slot, and how many slots there is room for.
    last: Buffer,
    slots: usize,
}

/// One layer of them.
pub(crate) enum Slab {
    Kv(KvSlab),
    Recurrent(RecurrentSlab),
}

/// Keys and values of a layer.
pub(crate) struct KvSlab {
    pub(crate) shape: KvShape,
    blocks: usize,
    /// Absent while there are no blocks.
    keys: Option<Buffer>,
    /// Absent, too, where keys are values.
    values: Option<Buffer>,
}

/// Convolution windows and recurrent matrices of a Gated DeltaNet layer.
///
/// A row has two windows. That of a sequence of `p` tokens is the one of `p % 2`: a step reads it, and leaves
/// the next one in that of `(p + n) % 2`, so that a workgroup of a step of one token can read the window
/// while another one writes the next.
pub(crate) struct RecurrentSlab {
    pub(crate) shape: GdnShape,
    rows: usize,
    /// `[row][half][kernel - 1][channels]`, oldest first.
    windows: Option<Buffer>,
    /// `[row][value_head][dv][dk]`
    matrices: Option<Buffer>,
    /// The half that each row's window is in.
    halves: Vec<usize>,
}

impl Slabs {
    fn slab(&self, layer: usize) -> Result<&Slab> {
        self.layers.get(layer).ok_or_else(|| missing(layer))
    }

    /// The keys and values of a layer.
    pub(crate) fn kv(&self, layer: usize) -> Result<&KvSlab> {
        match self.slab(layer)? {
            Slab::Kv(slab) => Ok(slab),
            Slab::Recurrent(_) => Err(missing(layer)),
        }
    }

    /// The states of a recurrent layer.
    pub(crate) fn recurrent(&self, layer: usize) -> Result<&RecurrentSlab> {
        match self.slab(layer)? {
            Slab::Recurrent(slab) => Ok(slab),
            Slab::Kv(_) => Err(missing(layer)),
        }
    }

    /// The same, for a step that moves windows on.
    pub(crate) fn recurrent_mut(&mut self, layer: usize) -> Result<&mut RecurrentSlab> {
        match self.layers.get_mut(layer) {
            Some(Slab::Recurrent(slab)) => Ok(slab),
            _ => Err(missing(layer)),
        }
    }

    /// The token that was chosen last for each slot: one `u32` by the slot's index.
    pub(crate) fn last(&self) -> &Buffer {
        &self.last
    }

    /// Slots that [`last`](Self::last) has room for.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }
}

fn missing(layer: usize) -> Error {
    Error::Unsupported(format!("layer {layer} of a pool: none of this kind is there"))
}

impl KvSlab {
    fn new(shape: &KvShape) -> Self {
        Self { shape: *shape, blocks: 0, keys: None, values: None }
    }

    /// Words that a head of `width` channels takes.
    pub(crate) fn words(&self, width: usize) -> usize {
        words(self.shape.float, width)
    }

    /// What kernels that take a single token read at once of a head of `width` channels: four words, or two
    /// of codes.
    pub(crate) fn fours(&self, width: usize) -> usize {
        fours(self.shape.float, width)
    }

    /// Channels of these.
    pub(crate) fn values_in_four(&self) -> usize {
        values_in_four(self.shape.float)
    }

    pub(crate) fn keys(&self) -> &Buffer {
        self.keys.as_ref().expect("a batch has room for its tokens")
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

    /// The planes: the bytes of a position, and channels of a head.
    fn planes(&self) -> impl Iterator<Item = (Option<&Buffer>, usize, usize)> {
        let KvShape { key_dim, value_dim, .. } = self.shape;
        let planes = [(self.keys.as_ref(), key_dim), (self.values.as_ref(), value_dim)];
        planes.into_iter().map(|(buffer, width)| (buffer, row_bytes(&self.shape, width), width))
    }
}

impl RecurrentSlab {
    fn new(shape: &GdnShape) -> Self {
        Self { shape: *shape, rows: 0, windows: None, matrices: None, halves: Vec::new() }
    }

    /// The windows, for a kernel that moves those of a step's sequences on.
    pub(crate) fn windows_of_step(&mut self, spans: &[Span]) -> Buffer {
        for span in spans {
            if let Some(half) = self.halves.get_mut(span.state as usize) {
                *half = (span.position + span.len) % 2;
            }
        }
        self.windows.clone().expect("a batch has room for its states")
    }

    pub(crate) fn matrices(&self) -> &Buffer {
        self.matrices.as_ref().expect("a batch has room for its states")
    }

    /// Bytes of the two windows of a row, and of its matrices.
    fn row_bytes(&self) -> [u64; 2] {
        [8 * self.shape.window_len() as u64, 4 * self.shape.state_len() as u64]
    }

    /// Both buffers with the bytes of a row.
    fn planes(&self) -> impl Iterator<Item = (&Buffer, u64)> {
        [&self.windows, &self.matrices].into_iter().flatten().zip(self.row_bytes())
    }
}

/// Bytes of a position in a plane whose heads have `width` channels.
fn row_bytes(shape: &KvShape, width: usize) -> usize {
    4 * shape.heads * words(shape.float, width)
}

/// Words that a head of `width` channels takes.
pub(crate) fn words(float: CacheFloat, width: usize) -> usize {
    match float {
        CacheFloat::F32 => width.next_multiple_of(4),
        CacheFloat::F16 => width.next_multiple_of(4) / 2,
        CacheFloat::Q8 => code_words(width) + (width.div_ceil(CacheFloat::GROUP)).div_ceil(8) * 4,
    }
}

/// What kernels that take a single token read at once of a head of `width` channels: four words, or two of
/// codes.
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

/// The parts of a head of `width` channels in words and in an image: where each begins here, and its bytes.
fn parts(float: CacheFloat, width: usize) -> Vec<(usize, usize)> {
    match float {
        CacheFloat::Q8 => vec![(0, width), (4 * code_words(width), 2 * width.div_ceil(CacheFloat::GROUP))],
        float => vec![(0, float.row_bytes(width))],
    }
}

/// Places after growing from `old` to at least `wanted`: a quarter more where there is memory to `spare`, but no further
/// than a kernel reaches.
fn grown(old: usize, wanted: usize, least: usize, most: usize, spare: bool) -> usize {
    if spare { wanted.max((old + (old / 4).max(least)).min(most)) } else { wanted }
}

/// Bytes of a block or a state row in each of a layer's two buffers.
fn plane_bytes(shape: &LayerShape) -> [u64; 2] {
    match shape {
        LayerShape::Kv(kv) => [kv.key_dim, kv.value_dim].map(|width| (BLOCK * row_bytes(kv, width)) as u64),
        LayerShape::Recurrent(gdn) => RecurrentSlab::new(gdn).row_bytes(),
    }
}

/// Blocks that are neighbours: the first, where it comes, and how many.
fn runs(blocks: &[u32]) -> Vec<(usize, usize, usize)> {
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    for (to, block) in blocks.iter().enumerate() {
        match runs.last_mut() {
            Some((from, _, n)) if *from + *n == *block as usize => *n += 1,
            _ => runs.push((*block as usize, to, 1)),
        }
    }
    runs
}

impl Gpu {
    /// Bytes of a block, or of a state row.
    pub(crate) fn slab_place_bytes(&self, shape: &LayerShape) -> u64 {
        plane_bytes(shape).iter().sum()
    }

    /// Places that a kernel reaches: those of the larger of two buffers.
    pub(crate) fn slab_most_places(&self, shape: &LayerShape) -> u32 {
        let [a, b] = plane_bytes(shape);
        u32::try_from(self.device.largest_binding / a.max(b).max(1)).unwrap_or(u32::MAX)
    }

    pub(crate) fn new_slabs(&self, layers: &Layers) -> Result<Slabs> {
        let slab = |shape: &LayerShape| match shape {
            LayerShape::Kv(kv) => Slab::Kv(KvSlab::new(kv)),
            LayerShape::Recurrent(gdn) => Slab::Recurrent(RecurrentSlab::new(gdn)),
        };
        Ok(Slabs {
            layers: layers.shapes().iter().map(slab).collect(),
            groups: (0..layers.shapes().len()).map(|layer| layers.group(layer)).collect(),
            last: self.pool.fresh("the last tokens", 4 * SLOTS as u64)?,
            slots: SLOTS,
        })
    }

    /// Room for the tokens that are chosen for so many slots.
    pub(crate) fn reserve_last(&self, slabs: &mut Slabs, slots: usize) -> Result<()> {
        if slots > slabs.slots {
            let wanted = slots.next_power_of_two();
            let new = self.pool.fresh("the last tokens", 4 * wanted as u64)?;
            self.recorder.copy(&slabs.last, &new, &[Copy { from: 0, to: 0, len: 4 * slabs.slots as u64 }]);
            (slabs.last, slabs.slots) = (new, wanted);
        }
        Ok(())
    }

    /// A buffer of `places` with what another one has in its first.
    fn moved(
        &self,
        old: Option<&Buffer>,
        what: &str,
        bytes: u64,
        [held, places]: [usize; 2],
    ) -> Result<Buffer> {
        let new = self.pool.fresh(what, places as u64 * bytes)?;
        if let Some(old) = old {
            self.recorder.copy(old, &new, &[Copy { from: 0, to: 0, len: held as u64 * bytes }]);
        }
        Ok(new)
    }

    pub(crate) fn grow_slabs(&self, slabs: &mut Slabs, places: &Places) -> Result<()> {
        for (slab, group) in slabs.layers.iter_mut().zip(&slabs.groups) {
            match slab {
                Slab::Kv(slab) => {
                    let wanted =
                        group.and_then(|group| places.blocks.get(group)).copied().unwrap_or_default();
                    self.grow_kv(slab, wanted as usize, places.spare)?;
                }
                Slab::Recurrent(slab) => self.grow_recurrent(slab, places.rows as usize, places.spare)?,
            }
        }
        Ok(())
    }

    fn grow_kv(&self, slab: &mut KvSlab, wanted: usize, spare: bool) -> Result<()> {
        let held = slab.blocks;
        if wanted <= held {
            return Ok(());
        }
        let widest = slab.planes().map(|(_, bytes, _)| bytes).max().unwrap_or_default() * BLOCK;
        let blocks = grown(held, wanted, GROWTH, self.device.largest_binding as usize / widest.max(1), spare);
        let mut new = Vec::new();
        for (old, bytes, width) in slab.planes() {
            let grow = || self.moved(old, "a key-value cache", (BLOCK * bytes) as u64, [held, blocks]);
            new.push((width > 0).then(grow).transpose()?);
        }
        // Keys, then values.
        (slab.values, slab.keys, slab.blocks) = (new.pop().flatten(), new.pop().flatten(), blocks);
        Ok(())
    }

    fn grow_recurrent(&self, slab: &mut RecurrentSlab, wanted: usize, spare: bool) -> Result<()> {
        let held = slab.rows;
        if wanted <= held {
            return Ok(());
        }
        let bytes = slab.row_bytes();
        let most = self.device.largest_binding / bytes[0].max(bytes[1]).max(1);
        let rows = grown(held, wanted, 0, most as usize, spare);
        let grow = |old: &Option<Buffer>, bytes: u64| {
            self.moved(old.as_ref(), "recurrent states", bytes, [held, rows])
        };
        let new = [grow(&slab.windows, bytes[0])?, grow(&slab.matrices, bytes[1])?];
        let [windows, matrices] = new.map(Some);
        (slab.windows, slab.matrices, slab.rows) = (windows, matrices, rows);
        slab.halves.resize(rows, 0);
        Ok(())
    }

    /// Copies places of `bytes` within a buffer. A copy cannot read what it writes, so it goes through
    /// another one.
    fn copy_places(&self, buffer: &Buffer, bytes: u64, places: &[(u32, u32)]) -> Result<()> {
        let between = self.pool.take(bytes * places.len() as u64)?;
        let copies = |copy: fn((u64, (u64, u64)), u64) -> Copy| -> Vec<Copy> {
            let places = places.iter().map(|(from, to)| (u64::from(*from), u64::from(*to)));
            (0..).zip(places).map(|place| copy(place, bytes)).collect()
        };
        let out = copies(|(i, (from, _)), len| Copy { from: from * len, to: i * len, len });
        self.recorder.copy(buffer, &between, &out);
        let back = copies(|(i, (_, to)), len| Copy { from: i * len, to: to * len, len });
        self.recorder.copy(&between, buffer, &back);
        Ok(())
    }

    pub(crate) fn copy_slabs(&self, slabs: &mut Slabs, copies: &Copies) -> Result<()> {
        for (slab, own) in slabs.layers.iter_mut().zip(&slabs.groups) {
            match slab {
                Slab::Kv(slab) => {
                    let of_group = copies.blocks.iter().filter(|(group, ..)| Some(*group) == *own);
                    let places: Vec<_> = of_group.map(|(_, from, to)| (*from, *to)).collect();
                    for (buffer, bytes, _) in slab.planes().filter(|_| !places.is_empty()) {
                        let Some(buffer) = buffer else { continue };
                        self.copy_places(buffer, (BLOCK * bytes) as u64, &places)?;
                    }
                }
                Slab::Recurrent(slab) => {
                    for (buffer, bytes) in slab.planes().filter(|_| !copies.rows.is_empty()) {
                        self.copy_places(buffer, bytes, &copies.rows)?;
                    }
                    for (from, to) in &copies.rows {
                        slab.halves[*to as usize] = slab.halves[*from as usize];
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn clear_row(&self, slabs: &mut Slabs, row: u32) {
        for slab in &mut slabs.layers {
            if let Slab::Recurrent(slab) = slab {
                for (buffer, bytes) in slab.planes() {
                    self.recorder.clear(buffer, u64::from(row) * bytes..u64::from(row + 1) * bytes);
                }
                slab.halves[row as usize] = 0;
            }
        }
    }

    pub(crate) fn kv_image(&self, slab: &KvSlab, table: &Table, positions: Range<usize>) -> Result<KvImage> {
        let KvShape { heads, float, .. } = slab.shape;
        let Range { start: first, end: len } = positions;
        let mut image = KvImage { first, len, keys: Vec::new(), values: Vec::new() };
        if first >= len {
            return Ok(image);
        }
        let begin = first / BLOCK;
        let blocks = &table.held[begin - table.passed..len.div_ceil(BLOCK) - table.passed];
        let mut gathered = Vec::new();
        for (buffer, bytes, width) in slab.planes() {
            let Some(buffer) = buffer else { continue };
            let block = (BLOCK * bytes) as u64;
            let all = self.pool.fresh("a key-value cache to be saved", blocks.len() as u64 * block)?;
            let copy = |(from, to, n): (usize, usize, usize)| Copy {
                from: from as u64 * block,
                to: to as u64 * block,
                len: n as u64 * block,
            };
            self.recorder.copy(buffer, &all, &runs(blocks).into_iter().map(copy).collect::<Vec<_>>());
            gathered.push((all, bytes, width));
        }
        for ((all, bytes, width), out) in gathered.iter().zip([&mut image.keys, &mut image.values]) {
            let [rows] = self.recorder.read([(all, (blocks.len() * BLOCK * bytes) as u64)])?;
            out.reserve_exact((len - first) * heads * float.row_bytes(*width));
            let parts = parts(float, *width);
            for row in rows.chunks_exact(*bytes).skip(first - begin * BLOCK).take(len - first) {
                for head in row.chunks_exact(4 * words(float, *width)) {
                    parts.iter().for_each(|(at, len)| out.extend(&head[*at..at + len]));
                }
            }
        }
        Ok(image)
    }

    /// Writes positions of a checked image from the first that the table holds on.
    pub(crate) fn load_kv_image(&self, slab: &KvSlab, table: &Table, image: &KvImage) {
        let KvShape { heads, float, .. } = slab.shape;
        let first = table.first().max(image.first);
        if first >= image.len {
            return;
        }
        let begin = first / BLOCK;
        let blocks = &table.held[begin - table.passed..image.len.div_ceil(BLOCK) - table.passed];
        for ((buffer, bytes, width), from) in slab.planes().zip([&image.keys, &image.values]) {
            let Some(buffer) = buffer else { continue };
            let (head_bytes, parts) = (float.row_bytes(width), parts(float, width));
            let mut rows = vec![0; blocks.len() * BLOCK * bytes];
            for position in first..image.len {
                let row = &mut rows[(position - begin * BLOCK) * bytes..][..bytes];
                let heads = from[(position - image.first) * heads * head_bytes..].chunks_exact(head_bytes);
                for (to, mut from) in row.chunks_exact_mut(4 * words(float, width)).zip(heads) {
                    for (at, len) in &parts {
                        let (part, rest) = from.split_at(*len);
                        to[*at..at + len].copy_from_slice(part);
                        from = rest;
                    }
                }
            }
            let block = BLOCK * bytes;
            for (to, from, n) in runs(blocks) {
                let target = buffer.behind((to * block) as u64);
                self.recorder.write(&target, &rows[from * block..][..n * block]);
            }
        }
    }

    pub(crate) fn state_image(&self, slab: &RecurrentSlab, row: u32) -> Result<RecurrentImage> {
        let [window, state] = [slab.shape.window_len(), slab.shape.state_len()].map(|len| 4 * len as u64);
        let Some(windows) = &slab.windows else { return Err(Error::Image("a state that nobody has".into())) };
        let place = 2 * u64::from(row) + slab.halves[row as usize] as u64;
        let copies = [(windows, place, window), (slab.matrices(), u64::from(row), state)];
        let mut apart = Vec::new();
        for (from, place, len) in copies {
            let to = self.pool.take(len)?;
            self.recorder.copy(from, &to, &[Copy { from: place * len, to: 0, len }]);
            apart.push(to);
        }
        let [window, state] = self.recorder.read([(&apart[0], window), (&apart[1], state)])?;
        Ok(RecurrentImage { window: floats(&window), state: floats(&state) })
    }

    /// Writes a checked image to a row.
    pub(crate) fn load_state_image(
        &self,
        slab: &RecurrentSlab,
        row: u32,
        image: &RecurrentImage,
    ) -> Result<()> {
        // A row need not begin where a write can. Whether its window is the first or the second, it does not
        // know: both are.
        let windows = image.window.repeat(2);
        for ((buffer, bytes), values) in slab.planes().zip([&windows, &image.state]) {
            let from = self.pool.take(bytes)?;
            self.recorder.write(&from, bytemuck::cast_slice(values));
            self.recorder.copy(&from, buffer, &[Copy { from: 0, to: u64::from(row) * bytes, len: bytes }]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_blocks_are_one_run() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[4, 5, 2, 3, 9]), [(4, 0, 2), (2, 2, 2), (9, 4, 1)]);
    }

    #[test]
    fn slabs_grow_by_a_quarter_as_far_as_kernels_reach() {
        for (old, wanted, most, places) in
            [(0, 1, 100, 4), (4, 5, 100, 8), (40, 41, 100, 50), (40, 60, 100, 60), (90, 91, 100, 100)]
        {
            assert_eq!(grown(old, wanted, GROWTH, most, true), places, "{old} to {wanted}");
        }
        assert_eq!(grown(100, 101, GROWTH, 100, true), 101, "refused by whoever makes the buffer");
        assert_eq!(
            [(0, 1), (1, 2), (8, 9)].map(|(old, wanted)| grown(old, wanted, 0, 100, true)),
            [1, 2, 10]
        );
        assert_eq!(grown(40, 41, GROWTH, 100, false), 41);
    }

    #[test]
    fn heads_are_whole_quads() {
        let shape = KvShape { heads: 2, key_dim: 6, value_dim: 3, float: CacheFloat::F16, window: None };
        assert_eq!((words(shape.float, 6), words(shape.float, 3), row_bytes(&shape, 6)), (4, 2, 32));
    }

    #[test]
    fn codes_are_followed_by_their_scales() {
        for (width, whole, eights, own) in [
            (256, 64 + 4, 32, [(0, 256), (256, 16)]),
            (33, 12 + 4, 6, [(0, 33), (48, 4)]),
            (128, 32 + 4, 16, [(0, 128), (128, 8)]),
            (576, 144 + 12, 72, [(0, 576), (576, 36)]),
        ] {
            let (words, fours) = (words(CacheFloat::Q8, width), fours(CacheFloat::Q8, width));
            assert_eq!((words, fours), (whole, eights), "{width}");
            assert_eq!(parts(CacheFloat::Q8, width), own, "{width}");
            // Kernels find the one by the other.
            assert_eq!(words - words.div_ceil(68) * 4, 2 * fours);
            assert_eq!(2 * (fours + fours.div_ceil(32) * 2), words);
        }
    }
}
