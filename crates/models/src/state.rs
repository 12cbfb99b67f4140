//! What a sequence keeps between steps.

use backend::{Backend, GdnShape, KvImage, KvShape, RecurrentImage};

use crate::{Error, Result};

/// What one layer keeps of a sequence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LayerShape {
    /// Keys and values of every token (or of a window).
    Kv(KvShape),
    /// A window and matrices of fixed size.
    Recurrent(GdnShape),
}

impl LayerShape {
    /// Bytes for a sequence of so many tokens that runs in steps of at most `step`. A sliding window keeps what the
    /// first token of a step can see beside the whole step. Caches have room for whole blocks.
    pub fn bytes(&self, tokens: usize, step: usize) -> u64 {
        match self {
            LayerShape::Kv(kv) => {
                let kept = kv.window.map_or(tokens, |w| tokens.min((w.max(1) - 1).saturating_add(step)));
                kept.next_multiple_of(KvShape::BLOCK) as u64 * kv.token_bytes() as u64
            }
            LayerShape::Recurrent(gdn) => 4 * (gdn.window_len() + gdn.state_len()) as u64,
        }
    }
}

/// One layer's part of a [`State`].
pub enum LayerState<B: Backend> {
    /// See [`LayerShape::Kv`].
    Kv(B::KvCache),
    /// See [`LayerShape::Recurrent`].
    Recurrent(B::Recurrent),
}

/// The caches and recurrent states of one sequence: everything a model remembers of the tokens it has seen.
/// A step that fails leaves it in between; drop it then.
pub struct State<B: Backend> {
    pub(crate) layers: Vec<LayerState<B>>,
    shapes: Vec<LayerShape>,
    pub(crate) len: usize,
}

/// The recurrent part of a state at one length. Caches can be cut back to any length; this part cannot, so a sequence
/// that may want to return somewhere takes a snapshot there.
pub struct RecurrentSnapshot<B: Backend> {
    len: usize,
    states: Vec<B::Recurrent>,
}

impl<B: Backend> RecurrentSnapshot<B> {
    /// Tokens the sequence had when it was taken.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it was taken before the first token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A state on the host.
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

impl<B: Backend> State<B> {
    pub(crate) fn new(b: &B, shapes: Vec<LayerShape>) -> Result<Self> {
        let layer = |shape: &LayerShape| {
            Ok(match shape {
                LayerShape::Kv(kv) => LayerState::Kv(b.kv_cache(kv)?),
                LayerShape::Recurrent(gdn) => LayerState::Recurrent(b.recurrent(gdn)?),
            })
        };
        let layers = shapes.iter().map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, shapes, len: 0 })
    }

    /// Tokens seen.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token has been seen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether some layer cannot be cut back to an earlier length.
    pub fn is_recurrent(&self) -> bool {
        self.shapes.iter().any(|shape| matches!(shape, LayerShape::Recurrent(_)))
    }

    /// Forgets all but the first `len` tokens. Returns false, with the state unusable, when a layer cannot go back
    /// that far: a recurrent one never can.
    pub fn truncate(&mut self, b: &B, len: usize) -> Result<bool> {
        if len == self.len {
            return Ok(true);
        }
        for layer in &mut self.layers {
            let reached = match layer {
                LayerState::Kv(cache) => b.kv_truncate(cache, len)?,
                LayerState::Recurrent(_) => false,
            };
            if !reached {
                return Ok(false);
            }
        }
        self.len = len;
        Ok(true)
    }

    /// Remembers the recurrent part as it is now.
    pub fn snapshot(&self, b: &B) -> Result<RecurrentSnapshot<B>> {
        let recurrent = self.layers.iter().filter_map(|layer| match layer {
            LayerState::Recurrent(state) => Some(b.recurrent_clone(state)),
            LayerState::Kv(_) => None,
        });
        Ok(RecurrentSnapshot { len: self.len, states: recurrent.collect::<backend::Result<_>>()? })
    }

    /// Goes back to a snapshot of this sequence. Returns false, with the state unusable, when a sliding window has
    /// already dropped tokens that it would need.
    pub fn restore(&mut self, b: &B, snapshot: &RecurrentSnapshot<B>) -> Result<bool> {
        let mut saved = snapshot.states.iter();
        for layer in &mut self.layers {
            match layer {
                LayerState::Kv(cache) => {
                    if !b.kv_truncate(cache, snapshot.len)? {
                        return Ok(false);
                    }
                }
                LayerState::Recurrent(state) => {
                    let saved =
                        saved.next().ok_or_else(|| Error::State("a snapshot of another model".into()))?;
                    *state = b.recurrent_clone(saved)?;
                }
            }
        }
        self.len = snapshot.len;
        Ok(true)
    }

    /// Another state that has seen the first `len` tokens of this sequence; `snapshot` is the one taken there, for models
    /// with recurrent layers. `None` where a layer cannot go back that far.
    pub fn copy(&self, b: &B, len: usize, snapshot: Option<&RecurrentSnapshot<B>>) -> Result<Option<Self>> {
        let mut saved = snapshot.iter().filter(|s| s.len == len).flat_map(|s| &s.states);
        let mut layers = Vec::with_capacity(self.layers.len());
        for (layer, shape) in self.layers.iter().zip(&self.shapes) {
            layers.push(match (layer, shape) {
                (LayerState::Kv(cache), LayerShape::Kv(shape)) => {
                    let mut copy = b.kv_clone(shape, cache)?;
                    if !b.kv_truncate(&mut copy, len)? {
                        return Ok(None);
                    }
                    LayerState::Kv(copy)
                }
                (LayerState::Recurrent(now), _) => match saved.next() {
                    Some(then) => LayerState::Recurrent(b.recurrent_clone(then)?),
                    None if len == self.len => LayerState::Recurrent(b.recurrent_clone(now)?),
                    None => return Ok(None),
                },
                _ => return Err(Error::State("a layer of another kind".into())),
            });
        }
        Ok(Some(Self { layers, shapes: self.shapes.clone(), len }))
    }

    /// Copies the state to the host.
    pub fn image(&self, b: &B) -> Result<StateImage> {
        let layer = |layer: &LayerState<B>| {
            Ok(match layer {
                LayerState::Kv(cache) => LayerImage::Kv(b.kv_save(cache)?),
                LayerState::Recurrent(state) => LayerImage::Recurrent(b.recurrent_save(state)?),
            })
        };
        Ok(StateImage { len: self.len, layers: self.layers.iter().map(layer).collect::<Result<_>>()? })
    }

    pub(crate) fn from_image(b: &B, shapes: Vec<LayerShape>, image: &StateImage) -> Result<Self> {
        if image.layers.len() != shapes.len() {
            return Err(Error::State(format!("{} layers, expected {}", image.layers.len(), shapes.len())));
        }
        let layer = |(i, (shape, image_layer)): (usize, (&LayerShape, &LayerImage))| {
            Ok(match (shape, image_layer) {
                (LayerShape::Kv(shape), LayerImage::Kv(kv)) if kv.len == image.len => {
                    LayerState::Kv(b.kv_load(shape, kv)?)
                }
                (LayerShape::Recurrent(shape), LayerImage::Recurrent(state)) => {
                    LayerState::Recurrent(b.recurrent_load(shape, state)?)
                }
                _ => return Err(Error::State(format!("layer {i} is of another kind or length"))),
            })
        };
        let layers = shapes.iter().zip(&image.layers).enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, shapes, len: image.len })
    }
}

/// Layer `i`'s caches of several sequences.
pub(crate) fn caches<'a, B: Backend>(states: &'a mut [&mut State<B>], i: usize) -> Vec<&'a mut B::KvCache> {
    let cache = |state: &'a mut &mut State<B>| match &mut state.layers[i] {
        LayerState::Kv(cache) => cache,
        LayerState::Recurrent(_) => {
            unreachable!("layer {i} is attention: its state was made from its own shape")
        }
    };
    states.iter_mut().map(cache).collect()
}

/// Layer `i`'s recurrent states of several sequences.
pub(crate) fn recurrent<'a, B: Backend>(
    states: &'a mut [&mut State<B>],
    i: usize,
) -> Vec<&'a mut B::Recurrent> {
    let recurrent = |state: &'a mut &mut State<B>| match &mut state.layers[i] {
        LayerState::Recurrent(state) => state,
        LayerState::Kv(_) => unreachable!("layer {i} is recurrent: its state was made from its own shape"),
    };
    states.iter_mut().map(recurrent).collect()
}

#[cfg(test)]
mod tests {
    use backend::CacheFloat;

    use super::*;

    #[test]
    fn codes_take_eight_and_a_half_bits() {
        let kv = |key_dim, value_dim| {
            let shape = KvShape { heads: 2, key_dim, value_dim, float: CacheFloat::Q8, window: None };
            LayerShape::Kv(shape).bytes(64, 1)
        };
        assert_eq!(kv(256, 128), 64 * 2 * (256 + 16 + 128 + 8));
        assert_eq!(kv(33, 0), 64 * 2 * (33 + 4));
    }

    #[test]
    fn a_ring_keeps_the_window_and_a_step_in_whole_blocks() {
        let kv = |window| {
            let shape = KvShape { heads: 1, key_dim: 3, value_dim: 2, float: CacheFloat::F16, window };
            LayerShape::Kv(shape)
        };
        for (window, tokens, step, kept) in [
            (None, 1000, 512, 1024),
            (None, 0, 512, 0),
            (Some(64), 10, 512, 64),
            (Some(64), 1000, 1, 64),
            (Some(65), 1000, 1, 128),
            (Some(64), 1000, 512, 63 + 512 + 1),
            (Some(64), 500, 512, 512),
            (Some(1), 1000, usize::MAX, 1024),
        ] {
            assert_eq!(
                kv(window).bytes(tokens, step),
                kept * 10,
                "{window:?}, {tokens} tokens, steps of {step}"
            );
        }
    }
}
