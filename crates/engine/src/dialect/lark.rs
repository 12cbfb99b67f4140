//! Pieces of grammars in Lark's notation, as llguidance reads it.

use serde_json::Value as Json;

use crate::constraint::{Unsupported, with_options};

/// Any text.
pub const ANY_TEXT: &str = "/(?s:.*)/";

const NOTHING: &str = "\"\"";

/// Parameters of rules, which say what an object already has, are numbers of 64 bits.
const MOST_IN_ANY_ORDER: usize = 64;

/// A grammar that is being written.
#[derive(Default)]
pub struct Lark {
    text: String,
    named: usize,
}

impl Lark {
    /// The whole grammar.
    pub fn finish(self) -> String {
        self.text
    }

    /// Adds a rule.
    pub fn rule(&mut self, name: &str, body: &str) {
        self.text += &format!("{name}: {body}\n");
    }

    /// Adds a rule for text that ends with the first place where it matches `terminal`.
    pub fn shortest(&mut self, name: &str, terminal: &str) {
        self.rule(&format!("{name}[lazy]"), terminal);
    }

    /// A name that no other rule has.
    pub fn name(&mut self, kind: &str) -> String {
        self.named += 1;
        format!("{kind}_{}", self.named)
    }

    /// A rule for some of these items, each at most once and in any order, with those that are required, which come
    /// first in the list. Items are rules. Very many have to keep the order of the list.
    pub fn in_any_order(&mut self, items: &[(String, bool)], separator: &str) -> String {
        if items.is_empty() || items.len() > MOST_IN_ANY_ORDER {
            return self.in_this_order(items, separator);
        }
        let required = items.iter().filter(|(_, required)| *required).count();
        let (name, more) = (self.name("items"), self.name("more"));
        let numbered = || items.iter().enumerate().map(|(bit, (item, _))| (bit, item));

        let mut later: Vec<String> = numbered()
            .map(|(bit, item)| {
                format!("{} {item} {more}::set_bit({bit}) %if bit_clear({bit})", quote(separator))
            })
            .collect();
        later.push(match required {
            0 => NOTHING.to_owned(),
            _ => format!("{NOTHING} %if is_ones([0:{required}])"),
        });
        self.rule(&format!("{more}::_"), &later.join(" | "));

        let mut first: Vec<String> =
            numbered().map(|(bit, item)| format!("{item} {more}::{:#x}", 1u64 << bit)).collect();
        if required == 0 {
            first.push(NOTHING.to_owned());
        }
        self.rule(&name, &first.join(" | "));
        name
    }

    fn in_this_order(&mut self, items: &[(String, bool)], separator: &str) -> String {
        // From the last item to the first: what may come from here on if nothing came before, and if something did.
        let (mut first, mut later) = (NOTHING.to_owned(), NOTHING.to_owned());
        for (item, required) in items.iter().rev() {
            let names = (self.name("items"), self.name("more"));
            let or = |skipped: &str| if *required { String::new() } else { format!(" | {skipped}") };
            self.rule(&names.0, &format!("{item} {later}{}", or(&first)));
            self.rule(&names.1, &format!("{} {item} {later}{}", quote(separator), or(&later)));
            (first, later) = names;
        }
        first
    }
}

/// A literal string.
pub fn quote(text: &str) -> String {
    // The notation is JSON's, but for this one character.
    Json::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Several literals, any of them.
pub fn any_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    format!("({})", texts.into_iter().map(quote).collect::<Vec<_>>().join(" | "))
}

/// JSON by a schema. Keywords that cannot be followed are not: a call that breaks them is still a call.
pub fn json(schema: &Json) -> String {
    let schema =
        with_options(schema, Unsupported::Ignore).unwrap_or_else(|_| Json::Object(Default::default()));
    format!("%json {schema}")
}

/// A terminal for a string by its schema, as bare text: `before`, text of an allowed length, `after`. The text contains no
/// `mark`, with which `after` ends.
pub fn text(schema: &Json, before: &str, after: &str, mark: &str) -> String {
    let length = |key| schema.get(key).and_then(Json::as_u64);
    let text = match (length("minLength"), length("maxLength")) {
        (None, None) => ANY_TEXT.to_owned(),
        (least, None) => format!("/(?s:.{{{},}})/", least.unwrap_or(0)),
        (least, Some(most)) => format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0)),
    };
    let (before, after, mark) = (quote(before), quote(after), quote(mark));
    format!("{before} {text} {after} & ~({before} {ANY_TEXT} {mark} /(?s:.+)/)")
}
