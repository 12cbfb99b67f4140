//! The engine: from messages to tokens, from logits to text.
//!
//! `tokenizer` and `template` turn a conversation into token ids, `sampling` chooses the next id, `stop` and the
//! tokenizer's stream turn ids back into text as they arrive.

mod error;
mod sampling;
mod stop;
mod template;

pub use error::Error;
pub use sampling::{Sampled, Sampler, SamplingParams, top_logprobs};
pub use stop::{StopOutcome, StopScanner};
pub use template::{ChatTemplate, TemplateInput};
