//! JSON values as a template sees them: with the behaviour of Python's dict, list, str and numbers.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, Value, ValueKind};
use minijinja::{Error, State};
use serde_json::Value as Json;

use super::float;

/// Converts a JSON value.
pub(super) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(v) => Value::from(*v),
        Json::Number(v) => match (v.as_i64(), v.as_u64(), v.as_f64()) {
            (Some(v), _, _) => Value::from(v),
            (_, Some(v), _) => Value::from(v),
            (_, _, Some(v)) => Value::from(v),
            // Only numbers beyond f64 get here, and only if serde_json is built to keep them.
            _ => Value::from(v.to_string()),
        },
        Json::String(v) => Value::from(v.as_str()),
        Json::Array(items) => Value::from_object(List(items.iter().map(from_json).collect())),
        Json::Object(map) => Value::from_object(Dict::new(map)),
    }
}

/// A Python list that cannot be changed.
#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&repr(&Value::from_dyn_object(self.clone())))
    }
}

/// A Python dict that cannot be changed, in the order of the JSON text.
#[derive(Debug)]
struct Dict {
    keys: Vec<Value>,
    values: HashMap<String, Value>,
}

/// Methods of dict that a template may name, and those that the sandbox forbids because they would change it.
const METHODS: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const FORBIDDEN: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

impl Dict {
    fn new(map: &serde_json::Map<String, Json>) -> Self {
        Self {
            keys: map.keys().map(|key| Value::from(key.as_str())).collect(),
            values: map.iter().map(|(key, value)| (key.clone(), from_json(value))).collect(),
        }
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.values.get(key.as_str()?).cloned()
    }

    /// Attribute access, `d.name`. As in Python a method hides an item of the same name, so that `schema.items` is
    /// not the schema of an array's items; `schema['items']` is.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if let Some(&name) = METHODS.iter().find(|name| **name == key) {
            return Some(Value::from_object(BoundMethod { dict: self.clone(), name }));
        }
        if FORBIDDEN.contains(&key) {
            return None;
        }
        self.values.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.keys.iter().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.keys.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&repr(&Value::from_dyn_object(self.clone())))
    }
}

/// `d.items` without the call.
#[derive(Debug)]
struct BoundMethod {
    dict: Arc<Dict>,
    name: &'static str,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        Value::from_dyn_object(self.dict.clone()).call_method(state, self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}

/// The number in a value that is a float, not an integer or a bool.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    if value.is_number() && !value.is_integer() { f64::try_from(value.clone()).ok() } else { None }
}

/// `str(value)`.
pub(super) fn str(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_string(),
        None => repr(value),
    }
}

/// `repr(value)`; an undefined value prints nothing.
pub(super) fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(&mut out, value);
    out
}

fn write_repr(out: &mut String, value: &Value) {
    if let Some(x) = as_float(value) {
        out.push_str(&float::repr(x));
        return;
    }
    match value.kind() {
        ValueKind::String => quote(out, value.as_str().unwrap_or_default()),
        ValueKind::Map => {
            out.push('{');
            let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
            for (i, (key, value)) in pairs.into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(out, &key);
                out.push_str(": ");
                write_repr(out, &value);
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter().into_iter().flatten() {
                out.push_str(if count > 0 { ", " } else { "" });
                write_repr(out, &item);
                count += 1;
            }
            out.push_str(match (tuple, count) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

/// A Python string literal.
fn quote(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let _ = match u32::from(c) {
                    code @ ..=0xff => write!(out, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// `c.isprintable()`. The standard library has the same table, built from the same Unicode categories as Python's,
/// but shows it only through `escape_debug`; behind another character, combining marks count as printable there too.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut pair = String::from("a");
    pair.push(c);
    pair.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repr_quotes_and_escapes_like_python() {
        let cases = [
            ("plain", "'plain'"),
            ("it's", "\"it's\""),
            ("\"q\"", "'\"q\"'"),
            ("it's \"q\"", "'it\\'s \"q\"'"),
            ("a\\b\n\r\t", "'a\\\\b\\n\\r\\t'"),
            ("\0\x1b\x7f\u{a0}\u{ad}", "'\\x00\\x1b\\x7f\\xa0\\xad'"),
            ("\u{200b}\u{2028}\u{feff}", "'\\u200b\\u2028\\ufeff'"),
            ("é昴🌟e\u{301}", "'é昴🌟e\u{301}'"),
            ("\u{e000}\u{f0000}", "'\\ue000\\U000f0000'"),
        ];
        for (text, expected) in cases {
            assert_eq!(repr(&Value::from(text)), expected);
        }
    }
}
