//! Parsers of forms that were asked for lately.
//!
//! While a parser follows an answer it finds out states of its lexer: many of them where a text's length is counted, since then every character leads to a new one. The next
//! answer of the same form need not find them out again, nor read the form.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::TokenParser;

/// Most parsers that are kept, and bytes that the states of each may take.
const MOST: usize = 16;
const MOST_BYTES: usize = 4 << 20;

/// The latest last. One that is in use is not among them: no two answers share states.
#[derive(Clone, Default)]
pub(super) struct Recent(Arc<Mutex<VecDeque<Kept>>>);

/// A parser at the beginning of its form, which has what its clones have found out.
struct Kept {
    form: String,
    parser: TokenParser,
}

/// A parser in use, kept again when this is dropped.
pub(super) struct Lent {
    recent: Recent,
    kept: Option<Kept>,
}

impl Recent {
    /// A parser for a form, and what keeps it afterwards; `build` makes one where none is free.
    pub fn parser<E>(
        &self,
        form: String,
        build: impl FnOnce() -> Result<TokenParser, E>,
    ) -> Result<(TokenParser, Lent), E> {
        let free = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let place = all.iter().rposition(|kept| kept.form == form);
            place.and_then(|place| all.remove(place))
        };
        let kept = match free {
            Some(kept) => kept,
            None => Kept { form, parser: build()? },
        };
        let parser = kept.parser.clone();
        Ok((parser, Lent { recent: self.clone(), kept: Some(kept) }))
    }

    #[cfg(test)]
    pub fn forms(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|kept| kept.form.clone()).collect()
    }
}

impl Lent {
    /// It is not to be kept: an error may have left anything in it.
    pub fn forget(&mut self) {
        self.kept = None;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(kept) = self.kept.take() else { return };
        if kept.parser.parser.lexer_stats().num_bytes > MOST_BYTES {
            return;
        }
        let mut all = self.recent.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(kept);
        if all.len() > MOST {
            all.pop_front();
        }
    }
}
