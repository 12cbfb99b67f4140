//! What an answer must look like: forms of text, and tools that may be called.

use engine::{Grammar, ToolChoice};
use serde_json::{Value as Json, json};

use crate::fault::Fault;
use crate::fields::Fields;

/// Tools and whether to call them.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    /// Their definitions in OpenAI's shape, which is what templates and dialects read.
    pub list: Vec<Json>,
    /// Whether they are called.
    pub choice: ToolChoice,
    /// Whether several calls may come in one answer.
    pub parallel: bool,
}

impl Default for Tools {
    fn default() -> Self {
        Self { list: Vec::new(), choice: ToolChoice::Auto, parallel: true }
    }
}

impl Tools {
    /// Checks that what must be called can be. Tools that must not be called are not shown to the model at all.
    pub fn checked(mut self) -> Result<Self, Fault> {
        match &self.choice {
            ToolChoice::None => self.list.clear(),
            ToolChoice::Auto => {}
            ToolChoice::Required if self.list.is_empty() => {
                return Err(Fault::invalid(
                    "tool_choice",
                    "`tool_choice` asks for a call, but `tools` has no tool",
                ));
            }
            ToolChoice::Required => {}
            ToolChoice::Named(name) => {
                if !self.list.iter().any(|tool| tool["function"]["name"] == name.as_str()) {
                    let message =
                        format!("`tool_choice` asks for {name:?}, but `tools` has no tool of that name");
                    return Err(Fault::invalid("tool_choice", message));
                }
            }
        }
        Ok(self)
    }
}

/// A tool in OpenAI's shape.
pub fn tool(name: &str, description: Option<&str>, parameters: Option<&Json>) -> Json {
    let mut function = json!({"name": name});
    if let Some(description) = description {
        function["description"] = description.into();
    }
    function["parameters"] =
        parameters.cloned().unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    json!({"type": "function", "function": function})
}

/// The name of a tool, as both APIs allow it.
pub fn tool_name<'a>(fields: &Fields<'a>) -> Result<&'a str, Fault> {
    let name = fields.required_text("name")?;
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    if (1..=128).contains(&name.len()) && name.chars().all(good) {
        Ok(name)
    } else {
        Err(fields.wrong("name", "1 to 128 letters, digits, _ or -"))
    }
}

/// A schema somewhere in a request: an object, or `true` or `false` as JSON Schema has it.
pub fn schema<'a>(fields: &Fields<'a>, name: &str) -> Result<Option<&'a Json>, Fault> {
    match fields.get(name) {
        Some(json) if json.is_object() || json.is_boolean() => Ok(Some(json)),
        Some(_) => Err(fields.wrong(name, "a JSON schema: an object")),
        None => Ok(None),
    }
}

/// The form that OpenAI's `response_format` or our own `grammar` and `regex` ask for.
pub fn form(fields: &Fields<'_>) -> Result<Option<Grammar>, Fault> {
    let mut forms = Vec::new();
    if let Some(format) = fields.object("response_format")? {
        match format.required_text("type")? {
            "text" => {}
            "json_object" => forms.push(Grammar::JsonObject),
            "json_schema" => {
                format.required("json_schema", "an object with a `schema`")?;
                let wrapper = format.object("json_schema")?;
                let schema = wrapper.as_ref().map(|wrapper| schema(wrapper, "schema")).transpose()?.flatten();
                forms.push(schema.map_or(Grammar::JsonObject, |schema| Grammar::JsonSchema(schema.clone())));
            }
            _ => return Err(format.wrong("type", "\"text\", \"json_object\" or \"json_schema\"")),
        }
    }
    forms.extend(fields.text("regex")?.map(|regex| Grammar::Regex(regex.into())));
    forms.extend(fields.text("grammar")?.map(|lark| Grammar::Lark(lark.into())));
    if forms.len() > 1 {
        let message = "give only one of `response_format`, `regex` and `grammar`: an answer has one form";
        return Err(Fault::invalid("response_format", message));
    }
    Ok(forms.pop())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: Json) -> Result<Option<Grammar>, Fault> {
        form(&Fields::new(body.as_object().unwrap()))
    }

    #[test]
    fn forms_of_every_kind() {
        assert!(read(json!({})).unwrap().is_none());
        assert!(read(json!({"response_format": {"type": "text"}})).unwrap().is_none());
        let object = read(json!({"response_format": {"type": "json_object"}})).unwrap();
        assert!(matches!(object, Some(Grammar::JsonObject)));
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let body = json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
        assert!(matches!(read(body).unwrap(), Some(Grammar::JsonSchema(found)) if found == schema));
        assert!(matches!(read(json!({"regex": "a+"})).unwrap(), Some(Grammar::Regex(text)) if text == "a+"));
        assert!(matches!(read(json!({"grammar": "start: \"a\""})).unwrap(), Some(Grammar::Lark(_))));
    }

    #[test]
    fn wrong_forms_are_refused() {
        for (body, param) in [
            (json!({"response_format": "json"}), "response_format"),
            (json!({"response_format": {}}), "response_format.type"),
            (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
            (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"regex": 1}), "regex"),
            (json!({"regex": "a", "grammar": "b"}), "response_format"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn choices_of_tools_are_checked() {
        let list = vec![tool("look", None, None)];
        let tools = |choice, list: &[Json]| Tools { list: list.to_vec(), choice, parallel: true }.checked();
        assert!(tools(ToolChoice::Named("look".into()), &list).is_ok());
        assert!(tools(ToolChoice::Named("leap".into()), &list).is_err());
        assert!(tools(ToolChoice::Required, &[]).is_err());
        assert!(tools(ToolChoice::None, &list).unwrap().list.is_empty());
    }
}
