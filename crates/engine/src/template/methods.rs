//! Methods of Python's str, list and dict that templates call.
//!
//! Those that minijinja-contrib has as Python has them are left to it.

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::value;

/// What minijinja calls for a method it does not know.
pub(super) fn call(state: &mut State, object: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (object.kind(), object.as_str()) {
        (ValueKind::String, Some(text)) => match string_method(text, method, args)? {
            Some(result) => Ok(result),
            None => pycompat::unknown_method_callback(state, object, method, args),
        },
        (ValueKind::Map | ValueKind::Seq, _) if method == "copy" && args.is_empty() => Ok(object.clone()),
        (ValueKind::Seq | ValueKind::Iterable, _) if method == "index" => {
            let (item,): (&Value,) = from_args(args)?;
            let position = object.try_iter()?.position(|other| other == *item);
            position.map(Value::from).ok_or_else(|| invalid(format!("{} is not in list", value::repr(item))))
        }
        _ => pycompat::unknown_method_callback(state, object, method, args),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let strings = |parts: Vec<&str>| Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>());
    let tuple = |a: &str, b: &str, c: &str| {
        Value::from(minijinja::value::Tuple::from([Value::from(a), Value::from(b), Value::from(c)]))
    };
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<Value>,) = from_args(args)?;
            let chars = match &chars {
                None => None,
                Some(chars) if chars.is_none() => None,
                Some(chars) => Some(expect_str(chars, method)?),
            };
            Value::from(strip(text, chars, method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => {
            let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = match separator {
                Some(separator) => Some(separator),
                None => kwargs.get("sep")?,
            };
            let limit = match limit {
                Some(limit) => Some(limit),
                None => kwargs.get("maxsplit")?,
            };
            kwargs.assert_all_used()?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
            match separator {
                Some(separator) if !separator.is_none() => {
                    let separator = expect_str(&separator, method)?;
                    if separator.is_empty() {
                        return Err(invalid("empty separator"));
                    }
                    strings(split_on(text, separator, limit, method == "rsplit"))
                }
                _ => strings(split_whitespace(text, limit, method == "rsplit")),
            }
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = match keep {
                Some(keep) => keep,
                None => kwargs.get::<Option<bool>>("keepends")?.unwrap_or(false),
            };
            kwargs.assert_all_used()?;
            strings(split_lines(text, keep))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            text.split_once(separator).map_or(tuple(text, "", ""), |(a, b)| tuple(a, separator, b))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            text.rsplit_once(separator).map_or(tuple("", "", text), |(a, b)| tuple(a, separator, b))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let items = items.try_iter()?.collect::<Vec<_>>();
            let items = items.iter().map(|item| expect_str(item, "join")).collect::<Result<Vec<_>, _>>()?;
            Value::from(items.join(text))
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(what) } else { text.rfind(what) };
            let at = at.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "isdigit" | "isdecimal" if text.is_ascii() => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
        }
        "isspace" => {
            let () = from_args(args)?;
            Value::from(!text.is_empty() && text.chars().all(is_space))
        }
        _ => return Ok(None),
    }))
}

/// `str.strip` and its one-sided forms; without `chars`, whitespace.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(drop) } else { text };
    if end { text.trim_end_matches(drop) } else { text }
}

/// `str.isspace` of one character: Unicode's white space and four separators of ASCII.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn split_on<'a>(text: &'a str, separator: &str, limit: usize, from_right: bool) -> Vec<&'a str> {
    let parts = limit.saturating_add(1);
    if from_right {
        let mut parts: Vec<_> = text.rsplitn(parts, separator).collect();
        parts.reverse();
        parts
    } else {
        text.splitn(parts, separator).collect()
    }
}

/// Splits at runs of whitespace; what a limit leaves over keeps the whitespace at its far end, as in Python.
fn split_whitespace(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let near_end_stripped = |text| strip(text, None, !from_right, from_right);
    let mut rest = near_end_stripped(text);
    while !rest.is_empty() {
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() < limit) else {
            parts.push(rest);
            break;
        };
        let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
        let (part, more) =
            if from_right { (&rest[after..], &rest[..at]) } else { (&rest[..at], &rest[after..]) };
        parts.push(part);
        rest = near_end_stripped(more);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn split_lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let end = if rest[at..].starts_with("\r\n") {
            at + 2
        } else {
            at + rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keep { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `str.title`: a letter is upper case after anything that is not a letter, also after an apostrophe.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        let cased = c.is_lowercase() || c.is_uppercase();
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = cased;
    }
    out
}

fn expect_str<'a>(value: &'a Value, method: &str) -> Result<&'a str, Error> {
    match (value.kind(), value.as_str()) {
        (ValueKind::String, Some(text)) => Ok(text),
        (kind, _) => Err(invalid(format!("{method} expects a string, not {kind}"))),
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
