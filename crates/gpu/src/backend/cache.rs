//! Memory for what sequences keep between steps.

use std::ops::Range;

use ::backend::pool::{Copies, LayerShape, Layers, Places, Table};
use ::backend::{Cache, KvImage, RecurrentImage, Result, check};

use crate::{Gpu, Slabs};

impl Cache for Gpu {
    fn place_bytes(&self, shape: &LayerShape) -> u64 {
        self.slab_place_bytes(shape)
    }

    fn most_places(&self, shape: &LayerShape) -> u32 {
        self.slab_most_places(shape)
    }

    fn slabs(&self, layers: &Layers) -> Result<Slabs> {
        self.new_slabs(layers)
    }

    fn grow(&self, slabs: &mut Slabs, places: &Places) -> Result<()> {
        self.grow_slabs(slabs, places)
    }

    fn copy(&self, slabs: &mut Slabs, copies: &Copies) -> Result<()> {
        self.copy_slabs(slabs, copies)
    }

    fn clear(&self, slabs: &mut Slabs, row: u32) -> Result<()> {
        self.clear_row(slabs, row);
        Ok(())
    }

    fn save_kv(
        &self,
        slabs: &Slabs,
        layer: usize,
        table: &Table,
        positions: Range<usize>,
    ) -> Result<KvImage> {
        self.kv_image(slabs.kv(layer)?, table, positions)
    }

    fn load_kv(&self, slabs: &mut Slabs, layer: usize, table: &Table, image: &KvImage) -> Result<()> {
        let slab = slabs.kv(layer)?;
        check::kv_image(&slab.shape, image)?;
        self.load_kv_image(slab, table, image);
        Ok(())
    }

    fn save_state(&self, slabs: &Slabs, layer: usize, row: u32) -> Result<RecurrentImage> {
        self.state_image(slabs.recurrent(layer)?, row)
    }

    fn load_state(&self, slabs: &mut Slabs, layer: usize, row: u32, image: &RecurrentImage) -> Result<()> {
        let slab = slabs.recurrent(layer)?;
        check::recurrent_image(&slab.shape, image)?;
        self.load_state_image(slab, row, image)
    }
}
