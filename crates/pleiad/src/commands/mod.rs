//! One file per command.

pub mod bench;
pub mod eval;
pub mod inspect;
mod items;
pub mod logits;
pub mod pull;
pub mod quantize;
pub mod run;
pub mod serve;
