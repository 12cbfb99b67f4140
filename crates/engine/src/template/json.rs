//! `json.dumps` of Python, which is what Hugging Face's `tojson` is: no HTML escapes, keys in their order.

use std::fmt::Write;

use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind};

use super::{float, value};

/// The filter: `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(json: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    type Options = (Option<Value>, Option<Value>, Option<Value>, Option<Value>, Kwargs);
    let args = args.into_values();
    let (ensure_ascii, indent, separators, sort_keys, kwargs): Options = from_args(&args)?;
    let option = |given: Option<Value>, name: &str| match given {
        Some(value) => Ok(value),
        None => Ok::<_, Error>(kwargs.get::<Option<Value>>(name)?.unwrap_or_else(|| Value::from(()))),
    };
    let ensure_ascii = option(ensure_ascii, "ensure_ascii")?.is_true();
    let indent = option(indent, "indent")?;
    let separators = option(separators, "separators")?;
    let sort_keys = option(sort_keys, "sort_keys")?.is_true();
    kwargs.assert_all_used()?;

    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => Some(value::str(&indent)),
        _ => Some(" ".repeat(i64::try_from(indent)?.clamp(0, 64) as usize)),
    };
    let (item, key) = if separators.is_none() {
        (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string())
    } else {
        match separators.try_iter()?.collect::<Vec<_>>().as_slice() {
            [item, key] => (value::str(item), value::str(key)),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "tojson: separators must be two strings",
                ));
            }
        }
    };
    let mut writer = Writer { out: String::new(), depth: 0, ensure_ascii, indent, item, key, sort_keys };
    writer.value(json)?;
    Ok(Value::from(writer.out))
}

struct Writer {
    out: String,
    depth: usize,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        if let Some(x) = value::as_float(value) {
            self.out.push_str(&number(x));
            return Ok(());
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&value.to_string()),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.container('[', ']', &items, |this, item| this.value(item))?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for (key, value) in
                    value.as_object().and_then(|map| map.try_iter_pairs()).into_iter().flatten()
                {
                    pairs.push((key_text(&key)?, value));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.container('{', '}', &pairs, |this, (key, value)| {
                    this.string(key);
                    let separator = std::mem::take(&mut this.key);
                    this.out.push_str(&separator);
                    this.key = separator;
                    this.value(value)
                })?;
            }
            kind => return Err(not_serializable(kind)),
        }
        Ok(())
    }

    fn container<T>(
        &mut self,
        open: char,
        close: char,
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        self.depth += 1;
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.out.push_str(&self.item);
            }
            self.new_line();
            write(self, item)?;
        }
        self.depth -= 1;
        if !items.is_empty() {
            self.new_line();
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(self.depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Python writes the numbers that JSON does not have in JavaScript's words.
fn number(x: f64) -> String {
    match x {
        x if x.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        x => float::repr(x),
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    if let Some(x) = value::as_float(key) {
        return Ok(number(x));
    }
    match key.kind() {
        ValueKind::String | ValueKind::Number => Ok(key.to_string()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        kind => Err(not_serializable(kind)),
    }
}

fn not_serializable(kind: ValueKind) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("a value of type {kind} cannot be written as JSON"))
}
