//! Text to tokens and back, as the model's folder defines it.

mod files;
mod stream;
#[cfg(test)]
mod tests;
mod utf8;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::Value as Json;

pub use files::GenerationDefaults;
pub use stream::TokenStream;

use crate::{ChatTemplate, Error, TemplateInput, common_prefix};
use files::TemplateSources;

/// A model's tokenizer with everything its folder says about text. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tokenizer: tokenizers::Tokenizer,
    decoding: Decoding,
    eos_ids: Vec<u32>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    templates: TemplateSources,
    defaults: GenerationDefaults,
    longest: OnceLock<usize>,
}

/// How tokens become text, as far as a stream has to know.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Decoding {
    /// A token is a string of bytes, written in GPT-2's alphabet; the text is their concatenation.
    ByteLevel,
    /// A token is a piece of text whose look may depend on its place, or, with `byte_fallback`, one byte as `<0x41>`.
    Pieces { byte_fallback: bool },
}

/// A conversation, ready to be answered.
#[derive(Debug, Clone)]
pub struct ChatPrompt {
    /// As text.
    pub text: String,
    /// As tokens.
    pub ids: Vec<u32>,
    /// Tokens that the next turn will begin with too: everything before the words that open the answer.
    pub stable: usize,
}

impl Tokenizer {
    /// Reads tokenizer.json, which must exist, and tokenizer_config.json, generation_config.json, config.json and
    /// chat_template.jinja, which need not.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        Self::from_files(folder, |name| files::read_text(&folder.join(name)))
    }

    /// The same from files that are not in a folder: `read` gives the text of the file of a name, if there is one;
    /// `folder` stands for the folder in messages.
    pub fn from_files(
        folder: &Path,
        read: impl Fn(&str) -> Result<Option<String>, Error>,
    ) -> Result<Self, Error> {
        let path = folder.join("tokenizer.json");
        let Some(text) = read("tokenizer.json")? else {
            return Err(Error::TokenizerMissing { folder: folder.into() });
        };
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(text)
            .map_err(|e| Error::InvalidFile { path: path.clone(), reason: e.to_string() })?;
        // Left-overs of training; Hugging Face's library resets them on every call.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| Error::InvalidFile { path, reason: e.to_string() })?;

        let json = |name| match read(name)? {
            Some(text) => files::parse_json(&folder.join(name), &text),
            None => Ok(Json::Null),
        };
        let config = json("config.json")?;
        let tokenizer_config = json("tokenizer_config.json")?;
        let generation_config = json("generation_config.json")?;
        let template_file = read("chat_template.jinja")?;

        let eos_token = files::token_text(&tokenizer_config, "eos_token");
        let mut eos_ids = files::eos_ids(&generation_config);
        eos_ids.extend(files::eos_ids(&config));
        eos_ids.extend(config.get("text_config").map(files::eos_ids).unwrap_or_default());
        eos_ids.extend(eos_token.as_deref().and_then(|token| tokenizer.token_to_id(token)));
        eos_ids.sort_unstable();
        eos_ids.dedup();

        let defaults = match generation_config {
            Json::Null => GenerationDefaults::default(),
            json => serde_json::from_value(json).map_err(|e| Error::InvalidFile {
                path: folder.join("generation_config.json"),
                reason: e.to_string(),
            })?,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                decoding: Decoding::of(&tokenizer),
                tokenizer,
                eos_ids,
                bos_token: files::token_text(&tokenizer_config, "bos_token"),
                eos_token,
                templates: TemplateSources::new(template_file, &tokenizer_config),
                defaults,
                longest: OnceLock::new(),
            }),
        })
    }

    /// Tokens of a text. `add_special` adds what the model expects around a plain text, such as a token for its
    /// beginning; text from a chat template already has it.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        let encoding =
            self.inner.tokenizer.encode_fast(text, add_special).map_err(|e| Error::Encode(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of tokens. `skip_special` leaves out tokens such as `<|im_end|>`; ids outside the vocabulary have no text.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Error> {
        self.inner.tokenizer.decode(ids, skip_special).map_err(|e| Error::Decode(e.to_string()))
    }

    /// Text of tokens as they are generated.
    pub fn stream(&self, skip_special: bool) -> TokenStream {
        TokenStream::new(self.clone(), skip_special)
    }

    /// The vocabulary's own spelling of a token, such as `Ġthe` or `<|im_end|>`.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.inner.tokenizer.id_to_token(id)
    }

    /// The bytes a token stands for in the middle of a text; not always whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let token = self.token_text(id)?;
        Some(match self.inner.decoding {
            Decoding::ByteLevel => byte_level(&token),
            Decoding::Pieces { byte_fallback } => match fallback_byte(&token).filter(|_| byte_fallback) {
                Some(byte) => vec![byte],
                None => token.replace('▁', " ").into_bytes(),
            },
        })
    }

    /// Bytes of the longest token, so that a text has at least so many times fewer tokens than bytes.
    pub fn longest_token(&self) -> usize {
        let bytes = |id| self.token_bytes(id).map_or(0, |bytes| bytes.len());
        *self.inner.longest.get_or_init(|| (0..self.vocab_size() as u32).map(bytes).max().unwrap_or(1).max(1))
    }

    /// The id of a token in the vocabulary's spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.tokenizer.token_to_id(token)
    }

    /// Number of tokens, added ones included. A model's logits may be longer: vocabularies are padded.
    pub fn vocab_size(&self) -> usize {
        self.inner.tokenizer.get_vocab_size(true)
    }

    /// Whether a token is one that [`decode`](Self::decode) can skip.
    pub fn is_special(&self, id: u32) -> bool {
        self.token_text(id).is_some_and(|token| self.inner.is_special(&token))
    }

    /// Whether a token ends the answer.
    pub fn is_eos(&self, id: u32) -> bool {
        self.inner.eos_ids.contains(&id)
    }

    /// All tokens that end the answer.
    pub fn eos_ids(&self) -> &[u32] {
        &self.inner.eos_ids
    }

    /// The token for the beginning of a text, where the model has one.
    pub fn bos_token(&self) -> Option<&str> {
        self.inner.bos_token.as_deref()
    }

    /// The token for the end of a text, where the model has one.
    pub fn eos_token(&self) -> Option<&str> {
        self.inner.eos_token.as_deref()
    }

    /// Whether the model comes with a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.inner.templates.choose(false).is_some()
    }

    /// The model's chat template; some models have another one for conversations with tools.
    pub fn chat_template(&self, with_tools: bool) -> Result<ChatTemplate, Error> {
        ChatTemplate::new(self.inner.templates.choose(with_tools).ok_or(Error::NoChatTemplate)?)
    }

    /// The text of a conversation by the model's own template, with its own tokens for the beginning and the end of a
    /// text where `input` names none.
    pub fn render(&self, mut input: TemplateInput) -> Result<String, Error> {
        input.bos_token = input.bos_token.or_else(|| self.inner.bos_token.clone());
        input.eos_token = input.eos_token.or_else(|| self.inner.eos_token.clone());
        self.chat_template(input.tools.is_some())?.render(&input)
    }

    /// A conversation as the prompt of its next answer. `encode` is [`encode`](Self::encode) without special tokens, with
    /// whatever else the caller wants to check.
    pub fn prompt<E: From<Error>>(
        &self,
        input: TemplateInput,
        encode: impl Fn(&str) -> Result<Vec<u32>, E>,
    ) -> Result<ChatPrompt, E> {
        let text = self.render(TemplateInput { add_generation_prompt: true, ..input.clone() })?;
        let ids = encode(&text)?;
        let stable = match self.render(TemplateInput { add_generation_prompt: false, ..input }) {
            Ok(before) => common_prefix(&ids, &encode(&before)?),
            Err(_) => 0,
        };
        Ok(ChatPrompt { text, ids, stable })
    }

    /// What the model's authors recommend for sampling.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.inner.defaults
    }
}

impl Inner {
    fn is_special(&self, token: &str) -> bool {
        self.tokenizer.get_added_vocabulary().is_special_token(token)
    }
}

impl Decoding {
    fn of(tokenizer: &tokenizers::Tokenizer) -> Self {
        // The decoder's own JSON is the one description that holds nested decoders too.
        let decoder = serde_json::to_value(tokenizer.get_decoder()).unwrap_or_default();
        let steps = match decoder.get("decoders").and_then(Json::as_array) {
            Some(steps) => steps.clone(),
            None => vec![decoder],
        };
        let is = |step: &Json, kind: &str| step.get("type").and_then(Json::as_str) == Some(kind);
        if let [step] = steps.as_slice()
            && is(step, "ByteLevel")
        {
            return Self::ByteLevel;
        }
        Self::Pieces { byte_fallback: steps.iter().any(|step| is(step, "ByteFallback")) }
    }
}

/// Bytes of a token in GPT-2's alphabet; a token with any other character, such as an added one, is its own UTF-8.
fn byte_level(token: &str) -> Vec<u8> {
    token.chars().map(alphabet_byte).collect::<Option<Vec<u8>>>().unwrap_or_else(|| token.as_bytes().to_vec())
}

/// GPT-2's alphabet writes printable bytes of Latin-1 as themselves and the others, in order, from U+0100 on.
fn alphabet_byte(c: char) -> Option<u8> {
    let code = u32::from(c);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The byte of a token like `<0x0A>`.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}
