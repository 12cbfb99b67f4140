//! Layers that several families are made of.

mod attention;
mod decoder;
mod drafter;
mod feed_forward;
mod gated_delta;
mod latent_attention;

pub(crate) use attention::Attention;
pub(crate) use decoder::{Decoder, Layer};
pub(crate) use drafter::Drafts;
pub(crate) use feed_forward::{FeedForward, Mlp, load_moe};
pub(crate) use gated_delta::GatedDelta;
pub(crate) use latent_attention::LatentAttention;
