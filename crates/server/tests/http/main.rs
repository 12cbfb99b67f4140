//! The whole surface over real connections, without a model.

mod anthropic;
mod client;
mod ending;
mod fake;
mod guards;
mod limits;
mod openai_chat;
mod openai_completions;
mod requests;
mod status;
