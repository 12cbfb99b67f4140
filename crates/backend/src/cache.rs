//! Memory for what sequences keep between steps.

use std::ops::Range;

use crate::pool::{Copies, LayerShape, Layers, Places, Table};
use crate::{KvImage, Ops, RecurrentImage, Result};

/// Keeps the blocks and state rows of a [`Pool`](crate::pool::Pool), which says what lies where.
///
/// A place is a number below those that [`grow`](Self::grow) was last asked for. Places are given up and handed out
/// again without a word; all methods run in order with the steps around them.
pub trait Cache: Ops {
    /// Bytes here of a block of a layer with keys, or of the state row of a recurrent one.
    fn place_bytes(&self, shape: &LayerShape) -> u64 {
        shape.place_bytes()
    }

    /// Most places of a layer that can be reached here, whatever memory there is.
    fn most_places(&self, _shape: &LayerShape) -> u32 {
        u32::MAX
    }

    /// Memory for these layers, without any places.
    fn slabs(&self, layers: &Layers) -> Result<Self::Slabs>;

    /// Makes room for at least so many places; what the present ones hold stays.
    fn grow(&self, slabs: &mut Self::Slabs, places: &Places) -> Result<()>;

    /// Copies blocks and state rows, in all layers that have such.
    fn copy(&self, slabs: &mut Self::Slabs, copies: &Copies) -> Result<()>;

    /// Makes a state row that of a sequence that has seen nothing, in all recurrent layers.
    fn clear(&self, slabs: &mut Self::Slabs, row: u32) -> Result<()>;

    /// Waits, and copies some positions of a layer with keys to the host; the last of them is the sequence's last.
    fn save_kv(
        &self,
        slabs: &Self::Slabs,
        layer: usize,
        table: &Table,
        positions: Range<usize>,
    ) -> Result<KvImage>;

    /// Writes an image's positions from the first that `table` holds on.
    fn load_kv(&self, slabs: &mut Self::Slabs, layer: usize, table: &Table, image: &KvImage) -> Result<()>;

    /// Waits, and copies a row of a recurrent layer to the host.
    fn save_state(&self, slabs: &Self::Slabs, layer: usize, row: u32) -> Result<RecurrentImage>;

    /// Writes a row of a recurrent layer.
    fn load_state(
        &self,
        slabs: &mut Self::Slabs,
        layer: usize,
        row: u32,
        image: &RecurrentImage,
    ) -> Result<()>;
}
