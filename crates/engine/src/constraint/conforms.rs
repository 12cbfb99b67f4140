//! A checker for the JSON schemas of tests.

use serde_json::Value as Json;

/// Whether a value is what a schema allows.
pub fn conforms(value: &Json, schema: &Json, root: &Json) -> bool {
    if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
        return conforms(value, root.pointer(&reference[1..]).unwrap(), root);
    }
    let list = |key: &str| schema.get(key).and_then(Json::as_array).cloned();
    let number = |key: &str| schema.get(key).and_then(Json::as_f64);
    let within = |n: f64, least: &str, most: &str| {
        number(least).is_none_or(|least| n >= least) && number(most).is_none_or(|most| n <= most)
    };
    let types = match &schema["type"] {
        Json::Array(types) => types.clone(),
        Json::Null => vec![],
        one => vec![one.clone()],
    };
    let is = |name: &Json| match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    let by_value = match value {
        Json::Number(n) => within(n.as_f64().unwrap(), "minimum", "maximum"),
        Json::String(text) => within(text.chars().count() as f64, "minLength", "maxLength"),
        Json::Array(items) => {
            within(items.len() as f64, "minItems", "maxItems")
                && schema
                    .get("items")
                    .is_none_or(|schema| items.iter().all(|item| conforms(item, schema, root)))
        }
        Json::Object(object) => {
            let named = |name: &str| schema.get("properties").and_then(|p| p.get(name));
            let others = schema.get("additionalProperties");
            list("required")
                .unwrap_or_default()
                .iter()
                .all(|name| object.contains_key(name.as_str().unwrap()))
                && object.iter().all(|(name, value)| match (named(name), others) {
                    (Some(schema), _) => conforms(value, schema, root),
                    (None, Some(Json::Bool(allowed))) => *allowed,
                    (None, Some(schema)) => conforms(value, schema, root),
                    (None, None) => true,
                })
        }
        _ => true,
    };
    by_value
        && (types.is_empty() || types.iter().any(is))
        && list("enum").is_none_or(|values| values.contains(value))
        && schema.get("const").is_none_or(|constant| constant == value)
        && list("anyOf").is_none_or(|schemas| schemas.iter().any(|schema| conforms(value, schema, root)))
}
