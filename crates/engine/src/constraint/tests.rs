use serde_json::json;

use super::conforms::conforms;
use super::fake_model::{self, FakeModel, Random};
use super::*;
use crate::Dialect;
use crate::dialect::samples::{MarksAre, WIDTH, tokenizer};

fn plain() -> (Tokenizer, Grammars) {
    let tokenizer = tokenizer(Dialect::QwenXml, MarksAre::Plain);
    let grammars = Grammars::new(&tokenizer, WIDTH);
    (tokenizer, grammars)
}

fn allows(grammars: &Grammars, tokenizer: &Tokenizer, grammar: &Grammar, answer: &str) -> bool {
    fake_model::allows(grammars.constraint(grammar).unwrap(), tokenizer, WIDTH, answer)
}

#[test]
fn a_form_that_was_used_is_known_and_means_the_same() {
    let (tokenizer, grammars) = plain();
    let counted = Grammar::JsonSchema(json!({"type": "string", "minLength": 20, "maxLength": 40}));
    let other = Grammar::Regex("[a-z]{3,9}".into());
    let forms = || grammars.vocabulary.recent.forms().len();
    let answer = format!("\"{}\"", "abc ".repeat(8));
    for round in 0..3 {
        assert!(allows(&grammars, &tokenizer, &counted, &answer), "{round}");
        assert!(!allows(&grammars, &tokenizer, &counted, "\"abc\""), "{round}");
        assert!(allows(&grammars, &tokenizer, &other, "abcd"), "{round}");
        assert_eq!(forms(), 2);
    }
    // Two at once have a parser each, and one that broke is not used again.
    let mut both = [grammars.constraint(&counted).unwrap(), grammars.constraint(&counted).unwrap()];
    assert_eq!(forms(), 1);
    for id in tokenizer.encode(&answer, false).unwrap() {
        let masks = both.each_mut().map(|constraint| {
            let mut logits = [0.0; WIDTH];
            constraint.mask(&mut logits).unwrap();
            constraint.push(id).unwrap();
            logits
        });
        assert_eq!(masks[0], masks[1]);
    }
    let [kept, mut broken] = both;
    let wrong = tokenizer.encode("{", false).unwrap()[0];
    assert!(broken.push(wrong).is_err());
    drop((kept, broken));
    assert_eq!(forms(), 2);
    // As many as are kept.
    for n in 1..40 {
        assert!(allows(&grammars, &tokenizer, &Grammar::Regex(format!("a{{{n}}}")), &"a".repeat(n)), "{n}");
    }
    assert_eq!(forms(), 16);
}

#[test]
fn forms_allow_what_they_should() {
    let (tokenizer, grammars) = plain();
    let person = json!({"type": "object", "required": ["name"], "additionalProperties": false,
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}});
    let tree = json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}});
    let any_name = json!({"type": "object", "additionalProperties": {"type": "boolean"}, "patternProperties": {"": {"type": "null"}}});
    let either = json!({"oneOf": [{"type": "integer"}, {"type": "string"}]});
    let schema = |schema: &Json| Grammar::JsonSchema(schema.clone());
    let cases = [
        (schema(&any_name), "{\"a\": null, \"b\": null}", true),
        (schema(&any_name), "{\"a\": true}", false),
        (schema(&either), "12", true),
        (schema(&either), "\"a\"", true),
        (Grammar::JsonObject, "{}", true),
        (Grammar::JsonObject, "{\"a\": [1, {\"b\":null}]}", true),
        (Grammar::JsonObject, "[]", false),
        (Grammar::JsonObject, "{ }", false),
        (Grammar::JsonObject, "{\"a\":  1}", false),
        (Grammar::JsonObject, "{\"a\":\n1}", false),
        (schema(&person), "{\"name\": \"A \\\" B\", \"age\": 3}", true),
        (schema(&person), "{\"age\": 3}", false),
        (schema(&person), "{\"name\": \"A\", \"age\": 3.5}", false),
        (schema(&person), "{\"name\": \"A\", \"x\": 3}", false),
        (schema(&json!({"oneOf": [{"type": "integer"}, {"type": "null"}]})), "null", true),
        (schema(&json!(true)), "[1, true]", true),
        (schema(&tree), "[[], [[]]]", true),
        (schema(&tree), "[1]", false),
        (Grammar::Regex("^(ab)+c$".into()), "ababc", true),
        (Grammar::Regex("(ab)+c".into()), "abac", false),
        (Grammar::Regex(String::new()), "", true),
        (Grammar::Regex(String::new()), "a", false),
        (Grammar::Regex("[0-9]+/\\$".into()), "12/$", true),
        (Grammar::Lark("start: \"a\" <|im_start|> \"b\"".into()), "a<|im_start|>b", true),
        (Grammar::Lark("start: \"a\" \"<tool_call>\" \"b\"".into()), "a<tool_call>b", true),
        (Grammar::Lark("start: /.*/".into()), "a<|im_start|>b", false),
    ];
    for (grammar, answer, expected) in cases {
        assert_eq!(allows(&grammars, &tokenizer, &grammar, answer), expected, "{grammar:?} {answer:?}");
    }
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let (_, grammars) = plain();
    let nested = (0..60).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    let huge: serde_json::Map<String, Json> =
        (0..40_000).map(|n| (format!("property{n}"), json!({"type": "string", "maxLength": 50}))).collect();
    let schema = Grammar::JsonSchema;
    let cases = [
        (schema(json!([1])), "JSON schema", "is an object"),
        (schema(json!(false)), "JSON schema", "is an object"),
        (schema(json!({"type": "strin"})), "JSON schema", "strin"),
        (schema(json!({"not": {"type": "null"}})), "JSON schema", "not"),
        (schema(json!({"if": {"type": "null"}, "then": {}})), "JSON schema", "if"),
        (schema(json!({"oneOf": [{"type": "number"}, {"type": "integer"}]})), "JSON schema", "oneOf"),
        (schema(json!({"type": 5})), "JSON schema", "type"),
        (schema(json!({"$ref": "#/$defs/none"})), "JSON schema", "none"),
        (schema(json!({"$ref": "https://example.com/schema.json"})), "JSON schema", "within the schema"),
        (schema(json!({"type": "integer", "minimum": 3, "maximum": 2})), "JSON schema", "minimum"),
        (
            schema(json!({"type": "array", "uniqueItems": true})),
            "JSON schema",
            "not supported: [\"uniqueItems\"]",
        ),
        (schema(json!({"type": "string", "pattern": "(a"})), "JSON schema", "(a"),
        (schema(json!({"type": "object", "properties": huge})), "JSON schema", "large"),
        (schema(json!({"$anchor": "a", "$ref": "#a"})), "JSON schema", "within the schema"),
        (Grammar::Regex("(a".into()), "regular expression", "unclosed"),
        (Grammar::Lark("start: foo".into()), "grammar", "foo"),
        (Grammar::Lark("start: <|nothing|>".into()), "grammar", "<|nothing|>"),
        (Grammar::Lark(String::new()), "grammar", ""),
    ];
    for (grammar, what, part) in cases {
        match grammars.constraint(&grammar) {
            Err(Error::InvalidGrammar { what: of, reason }) => {
                println!("the {of} cannot be used: {reason}");
                assert_eq!(of, what);
                assert!(reason.contains(part), "{reason:?} lacks {part:?}");
                assert!(reason.len() < 600 && !reason.contains('\n'), "{reason:?}");
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{what} with {part:?} was taken"),
        }
    }
    assert!(grammars.constraint(&schema(nested)).is_ok());
}

#[test]
fn the_end_is_all_ends_and_padding_never_comes() {
    let (tokenizer, grammars) = plain();
    let mut constraint = grammars.constraint(&Grammar::Regex("ab*".into())).unwrap();
    let masked = |constraint: &mut Constraint, n: usize| {
        let mut logits = vec![1.0f32; n];
        constraint.mask(&mut logits).unwrap();
        logits
    };
    let allowed = |logits: &[f32]| {
        let ids = (0..logits.len() as u32).filter(|id| logits[*id as usize] == 1.0);
        ids.map(|id| tokenizer.token_text(id).expect("only tokens")).collect::<Vec<_>>()
    };
    // More logits than were announced, and fewer.
    assert!(allowed(&masked(&mut constraint, WIDTH + 40)).iter().all(|token| token.starts_with('a')));
    assert_eq!(allowed(&masked(&mut constraint, WIDTH - 1)), allowed(&masked(&mut constraint, WIDTH)));
    assert!(!constraint.is_finished());
    constraint.push(tokenizer.token_id("a").unwrap()).unwrap();
    let after = allowed(&masked(&mut constraint, WIDTH));
    assert!(after.contains(&"<|im_end|>".into()) && after.contains(&"<|endoftext|>".into()), "{after:?}");
    assert!(after.contains(&"b".into()) && !constraint.is_finished());
    constraint.push(tokenizer.token_id("<|endoftext|>").unwrap()).unwrap();
    assert!(constraint.is_finished());

    // With nothing left but the end, the model need not be asked, but may be.
    let mut constraint = grammars.constraint(&Grammar::Regex("a".into())).unwrap();
    constraint.push(tokenizer.token_id("a").unwrap()).unwrap();
    assert!(constraint.is_finished());
    let mut end = allowed(&masked(&mut constraint, WIDTH));
    end.sort();
    assert_eq!(end, ["<|endoftext|>", "<|im_end|>"]);
    constraint.push(tokenizer.token_id("<|im_end|>").unwrap()).unwrap();

    // A token that is not allowed is an error, and stays one.
    let mut constraint = grammars.constraint(&Grammar::Regex("a".into())).unwrap();
    assert!(matches!(constraint.push(tokenizer.token_id("b").unwrap()), Err(Error::ConstraintBroken { .. })));
    assert!(constraint.mask(&mut [0.0; WIDTH]).is_err());
    assert!(grammars.constraint(&Grammar::JsonObject).unwrap().push(u32::MAX).is_err());
}

#[test]
fn constraints_go_where_the_engine_runs() {
    fn sent<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    sent::<Constraint>();
    shared::<Grammars>();
}

/// A schema of some depth.
fn random_schema(random: &mut Random, depth: usize) -> Json {
    let leaf = if depth == 0 { 6 } else { 9 };
    match random.below(leaf) {
        0 => json!({"type": "string"}),
        1 => json!({"type": "string", "minLength": random.below(3), "maxLength": 3 + random.below(9)}),
        2 => {
            let least = random.below(100) as i64 - 50;
            json!({"type": "integer", "minimum": least, "maximum": least + random.below(1000) as i64})
        }
        3 => json!({"type": ["boolean", "null"]}),
        4 => json!({"enum": ["a", "a b", 1, null, 2.5]}),
        5 => json!({"type": "number", "minimum": -1, "maximum": 1}),
        6 => json!({"type": "array", "items": random_schema(random, depth - 1), "minItems": random.below(2),
            "maxItems": 1 + random.below(3)}),
        7 => json!({"anyOf": [random_schema(random, depth - 1), random_schema(random, depth - 1)]}),
        _ => {
            let names: Vec<String> = (0..1 + random.below(4)).map(|n| format!("key {n}")).collect();
            let required: Vec<&String> = names.iter().filter(|_| random.below(2) == 0).collect();
            let properties: serde_json::Map<String, Json> =
                names.iter().map(|name| (name.clone(), random_schema(random, depth - 1))).collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        }
    }
}

#[test]
fn whatever_a_model_wants_its_json_conforms() {
    let (tokenizer, grammars) = plain();
    let model = FakeModel { tokenizer: &tokenizer, width: WIDTH, wishes: &["\"", "}", "]", "\", \"", "1"] };
    let mut finished = 0;
    for seed in 0..120 {
        let mut random = Random::new(seed);
        let schema = random_schema(&mut random, 3);
        let mut constraint = grammars.constraint(&Grammar::JsonSchema(schema.clone())).unwrap();
        let Some(answer) = model.answer(&mut constraint, &mut random, 300) else { continue };
        let value: Json = serde_json::from_str(&answer).unwrap_or_else(|e| panic!("{e}: {answer}"));
        assert!(conforms(&value, &schema, &schema), "{answer} is not of {schema}");
        finished += 1;
    }
    assert!(finished > 100, "{finished}");
}

/// Time for masks with the box model's vocabulary and with one of usual size, for `cargo test --release`.
#[test]
#[ignore = "a measurement"]
fn mask_times() {
    let small = crate::dialect::samples::vocabulary();
    let parts: Vec<&String> = small.keys().collect();
    let mut large = small.clone();
    let mut random = Random::new(1);
    while large.len() < 151_000 {
        let token = format!("{}{}", parts[random.below(parts.len())], parts[random.below(parts.len())]);
        let id = large.len();
        large.entry(token).or_insert(id.into());
    }
    let json_schema = json!({"type": "object", "additionalProperties": false, "required": ["title", "tags", "pages"],
        "properties": {"title": {"type": "string"}, "pages": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["novel", "poem", "essay"]}},
            "author": {"type": "object", "properties": {"name": {"type": "string"}, "born": {"type": "integer"}}}}});
    let tools = crate::dialect::samples::tools();
    for vocabulary in [small, large] {
        let width = vocabulary.len() + 512;
        let tokenizer =
            crate::dialect::samples::with_vocabulary(Dialect::QwenXml, MarksAre::Plain, vocabulary);
        let started = std::time::Instant::now();
        let grammars = Grammars::new(&tokenizer, width);
        grammars.prepare().unwrap();
        println!("{width} tokens, prepared in {:?}", started.elapsed());
        let dialect = Dialect::QwenXml;
        let choice = |choice| dialect.grammar("", &tools, &choice, true).unwrap();
        for (name, grammar, wishes) in [
            ("JSON object", Grammar::JsonObject, ["\"", "}", "]", "\": "].as_slice()),
            ("JSON schema", Grammar::JsonSchema(json_schema.clone()), &["\"", "}", "]"]),
            ("regex", Grammar::Regex("[a-z ]{5,50}(yes|no)".into()), &["yes"]),
            ("tools, auto", choice(crate::ToolChoice::Auto), &["<tool_call>\n", "\n</parameter>\n", "]"]),
            (
                "tools, required",
                choice(crate::ToolChoice::Required),
                &["<tool_call>\n", "\n</parameter>\n", "]"],
            ),
        ] {
            let model = FakeModel { tokenizer: &tokenizer, width, wishes };
            let (mut created, mut first, mut times) = (vec![], vec![], vec![]);
            for seed in 0..20 {
                let started = std::time::Instant::now();
                let mut constraint = grammars.constraint(&grammar).unwrap();
                created.push(started.elapsed());
                let mut of_answer = vec![];
                model.answer_timed(&mut constraint, &mut Random::new(seed), 200, &mut of_answer);
                first.push(of_answer[0]);
                times.extend(of_answer.into_iter().skip(1));
            }
            for times in [&mut created, &mut first, &mut times] {
                times.sort();
            }
            let at =
                |times: &[std::time::Duration], part: f64| times[((times.len() - 1) as f64 * part) as usize];
            println!(
                "  {name:16} constraint {:?}, first mask {:?}; {} more: median {:?}, 99% {:?}, most {:?}",
                at(&created, 0.5),
                at(&first, 0.5),
                times.len(),
                at(&times, 0.5),
                at(&times, 0.99),
                at(&times, 1.0)
            );
        }
    }
}
