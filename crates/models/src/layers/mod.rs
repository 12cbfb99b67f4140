//! Layers that several families are made of.

mod attention;
mod decoder;
mod feed_forward;
mod gated_delta;

pub(crate) use attention::{Attention, AttentionConfig};
pub(crate) use decoder::{Decoder, DecoderConfig, Layer, Mixer};
pub(crate) use feed_forward::{FeedForward, MoeConfig};
pub(crate) use gated_delta::{GatedDelta, GatedDeltaConfig};
