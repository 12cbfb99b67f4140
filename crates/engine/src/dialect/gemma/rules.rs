//! Rules for arguments in Gemma's notation, from their schema.

use std::collections::HashMap;

use serde_json::{Map, Value as Json, json};

use super::super::lark::{self, Lark, quote};
use super::super::tool::{Tool, properties};
use super::QUOTE;

const ANY: &str = "any";
const ANY_STRING: &str = "any_string";

/// What follows the opening mark.
pub fn rules(lark: &mut Lark, tools: &[Tool]) {
    let calls: Vec<String> = tools
        .iter()
        .map(|tool| {
            let arguments = Values { lark, tool, references: HashMap::new() }.object(&tool.parameters);
            let rule = lark.name("tool");
            let before = quote(&format!("call:{}", tool.name));
            lark.rule(&rule, &format!("{before} {arguments} {}", quote("<tool_call|>")));
            rule
        })
        .collect();
    lark.rule("call", &calls.join(" | "));
    lark.shortest(ANY_STRING, &string(&json!({})));
    let number = lark::json(&json!({"type": "number"}));
    lark.rule("constant", &format!("{} | {number}", lark::any_of(["true", "false", "null"])));
    lark.rule("any_array", &format!("\"[\" {} \"]\"", list(ANY)));
    lark.rule("any_object", &format!("\"{{\" {} \"}}\"", list(&format!("KEY \":\" {ANY}"))));
    lark.rule(ANY, &[ANY_STRING, "constant", "any_array", "any_object"].join(" | "));
    lark.rule("KEY", "/[A-Za-z_][A-Za-z0-9_]*/");
}

/// Any number of items.
fn list(item: &str) -> String {
    format!("({item} (\",\" {item})*)?")
}

/// A terminal for a string of a length that the schema allows.
fn string(schema: &Json) -> String {
    lark::text(schema, QUOTE, QUOTE, QUOTE)
}

/// Writes rules for the values of one tool's arguments; each method returns what a rule may contain for them.
struct Values<'a> {
    lark: &'a mut Lark,
    tool: &'a Tool,
    references: HashMap<String, String>,
}

impl Values<'_> {
    fn value(&mut self, schema: &Json) -> String {
        if let Some(reference) = schema.get("$ref").and_then(Json::as_str) {
            return self.reference(reference);
        }
        if let Some(values) = schema.get("enum").and_then(Json::as_array).filter(|values| !values.is_empty())
        {
            return lark::any_of(values.iter().map(literal).collect::<Vec<_>>().iter().map(String::as_str));
        }
        if let Some(value) = schema.get("const") {
            return quote(&literal(value));
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            match schema.get(key).and_then(Json::as_array).map(Vec::as_slice) {
                None | Some([]) => {}
                // Several schemas at once are more than these rules can follow.
                Some([_, _, ..]) if key == "allOf" => return ANY.to_owned(),
                Some(schemas) => return self.either(schemas.iter()),
            }
        }
        match schema.get("type") {
            Some(Json::String(name)) => self.of_type(&name.to_ascii_lowercase(), schema),
            Some(Json::Array(names)) => {
                let each = names.iter().filter_map(Json::as_str);
                let each: Vec<String> =
                    each.map(|name| self.of_type(&name.to_ascii_lowercase(), schema)).collect();
                format!("({})", each.join(" | "))
            }
            _ if schema.get("properties").is_some() => self.of_type("object", schema),
            _ if schema.get("items").is_some() => self.of_type("array", schema),
            _ => ANY.to_owned(),
        }
    }

    fn either<'s>(&mut self, schemas: impl Iterator<Item = &'s Json>) -> String {
        let each: Vec<String> = schemas.map(|schema| self.value(schema)).collect();
        format!("({})", each.join(" | "))
    }

    /// A rule per definition, so that definitions can refer to themselves.
    fn reference(&mut self, reference: &str) -> String {
        if let Some(rule) = self.references.get(reference) {
            return rule.clone();
        }
        let tool = self.tool;
        let Some(schema) = tool.resolve(reference) else { return ANY.to_owned() };
        let rule = self.lark.name("definition");
        self.references.insert(reference.to_owned(), rule.clone());
        let body = self.value(schema);
        self.lark.rule(&rule, &body);
        rule
    }

    fn of_type(&mut self, name: &str, schema: &Json) -> String {
        match (name, schema) {
            ("object", Json::Object(schema)) => self.object(schema),
            ("array", _) => self.array(schema),
            ("string", _) if schema.get("minLength").or(schema.get("maxLength")).is_some() => {
                let rule = self.lark.name("string");
                self.lark.shortest(&rule, &string(schema));
                rule
            }
            ("string", _) => ANY_STRING.to_owned(),
            ("boolean", _) => lark::any_of(["true", "false"]),
            ("null", _) => quote("null"),
            ("integer" | "number", _) => {
                let mut schema = schema.clone();
                schema["type"] = name.into();
                lark::json(&schema)
            }
            _ => ANY.to_owned(),
        }
    }

    fn object(&mut self, schema: &Map<String, Json>) -> String {
        let properties = properties(schema);
        if properties.is_empty() {
            let values = match schema.get("additionalProperties") {
                Some(Json::Bool(false)) => return quote("{}"),
                Some(values @ Json::Object(_)) => self.value(values),
                _ if schema.contains_key("properties") => return quote("{}"),
                _ => ANY.to_owned(),
            };
            return format!("\"{{\" {} \"}}\"", list(&format!("KEY \":\" {values}")));
        }
        let items: Vec<(String, bool)> = properties
            .iter()
            .map(|property| {
                let value = self.value(property.schema);
                let rule = self.lark.name("property");
                self.lark.rule(&rule, &format!("{} {value}", quote(&format!("{}:", key(property.name)))));
                (rule, property.required)
            })
            .collect();
        let items = self.lark.in_any_order(&items, ",");
        format!("\"{{\" {items} \"}}\"")
    }

    fn array(&mut self, schema: &Json) -> String {
        let item = match schema.get("items") {
            Some(items @ Json::Object(_)) => self.value(items),
            _ => ANY.to_owned(),
        };
        let bound = |key| schema.get(key).and_then(Json::as_u64);
        let least = bound("minItems").unwrap_or(0);
        let most = bound("maxItems").map(|most| most.max(least));
        let more = match (least.saturating_sub(1), most.map(|most| most.saturating_sub(1))) {
            (_, Some(0)) => String::new(),
            (from, Some(to)) => format!("(\",\" {item}){{{from},{to}}}"),
            (from, None) => format!("(\",\" {item}){{{from},}}"),
        };
        let optional = if least == 0 { "?" } else { "" };
        match most {
            Some(0) => quote("[]"),
            _ => format!("\"[\" ({item} {more}){optional} \"]\""),
        }
    }
}

/// A value as the model writes it.
fn literal(value: &Json) -> String {
    match value {
        Json::String(text) => format!("{QUOTE}{text}{QUOTE}"),
        Json::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(",")),
        Json::Object(object) => {
            let items: Vec<String> =
                object.iter().map(|(name, value)| format!("{}:{}", key(name), literal(value))).collect();
            format!("{{{}}}", items.join(","))
        }
        other => other.to_string(),
    }
}

/// A key stands as it is, but for one that would not be read as a key.
fn key(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "_-.$@/".contains(c);
    if !name.is_empty() && name.chars().all(plain) {
        name.to_owned()
    } else {
        format!("{QUOTE}{name}{QUOTE}")
    }
}
