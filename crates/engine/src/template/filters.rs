//! jinja2's filters where minijinja's differ from them.

use minijinja::value::{Kwargs, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::{methods, value};

/// markupsafe's escapes, which differ from minijinja's in the quotes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

pub(super) fn trim(text: &Value, chars: Option<Value>) -> String {
    let chars = chars.filter(|chars| !chars.is_none()).map(|chars| value::str(&chars));
    methods::strip(&value::str(text), chars.as_deref(), true, true).to_string()
}

pub(super) fn replace(text: &Value, old: &Value, new: &Value, count: Option<i64>) -> String {
    let (text, old, new) = (value::str(text), value::str(old), value::str(new));
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    }
}

/// `len(x)`; jinja2's undefined has length 0.
pub(super) fn length(v: &Value) -> Result<usize, Error> {
    match v.len() {
        Some(len) => Ok(len),
        None if v.is_undefined() => Ok(0),
        None => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value of type {} has no length", v.kind()),
        )),
    }
}

pub(super) fn list(v: &Value) -> Result<Vec<Value>, Error> {
    if v.is_none() {
        return Err(Error::new(ErrorKind::InvalidOperation, "none is not iterable"));
    }
    Ok(v.try_iter()?.collect())
}

/// `default(value, default_value='', boolean=False)`.
pub(super) fn default(
    v: &Value,
    other: Option<Value>,
    boolean: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let other = match other {
        Some(other) => other,
        None => kwargs.get::<Option<Value>>("default_value")?.unwrap_or_else(|| Value::from("")),
    };
    let boolean = match boolean {
        Some(boolean) => boolean,
        None => kwargs.get::<Option<bool>>("boolean")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    Ok(if v.is_undefined() || (boolean && !v.is_true()) { other } else { v.clone() })
}

/// `int(value, default=0, base=10)`: what cannot be converted is the default.
pub(super) fn int(
    v: &Value,
    default: Option<Value>,
    base: Option<u32>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    defined(v)?;
    let default = match default {
        Some(default) => default,
        None => kwargs.get::<Option<Value>>("default")?.unwrap_or_else(|| Value::from(0)),
    };
    let base = match base {
        Some(base) => base,
        None => kwargs.get::<Option<u32>>("base")?.unwrap_or(10),
    };
    kwargs.assert_all_used()?;
    if !(2..=36).contains(&base) {
        return Err(Error::new(ErrorKind::InvalidOperation, "int: base must be from 2 to 36"));
    }
    let number = match v.as_str() {
        Some(text) => {
            let digits = text.trim().replace('_', "").to_ascii_lowercase();
            let prefix = match base {
                2 => "0b",
                8 => "0o",
                16 => "0x",
                _ => "",
            };
            let parsed = i64::from_str_radix(digits.strip_prefix(prefix).unwrap_or(&digits), base).ok();
            parsed.or_else(|| text.trim().parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| x as i64))
        }
        None if v.kind() == ValueKind::Bool => Some(i64::from(v.is_true())),
        None if v.is_integer() => return Ok(v.clone()),
        None => value::as_float(v).filter(|x| x.is_finite()).map(|x| x as i64),
    };
    Ok(number.map_or(default, Value::from))
}

/// `float(value, default=0.0)`: what cannot be converted is the default.
pub(super) fn float(v: &Value, default: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    defined(v)?;
    let default = match default {
        Some(default) => default,
        None => kwargs.get::<Option<Value>>("default")?.unwrap_or_else(|| Value::from(0.0)),
    };
    kwargs.assert_all_used()?;
    let number = match v.as_str() {
        Some(text) => text.trim().replace('_', "").parse::<f64>().ok(),
        None => f64::try_from(v.clone()).ok(),
    };
    Ok(number.map_or(default, Value::from))
}

fn defined(v: &Value) -> Result<(), Error> {
    if v.is_undefined() { Err(Error::from(ErrorKind::UndefinedError)) } else { Ok(()) }
}

/// Key-value pairs; of an undefined value, none.
pub(super) fn items(v: &Value) -> Result<Value, Error> {
    if v.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    Ok(pairs(v)?.into_iter().map(pair).collect())
}

fn pair((key, value): (Value, Value)) -> Value {
    Value::from(Tuple::from([key, value]))
}

fn pairs(v: &Value) -> Result<Vec<(Value, Value)>, Error> {
    match v.as_object().filter(|_| v.kind() == ValueKind::Map).and_then(|map| map.try_iter_pairs()) {
        Some(pairs) => Ok(pairs.collect()),
        None => Err(Error::new(ErrorKind::InvalidOperation, "can only get item pairs from a mapping")),
    }
}

/// `dictsort(value, case_sensitive=False, by='key', reverse=False)`; folds case beyond ASCII, unlike minijinja's.
pub(super) fn dictsort(
    v: &Value,
    case_sensitive: Option<bool>,
    by: Option<&str>,
    reverse: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let case_sensitive = match case_sensitive {
        Some(given) => given,
        None => kwargs.get::<Option<bool>>("case_sensitive")?.unwrap_or(false),
    };
    let by = match by {
        Some(given) => given.to_string(),
        None => kwargs.get::<Option<String>>("by")?.unwrap_or_else(|| "key".into()),
    };
    let reverse = match reverse {
        Some(given) => given,
        None => kwargs.get::<Option<bool>>("reverse")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let sort_key = |(key, value): &(Value, Value)| {
        let part = if by == "value" { value } else { key };
        match part.as_str() {
            Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
            _ => part.clone(),
        }
    };
    let mut sorted = pairs(v)?;
    sorted.sort_by(|a, b| {
        let order = sort_key(a).cmp(&sort_key(b));
        if reverse { order.reverse() } else { order }
    });
    Ok(sorted.into_iter().map(pair).collect())
}
