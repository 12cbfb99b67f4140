//! Bytes that arrive in pieces, as text.

/// Turns bytes into text as soon as it is certain. The concatenation of what comes out is what
/// `String::from_utf8_lossy` makes of all the bytes together.
#[derive(Debug, Clone, Default)]
pub(super) struct Utf8Stream {
    /// The beginning of a character; at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes the next bytes. Bytes that can never become a character come out as U+FFFD; those that still can are
    /// kept.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let complete = self.pending.len() - incomplete_tail(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..complete]).into_owned();
        self.pending.drain(..complete);
        text
    }

    /// The end of the stream: an unfinished character is U+FFFD.
    pub(super) fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// How many bytes at the end are the beginning of a character that more bytes could complete.
fn incomplete_tail(bytes: &[u8]) -> usize {
    let window = &bytes[bytes.len().saturating_sub(3)..];
    (0..window.len())
        .map(|start| &window[start..])
        .find(|tail| match std::str::from_utf8(tail) {
            Ok(_) => false,
            // `None` is the standard library's word for "valid so far, but too short".
            Err(e) => e.valid_up_to() == 0 && e.error_len().is_none(),
        })
        .map_or(0, <[u8]>::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn characters_are_never_split() {
        let mut stream = Utf8Stream::default();
        let pieces: Vec<String> = "a🌟é".bytes().map(|b| stream.push(&[b])).collect();
        assert_eq!(pieces, ["a", "", "", "", "🌟", "", "é"]);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn only_hopeless_bytes_are_replaced_and_at_once() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(&[0xff]), "\u{fffd}");
        assert_eq!(stream.push(&[0xe6]), "");
        assert_eq!(stream.push(b"x"), "\u{fffd}x");
        // A surrogate: hopeless from the second byte on, one replacement per byte as in the standard library.
        assert_eq!(stream.push(&[0xed]), "");
        assert_eq!(stream.push(&[0xa0]), "\u{fffd}\u{fffd}");
        assert_eq!(stream.push(&[0xf0, 0x9f]), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.push("\u{fffd}".as_bytes()), "\u{fffd}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn agrees_with_lossy_decoding_of_the_whole(
            // Leading and continuation bytes of all lengths, mixed so that both good and broken characters are common.
            pieces in prop::collection::vec(
                prop::collection::vec(prop::sample::select(vec![
                    0x41u8, 0xc3, 0xa9, 0xe6, 0x98, 0xb4, 0xf0, 0x9f, 0x8c, 0x9f, 0xff, 0xed, 0xa0, 0xc0, 0xf4, 0x90, 0xe0,
                ]), 0..5), 0..12),
        ) {
            let mut stream = Utf8Stream::default();
            let mut text: String = pieces.iter().map(|piece| stream.push(piece)).collect();
            text += &stream.finish();
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole).into_owned());
        }
    }
}
