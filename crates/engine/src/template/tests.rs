use std::path::Path;

use serde_json::Value as Json;

use super::*;

fn render_in(source: &str, context: &Json, now: &str) -> Result<String, Error> {
    let template = ChatTemplate::with_now(source, Some(now.parse().unwrap()))?;
    let context = context.as_object().unwrap();
    template.render_context(context.iter().map(|(name, json)| (name.as_str(), value::from_json(json))))
}

fn read_json(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Compares one case with what Python gave; the difference, where there is one.
fn difference(case: &Json, source: &str, now: &str) -> Option<String> {
    let got = render_in(source, &case["context"], now);
    let same = match (&got, case["text"].as_str()) {
        (Ok(text), Some(expected)) => text == expected,
        // Python's own error messages are not repeated word for word, but a template's are.
        (Err(Error::TemplateRaised { message }), None) => {
            case["raised"] == true && case["error"] == message.as_str()
        }
        (Err(_), None) => case["raised"] != true,
        _ => false,
    };
    (!same).then(|| {
        format!("{}\n  expected {}{}\n  got      {got:?}", case["name"], case["text"], case["error"])
    })
}

fn check(cases: &[Json], now: &str, source: impl Fn(&Json) -> String) {
    assert!(!cases.is_empty());
    let wrong: Vec<String> = cases.iter().filter_map(|case| difference(case, &source(case), now)).collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn the_input_reaches_the_template() {
    let template = ChatTemplate::new(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{{ tools }}{{ documents }}\
         {{ add_generation_prompt }}{{ eos_token }}{{ enable_thinking is false }}{{ budget + 1 }}",
    )
    .unwrap();
    let mut input = TemplateInput {
        messages: vec![serde_json::json!({"role": "user", "content": "<hi> & 'ho'"})],
        tools: Some(vec![serde_json::json!({"name": "f"})]),
        add_generation_prompt: true,
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        extra: serde_json::from_str(r#"{"enable_thinking": false, "budget": 7}"#).unwrap(),
    };
    assert_eq!(template.render(&input).unwrap(), "<s>user=<hi> & 'ho';[{'name': 'f'}]NoneTrue</s>True8");
    input.tools = None;
    input.bos_token = None;
    input.extra.insert("eos_token".into(), "other".into());
    assert_eq!(template.render(&input).unwrap(), "user=<hi> & 'ho';NoneNoneTrueotherTrue8");
}

#[test]
fn errors_say_where() {
    match ChatTemplate::new("a\n{% if %}") {
        Err(Error::TemplateSyntax { line, .. }) => assert_eq!(line, Some(2)),
        other => panic!("{other:?}"),
    }
    match ChatTemplate::new("a\n\n{{ messages + 1 }}").unwrap().render(&TemplateInput::default()) {
        Err(Error::TemplateRender { line, .. }) => assert_eq!(line, Some(3)),
        other => panic!("{other:?}"),
    }
    match ChatTemplate::new("{% macro m() %}{{ raise_exception('No.') }}{% endmacro %}{{ m() }}")
        .unwrap()
        .render(&TemplateInput::default())
    {
        Err(Error::TemplateRaised { message }) => assert_eq!(message, "No."),
        other => panic!("{other:?}"),
    }
    // The clock of the machine; only that it gives a year at all.
    let year =
        ChatTemplate::new("{{ strftime_now('%Y') }}").unwrap().render(&TemplateInput::default()).unwrap();
    assert!(year.parse::<u32>().unwrap() > 2000);
    assert!(ChatTemplate::new("{{ strftime_now('%') }}").unwrap().render(&TemplateInput::default()).is_err());
}

#[test]
fn published_templates_render_as_in_python() {
    let Some(folder) = testing::templates() else { return };
    let expected = read_json(&repository().join("fixtures/templates/expected.json"));
    check(expected["cases"].as_array().unwrap(), expected["now"].as_str().unwrap(), |case| {
        std::fs::read_to_string(folder.join(case["template"].as_str().unwrap())).unwrap()
    });
}

#[test]
fn single_features_render_as_in_python() {
    let expected = read_json(&repository().join("fixtures/templates/expected.json"));
    // JSON integers beyond 64 bits are floats in serde_json; the case holds one.
    let cases: Vec<Json> = expected["inline"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|c| c["name"] != "tojson numbers")
        .cloned()
        .collect();
    check(&cases, expected["now"].as_str().unwrap(), |case| case["source"].as_str().unwrap().to_string());
}

#[test]
fn habits_of_python_and_jinja2() {
    let expected: Json = serde_json::from_str(include_str!("../../tests/jinja/cases.json")).unwrap();
    let cases: Vec<Json> = (expected["cases"].as_array().unwrap().iter())
        .map(|case| {
            let mut case = case.clone();
            case["context"] = expected["context"].clone();
            case
        })
        .collect();
    check(&cases, "2025-01-01T00:00:00", |case| case["source"].as_str().unwrap().to_string());
}
