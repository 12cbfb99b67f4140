//! What sequences keep between steps: blocks of keys and values, rows of recurrent states, the last tokens.

mod kv;
mod recurrent;
mod rows;
mod segments;

use ::backend::pool::{Copies, LayerShape, Layers, Places, Slot};
use ::backend::{Error, Result};

use crate::Numerics;
use crate::pool::Pool;

pub(crate) use kv::{Cached, Kv};
pub(crate) use recurrent::{ROWS, Recurrent, State, Window, head_len};

/// Memory of one layer.
enum Memory {
    Kv(Kv),
    Recurrent(Recurrent),
}

/// One layer.
struct Layer {
    /// Its group, where it has keys.
    group: Option<usize>,
    memory: Memory,
}

/// Caches and recurrent states of all sequences.
pub struct Slabs {
    layers: Vec<Layer>,
    /// For each slot, the token that was last chosen.
    last: Vec<Option<u32>>,
}

/// Bytes of a block or a state row.
pub(crate) fn place_bytes(shape: &LayerShape, numerics: Numerics) -> u64 {
    match shape {
        LayerShape::Kv(shape) => Kv::place_bytes(shape, numerics),
        LayerShape::Recurrent(shape) => Recurrent::place_bytes(shape),
    }
}

/// A layer that is missing or of the other kind.
fn wrong(layer: usize, kind: &str) -> Error {
    Error::Unsupported(format!("layer {layer} of the pool has no {kind}"))
}

impl Slabs {
    /// Of these layers, without any places.
    pub(crate) fn new(layers: &Layers, numerics: Numerics) -> Self {
        let memory = |shape: &LayerShape| match shape {
            LayerShape::Kv(shape) => Memory::Kv(Kv::new(shape, numerics)),
            LayerShape::Recurrent(shape) => Memory::Recurrent(Recurrent::new(shape)),
        };
        let layer = |(i, shape)| Layer { group: layers.group(i), memory: memory(shape) };
        Self { layers: layers.shapes().iter().enumerate().map(layer).collect(), last: Vec::new() }
    }

    /// Makes room for so many places.
    pub(crate) fn grow(&mut self, pool: &Pool, places: &Places) -> Result<()> {
        self.each(pool, |layer| match (&mut layer.memory, layer.group) {
            // A block more: the first token of an answer would wait for its memory.
            (Memory::Kv(kv), Some(group)) => kv.blocks.grow(places.blocks[group] as usize, 1),
            (Memory::Recurrent(recurrent), _) => recurrent.rows.grow(places.rows as usize, 0),
            (Memory::Kv(_), None) => Ok(()),
        })
    }

    /// Copies blocks and rows.
    pub(crate) fn copy(&mut self, pool: &Pool, copies: &Copies) -> Result<()> {
        self.each(pool, |layer| {
            match &mut layer.memory {
                Memory::Kv(kv) => {
                    let own = copies.blocks.iter().filter(|(group, ..)| layer.group == Some(*group));
                    own.for_each(|(_, from, to)| kv.blocks.copy(*from, *to));
                }
                Memory::Recurrent(recurrent) => {
                    copies.rows.iter().for_each(|(from, to)| recurrent.rows.copy(*from, *to));
                }
            }
            Ok(())
        })
    }

    /// Clears a row of every recurrent layer.
    pub(crate) fn clear(&mut self, pool: &Pool, row: u32) -> Result<()> {
        self.each(pool, |layer| {
            if let Memory::Recurrent(recurrent) = &mut layer.memory {
                recurrent.clear(row);
            }
            Ok(())
        })
    }

    /// Calls `task` for every layer, on all threads.
    fn each(&mut self, pool: &Pool, task: impl Fn(&mut Layer) -> Result<()> + Sync) -> Result<()> {
        let mut layers: Vec<_> = self.layers.iter_mut().map(|layer| (layer, Ok(()))).collect();
        pool.pieces(&mut layers, 1, |_, one| {
            for (layer, result) in one {
                *result = task(layer);
            }
        });
        layers.into_iter().try_for_each(|(_, result)| result)
    }

    /// A layer with keys.
    pub(crate) fn kv(&self, layer: usize) -> Result<&Kv> {
        match self.layers.get(layer).map(|layer| &layer.memory) {
            Some(Memory::Kv(kv)) => Ok(kv),
            _ => Err(wrong(layer, "keys")),
        }
    }

    /// The same, to be written.
    pub(crate) fn kv_mut(&mut self, layer: usize) -> Result<&mut Kv> {
        match self.layers.get_mut(layer).map(|layer| &mut layer.memory) {
            Some(Memory::Kv(kv)) => Ok(kv),
            _ => Err(wrong(layer, "keys")),
        }
    }

    /// A recurrent layer.
    pub(crate) fn recurrent(&self, layer: usize) -> Result<&Recurrent> {
        match self.layers.get(layer).map(|layer| &layer.memory) {
            Some(Memory::Recurrent(recurrent)) => Ok(recurrent),
            _ => Err(wrong(layer, "recurrent state")),
        }
    }

    /// The same, to be written.
    pub(crate) fn recurrent_mut(&mut self, layer: usize) -> Result<&mut Recurrent> {
        match self.layers.get_mut(layer).map(|layer| &mut layer.memory) {
            Some(Memory::Recurrent(recurrent)) => Ok(recurrent),
            _ => Err(wrong(layer, "recurrent state")),
        }
    }

    /// The token that was last chosen for a slot.
    pub(crate) fn last(&self, slot: Slot) -> Result<u32> {
        let last = self.last.get(slot.index()).copied().flatten();
        last.ok_or_else(|| {
            Error::Unsupported("no token was chosen for a sequence that continues with it".into())
        })
    }

    /// Remembers the token that was chosen for a slot.
    pub(crate) fn remember(&mut self, slot: Slot, token: u32) {
        if self.last.len() <= slot.index() {
            self.last.resize(slot.index() + 1, None);
        }
        self.last[slot.index()] = Some(token);
    }
}
