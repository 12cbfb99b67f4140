//! Model families.
//!
//! A [`Family`] is a table: the names it answers to, a reader of `config.json`, how its weights are
//! quantised, shapes of real models. What it reads is a [`Spec`], plain data from which follow the
//! names and shapes of all weights, what a sequence keeps, and what there is to say of a model. An
//! [`Outline`] is that together with a checkpoint's tensors, still without a backend. [`Model`]
//! brings it to one: `layers` say what happens to a batch of tokens, in calls of
//! blocks of [`backend::Blocks`].

mod config;
mod error;
mod families;
mod family;
mod layers;
mod loader;
mod model;
mod outline;
mod spec;
mod stored;
mod traffic;
mod weights;
mod words;

pub use backend::pool::{LayerImage, LayerShape, StateImage};
pub use error::{Error, Result};
pub use family::{FAMILIES, Family, Preset, Quantise};
pub use model::{Drafted, Logits, Model, Request, Stepped};
pub use outline::{ListedWeight, Outline, Summary};
pub use spec::Spec;
pub use stored::Stored;
pub use traffic::{Sizes, Traffic};
pub use weights::{FusedRows, Kind, Part, Role, WeightSpec};
pub use words::counted;
