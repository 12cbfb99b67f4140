//! What is asked, whichever API asks it.

use engine::{Grammar, SamplingParams};
use serde_json::{Map, Value as Json};

use crate::forms::Tools;

/// What to continue.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A conversation, by the model's chat template.
    Chat(Conversation),
    /// A text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
}

/// Messages and what the template needs beside them.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// The messages, with plain strings as content.
    pub messages: Vec<Json>,
    /// Tools that may be called.
    pub tools: Tools,
    /// Further variables of the template.
    pub extra: Map<String, Json>,
    /// Whether the last message, the assistant's, is the beginning of the answer.
    pub continued: bool,
}

/// One request's question.
#[derive(Clone, Debug)]
pub struct Question {
    /// What to continue; each gets answers of its own.
    pub prompts: Vec<Prompt>,
    /// Answers for each.
    pub n: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// At most so many tokens; until the context is full when absent.
    pub max_tokens: Option<usize>,
    /// Texts that end an answer.
    pub stops: Vec<String>,
    /// What the answer must look like.
    pub form: Option<Grammar>,
    /// Tell with each token how probable it was, and the so many most probable ones.
    pub logprobs: Option<usize>,
}

impl Conversation {
    /// Sets a variable of the template unless the request has said it itself.
    pub fn default_variable(&mut self, name: &str, value: impl Into<Json>) {
        self.extra.entry(name).or_insert_with(|| value.into());
    }
}

/// Puts several system messages at the beginning together: templates allow one.
pub fn merge_system(messages: Vec<Json>) -> Vec<Json> {
    let is_system = |message: &&Json| message["role"] == "system";
    let count = messages.iter().take_while(is_system).count();
    if count < 2 {
        return messages;
    }
    let texts: Vec<&str> =
        messages[..count].iter().filter_map(|message| message["content"].as_str()).collect();
    let merged = serde_json::json!({"role": "system", "content": texts.join("\n\n")});
    [merged].into_iter().chain(messages[count..].iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn system_messages_at_the_beginning_become_one() {
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let merged = merge_system(vec![
            message("system", "A"),
            message("system", "B"),
            message("user", "C"),
            message("system", "D"),
        ]);
        assert_eq!(merged, [message("system", "A\n\nB"), message("user", "C"), message("system", "D")]);
        assert_eq!(merge_system(vec![message("user", "C")]), [message("user", "C")]);
    }
}
