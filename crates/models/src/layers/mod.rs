//! Layers that several families are made of.

mod attention;
mod decoder;
mod drafter;
mod feed_forward;
mod gated_delta;
mod latent_attention;

pub(crate) use attention::{Attention, AttentionConfig, AttentionDefaults};
pub(crate) use decoder::{Decoder, DecoderConfig, Layer, Mixer};
pub(crate) use drafter::{Drafter, DrafterNames, Drafts};
pub(crate) use feed_forward::{FeedForward, Mlp, MoeConfig, Routing, SharedConfig, SparseLayers, read_top_k};
pub(crate) use gated_delta::{GatedDelta, GatedDeltaConfig};
pub(crate) use latent_attention::{LatentAttention, LatentConfig};
