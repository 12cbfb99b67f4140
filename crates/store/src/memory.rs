//! Memory that is written by readers, one block each, and then only read.

use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use memmap2::{MmapMut, MmapRaw};

use crate::{Error, Result};

/// Alignment of blocks and of their lengths: what disks want of reads that go around the system's cache.
pub const ALIGN: usize = 4096;

/// Some pages from the system.
struct Pages(MmapRaw);

/// A part of some pages. Slots of the same pages do not overlap.
pub struct Slot {
    pages: Arc<Pages>,
    range: Range<usize>,
}

/// A part of a slot that one owner writes, and later many read. Blocks of the same slot do not overlap.
pub struct Block {
    slot: Arc<Slot>,
    /// Within the pages.
    range: Range<usize>,
}

/// `count` slots of `size` bytes each, which is rounded up. Their pages are not there until they are written.
pub fn slots(count: usize, size: usize) -> Result<Vec<Slot>> {
    let size = size.max(1).next_multiple_of(ALIGN);
    let bytes = count.saturating_mul(size);
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let refused = |error: std::io::Error| Error::Memory { bytes, problem: error.to_string() };
    let pages = MmapMut::map_anon(bytes).map_err(refused)?;
    // A refusal changes nothing but the speed.
    #[cfg(target_os = "linux")]
    let _ = pages.advise(memmap2::Advice::HugePage);
    let pages = Arc::new(Pages(pages.into()));
    Ok((0..count).map(|i| Slot { pages: pages.clone(), range: i * size..(i + 1) * size }).collect())
}

impl Slot {
    /// Cuts the slot into blocks of these lengths, each rounded up. The slot is whole again when it is the last to hold itself:
    /// [`Arc::try_unwrap`].
    ///
    /// # Panics
    /// If they do not fit.
    pub fn cut(self, lengths: impl IntoIterator<Item = usize>) -> (Arc<Slot>, Vec<Block>) {
        let slot = Arc::new(self);
        let mut start = slot.range.start;
        let blocks = lengths.into_iter().map(|length| {
            let end = start + length.next_multiple_of(ALIGN);
            assert!(end <= slot.range.end, "blocks beyond the end of their slot");
            let range = start..end;
            start = end;
            Block { slot: slot.clone(), range }
        });
        let blocks = blocks.collect();
        (slot, blocks)
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the pages, which live as long as the slot. Nobody writes to it meanwhile: that takes
        // `&mut` of the one block that has this range. Two blocks never share a byte: `slots` makes slots that do not overlap,
        // `cut` takes a slot by value and makes blocks that do not overlap, and a slot comes back from its `Arc` only after
        // all its blocks are gone.
        unsafe {
            std::slice::from_raw_parts(self.slot.pages.0.as_ptr().add(self.range.start), self.range.len())
        }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this block is borrowed exclusively. Pages are readable and writable.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.slot.pages.0.as_mut_ptr().add(self.range.start),
                self.range.len(),
            )
        }
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_slots_come_back() {
        let mut slots = slots(3, 2 * ALIGN + 1).unwrap();
        for round in 0..2u8 {
            let mut all = Vec::new();
            for (i, slot) in slots.drain(..).enumerate() {
                let (slot, mut blocks) = slot.cut([10, ALIGN, 0, 1]);
                assert_eq!(blocks.iter().map(|b| b.len()).collect::<Vec<_>>(), [ALIGN, ALIGN, 0, ALIGN]);
                assert!(blocks.iter().all(|b| b.as_ptr().addr().is_multiple_of(ALIGN)));
                blocks.iter_mut().enumerate().for_each(|(j, b)| b.fill(round + (10 * i + j) as u8));
                all.push((slot, blocks));
            }
            for (i, (slot, blocks)) in all.into_iter().enumerate() {
                for (j, block) in blocks.iter().enumerate() {
                    assert!(block.iter().all(|byte| *byte == round + (10 * i + j) as u8));
                }
                let Err(slot) = Arc::try_unwrap(slot) else { panic!("its blocks are still there") };
                drop(blocks);
                slots.push(Arc::try_unwrap(slot).ok().expect("the whole slot"));
            }
        }
    }
}
