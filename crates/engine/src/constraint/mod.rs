//! Answers of a given form: JSON by a schema, a regular expression, a grammar.
//!
//! llguidance follows the grammar and says which tokens can come next; here are what it needs to know about a
//! vocabulary and the choices that are ours: how much white space JSON may have, which end tokens there are.

#[cfg(test)]
pub(crate) mod conforms;
#[cfg(test)]
pub(crate) mod fake_model;
mod json;
mod recent;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, SimpleVob};
use llguidance::{Matcher, ParserFactory, panic_utils, regex_to_lark};
use serde_json::Value as Json;

use crate::{Error, Tokenizer};
use recent::{Lent, Recent};

pub(crate) use json::{Unsupported, with_options};

/// The form of an answer.
#[derive(Clone, Debug)]
pub enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON that a schema allows.
    JsonSchema(Json),
    /// A regular expression that the whole answer matches.
    Regex(String),
    /// A grammar in Lark's notation, as llguidance reads it.
    Lark(String),
}

/// A vocabulary for constraints. Cheap to clone.
#[derive(Clone)]
pub struct Grammars {
    vocabulary: Arc<Vocabulary>,
}

struct Vocabulary {
    tokenizer: Tokenizer,
    end_ids: Vec<u32>,
    width: usize,
    /// Made when it is first needed, or before; or why it could not be made.
    factory: OnceLock<Result<ParserFactory, String>>,
    recent: Recent,
}

/// What one answer may still become.
pub struct Constraint {
    vocabulary: Arc<Vocabulary>,
    matcher: Matcher,
    lent: Lent,
    /// The tokens that can come next, once they are known.
    allowed: Option<Arc<SimpleVob>>,
}

impl Vocabulary {
    fn factory(&self) -> Result<&ParserFactory, Error> {
        let build = || {
            let tree = vocabulary::token_tree(&self.tokenizer, self.width, &self.end_ids);
            let slices = SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(&tree, InferenceCapabilities::default(), &slices)?;
            factory.quiet();
            factory.limits_mut().verbose_errors = false;
            Ok(factory)
        };
        let made = self.factory.get_or_init(|| {
            panic_utils::catch_unwind(AssertUnwindSafe(build)).map_err(|e| first_line(&e.to_string()))
        });
        made.as_ref().map_err(|reason| Error::UnusableVocabulary { reason: reason.clone() })
    }
}

impl Grammars {
    /// For a vocabulary with so many logits, which may be more than the tokenizer has tokens. It is prepared with the first
    /// constraint, which takes about a second for a large one.
    pub fn new(tokenizer: &Tokenizer, width: usize) -> Self {
        let end_ids = tokenizer.eos_ids().iter().copied().filter(|id| (*id as usize) < width).collect();
        let (factory, recent) = (OnceLock::new(), Recent::default());
        let vocabulary = Vocabulary { tokenizer: tokenizer.clone(), end_ids, width, factory, recent };
        Self { vocabulary: Arc::new(vocabulary) }
    }

    /// Prepares the vocabulary now, so that the first constraint need not.
    pub fn prepare(&self) -> Result<(), Error> {
        self.vocabulary.factory().map(|_| ())
    }

    /// A constraint at the beginning of an answer.
    pub fn constraint(&self, grammar: &Grammar) -> Result<Constraint, Error> {
        let (what, form) = match grammar {
            Grammar::JsonObject => ("JSON object", String::new()),
            Grammar::JsonSchema(schema) => ("JSON schema", schema.to_string()),
            Grammar::Regex(regex) => ("regular expression", regex.clone()),
            Grammar::Lark(lark) => ("grammar", lark.clone()),
        };
        let factory = self.vocabulary.factory()?;
        let (parser, lent) = self.vocabulary.recent.parser(format!("{what}: {form}"), || {
            let grammar = GrammarInit::Serialized(grammar.top_level()?);
            let build = || factory.create_parser_from_init_default(grammar);
            panic_utils::catch_unwind(AssertUnwindSafe(build))
                .map_err(|e| Error::InvalidGrammar { what, reason: in_words(&e.to_string(), what) })
        })?;
        let vocabulary = self.vocabulary.clone();
        Ok(Constraint { vocabulary, matcher: Matcher::new(Ok(parser)), lent, allowed: None })
    }
}

impl Grammar {
    /// As llguidance takes it.
    fn top_level(&self) -> Result<TopLevelGrammar, Error> {
        Ok(match self {
            Self::JsonObject => json_grammar(&serde_json::json!({"type": "object"}))?,
            Self::JsonSchema(schema) => json_grammar(schema)?,
            Self::Regex(regex) => TopLevelGrammar::from_lark(format!("start: {}", regex_terminal(regex))),
            Self::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        })
    }
}

impl Constraint {
    /// The tokens that can come next, found out unless they are known; where the answer can end, all end tokens can. Those beyond its
    /// last bit cannot.
    pub(crate) fn allowed(&mut self) -> Result<Arc<SimpleVob>, Error> {
        if let Some(allowed) = &self.allowed {
            return Ok(allowed.clone());
        }
        let found = self.matcher.compute_mask_or_eos().map_err(|e| self.broken(&e))?;
        Ok(self.allowed.insert(Arc::new(found)).clone())
    }

    /// The same, and what can come after each of some tokens that it [allows](Self::allows).
    pub(crate) fn allowed_with(&mut self, tokens: &[u32]) -> Result<Vec<Arc<SimpleVob>>, Error> {
        let mut all = vec![self.allowed()?];
        let mut ahead = 0;
        for token in tokens {
            if self.matcher.is_stopped() {
                break;
            }
            self.matcher.consume_token(*token).map_err(|e| self.broken(&e))?;
            ahead += 1;
            all.push(Arc::new(self.matcher.compute_mask_or_eos().map_err(|e| self.broken(&e))?));
        }
        if ahead > 0 {
            self.matcher.rollback(ahead).map_err(|e| self.broken(&e))?;
        }
        Ok(all)
    }

    /// How many of some tokens can come next, one after the other, without ending the answer.
    pub(crate) fn allows(&mut self, tokens: &[u32]) -> usize {
        let is_end = |id: &u32| self.vocabulary.end_ids.contains(id);
        let tokens = &tokens[..tokens.iter().position(is_end).unwrap_or(tokens.len())];
        self.matcher.validate_tokens(tokens).unwrap_or(0)
    }

    /// The token that comes next.
    pub fn push(&mut self, id: u32) -> Result<(), Error> {
        if self.is_finished() && self.vocabulary.end_ids.contains(&id) {
            return Ok(());
        }
        self.allowed = None;
        self.matcher.consume_token(id).map_err(|e| self.broken(&e))
    }

    fn broken(&mut self, error: &dyn std::fmt::Display) -> Error {
        self.lent.forget();
        Error::ConstraintBroken { reason: first_line(&error.to_string()) }
    }

    /// Whether nothing can follow: the answer is over.
    pub fn is_finished(&self) -> bool {
        self.matcher.is_stopped()
    }
}

fn json_grammar(schema: &Json) -> Result<TopLevelGrammar, Error> {
    Ok(TopLevelGrammar::from_json_schema(json::with_options(schema, json::Unsupported::Refuse)?))
}

/// A regular expression in Lark's notation, where two strokes would begin a comment.
pub(crate) fn regex_terminal(regex: &str) -> String {
    match unanchored(regex) {
        "" => "\"\"".to_owned(),
        regex => format!("/{}/", regex_to_lark(regex, "")),
    }
}

/// The whole answer has to match anyway, and llguidance knows no anchors.
fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        // A dollar sign after an odd number of backslashes is a character.
        Some(rest) if (rest.len() - rest.trim_end_matches('\\').len()) % 2 == 0 => rest,
        _ => regex,
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().to_owned()
}

/// Most characters of a message; some quote a whole expression that llguidance made of a number.
const LONGEST_MESSAGE: usize = 300;

fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(LONGEST_MESSAGE) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// llguidance's message without the lines of the grammar around the place, which may be long, and in words for those
/// who do not know llguidance.
fn in_words(message: &str, what: &str) -> String {
    let is_source = |line: &&str| {
        line.split_once(" | ").is_some_and(|(number, _)| number.parse::<u32>().is_ok()) || *line == "^"
    };
    let lines = message.lines().map(str::trim).take_while(|line| !line.starts_with("<backtrace>"));
    let message = lines.filter(|line| !line.is_empty() && !is_source(line)).collect::<Vec<_>>().join(" ");
    if message.starts_with("Only absolute $ref's") {
        return "only references to places within the schema are supported, such as #/$defs/name".to_owned();
    }
    let message = message.replace("Unimplemented keys", "keywords that are not supported");
    let message = message.replace(". Enable 'coerce_one_of' option to approximate oneOf with anyOf", "");
    let message = shortened(message);
    match message.split_once("): ") {
        // A place in a grammar that the user did not write.
        Some((place, message)) if what != "grammar" && place.starts_with("at ") => message.to_owned(),
        _ => message,
    }
}
