//! What can go wrong in the engine, said so that the reader knows what to do next.

use std::path::PathBuf;

/// Every error of the engine crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder holds weights but no tokenizer: ids still work, text does not.
    #[error(
        "{} has no tokenizer.json, so text cannot be turned into tokens; \
         copy the file from the original model, or give token ids with --ids",
        folder.display()
    )]
    TokenizerMissing {
        /// The model folder.
        folder: PathBuf,
    },

    /// A file of the model folder exists but could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A file of the model folder was read but is not what its name promises.
    #[error("{} is not valid: {reason}; the download may be incomplete", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// The tokenizer refused a text.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),

    /// The tokenizer refused a list of token ids.
    #[error("the tokens cannot be turned into text: {0}")]
    Decode(String),

    /// The model has no chat template, so a list of messages has no defined text.
    #[error(
        "this model has no chat template (no chat_template.jinja and no chat_template in \
         tokenizer_config.json); it is probably a base model: give it plain text to continue"
    )]
    NoChatTemplate,

    /// The chat template itself does not parse.
    #[error("the chat template does not parse{}: {message}", at_line(*line))]
    TemplateSyntax {
        /// Line in the template, from 1, where known.
        line: Option<usize>,
        /// What the parser said.
        message: String,
    },

    /// The chat template called `raise_exception`: it does not accept this conversation.
    #[error("the chat template rejects this conversation: {message}")]
    TemplateRaised {
        /// The message the template's author wrote.
        message: String,
    },

    /// The chat template failed while rendering.
    #[error("the chat template failed{}: {message}", at_line(*line))]
    TemplateRender {
        /// Line in the template, from 1, where known.
        line: Option<usize>,
        /// What went wrong.
        message: String,
    },

    /// A sampling parameter is outside its range.
    #[error("{name} must be {expected}, but is {value}")]
    InvalidSampling {
        /// The parameter.
        name: &'static str,
        /// What was given.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },

    /// The model's logits cannot be sampled from.
    #[error("cannot choose a token: {reason}; the weights may be damaged")]
    InvalidLogits {
        /// What is wrong with them.
        reason: String,
    },

    /// The model could not be built or run.
    #[error(transparent)]
    Model(#[from] models::Error),

    /// Nothing to continue.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,

    /// A sequence that does not fit the context.
    #[error(
        "the prompt has {tokens} tokens, but the context holds {context}; \
         shorten it, or raise --context if memory allows"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens the sequence may have.
        context: usize,
    },

    /// A sequence alone takes more than there is for all.
    #[error("the {} for caches are full; give them more memory, or ask for a shorter context", bytes(*bytes_for_caches))]
    CachesFull {
        /// Bytes there are.
        bytes_for_caches: u64,
    },

    /// A context whose caches would not fit in memory.
    #[error(
        "a context of {context} tokens needs {} of caches, but {} are free for them; \
         the longest that fits is --context {fits}",
        bytes(*needed),
        bytes(*available)
    )]
    ContextTooLarge {
        /// Tokens asked for.
        context: usize,
        /// Bytes of caches and states for so many.
        needed: u64,
        /// Bytes there are.
        available: u64,
        /// Tokens that would fit.
        fits: usize,
    },

    /// A step of several sequences that failed, for each of them.
    #[error("the model could not go on: {reason}")]
    Step {
        /// What went wrong.
        reason: String,
    },

    /// No thread to work on.
    #[error("cannot start a thread: {reason}")]
    Thread {
        /// What the operating system said.
        reason: String,
    },

    /// A schema, regular expression or grammar for answers that is not one, or asks for too much.
    #[error("the {what} cannot be used: {reason}")]
    InvalidGrammar {
        /// What was given.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// A token that its constraint forbids, or a constraint that needs too much time or memory to follow.
    #[error("the answer cannot be kept in the form that was asked for: {reason}")]
    ConstraintBroken {
        /// What happened.
        reason: String,
    },

    /// A vocabulary that answers of a given form cannot be made of.
    #[error("answers of a given form are not possible with this tokenizer: {reason}")]
    UnusableVocabulary {
        /// What is wrong with it.
        reason: String,
    },

    /// A file that does not hold the state of a sequence of this model.
    #[error("{} cannot be used as a saved state: {reason}", path.display())]
    StateFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<backend::Error> for Error {
    fn from(error: backend::Error) -> Self {
        Error::Model(error.into())
    }
}

/// Bytes for people, with two or three digits: `1.5 GB`, `20.5 GB`, `576 MB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 999.5 && unit < UNITS.len() - 1 {
        value /= 1000.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{n} {}", UNITS[0]),
        (_, v) if v < 99.95 => format!("{v:.1} {}", UNITS[unit]),
        (_, v) => format!("{v:.0} {}", UNITS[unit]),
    }
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(" at line {line}")).unwrap_or_default()
}
