//! Prompt lookup: drafts the next tokens where a text repeats itself. After the same few tokens
//! there comes what came the last time.
//!
//! Draft tokens are checked in one step with the token before them, which reads each weight once
//! for all, and dropped from the first rejected one on. Accepted or not, tokens are chosen as they
//! would be one by one.

/// Tokens that must be the same before a draft is made.
const CONTEXT: usize = 4;

/// Tokens searched backwards: enough for a long chat, and no time beside a step.
const REACH: usize = 32_768;

/// Most tokens drafted at once, and after a success that was not complete.
const MOST: usize = 16;
const LEAST: usize = 2;

/// Tokens to wait after the first failure; twice as many after each that follows.
const PAUSE: usize = 8;
const LONGEST_PAUSE: usize = 256;

/// Drafts for one sequence, and how they fared.
#[derive(Debug)]
pub(super) struct Lookup {
    /// Tokens to draft at once.
    length: usize,
    /// No draft before the sequence has so many tokens.
    not_before: usize,
    pause: usize,
}

impl Default for Lookup {
    fn default() -> Self {
        Self { length: 4, not_before: 0, pause: PAUSE }
    }
}

impl Lookup {
    /// What probably follows `tokens`, at most `most`; nothing where there is no hint.
    pub fn find<'a>(&self, tokens: &'a [u32], most: usize) -> &'a [u32] {
        if tokens.len() < self.not_before.max(2 * CONTEXT) {
            return &[];
        }
        let (before, last) = tokens.split_at(tokens.len() - CONTEXT);
        let from = before.len().saturating_sub(REACH);
        // What follows must be there already, so the match may reach into the last tokens but not
        // be them.
        let found = (from..before.len()).rev().find(|at| tokens[*at..].starts_with(last));
        found.map_or(&[], |at| {
            let follows = &tokens[at + CONTEXT..];
            &follows[..follows.len().min(self.length).min(most)]
        })
    }

    /// Learns how a draft fared that was made when the sequence had `len` tokens.
    pub fn learn(&mut self, len: usize, drafted: usize, accepted: usize) {
        if accepted == drafted {
            self.length = (2 * self.length).min(MOST);
            self.pause = PAUSE;
        } else {
            self.length = (accepted + 1).clamp(LEAST, MOST);
        }
        // A step with drafts must bring in more than it costs.
        if 2 * accepted < drafted {
            self.not_before = len + accepted + self.pause;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_came_after_the_same_tokens() {
        let lookup = Lookup::default();
        let cases: [(&[u32], &[u32]); 5] = [
            (&[], &[]),
            (&[1, 2, 3, 4, 5, 6, 7, 8], &[]),
            (&[1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4], &[5, 6, 7, 1]),
            // The latest place counts.
            (&[1, 2, 3, 4, 8, 1, 2, 3, 4, 9, 1, 2, 3, 4], &[9, 1, 2, 3]),
            // A run of one token goes on.
            (&[7, 7, 7, 7, 7, 7, 7, 7, 7], &[7]),
        ];
        for (tokens, expected) in cases {
            assert_eq!(lookup.find(tokens, 16), expected, "{tokens:?}");
        }
        assert_eq!(lookup.find(&[1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4], 2), [5, 6]);
    }

    #[test]
    fn failures_make_it_pause_and_successes_bolder() {
        let tokens: Vec<u32> = [1, 2, 3, 4, 5, 6, 7, 8].repeat(10);
        let mut lookup = Lookup::default();
        lookup.learn(40, 4, 0);
        assert!(lookup.find(&tokens[..47], 16).is_empty());
        assert_eq!(lookup.find(&tokens[..48], 16).len(), LEAST);
        lookup.learn(48, 2, 2);
        lookup.learn(51, 4, 4);
        assert_eq!(lookup.find(&tokens[..56], 16).len(), 8);
        for _ in 0..20 {
            lookup.learn(60, 4, 0);
        }
        assert_eq!(lookup.not_before, 60 + LONGEST_PAUSE);
    }
}
