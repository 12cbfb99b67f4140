//! The engine: from messages to tokens, from logits to text.
//!
//! `tokenizer` and `template` turn a conversation into token ids; `schedule` runs a model over sequences
//! of them in a loop of steps, `sampling` choosing each next id; `stop` and the tokenizer's stream turn
//! ids back into text as they arrive. `state_file` keeps a sequence on disk.

mod constraint;
mod dialect;
mod draft_state;
mod engine;
mod error;
mod pools;
mod sampling;
mod schedule;
mod sequence;
mod state_file;
mod stop;
mod template;
mod tokenizer;

pub use constraint::{Constraint, Grammar, Grammars};
pub use dialect::{Dialect, Piece, Reader, ToolChoice};
pub use engine::{Caches, DEFAULT_CHUNK, DEFAULT_CONTEXT, Engine, EngineOptions};
pub use error::{Error, bytes};
pub use sampling::{Draw, Sampler, SamplingParams, check_sampled};
pub use schedule::{
    Finish, Job, Listener, Loop, Phase, Refused, Scheduler, SchedulerOptions, Stats, StepEvent, Timing,
    TokenUpdate, Trace, Update, Updates,
};
pub use sequence::common_prefix;
pub use stop::{StopOutcome, StopScanner};
pub use template::{ChatTemplate, TemplateInput};
pub use tokenizer::{ChatPrompt, GenerationDefaults, TokenStream, Tokenizer};
