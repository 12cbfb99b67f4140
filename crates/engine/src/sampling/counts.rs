//! How often tokens occur where penalties look.

use std::collections::BTreeMap;
use std::ops::Range;

use backend::Adjusted;

/// The tokens of a range of a text, counted. To go on with the text takes only as long as what is new.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    of: BTreeMap<u32, Count>,
    range: Range<usize>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Count {
    all: u32,
    /// Of these, tokens behind the prompt.
    generated: u32,
}

impl Counts {
    /// Counts the tokens of `text` in `range`. It has those that are counted already where they were.
    pub fn cover(&mut self, text: &[u32], range: Range<usize>, prompt_len: usize) {
        let counted = self.range.clone();
        for at in (range.start..counted.start).chain(counted.end..range.end) {
            let count = self.of.entry(text[at]).or_default();
            count.all += 1;
            count.generated += u32::from(at >= prompt_len);
        }
        for at in (counted.start..range.start).chain(range.end..counted.end) {
            if let Some(count) = self.of.get_mut(&text[at]) {
                count.all -= 1;
                count.generated -= u32::from(at >= prompt_len);
                if *count == Count::default() {
                    self.of.remove(&text[at]);
                }
            }
        }
        self.range = range;
    }

    /// All that changes logits, in ascending order of tokens.
    pub fn adjusted(&self, bias: &BTreeMap<u32, f32>) -> Vec<Adjusted> {
        let mut all: BTreeMap<u32, Adjusted> = BTreeMap::new();
        let new = |token| Adjusted { token, seen: false, generated: 0, bias: 0.0 };
        for (&token, count) in &self.of {
            all.insert(token, Adjusted { seen: true, generated: count.generated, ..new(token) });
        }
        for (&token, &bias) in bias {
            all.entry(token).or_insert_with(|| new(token)).bias = bias;
        }
        all.into_values().collect()
    }
}
