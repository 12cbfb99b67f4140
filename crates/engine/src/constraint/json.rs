//! JSON as constraints write it: on one line, with at most one space after a comma or a colon. A small model that may
//! write any white space sometimes writes nothing else.

use serde_json::{Map, Value as Json, json};

use crate::Error;

/// What to do about keywords of a schema that cannot be followed while the answer is generated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unsupported {
    /// Refuse the schema: the caller relies on all of it.
    Refuse,
    /// Follow the rest of it.
    Ignore,
}

/// A schema with our options in the place where llguidance looks for them.
pub(crate) fn with_options(schema: &Json, unsupported: Unsupported) -> Result<Json, Error> {
    let mut object = match schema {
        Json::Object(object) => object.clone(),
        Json::Bool(true) => Map::new(),
        other => {
            let reason = format!("a schema is an object, but this is {other}");
            return Err(Error::InvalidGrammar { what: "JSON schema", reason });
        }
    };
    let lenient = unsupported == Unsupported::Ignore;
    let options = json!({
        "item_separator": ", ?",
        "key_separator": ": ?",
        "whitespace_flexible": false,
        // Branches of `oneOf` that exclude each other are no problem; others would be taken as `anyOf`.
        "coerce_one_of": lenient,
        "lenient": lenient,
    });
    object.insert("x-guidance".into(), options);
    Ok(Json::Object(object))
}
