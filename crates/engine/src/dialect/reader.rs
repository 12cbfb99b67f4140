//! Takes an answer apart as it arrives.

use serde_json::Value as Json;

use super::cursor::{Cursor, Stop};
use super::marks::{Marks, Thoughts};
use super::tool::Tool;
use super::{Dialect, Piece, deepseek, gemma, qwen_json, qwen_xml};

/// So many bytes show whether a call is one. What is longer is read again only when it may have ended.
const SHORT: usize = 256;

/// Takes an answer apart as it is generated.
///
/// White space around thoughts and calls belongs to neither side and is left out. What looks like a call but is none,
/// or never ends, is text.
pub struct Reader {
    dialect: Dialect,
    marks: &'static Marks,
    tools: Vec<Tool>,
    /// What has arrived and is not decided.
    held: String,
    place: Place,
    /// Whether all that came at this place so far was white space.
    fresh: bool,
    /// Whether text here follows thoughts or a call.
    after_mark: bool,
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Thoughts,
    Text,
}

impl Reader {
    pub(super) fn new(dialect: Dialect, prompt: &str, tools: &[Json]) -> Self {
        let marks = dialect.marks();
        let open = marks.thoughts_after(prompt) == Thoughts::Open;
        Self {
            dialect,
            marks,
            tools: Tool::list(tools),
            held: String::new(),
            place: if open { Place::Thoughts } else { Place::Text },
            fresh: true,
            after_mark: false,
            pieces: Vec::new(),
        }
    }

    /// More of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held += text;
        let waiting = self.held.len() > SHORT
            && self.place == Place::Text
            && self.openings().iter().any(|opening| self.held.trim_start().starts_with(opening));
        if !waiting || text.contains('>') {
            self.read(false);
        }
        std::mem::take(&mut self.pieces)
    }

    /// The end of it.
    pub fn finish(&mut self) -> Vec<Piece> {
        self.read(true);
        std::mem::take(&mut self.pieces)
    }

    fn openings(&self) -> &'static [&'static str] {
        if self.tools.is_empty() { &[] } else { self.marks.openings }
    }

    fn read(&mut self, last: bool) {
        let mut undecided = false;
        while !undecided {
            undecided = match self.place {
                Place::Thoughts => self.read_thoughts(last),
                Place::Text if self.fresh => self.read_beginning(last),
                Place::Text => self.read_text(last),
            };
        }
    }

    /// Each of these returns whether what is left has to wait.
    fn read_thoughts(&mut self, last: bool) -> bool {
        let close = self.marks.thoughts.map_or("", |[_, close]| close);
        if let Some(end) = self.held.find(close) {
            self.think(end);
            self.held.drain(..end + close.len());
            self.enter(Place::Text);
            return false;
        }
        let end = if last { self.held.len() } else { undecided_from(&self.held, &[close]) };
        let thought = self.held[..end].trim_end().len();
        self.think(thought);
        self.held.drain(..thought);
        true
    }

    /// Thoughts up to a place in what is held, without white space at their ends.
    fn think(&mut self, end: usize) {
        let mut thought = self.held[..end].trim_end();
        if self.fresh {
            thought = thought.trim_start();
        }
        if !thought.is_empty() {
            self.fresh = false;
            self.pieces.push(Piece::Reasoning(thought.to_owned()));
        }
    }

    /// The beginning of text, where thoughts may come, or, after a call, the end of the group.
    fn read_beginning(&mut self, last: bool) -> bool {
        let text = self.held.trim_start();
        let space = self.held.len() - text.len();
        let thoughts = self.marks.thoughts.map(|[open, _]| (open, Place::Thoughts));
        let group_end = self.marks.group_end.filter(|_| self.after_mark).map(|end| (end, Place::Text));
        for (mark, place) in thoughts.into_iter().chain(group_end) {
            if text.starts_with(mark) {
                self.held.drain(..space + mark.len());
                self.enter(place);
                return false;
            }
            if mark.starts_with(text) && !last {
                return true;
            }
        }
        if text.is_empty() && !last {
            return true;
        }
        if self.after_mark {
            self.held.drain(..space);
        }
        self.fresh = false;
        false
    }

    fn read_text(&mut self, last: bool) -> bool {
        let first =
            self.openings().iter().filter_map(|opening| Some((self.held.find(opening)?, *opening))).min();
        let Some((start, opening)) = first else {
            let end = if last || self.openings().is_empty() {
                self.held.len()
            } else {
                // White space before a mark may turn out to be left out.
                self.held[..undecided_from(&self.held, self.openings())].trim_end().len()
            };
            self.say(end);
            return true;
        };
        let text = self.held[..start].trim_end().len();
        let mut cursor = Cursor::new(&self.held[start..]);
        match self.call(&mut cursor) {
            Ok(call) => {
                let rest = cursor.rest().len();
                self.say(text);
                self.pieces.push(call);
                self.held.drain(..self.held.len() - rest);
                self.enter(Place::Text);
                false
            }
            Err(Stop::Incomplete) if !last => {
                self.say(text);
                true
            }
            Err(_) => {
                self.say(start + opening.len());
                false
            }
        }
    }

    fn call(&self, text: &mut Cursor<'_>) -> Result<Piece, Stop> {
        match self.dialect {
            Dialect::Plain | Dialect::Thinking => Err(Stop::Malformed),
            Dialect::QwenJson => qwen_json::read(text),
            Dialect::QwenXml => qwen_xml::read(text, &self.tools),
            Dialect::DeepSeek | Dialect::DeepSeekFenced => deepseek::read(text),
            Dialect::Gemma => gemma::read(text),
        }
    }

    /// Text up to a place in what is held.
    fn say(&mut self, end: usize) {
        if end > 0 {
            self.pieces.push(Piece::Text(self.held.drain(..end).collect()));
        }
    }

    /// A mark was passed.
    fn enter(&mut self, place: Place) {
        self.place = place;
        self.fresh = true;
        self.after_mark = true;
    }
}

/// Where the end of a text may be the beginning of a mark; the length of the text where it is not.
fn undecided_from(text: &str, marks: &[&str]) -> usize {
    let overlap = |mark: &str| {
        let prefixes = mark.char_indices().map(|(end, _)| &mark[..end]).rev();
        prefixes.into_iter().find(|prefix| text.ends_with(prefix)).map_or(0, str::len)
    };
    text.len() - marks.iter().map(|mark| overlap(mark)).max().unwrap_or(0)
}
