//! What the layers of a model keep of a sequence, on a machine and on the host.

use super::tables::{BLOCK, Group, Layout};
use crate::{Cache, Error, GdnShape, KvImage, KvShape, RecurrentImage, Result};

/// What one layer keeps of a sequence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LayerShape {
    /// Keys and values of every token, or of a window.
    Kv(KvShape),
    /// A convolution's window and matrices of fixed size.
    Recurrent(GdnShape),
}

impl LayerShape {
    /// Bytes of [`BLOCK`] tokens, or of a state: those of an image. A machine may need
    /// [more](crate::Cache::place_bytes).
    pub fn place_bytes(&self) -> u64 {
        match self {
            LayerShape::Kv(kv) => (BLOCK * kv.token_bytes()) as u64,
            LayerShape::Recurrent(gdn) => 4 * (gdn.window_len() + gdn.state_len()) as u64,
        }
    }
}

/// The layers of a model, those that see the same window in one group.
#[derive(Clone, Debug)]
pub struct Layers {
    shapes: Vec<LayerShape>,
    /// For each layer, its group, where it has keys.
    groups: Vec<Option<usize>>,
    windows: Vec<Option<usize>>,
}

impl Layers {
    /// Sorts layers into groups.
    pub fn new(shapes: &[LayerShape]) -> Self {
        let mut windows: Vec<Option<usize>> = Vec::new();
        let group = |shape: &LayerShape| {
            let LayerShape::Kv(kv) = shape else { return None };
            Some(windows.iter().position(|window| *window == kv.window).unwrap_or_else(|| {
                windows.push(kv.window);
                windows.len() - 1
            }))
        };
        let groups = shapes.iter().map(group).collect();
        Self { shapes: shapes.to_vec(), groups, windows }
    }

    /// What each layer keeps.
    pub fn shapes(&self) -> &[LayerShape] {
        &self.shapes
    }

    /// The group of a layer with keys.
    pub fn group(&self, layer: usize) -> Option<usize> {
        self.groups.get(layer).copied().flatten()
    }

    /// Groups of layers with keys.
    pub fn group_count(&self) -> usize {
        self.windows.len()
    }

    /// Whether some layer has a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.groups.iter().any(Option::is_none)
    }

    /// Whether some sequence may be unable to go back to an earlier place: one with recurrent states
    /// or windows.
    pub fn forgets(&self) -> bool {
        self.is_recurrent() || self.windows.iter().any(Option::is_some)
    }

    /// What a pool holds of a sequence on a machine, within so many bytes.
    pub fn layout(&self, b: &impl Cache, budget: u64) -> Layout {
        self.layout_of(|shape| (b.place_bytes(shape), b.most_places(shape)), budget)
    }

    /// The same, where a layer takes so many bytes for a block or a state row, and reaches so many of them.
    fn layout_of(&self, place: impl Fn(&LayerShape) -> (u64, u32), budget: u64) -> Layout {
        let places = |group: Option<usize>| {
            let own = self.shapes.iter().zip(&self.groups).filter(|(_, of)| **of == group);
            own.map(|(shape, _)| place(shape))
                .fold((0, u32::MAX), |(bytes, most), (more, reached)| (bytes + more, most.min(reached)))
        };
        let group = |(i, window): (usize, &Option<usize>)| {
            let (block_bytes, most_blocks) = places(Some(i));
            Group { window: *window, block_bytes, most_blocks }
        };
        let groups = self.windows.iter().enumerate().map(group).collect();
        let (state_bytes, most_rows) = places(None);
        Layout { groups, state_bytes, most_rows, budget }
    }
}

/// A sequence's caches and states on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct StateImage {
    /// Tokens seen.
    pub len: usize,
    /// One image per layer.
    pub layers: Vec<LayerImage>,
}

/// One layer of a [`StateImage`].
#[derive(Clone, Debug, PartialEq)]
pub enum LayerImage {
    /// See [`LayerShape::Kv`].
    Kv(KvImage),
    /// See [`LayerShape::Recurrent`].
    Recurrent(RecurrentImage),
}

impl StateImage {
    /// That it belongs to these layers; returns the first position of each group.
    pub(super) fn check(&self, layers: &Layers) -> Result<Vec<usize>> {
        if self.layers.len() != layers.shapes.len() {
            return Err(Error::Image(format!(
                "{} layers, expected {}",
                self.layers.len(),
                layers.shapes.len()
            )));
        }
        let mut firsts = vec![0; layers.group_count()];
        for (i, (shape, image)) in layers.shapes.iter().zip(&self.layers).enumerate() {
            match (shape, image) {
                (LayerShape::Kv(shape), LayerImage::Kv(image)) if image.len == self.len => {
                    crate::check::kv_image(shape, image)?;
                    if let Some(group) = layers.group(i) {
                        firsts[group] = firsts[group].max(image.first);
                    }
                }
                (LayerShape::Recurrent(shape), LayerImage::Recurrent(image)) => {
                    crate::check::recurrent_image(shape, image)?;
                }
                _ => return Err(Error::Image(format!("layer {i} is of another kind or length"))),
            }
        }
        Ok(firsts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CacheFloat;

    fn bytes(shape: LayerShape, tokens: usize, step: usize) -> u64 {
        Layers::new(&[shape]).layout_of(|shape| (shape.place_bytes(), 9), 0).bytes(tokens, step)
    }

    fn kv(key_dim: usize, value_dim: usize, float: CacheFloat, window: Option<usize>) -> LayerShape {
        LayerShape::Kv(KvShape { heads: 2, key_dim, value_dim, float, window })
    }

    #[test]
    fn q8_takes_eight_and_a_half_bits() {
        assert_eq!(bytes(kv(256, 128, CacheFloat::Q8, None), 64, 1), 64 * 2 * (256 + 16 + 128 + 8));
        assert_eq!(bytes(kv(33, 0, CacheFloat::Q8, None), 64, 1), 64 * 2 * (33 + 4));
    }

    #[test]
    fn a_window_keeps_whole_blocks() {
        for (window, tokens, step, blocks) in [
            (None, 1000, 512, 16),
            (None, 0, 512, 0),
            (Some(64), 10, 512, 1),
            (Some(64), 1000, 1, 3),
            (Some(64), 1000, 512, 11),
            (Some(1), 1000, usize::MAX, 16),
        ] {
            let bytes = bytes(kv(3, 2, CacheFloat::F16, window), tokens, step);
            assert_eq!(bytes, blocks * 64 * 20, "{window:?}, {tokens} tokens, steps of {step}");
        }
    }

    #[test]
    fn layers_of_one_window_share_a_group() {
        let gdn = GdnShape { key_heads: 1, value_heads: 1, key_dim: 2, value_dim: 2, kernel: 4 };
        let [full, short] = [None, Some(64)].map(|window| kv(3, 2, CacheFloat::F16, window));
        let layers = Layers::new(&[short, LayerShape::Recurrent(gdn), full, short]);
        assert_eq!([0, 1, 2, 3].map(|i| layers.group(i)), [Some(0), None, Some(1), Some(0)]);
        let Layout { groups, state_bytes, .. } = layers.layout_of(|shape| (shape.place_bytes(), 9), 0);
        let group = |window, block_bytes| Group { window, block_bytes, most_blocks: 9 };
        assert_eq!(groups, [group(Some(64), 2 * 64 * 20), group(None, 64 * 20)]);
        assert_eq!(state_bytes, 4 * (3 * 6 + 4));
    }
}
