//! The server: OpenAI's and Anthropic's APIs over HTTP, and a chat page.
//!
//! A request goes one way: `guard` decides whether it may pass, `openai` or `anthropic` reads it into a question, `answer`
//! turns that into jobs for the scheduler and the scheduler's tokens into events, and the API writes those out, whole or
//! as they come. Nothing here knows which model runs or on what: it sees [`Answers`] and a [`Tokenizer`](engine::Tokenizer).

mod answer;
mod answers;
mod anthropic;
mod app;
mod body;
mod error;
mod fault;
mod fields;
mod forms;
mod guard;
mod ids;
mod intake;
mod metrics;
mod openai;
mod options;
mod page;
mod sampling;
mod server;
mod sse;
mod status;

pub use answers::Answers;
pub use app::ServedModel;
pub use error::Error;
pub use options::Options;
pub use server::Server;
