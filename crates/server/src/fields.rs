//! Reading requests: fields of JSON objects, and errors that say which, what was found and what is expected.

use serde_json::{Map, Value as Json};

use crate::fault::{Fault, Kind};

/// An object of a request and where it is. Fields that are null count as absent; those nobody asks for are ignored.
pub struct Fields<'a> {
    map: &'a Map<String, Json>,
    path: String,
}

/// The object that a request's body is.
pub fn parse(body: &[u8]) -> Result<Map<String, Json>, Fault> {
    match serde_json::from_slice(body) {
        Ok(Json::Object(map)) => Ok(map),
        Ok(other) => Err(Fault::new(
            Kind::Invalid,
            format!("the body must be a JSON object, but is {}", described(&other)),
        )),
        Err(error) => Err(Fault::new(Kind::Invalid, format!("the body is not valid JSON: {error}"))),
    }
}

impl<'a> Fields<'a> {
    /// The fields of a whole request.
    pub fn new(map: &'a Map<String, Json>) -> Self {
        Self { map, path: String::new() }
    }

    /// The fields of a value somewhere inside, which must be an object.
    pub fn of(json: &'a Json, path: String) -> Result<Self, Fault> {
        match json {
            Json::Object(map) => Ok(Self { map, path }),
            other => Err(wrong(&path, "an object", other)),
        }
    }

    /// Where a field is, such as `messages[2].content`.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    /// A field that is there.
    pub fn get(&self, name: &str) -> Option<&'a Json> {
        self.map.get(name).filter(|json| !json.is_null())
    }

    /// A field that must be there.
    pub fn required(&self, name: &str, expected: &str) -> Result<&'a Json, Fault> {
        self.get(name).ok_or_else(|| {
            let path = self.path(name);
            Fault::invalid(&path, format!("`{path}` is missing: it must be {expected}"))
        })
    }

    /// The error for a field that is not what it must be.
    pub fn wrong(&self, name: &str, expected: &str) -> Fault {
        wrong(&self.path(name), expected, self.get(name).unwrap_or(&Json::Null))
    }

    fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Json) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        match self.get(name) {
            Some(json) => read(json).map(Some).ok_or_else(|| self.wrong(name, expected)),
            None => Ok(None),
        }
    }

    /// A number in a range.
    pub fn number(&self, name: &str, expected: &str, range: [f64; 2]) -> Result<Option<f64>, Fault> {
        self.read(name, expected, |json| json.as_f64().filter(|value| (range[0]..=range[1]).contains(value)))
    }

    /// A whole number in a range.
    pub fn count(&self, name: &str, expected: &str, range: [u64; 2]) -> Result<Option<u64>, Fault> {
        self.read(name, expected, |json| whole(json).filter(|value| (range[0]..=range[1]).contains(value)))
    }

    /// True or false.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Fault> {
        self.read(name, "true or false", Json::as_bool)
    }

    /// A string.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Fault> {
        self.read(name, "a string", Json::as_str)
    }

    /// A string that must be there.
    pub fn required_text(&self, name: &str) -> Result<&'a str, Fault> {
        self.required(name, "a string")?;
        Ok(self.text(name)?.unwrap_or_default())
    }

    /// A list.
    pub fn list(&self, name: &str) -> Result<Option<&'a [Json]>, Fault> {
        self.read(name, "a list", |json| json.as_array().map(Vec::as_slice))
    }

    /// An object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, Fault> {
        self.get(name).map(|json| Fields::of(json, self.path(name))).transpose()
    }

    /// The object's own JSON.
    pub fn map(&self) -> &'a Map<String, Json> {
        self.map
    }

    /// Strings: one alone, or a list of them.
    pub fn texts(&self, name: &str) -> Result<Vec<String>, Fault> {
        let texts = self.read(name, "a string or a list of strings", |json| match json {
            Json::String(text) => Some(vec![text.clone()]),
            Json::Array(items) => items.iter().map(|item| Some(item.as_str()?.to_string())).collect(),
            _ => None,
        })?;
        Ok(texts.unwrap_or_default())
    }
}

/// A whole number, also one that a client wrote as `16.0`.
pub fn whole(json: &Json) -> Option<u64> {
    json.as_u64()
        .or_else(|| json.as_f64().filter(|v| v.fract() == 0.0 && (0.0..9e15).contains(v)).map(|v| v as u64))
}

/// The error for a value that is not what it must be.
pub fn wrong(path: &str, expected: &str, found: &Json) -> Fault {
    Fault::invalid(path, format!("`{path}` must be {expected}, but is {}", described(found)))
}

/// What a value is, in words, with a small value itself.
pub fn described(json: &Json) -> String {
    const LONGEST: usize = 40;
    match json {
        Json::Null => "null".into(),
        Json::Bool(value) => value.to_string(),
        Json::Number(value) => format!("the number {value}"),
        Json::String(text) if text.chars().count() <= LONGEST => format!("the string {text:?}"),
        Json::String(_) => "a long string".into(),
        Json::Array(items) if items.is_empty() => "an empty list".into(),
        Json::Array(_) => "a list".into(),
        Json::Object(_) => "an object".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_the_field_what_was_found_and_what_is_expected() {
        let body = json!({"a": "hot", "b": 3.5, "c": [1], "d": {"e": true}, "f": null, "g": 16.0});
        let map = body.as_object().unwrap();
        let fields = Fields::new(map);
        let said = |result: Result<(), Fault>| result.unwrap_err().message;
        let number = fields.number("a", "a number from 0 to 2", [0.0, 2.0]);
        assert_eq!(said(number.map(drop)), "`a` must be a number from 0 to 2, but is the string \"hot\"");
        let count = fields.count("b", "a whole number", [0, 9]);
        assert_eq!(said(count.map(drop)), "`b` must be a whole number, but is the number 3.5");
        assert_eq!(said(fields.text("c").map(drop)), "`c` must be a string, but is a list");
        assert_eq!(
            said(fields.texts("c").map(drop)),
            "`c` must be a string or a list of strings, but is a list"
        );
        let inner = fields.object("d").unwrap().unwrap();
        assert_eq!(said(inner.list("e").map(drop)), "`d.e` must be a list, but is true");
        assert_eq!(said(inner.required_text("x").map(drop)), "`d.x` is missing: it must be a string");
        assert_eq!(fields.text("f").unwrap(), None);
        assert_eq!(fields.count("g", "a whole number", [1, 99]).unwrap(), Some(16));
    }

    #[test]
    fn bodies_that_are_no_objects_are_refused() {
        assert!(parse(b"{}").is_ok());
        for (body, said) in [
            (&b"[1]"[..], "but is a list"),
            (b"{", "is not valid JSON"),
            (b"", "is not valid JSON"),
            (b"\xff", "JSON"),
        ] {
            let message = parse(body).unwrap_err().message;
            assert!(message.contains(said), "{message}");
        }
    }
}
