//! One file per command.

pub mod inspect;
pub mod logits;
pub mod run;
