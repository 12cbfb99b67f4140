//! Reading text that may not be complete yet.
//!
//! Every answer is final: what is right or wrong about a text stays so whatever follows it, so that the pieces a text
//! arrives in make no difference.

/// Why reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The text ends before it is decided.
    Incomplete,
    /// Whatever follows, this is not a call.
    Malformed,
}

/// A place in a text.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    pub fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a str {
        self.rest
    }

    /// Passes over white space.
    pub fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Passes over a string where it comes next.
    pub fn take(&mut self, expected: &str) -> Result<bool, Stop> {
        if let Some(rest) = self.rest.strip_prefix(expected) {
            self.rest = rest;
            return Ok(true);
        }
        if expected.starts_with(self.rest) { Err(Stop::Incomplete) } else { Ok(false) }
    }

    /// Passes over a string that must come next.
    pub fn expect(&mut self, expected: &str) -> Result<(), Stop> {
        if self.take(expected)? { Ok(()) } else { Err(Stop::Malformed) }
    }

    /// The text before the next `end`, which is passed over.
    pub fn until(&mut self, end: &str) -> Result<&'a str, Stop> {
        let (text, rest) = self.rest.split_once(end).ok_or(Stop::Incomplete)?;
        self.rest = rest;
        Ok(text)
    }

    /// The same for a name, which is short, on one line and without marks.
    pub fn name_until(&mut self, end: &str) -> Result<&'a str, Stop> {
        const LONGEST_NAME: usize = 256;
        let name = self.rest.split(end).next().unwrap_or_default();
        if name.len() > LONGEST_NAME + end.len() || name.contains('\n') && !end.contains('\n') {
            return Err(Stop::Malformed);
        }
        let name = self.until(end)?.trim();
        // A mark's own beginning may be in what is not complete yet, but not in a name.
        if name.is_empty() || name.contains('<') || name.len() > LONGEST_NAME {
            return Err(Stop::Malformed);
        }
        Ok(name)
    }

    /// The text up to one of these characters, which is not passed over.
    pub fn until_any(&mut self, ends: &[char]) -> Result<&'a str, Stop> {
        let end = self.rest.find(ends).ok_or(Stop::Incomplete)?;
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(text)
    }

    /// Text that looks like a JSON object, by its brackets; whether it is one is for a parser to say. Ends of calls may
    /// well be inside its strings.
    pub fn json_object(&mut self) -> Result<&'a str, Stop> {
        let mut depth = 0usize;
        let mut in_string = false;
        let mut escaped = false;
        for (at, byte) in self.rest.bytes().enumerate() {
            match byte {
                _ if depth == 0 && byte != b'{' => return Err(Stop::Malformed),
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                // JSON has no lines within strings.
                b'\n' if in_string => return Err(Stop::Malformed),
                _ if in_string => {}
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                b'<' => return Err(Stop::Malformed),
                _ => {}
            }
            if depth == 0 {
                let (json, rest) = self.rest.split_at(at + 1);
                self.rest = rest;
                return Ok(json);
            }
        }
        Err(Stop::Incomplete)
    }
}
