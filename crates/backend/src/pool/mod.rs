//! One pool for the caches and recurrent states of all sequences.
//!
//! [`Tables`] is the bookkeeping, which touches no device: which blocks and state rows each sequence
//! holds. A machine's `Slabs` are the memory: for each layer with keys all its blocks, for each
//! recurrent layer all its state rows. [`Pool`] is both.

mod blocks;
mod layers;
mod tables;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use layers::{LayerImage, LayerShape, Layers, StateImage};
pub use tables::{BLOCK, Copies, Group, Layout, RETURN, Slot, Table, Tables};

use crate::{Cache, Result};

/// Caches and recurrent states of all sequences.
pub struct Pool<B: Cache> {
    layers: Arc<Layers>,
    tables: Tables,
    slabs: B::Slabs,
    /// What the slabs have room for.
    room: Places,
}

/// Blocks of each group, and state rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Blocks of each group.
    pub blocks: Vec<u32>,
    /// State rows.
    pub rows: u32,
    /// Whether the budget holds a quarter more of all of them.
    pub spare: bool,
}

impl<B: Cache> Pool<B> {
    /// A pool of these layers that takes at most `budget` bytes. It grows as sequences do.
    pub fn new(b: &B, shapes: &[LayerShape], budget: u64) -> Result<Self> {
        for shape in shapes {
            match shape {
                LayerShape::Kv(kv) => crate::check::kv_shape(kv)?,
                LayerShape::Recurrent(gdn) => crate::check::gdn_shape("recurrent", gdn)?,
            }
        }
        let layers = Arc::new(Layers::new(shapes));
        let room = Places { blocks: vec![0; layers.group_count()], rows: 0, spare: true };
        let tables = Tables::new(layers.layout(b, budget));
        Ok(Self { slabs: b.slabs(&layers)?, layers, tables, room })
    }

    /// The layers.
    pub fn layers(&self) -> &Arc<Layers> {
        &self.layers
    }

    /// Who holds what.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The memory.
    pub fn slabs(&self) -> &B::Slabs {
        &self.slabs
    }

    /// The same, to be written.
    pub fn slabs_mut(&mut self) -> &mut B::Slabs {
        &mut self.slabs
    }

    /// Changes how much memory it may take; what is in use stays.
    pub fn set_budget(&mut self, bytes: u64) {
        self.tables.set_budget(bytes);
    }

    /// Tokens that a sequence has seen.
    pub fn len(&self, slot: Slot) -> usize {
        self.tables.len(slot)
    }

    /// Whether no sequence holds anything.
    pub fn is_empty(&self) -> bool {
        self.tables.used() == 0
    }

    /// Gives the slabs as many places as tables have handed out.
    fn grow(&mut self, b: &B) -> Result<()> {
        let blocks = (0..self.layers.group_count()).map(|group| self.tables.slab_blocks(group)).collect();
        let mut needed = Places { blocks, rows: self.tables.slab_rows(), spare: true };
        let bytes = self.tables.layout().bytes_of(&needed);
        needed.spare = bytes.saturating_add(bytes / 4) <= self.tables.layout().budget;
        if needed != self.room {
            b.grow(&mut self.slabs, &needed)?;
            self.room = needed;
        }
        Ok(())
    }

    /// A new sequence that has seen nothing; `None` where memory for its state is missing.
    pub fn create(&mut self, b: &B) -> Result<Option<Slot>> {
        let Some(slot) = self.tables.create() else { return Ok(None) };
        self.grow(b)?;
        if let Some(row) = self.tables.row(slot) {
            b.clear(&mut self.slabs, row)?;
        }
        Ok(Some(slot))
    }

    /// Makes room for `tokens` more tokens of a sequence. Returns false, with nothing changed, where
    /// memory is missing: somebody has to be preempted then.
    pub fn reserve(&mut self, b: &B, slot: Slot, tokens: usize) -> Result<bool> {
        let Some(copies) = self.tables.reserve(slot, tokens) else { return Ok(false) };
        self.grow(b)?;
        self.copy(b, &copies)?;
        Ok(true)
    }

    fn copy(&mut self, b: &B, copies: &Copies) -> Result<()> {
        if *copies == Copies::default() { Ok(()) } else { b.copy(&mut self.slabs, copies) }
    }

    /// Counts `tokens` that a step writes; room for them was reserved.
    pub fn advance(&mut self, slot: Slot, tokens: usize) {
        self.tables.advance(slot, tokens);
    }

    /// Another sequence that has seen the first `len` tokens of `from`: it shares their blocks and
    /// has a copy of the state. `None` where `from` cannot [go back](Tables::reaches) that far or
    /// memory is missing.
    pub fn fork(&mut self, b: &B, from: Slot, len: usize) -> Result<Option<Slot>> {
        let Some((slot, copies)) = self.tables.fork(from, len) else { return Ok(None) };
        self.grow(b)?;
        self.copy(b, &copies)?;
        Ok(Some(slot))
    }

    /// Forgets all but the first `len` tokens of a sequence. Returns false, with nothing changed,
    /// where it cannot [go back](Tables::reaches) that far.
    pub fn truncate(&mut self, slot: Slot, len: usize) -> bool {
        self.tables.truncate(slot, len)
    }

    /// Gives a sequence up.
    pub fn release(&mut self, slot: Slot) {
        self.tables.release(slot);
    }

    /// Waits, and copies a sequence to the host.
    pub fn save(&self, b: &B, slot: Slot) -> Result<StateImage> {
        let len = self.len(slot);
        let row = self.tables.row(slot).unwrap_or_default();
        let layer = |(i, shape): (usize, &LayerShape)| match (shape, self.layers.group(i)) {
            (LayerShape::Kv(_), Some(group)) => {
                let nothing = Table::default();
                let table = self.tables.table(slot, group).unwrap_or(&nothing);
                Ok(LayerImage::Kv(b.save_kv(&self.slabs, i, table, table.first().min(len)..len)?))
            }
            _ => Ok(LayerImage::Recurrent(b.save_state(&self.slabs, i, row)?)),
        };
        let layers = self.layers.shapes().iter().enumerate().map(layer).collect::<Result<_>>()?;
        Ok(StateImage { len, layers })
    }

    /// A sequence from its image; `None` where memory is missing.
    pub fn load(&mut self, b: &B, image: &StateImage) -> Result<Option<Slot>> {
        let firsts = image.check(&self.layers)?;
        let Some(slot) = self.tables.restore(image.len, &firsts) else { return Ok(None) };
        self.grow(b)?;
        for (i, layer) in image.layers.iter().enumerate() {
            match (layer, self.layers.group(i)) {
                (LayerImage::Kv(image), Some(group)) => {
                    if let Some(table) = self.tables.table(slot, group) {
                        b.load_kv(&mut self.slabs, i, table, image)?;
                    }
                }
                (LayerImage::Recurrent(image), _) => {
                    let row = self.tables.row(slot).unwrap_or_default();
                    b.load_state(&mut self.slabs, i, row, image)?;
                }
                _ => {}
            }
        }
        Ok(Some(slot))
    }
}
