//! A tokenizer's vocabulary as llguidance wants it: a tree of the tokens' bytes.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use crate::{Dialect, Tokenizer};

/// Longer tokens, which no known vocabulary has, do not fit into the nodes of the tree.
const LONGEST_TOKEN: usize = 1024;

/// The tree of a vocabulary of `width` ids.
pub fn token_tree(tokenizer: &Tokenizer, width: usize, end_ids: &[u32]) -> TokEnv {
    let info = TokRxInfo::new(width as u32, end_ids.first().copied().unwrap_or(INVALID_TOKEN));
    let mut trie = TokTrie::from(&info, &words(tokenizer, width));
    if !end_ids.is_empty() {
        trie = trie.with_eos_tokens(end_ids);
    }
    Arc::new(ApproximateTokEnv::new(trie))
}

/// The bytes of every token; none for those that can never come.
///
/// Special tokens are marked as such: text never contains them, and grammars name them as `<|...|>`. The marks of the
/// model's dialect, however, are text, whether or not the vocabulary calls them special, so that one grammar serves
/// models where a mark is a special token, a plain one or several.
fn words(tokenizer: &Tokenizer, width: usize) -> Vec<Vec<u8>> {
    let dialect = Dialect::of(tokenizer);
    let word = |id: u32| {
        let bytes = tokenizer.token_bytes(id)?;
        let is_mark = || tokenizer.token_text(id).is_some_and(|token| dialect.has_mark(&token));
        let special = tokenizer.is_eos(id) || (tokenizer.is_special(id) && !is_mark());
        let marker: &[u8] = if special { &[TokTrie::SPECIAL_TOKEN_MARKER] } else { &[] };
        Some([marker, &bytes].concat()).filter(|word| word.len() <= LONGEST_TOKEN)
    };
    (0..width as u32).map(|id| word(id).unwrap_or_default()).collect()
}
