//! What a request says about a tool, as far as dialects have to know.

use serde::de::IgnoredAny;
use serde_json::{Map, Value as Json};

/// A tool that can be called.
#[derive(Clone, Debug)]
pub struct Tool {
    pub name: String,
    /// The schema of its arguments, which is one of an object.
    pub parameters: Map<String, Json>,
}

/// A property of an object.
pub struct Property<'a> {
    pub name: &'a str,
    pub schema: &'a Json,
    pub required: bool,
}

impl Tool {
    /// Tools as in requests, `{"type": "function", "function": {...}}`, or the inner object alone. What has no name is
    /// none.
    pub fn list(tools: &[Json]) -> Vec<Self> {
        tools.iter().filter_map(Self::new).collect()
    }

    fn new(tool: &Json) -> Option<Self> {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name")?.as_str()?.to_owned();
        let mut parameters = match function.get("parameters").or_else(|| function.get("input_schema")) {
            Some(Json::Object(parameters)) => parameters.clone(),
            _ => Map::new(),
        };
        parameters.insert("type".into(), "object".into());
        Some(Self { name, parameters })
    }

    /// The schema of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&Json> {
        self.parameters.get("properties")?.get(name)
    }

    /// The schema of all arguments, with no others than it names, where it names any.
    pub fn arguments(&self) -> Json {
        let mut schema = self.parameters.clone();
        let open = ["additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"];
        let all_named = properties(&schema).iter().all(|p| self.parameter(p.name).is_some());
        if schema.contains_key("properties") && all_named && !open.iter().any(|key| schema.contains_key(*key))
        {
            schema.insert("additionalProperties".into(), false.into());
        }
        Json::Object(schema)
    }

    /// The schema of a parameter with the definitions that it may refer to.
    pub fn with_definitions(&self, schema: &Json) -> Json {
        let mut schema = schema.as_object().cloned().unwrap_or_default();
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = self.parameters.get(key) {
                schema.entry(key).or_insert_with(|| definitions.clone());
            }
        }
        Json::Object(schema)
    }

    /// What a reference within the schema stands for.
    pub fn resolve(&self, reference: &str) -> Option<&Json> {
        let mut keys =
            reference.strip_prefix("#/")?.split('/').map(|key| key.replace("~1", "/").replace("~0", "~"));
        let first = self.parameters.get(&keys.next()?)?;
        keys.try_fold(first, |at, key| match at {
            Json::Array(items) => items.get(key.parse::<usize>().ok()?),
            at => at.get(&key),
        })
    }

    /// The JSON types that a schema allows, as far as it says; none where it does not.
    pub fn types(&self, schema: &Json) -> Vec<String> {
        let mut types = Vec::new();
        self.add_types(schema, 0, &mut types);
        types
    }

    fn add_types(&self, schema: &Json, depth: usize, types: &mut Vec<String>) {
        const DEEPEST: usize = 16;
        if depth == DEEPEST {
            return;
        }
        let named = match schema.get("type") {
            Some(Json::String(name)) => vec![name.as_str()],
            Some(Json::Array(names)) => names.iter().filter_map(Json::as_str).collect(),
            _ => Vec::new(),
        };
        if !named.is_empty() {
            types.extend(named.into_iter().map(str::to_ascii_lowercase));
            return;
        }
        let values = schema.get("enum").and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
        let listed = values.iter().chain(schema.get("const"));
        types.extend(listed.filter_map(|value| type_of(&value.to_string())).map(str::to_owned));
        if let Some(target) = schema.get("$ref").and_then(Json::as_str).and_then(|r| self.resolve(r)) {
            self.add_types(target, depth + 1, types);
        }
        for key in ["anyOf", "oneOf", "allOf"] {
            for schema in schema.get(key).and_then(Json::as_array).into_iter().flatten() {
                self.add_types(schema, depth + 1, types);
            }
        }
    }
}

/// The properties of an object's schema, those it requires first.
pub fn properties(schema: &Map<String, Json>) -> Vec<Property<'_>> {
    static ANY: Json = Json::Bool(true);
    let required =
        || schema.get("required").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_str);
    let named = schema.get("properties").and_then(Json::as_object);
    let mut properties: Vec<Property<'_>> = Vec::new();
    for (name, schema) in named.into_iter().flatten() {
        properties.push(Property { name, schema, required: required().any(|r| r == name) });
    }
    for name in required() {
        if !properties.iter().any(|property| property.name == name) {
            properties.push(Property { name, schema: &ANY, required: true });
        }
    }
    properties.sort_by_key(|property| !property.required);
    properties
}

/// The JSON type of a text, where it is JSON; whole numbers are integers. Numbers may be larger than we could compute with.
pub fn type_of(json: &str) -> Option<&'static str> {
    serde_json::from_str::<IgnoredAny>(json).ok()?;
    Some(match json.trim_start().as_bytes().first()? {
        b'{' => "object",
        b'[' => "array",
        b'"' => "string",
        b't' | b'f' => "boolean",
        b'n' => "null",
        _ if json.trim().parse::<f64>().is_ok_and(|number| number.fract() == 0.0) => "integer",
        _ => "number",
    })
}
