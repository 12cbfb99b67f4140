//! Layers that several families are made of.

mod attention;
mod decoder;
mod feed_forward;
mod gated_delta;
mod latent_attention;

pub(crate) use attention::{Attention, AttentionConfig};
pub(crate) use decoder::{Decoder, DecoderConfig, Mixer};
pub(crate) use feed_forward::{FeedForward, Mlp, MoeConfig, Routing, SharedConfig, SparseLayers, read_top_k};
pub(crate) use gated_delta::{GatedDelta, GatedDeltaConfig};
pub(crate) use latent_attention::{LatentAttention, LatentConfig};
