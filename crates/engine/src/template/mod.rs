//! Chat templates: a conversation as the text a model was trained on.
//!
//! Templates are written for Python's jinja2 as Hugging Face's `apply_chat_template` sets it up, and a model sees a
//! different prompt if one byte differs. minijinja runs them; the modules here hold what Python does differently.
//!
//! What still differs, and no known template uses: `varargs` and `kwargs` in macros, the `%` operator on strings,
//! slices with a negative step and an end (`x[3:0:-1]`; `x[::-1]` is fine), a float beyond 1e16 or below 1e-4 joined
//! with `~` without `| string`, integers beyond 64 bits, and joining with `+` after `| safe`, which escapes HTML in
//! Python. Some mistakes that Python reports pass silently, such as a loop over none.

mod environment;
mod filters;
mod float;
mod json;
mod methods;
mod source;
#[cfg(test)]
mod tests;
mod value;

use std::error::Error as _;

use minijinja::Environment;
use minijinja::value::Value;
use serde_json::Value as Json;

use crate::Error;
use environment::Raised;

const NAME: &str = "chat template";

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
}

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct TemplateInput {
    /// The conversation. Each message is an object: `role`, `content` (a string or a list of parts) and whatever
    /// else the template knows, such as `reasoning_content`, `tool_calls`, `name`, `tool_call_id`.
    pub messages: Vec<Json>,
    /// Tools the model may call, as JSON schemas; `None` where there are none.
    pub tools: Option<Vec<Json>>,
    /// Whether the text ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The model's token for the beginning of a text.
    pub bos_token: Option<String>,
    /// The model's token for the end of a text.
    pub eos_token: Option<String>,
    /// Further variables, such as `enable_thinking`; they may replace those above.
    pub extra: serde_json::Map<String, Json>,
}

impl ChatTemplate {
    /// Parses a template.
    pub fn new(source: &str) -> Result<Self, Error> {
        Self::with_now(source, None)
    }

    fn with_now(source: &str, now: Option<jiff::civil::DateTime>) -> Result<Self, Error> {
        let mut env = environment::environment(now);
        env.add_template_owned(NAME, source::prepare(source))
            .map_err(|e| Error::TemplateSyntax { line: e.line(), message: e.to_string() })?;
        Ok(Self { env })
    }

    /// Renders a conversation.
    pub fn render(&self, input: &TemplateInput) -> Result<String, Error> {
        // Hugging Face passes tools and documents also when there are none, so both are always defined.
        let list = |items: &[Json]| value::from_json(&Json::Array(items.to_vec()));
        let mut context = vec![
            ("messages", list(&input.messages)),
            ("tools", input.tools.as_deref().map_or(Value::from(()), list)),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(input.add_generation_prompt)),
        ];
        context.extend(input.bos_token.as_deref().map(|token| ("bos_token", Value::from(token))));
        context.extend(input.eos_token.as_deref().map(|token| ("eos_token", Value::from(token))));
        context.extend(input.extra.iter().map(|(name, json)| (name.as_str(), value::from_json(json))));
        self.render_context(context)
    }

    /// Of several variables with one name, the last counts.
    fn render_context<'a>(
        &self,
        context: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<String, Error> {
        self.env.get_template(NAME).and_then(|template| template.render(Value::from_pairs(context))).map_err(
            |e| match raised(&e) {
                Some(message) => Error::TemplateRaised { message },
                None => Error::TemplateRender { line: e.line(), message: e.to_string() },
            },
        )
    }
}

/// The message of `raise_exception`, where that is what went wrong.
fn raised(error: &minijinja::Error) -> Option<String> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        source = error.source();
    }
    None
}
