//! Model families.
//!
//! [`Model::load`] reads a checkpoint's `model_type`, builds that family's network on a backend and checks every weight
//! against the shape the config declares. A family is a file that reads its config, names its weights and says in
//! its `forward` what happens to a batch of tokens, in calls of [`backend::Backend`]; `layers` holds what families share.

mod config;
mod deepseek_v3;
mod error;
mod gemma4;
mod layers;
mod loader;
mod model;
mod qwen3;
mod qwen3_5;
mod state;
mod traffic;
mod words;

pub use error::{Error, Result};
pub use loader::Loaded;
pub use model::{Ahead, Drafted, FAMILIES, Logits, Model, Request, Stepped, Summary, Weights, weights};
pub use state::{LayerImage, LayerShape, LayerState, RecurrentSnapshot, State, StateImage};
pub use traffic::{Sizes, Traffic};
pub use words::counted;
