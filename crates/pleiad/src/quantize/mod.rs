//! From a plain checkpoint, however its tensors are named and laid out, to the quantised one that mlx-lm would write.
//!
//! `recipe` is what the user says of single weights, `plan` what becomes of each, `source` reads matrices block by block, `encode` quantises a block, `write` streams the result to
//! disk, `files` makes `config.json` and finds the tokenizer's files.

mod encode;
mod error;
mod files;
mod layout;
mod plan;
mod recipe;
mod source;
mod write;

pub use error::Error;
pub use files::{companions, config};
pub use layout::{ModeChoice, describe};
pub use plan::Plan;
pub use write::write;
