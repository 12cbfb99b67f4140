//! Text as it is generated.

use super::utf8::Utf8Stream;
use super::{Decoding, Tokenizer, byte_level, fallback_byte};
use crate::Error;

/// Turns tokens into text one at a time. What comes out is certain: whole characters, and together the same text as
/// decoding all tokens at once.
///
/// One exception, for tokenizers with byte fallback: `decode` replaces every byte of a run of byte tokens if any of
/// them is wrong, also those of whole characters that a stream has already passed on.
#[derive(Debug, Clone)]
pub struct TokenStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Byte-level tokens: the bytes so far.
    utf8: Utf8Stream,
    /// Pieces: the tokens of the last text that came out. Decoded in front of the next ones, they show how those look
    /// inside a text; at its beginning many tokenizers drop a space.
    context: Vec<u32>,
    /// Pieces: byte tokens that are the beginning of a character.
    bytes: Vec<(u32, u8)>,
}

impl TokenStream {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, utf8: Utf8Stream::default(), context: Vec::new(), bytes: Vec::new() }
    }

    /// Takes the next token and returns the text that is now complete, often none.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        let Some(token) = self.tokenizer.token_text(id) else { return Ok(String::new()) };
        if self.skip_special && self.tokenizer.inner.is_special(&token) {
            return Ok(String::new());
        }
        match self.tokenizer.inner.decoding {
            Decoding::ByteLevel => Ok(self.utf8.push(&byte_level(&token))),
            Decoding::Pieces { byte_fallback } => match fallback_byte(&token).filter(|_| byte_fallback) {
                Some(byte) => self.push_byte(id, byte),
                None => {
                    let broken = self.take_broken(self.bytes.len());
                    Ok(broken + &self.piece(vec![id])?)
                }
            },
        }
    }

    /// The end of the tokens: an unfinished character comes out as U+FFFD.
    pub fn finish(&mut self) -> String {
        let broken = self.take_broken(self.bytes.len());
        self.utf8.finish() + &broken
    }

    fn push_byte(&mut self, id: u32, byte: u8) -> Result<String, Error> {
        self.bytes.push((id, byte));
        let mut out = String::new();
        while !self.bytes.is_empty() {
            let bytes: Vec<u8> = self.bytes.iter().map(|(_, byte)| *byte).collect();
            match std::str::from_utf8(&bytes) {
                Ok(_) => {
                    let ids = self.bytes.drain(..).map(|(id, _)| id).collect();
                    out += &self.piece(ids)?;
                }
                Err(e) => match e.error_len() {
                    Some(hopeless) => out += &self.take_broken(hopeless),
                    None => break,
                },
            }
        }
        Ok(out)
    }

    /// Gives up the first `count` byte tokens; like `decode`, with one replacement for each.
    fn take_broken(&mut self, count: usize) -> String {
        self.bytes.drain(..count).map(|_| char::REPLACEMENT_CHARACTER).collect()
    }

    /// Text of the tokens behind the context, whose place they then take.
    fn piece(&mut self, ids: Vec<u32>) -> Result<String, Error> {
        let before = self.tokenizer.decode(&self.context, false)?;
        let both = [self.context.as_slice(), &ids].concat();
        let text = self.tokenizer.decode(&both, false)?;
        let piece = match text.strip_prefix(&before) {
            Some(piece) => piece.to_string(),
            // A decoder that rewrites what stands before; none of today's models has one.
            None => self.tokenizer.decode(&ids, false)?,
        };
        self.context = ids;
        Ok(piece)
    }
}
