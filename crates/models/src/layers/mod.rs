//! From specs and weights to the backend's blocks, and the decoder that runs them.

mod attention;
mod decoder;
mod drafter;
mod feed_forward;
mod gated_delta;
mod latent_attention;
mod layer;
mod layer_inputs;

pub(crate) use decoder::Decoder;
pub(crate) use drafter::Drafter;
pub(crate) use layer::Layer;
pub(crate) use layer_inputs::{LayerInput, LayerInputs};
