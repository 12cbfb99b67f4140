//! Stop strings while text is streaming.
//!
//! A stop string may arrive in pieces, so text that could still become one is held back until the next piece
//! decides. The emitted text never contains any part of the stop string that ended it.

/// Finds the first of several stop strings in text that arrives in pieces.
#[derive(Debug, Clone)]
pub struct StopScanner {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

/// What one piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutcome {
    /// Text that is now certain to be part of the answer.
    pub text: String,
    /// Index of the stop string that was found; nothing more is emitted afterwards.
    pub stopped: Option<usize>,
}

impl StopScanner {
    /// A scanner for these stop strings. Empty strings never match.
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new(), stopped: None }
    }

    /// Takes the next piece of text. The earliest match in the text wins; of several that begin at the same place,
    /// the one that is complete first, which is the shortest.
    pub fn push(&mut self, piece: &str) -> StopOutcome {
        if self.stopped.is_some() {
            return StopOutcome { text: String::new(), stopped: self.stopped };
        }
        self.held.push_str(piece);
        let found = self.first_match();
        // A stop string that begins earlier than the match but is not complete yet could still win, so the match is
        // final only when no such beginning is pending.
        let undecided = self.first_possible_start();
        match found {
            Some((start, index)) if start <= undecided => {
                self.stopped = Some(index);
                self.held.truncate(start);
                StopOutcome { text: std::mem::take(&mut self.held), stopped: self.stopped }
            }
            _ => {
                let rest = self.held.split_off(undecided);
                StopOutcome { text: std::mem::replace(&mut self.held, rest), stopped: None }
            }
        }
    }

    /// The end of the stream: what was held back is decided now.
    pub fn finish(&mut self) -> StopOutcome {
        if self.stopped.is_none()
            && let Some((start, index)) = self.first_match()
        {
            self.stopped = Some(index);
            self.held.truncate(start);
        }
        StopOutcome { text: std::mem::take(&mut self.held), stopped: self.stopped }
    }

    /// Index of the stop string found so far.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    fn usable(&self) -> impl Iterator<Item = (usize, &str)> {
        self.stops.iter().map(String::as_str).enumerate().filter(|(_, stop)| !stop.is_empty())
    }

    /// Earliest complete stop string in the held text: (byte offset, index).
    fn first_match(&self) -> Option<(usize, usize)> {
        self.usable()
            .filter_map(|(index, stop)| Some((self.held.find(stop)?, stop.len(), index)))
            .min()
            .map(|(start, _, index)| (start, index))
    }

    /// Earliest byte offset from which the held text, to its end, is a proper beginning of a stop string; the length
    /// of the held text where there is none.
    fn first_possible_start(&self) -> usize {
        let held = self.held.as_bytes();
        self.usable()
            .filter_map(|(_, stop)| {
                let stop = stop.as_bytes();
                let longest = (stop.len() - 1).min(held.len());
                // Both are UTF-8 and the beginning of `stop` is a character boundary, so a match is one in `held`.
                (1..=longest).rev().find(|&n| held.ends_with(&stop[..n])).map(|n| held.len() - n)
            })
            .min()
            .unwrap_or(held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut scanner = StopScanner::new(stops.iter().map(|s| s.to_string()).collect());
        let mut text = String::new();
        for piece in pieces {
            text += &scanner.push(piece).text;
        }
        let end = scanner.finish();
        (text + &end.text, end.stopped)
    }

    #[test]
    fn holds_back_what_could_become_a_stop() {
        let mut scanner = StopScanner::new(vec!["<|end|>".into()]);
        assert_eq!(scanner.push("hello <|"), StopOutcome { text: "hello ".into(), stopped: None });
        assert_eq!(scanner.push("en"), StopOutcome::default());
        assert_eq!(scanner.push("ough"), StopOutcome { text: "<|enough".into(), stopped: None });
        assert_eq!(scanner.push("<|end|>more"), StopOutcome { text: String::new(), stopped: Some(0) });
        assert_eq!(scanner.push("ignored"), StopOutcome { text: String::new(), stopped: Some(0) });
        assert_eq!(scanner.finish(), StopOutcome { text: String::new(), stopped: Some(0) });
    }

    #[test]
    fn earliest_match_wins_over_order_of_the_list() {
        assert_eq!(stream(&["b", "a"], &["xxab"]), ("xx".into(), Some(1)));
        // "abcd" begins earlier but never completes, so "bc" is found once that is known.
        assert_eq!(stream(&["bc", "abcd"], &["xab", "c", "x"]), ("xa".into(), Some(0)));
        assert_eq!(stream(&["bc", "abcd"], &["xab", "c", "d"]), ("x".into(), Some(1)));
        assert_eq!(stream(&["bc", "abcd"], &["xab", "c"]), ("xa".into(), Some(0)));
        assert_eq!(stream(&["abc", "ab"], &["xabc"]), ("x".into(), Some(1)));
    }

    #[test]
    fn repeated_beginnings_and_multi_byte_text() {
        assert_eq!(stream(&["aab"], &["a", "a", "a", "b", "c"]), ("a".into(), Some(0)));
        assert_eq!(stream(&["é終"], &["caf", "é", "終", "x"]), ("caf".into(), Some(0)));
        assert_eq!(stream(&["é終"], &["caf", "é", "x"]), ("caféx".into(), None));
    }

    #[test]
    fn no_stops_and_empty_stops_pass_everything_through() {
        assert_eq!(stream(&[], &["a", "b"]), ("ab".into(), None));
        assert_eq!(stream(&["", "z"], &["a", "b"]), ("ab".into(), None));
        assert_eq!(stream(&[""], &["a"]), ("a".into(), None));
    }

    /// Whole-text search: earliest start, then shortest, then first in the list.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        let best = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).find_map(|at| {
            (0..stops.len())
                .filter(|&i| !stops[i].is_empty() && text[at..].starts_with(&stops[i]))
                .min_by_key(|&i| (stops[i].len(), i))
                .map(|i| (at, i))
        });
        match best {
            Some((at, index)) => (text[..at].to_string(), Some(index)),
            None => (text.to_string(), None),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn agrees_with_a_search_over_the_whole_text(
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            pieces in prop::collection::vec("[abé]{0,2}", 0..10),
        ) {
            let text = pieces.concat();
            let mut scanner = StopScanner::new(stops.clone());
            let mut emitted = String::new();
            let expected = naive(&stops, &text);
            for piece in &pieces {
                emitted += &scanner.push(piece).text;
                prop_assert!(expected.0.starts_with(&emitted), "emitted {emitted:?} of {expected:?}");
            }
            let end = scanner.finish();
            emitted += &end.text;
            prop_assert_eq!((emitted, end.stopped), expected);
        }
    }
}
