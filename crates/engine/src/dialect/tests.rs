use std::path::Path;

use proptest::prelude::*;
use serde_json::json;

use super::marks::Thoughts;
use super::samples::{CALLING, MarksAre, WIDTH, tokenizer, tools};
use super::*;
use crate::Grammars;
use crate::constraint::conforms::conforms;
use crate::constraint::fake_model::{FakeModel, Random, allows};

fn text(text: &str) -> Piece {
    Piece::Text(text.into())
}

fn thought(text: &str) -> Piece {
    Piece::Reasoning(text.into())
}

fn call(name: &str, arguments: &str) -> Piece {
    Piece::Call { name: name.into(), arguments: arguments.into() }
}

/// Pieces of an answer that arrives in these parts, with neighbours of a kind put together.
fn read<'a>(dialect: Dialect, prompt: &str, parts: impl IntoIterator<Item = &'a str>) -> Vec<Piece> {
    let mut reader = dialect.reader(prompt, &tools());
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| reader.push(part)).collect();
    pieces.extend(reader.finish());
    let mut whole: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (whole.last_mut(), piece) {
            (Some(Piece::Text(before)), Piece::Text(more)) => *before += &more,
            (Some(Piece::Reasoning(before)), Piece::Reasoning(more)) => *before += &more,
            (_, piece) => whole.push(piece),
        }
    }
    whole
}

#[test]
fn dialects_are_recognised_by_what_templates_write() {
    for (dialect, _) in CALLING {
        assert_eq!(Dialect::of(&tokenizer(dialect, MarksAre::Several)), dialect);
    }
    assert_eq!(Dialect::of(&tokenizer(Dialect::Thinking, MarksAre::Plain)), Dialect::Thinking);
    assert_eq!(Dialect::of(&tokenizer(Dialect::Plain, MarksAre::Plain)), Dialect::Plain);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let of_box = Tokenizer::open(&repository.join("box/tokenizer")).unwrap();
    assert_eq!(Dialect::of(&of_box), Dialect::QwenXml);
}

#[test]
fn published_templates_are_recognised() {
    let Some(templates) = testing::templates() else { return };
    let cases = [
        ("Qwen-Qwen3-0.6B", Dialect::QwenJson, Thoughts::Unknown),
        ("Qwen3-Coder", Dialect::QwenXml, Thoughts::Unknown),
        ("Qwen3.5-4B", Dialect::QwenXml, Thoughts::Open),
        ("deepseek-ai-DeepSeek-V3.1", Dialect::DeepSeek, Thoughts::Closed),
        ("google-gemma-4-31B-it", Dialect::Gemma, Thoughts::Closed),
    ];
    for (name, dialect, thoughts) in cases {
        let template = std::fs::read_to_string(templates.join(format!("{name}.jinja"))).unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../box/tokenizer");
        let tokenizer = Tokenizer::from_files(&folder, |file| {
            Ok(match file {
                "tokenizer.json" => Some(std::fs::read_to_string(folder.join(file)).unwrap()),
                "chat_template.jinja" => Some(template.clone()),
                _ => None,
            })
        });
        let tokenizer = tokenizer.unwrap();
        assert_eq!(Dialect::of(&tokenizer), dialect, "{name}");
        let input = crate::TemplateInput {
            messages: vec![json!({"role": "user", "content": "What does <think> mean?"})],
            tools: Some(tools()),
            add_generation_prompt: true,
            ..Default::default()
        };
        let prompt = tokenizer.render(input).unwrap();
        assert_eq!(dialect.marks().thoughts_after(&prompt), thoughts, "{name}: {prompt}");
    }
}

#[test]
fn thoughts_at_the_end_of_a_prompt() {
    let cases = [
        (Dialect::QwenXml, "<|im_start|>assistant\n<think>\n", Thoughts::Open),
        (Dialect::QwenXml, "<|im_start|>assistant\n<think>\nI was thinking", Thoughts::Open),
        (Dialect::QwenXml, "<|im_start|>assistant\n<think>\n\n</think>\n\n", Thoughts::Closed),
        (Dialect::QwenXml, "<think><|im_start|>user\n</think><|im_start|>assistant\n", Thoughts::Unknown),
        (Dialect::QwenXml, "", Thoughts::Unknown),
        (Dialect::DeepSeek, "<｜User｜></think><｜Assistant｜><think>", Thoughts::Open),
        (Dialect::DeepSeek, "<｜Assistant｜></think>", Thoughts::Closed),
        (
            Dialect::DeepSeek,
            "<｜Assistant｜></think>a<｜tool▁output▁begin｜><think><｜tool▁output▁end｜>",
            Thoughts::Unknown,
        ),
        (Dialect::Gemma, "<|turn>model\n<|channel>thought\n<channel|>", Thoughts::Closed),
        (Dialect::Gemma, "<|turn>model\n", Thoughts::Unknown),
        (Dialect::Plain, "<think>", Thoughts::Closed),
    ];
    for (dialect, prompt, expected) in cases {
        assert_eq!(dialect.marks().thoughts_after(prompt), expected, "{dialect:?} {prompt:?}");
    }
}

#[test]
fn answers_are_taken_apart() {
    use Dialect::*;
    let open = "<|im_start|>assistant\n<think>\n";
    let cases: Vec<(Dialect, &str, &str, Vec<Piece>)> = vec![
        (Plain, "", " <think>a</think>\n<tool_call>b ", vec![text(" <think>a</think>\n<tool_call>b ")]),
        (Thinking, "", "<think>\na\n</think>\n\n<tool_call>b\n", vec![thought("a"), text("<tool_call>b\n")]),
        // Thoughts.
        (QwenJson, "", "", vec![]),
        (QwenJson, "", " text\n", vec![text(" text\n")]),
        (QwenJson, "", "\n<think>\n\n</think>\n\ntext", vec![text("text")]),
        (QwenJson, "", "\n<think>\na\n\nb\n</think>\n\ntext", vec![thought("a\n\nb"), text("text")]),
        (QwenJson, "", "a <think>b</think>", vec![text("a <think>b</think>")]),
        (QwenJson, "", "<thin", vec![text("<thin")]),
        (QwenJson, open, "a\n</think>\n\nb </think>", vec![thought("a"), text("b </think>")]),
        (QwenJson, open, "\n a <tool_call> \n</thin", vec![thought("a <tool_call> \n</thin")]),
        (QwenJson, open, "\n a \n", vec![thought("a")]),
        // JSON calls.
        (
            QwenJson,
            "",
            "Let me see.\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n\
             {\"arguments\": {\"n\": 1.50, \"big\": 123456789012345678901234567890, \"t\": \"</tool_call>\\\"}\"}, \"name\": \"x\"}\n\
             </tool_call>\n",
            vec![
                text("Let me see."),
                call("now", "{}"),
                call(
                    "x",
                    "{\"n\": 1.50, \"big\": 123456789012345678901234567890, \"t\": \"</tool_call>\\\"}\"}",
                ),
            ],
        ),
        (
            QwenJson,
            open,
            "a</think>\n<tool_call>{\"name\":\"now\",\"arguments\":\"{\\\"a\\\": 1}\"}</tool_call> b",
            vec![thought("a"), call("now", "{\"a\": 1}"), text("b")],
        ),
        (QwenJson, "", "The <tool_call> tag. ", vec![text("The <tool_call> tag. ")]),
        (
            QwenJson,
            "",
            "a\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}",
            vec![text("a\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}")],
        ),
        (
            QwenJson,
            "",
            "a <tool_call>{\"name\": \"now\"}</tool_call> b <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
            vec![text("a <tool_call>{\"name\": \"now\"}</tool_call> b"), call("now", "{}")],
        ),
        (
            QwenJson,
            "",
            "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>",
            vec![text("<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>")],
        ),
        // Calls as tags.
        (
            QwenXml,
            open,
            "Hm.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n42\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
             <parameter=exact>\nTrue\n</parameter>\n<parameter=other>\n5\n</parameter>\n</function>\n</tool_call>",
            vec![
                thought("Hm."),
                call("get_weather", "{\"city\": \"42\", \"days\": 3, \"exact\": true, \"other\": \"5\"}"),
            ],
        ),
        (
            QwenXml,
            "",
            "<tool_call>\n<function=book>\n<parameter=guests>\n[{\"name\": \"A\"},\n {}]\n</parameter>\n<parameter=price>\n12.50\n\
             </parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=code>\nnull\n</parameter>\n</function>\n</tool_call>\n\nDone.",
            vec![
                call(
                    "book",
                    "{\"guests\": [{\"name\": \"A\"},\n {}], \"price\": 12.50, \"note\": null, \"code\": \"null\"}",
                ),
                text("Done."),
            ],
        ),
        (
            QwenXml,
            "",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n a\n </parameter> \nb\n\n</parameter>\n<parameter=days>many</parameter>\
             <parameter=days>\nfew\n</parameter>\n</function>\n</tool_call>",
            vec![call("get_weather", "{\"city\": \"\\n a\\n </parameter> \\nb\\n\", \"days\": \"few\"}")],
        ),
        (
            QwenXml,
            "",
            "<tool_call>\n<function=now>\n</function>\n</tool_call><tool_call><function=other></function></tool_call>",
            vec![call("now", "{}"), call("other", "{}")],
        ),
        (
            QwenXml,
            "",
            "a <tool_call>\n<function=now>\n<parameter=x>\n1\n</function>\n</tool_call>",
            vec![text("a <tool_call>\n<function=now>\n<parameter=x>\n1\n</function>\n</tool_call>")],
        ),
        // DeepSeek, old and new.
        (
            DeepSeek,
            "<｜Assistant｜></think>",
            "See:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>x<｜tool▁sep｜>\
             {\"a\": \"<｜tool▁call▁end｜>\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            vec![text("See:"), call("now", "{}"), call("x", "{\"a\": \"<｜tool▁call▁end｜>\"}")],
        ),
        (
            DeepSeekFenced,
            "",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n\
             <｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>\n",
            vec![call("now", "{\"a\": 1}"), call("now", "{}")],
        ),
        (
            DeepSeek,
            "<｜Assistant｜><think>",
            "a</think>b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{]<｜tool▁call▁end｜>",
            vec![
                thought("a"),
                text("b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{]<｜tool▁call▁end｜>"),
            ],
        ),
        // Gemma.
        (
            Gemma,
            "<|turn>model\n",
            "<|channel>thought\nHm.\n<channel|>Well.<|tool_call>call:f{a:<|\"|>x, \"y\"}<|\"|>,b:[1,-2.5e3,true,None],<|\"|>c d<|\"|>:{e:{},f:[]},g:word}<tool_call|>\
             <|tool_call>call:now{}<tool_call|>",
            vec![
                thought("Hm."),
                text("Well."),
                call(
                    "f",
                    "{\"a\": \"x, \\\"y\\\"}\", \"b\": [1, -2.5e3, true, null], \"c d\": {\"e\": {}, \"f\": []}, \"g\": \"word\"}",
                ),
                call("now", "{}"),
            ],
        ),
        (Gemma, "", "<|tool_call>call:f{a:}<tool_call|>", vec![text("<|tool_call>call:f{a:}<tool_call|>")]),
        (Gemma, "", "<|tool_call>call:f{a:<|\"|>b}", vec![text("<|tool_call>call:f{a:<|\"|>b}")]),
    ];
    for (dialect, prompt, answer, expected) in cases {
        assert_eq!(read(dialect, prompt, [answer]), expected, "{dialect:?} {answer:?}");
        for piece in expected {
            if let Piece::Call { arguments, .. } = piece {
                assert!(serde_json::from_str::<Json>(&arguments).unwrap().is_object());
            }
        }
        let single: Vec<String> = answer.chars().map(String::from).collect();
        assert_eq!(
            read(dialect, prompt, single.iter().map(String::as_str)),
            read(dialect, prompt, [answer]),
            "{dialect:?} {answer:?} letter by letter"
        );
    }
    let mut without_tools = Dialect::QwenXml.reader("", &[]);
    let answer = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    assert_eq!(without_tools.push(answer), vec![text(answer)]);
}

#[test]
fn text_is_not_held_back_longer_than_needed() {
    let mut reader = Dialect::QwenXml.reader("", &tools());
    assert_eq!(reader.push("Hello "), vec![text("Hello")]);
    assert_eq!(reader.push("world <to"), vec![text(" world")]);
    assert_eq!(reader.push("tal"), vec![text(" <total")]);
    assert_eq!(reader.push(" <tool_call> is"), vec![text(" <tool_call>"), text(" is")]);
    let mut reader = Dialect::Plain.reader("", &tools());
    assert_eq!(reader.push("Hello "), vec![text("Hello ")]);
    let mut reader = Dialect::QwenXml.reader("<think>", &tools());
    assert_eq!(reader.push("\nI think\n"), vec![thought("I think")]);
    assert_eq!(reader.push("so</th"), vec![thought("\nso")]);
}

/// Parts that answers and broken answers are made of.
fn fragments(dialect: Dialect) -> Vec<&'static str> {
    let mut fragments = dialect.marks().tokens.to_vec();
    fragments.extend(dialect.marks().group_end);
    fragments.extend([
        "\n",
        " ",
        "a",
        "é",
        "<",
        "{",
        "}",
        "\"",
        ":",
        "thought\n",
        "call:now{",
        "a:1",
        "a:<|\"|>x<|\"|>",
        "now",
        "function",
        "{}",
        "\n```json\n",
        "\n```",
        "<function=now>",
        "</function>",
        "<parameter=a>",
        "1",
        "</parameter>",
        "{\"name\": \"now\", \"arguments\": {}}",
        "\\",
    ]);
    fragments
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn pieces_do_not_depend_on_how_the_text_is_cut(
        which in 0..CALLING.len(),
        open in any::<bool>(),
        parts in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let dialect = CALLING[which].0;
        let fragments = fragments(dialect);
        let answer: String = parts.iter().map(|part| *part.get(&fragments)).collect();
        let prompt = if open { dialect.marks().thoughts.unwrap()[0] } else { "" };
        let places: Vec<usize> = (0..=answer.len()).filter(|at| answer.is_char_boundary(*at)).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| *cut.get(&places)).collect();
        cuts.extend([0, answer.len()]);
        cuts.sort_unstable();
        let parts: Vec<&str> = cuts.windows(2).map(|cut| &answer[cut[0]..cut[1]]).collect();
        let whole = read(dialect, prompt, [answer.as_str()]);
        prop_assert_eq!(read(dialect, prompt, parts.iter().copied()), whole.clone());

        // Nothing is lost: without calls and thoughts, all but white space is still there.
        if let [] | [Piece::Text(_)] = whole.as_slice()
            && !open
            && let thoughts = dialect.marks().thoughts.unwrap()[0]
            && !answer.contains(thoughts)
        {
            let letters = |text: &str| text.split_whitespace().collect::<String>();
            let said = whole.iter().map(|piece| if let Piece::Text(text) = piece { text.as_str() } else { "" });
            prop_assert_eq!(letters(&said.collect::<String>()), letters(&answer));
        }
    }
}

fn wishes(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Gemma => {
            &["<channel|>", "<|tool_call>call:", "<|\"|>", "}", "]", "<tool_call|>", ",days:", "}"]
        }
        Dialect::QwenXml => &["</think>", "<tool_call>\n", "\n</parameter>\n", "]", "}", "\"", "</function>"],
        Dialect::QwenJson => &["</think>", "<tool_call>\n", "\"", "}", "]", "}\n</tool_call>"],
        _ => &["</think>", "<｜tool▁calls▁begin｜>", "\"", "}", "]", "<｜tool▁calls▁end｜>"],
    }
}

#[test]
fn whatever_a_model_wants_its_calls_are_valid() {
    let schemas: Vec<(String, Json)> = tools()
        .iter()
        .map(|tool| {
            (tool["function"]["name"].as_str().unwrap().to_owned(), tool["function"]["parameters"].clone())
        })
        .collect();
    for (dialect, _) in CALLING {
        for marks in [MarksAre::Special, MarksAre::Plain, MarksAre::Several] {
            let (mut answers, mut calls, mut unfinished) = (0, 0, 0);
            let tokenizer = tokenizer(dialect, marks);
            let grammars = Grammars::new(&tokenizer, WIDTH);
            let model = FakeModel { tokenizer: &tokenizer, width: WIDTH, wishes: wishes(dialect) };
            let open = dialect.marks().thoughts.unwrap()[0];
            for (choice, parallel, prompt) in [
                (ToolChoice::Auto, true, ""),
                (ToolChoice::Auto, false, open),
                (ToolChoice::Required, true, ""),
                (ToolChoice::Required, false, open),
                (ToolChoice::Named("book".into()), true, ""),
            ] {
                let grammar = dialect.grammar(prompt, &tools(), &choice, parallel).unwrap();
                for seed in 0..4 {
                    answers += 1;
                    let mut constraint = grammars.constraint(&grammar).unwrap();
                    let Some(answer) = model.answer(&mut constraint, &mut Random::new(seed), 1500) else {
                        unfinished += 1;
                        continue;
                    };
                    let about = format!("{dialect:?} {marks:?} {choice:?} {answer:?}");
                    let pieces = read(dialect, prompt, [answer.as_str()]);
                    let mut here = 0;
                    for piece in &pieces {
                        match piece {
                            Piece::Call { name, arguments } => {
                                let (_, schema) =
                                    schemas.iter().find(|(known, _)| known == name).expect(&about);
                                assert!(
                                    !matches!(&choice, ToolChoice::Named(wanted) if wanted != name),
                                    "{about}"
                                );
                                here += 1;
                                match serde_json::from_str::<Json>(arguments) {
                                    Ok(arguments) => {
                                        assert!(
                                            conforms(&arguments, schema, schema),
                                            "{arguments} of {about}"
                                        );
                                    }
                                    Err(error) => {
                                        assert!(error.to_string().contains("out of range"), "{about}")
                                    }
                                }
                            }
                            Piece::Text(text) => {
                                assert!(choice == ToolChoice::Auto, "{text:?} in {about}");
                                assert!(
                                    !dialect.marks().openings.iter().any(|mark| text.contains(mark)),
                                    "{about}"
                                );
                            }
                            Piece::Reasoning(_) => {}
                        }
                    }
                    assert!(here > 0 || choice == ToolChoice::Auto, "{about}: {pieces:?}");
                    assert!(here <= 1 || parallel, "{about}");
                    calls += here;
                }
            }
            println!("{dialect:?} {marks:?}: {calls} calls, {unfinished} of {answers} answers unfinished");
            assert!(unfinished * 5 < answers && calls >= 10, "too little to show anything");
        }
    }
}

#[test]
fn grammars_allow_what_they_should() {
    use Dialect::*;
    use ToolChoice::{Auto, Required};
    let weather = "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nA\nB\n</parameter>\n\
        </function>\n</tool_call>";
    let now = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let json = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"</tool_call>\", \"days\": 3}}\n</tool_call>";
    let open = "<|im_start|>assistant\n<think>\n";
    let closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let cases: Vec<(Dialect, &str, ToolChoice, bool, String, bool)> = vec![
        (QwenXml, "", Auto, true, "".into(), true),
        (QwenXml, "", Auto, true, "Just text with <b>tags</b>.\n".into(), true),
        (QwenXml, "", Auto, true, "<think>\na <tool_call> b\n</think>\n\ntext".into(), true),
        (QwenXml, "", Auto, true, format!("text\n\n{weather}\n{now}\n"), true),
        (QwenXml, "", Auto, true, format!("{now}and text"), false),
        (QwenXml, "", Auto, false, format!("text\n\n{weather}"), true),
        (QwenXml, "", Auto, false, format!("{weather}\n{now}"), false),
        (QwenXml, "", Auto, true, "text <tool_call> text".into(), false),
        (QwenXml, "", Auto, true, now.replace("now", "then"), false),
        (QwenXml, "", Auto, true, weather.replace("3", "x"), false),
        (QwenXml, "", Auto, true, weather.replace("3", "15"), false),
        (QwenXml, "", Auto, true, weather.replace("days", "nights"), false),
        (QwenXml, "", Auto, true, weather.replace("<parameter=days>\n3\n</parameter>\n", ""), false),
        (QwenXml, "", Auto, true, weather.replace("A\nB", "A</parameter>B"), false),
        (QwenXml, open, Required, true, format!("a <tool_call> b</think>\n\n{now}"), true),
        (QwenXml, open, Required, true, "a</think>\n\n".into(), false),
        (QwenXml, "", Required, true, format!("<think>a</think>\n{now}\n{now}"), false),
        (QwenXml, "", Required, true, format!("{now}\n{now}"), true),
        (QwenXml, closed, Required, true, format!("<think>a</think>\n{now}"), false),
        (QwenXml, closed, Required, true, now.into(), true),
        (QwenXml, "", Required, true, "".into(), false),
        (QwenXml, "", ToolChoice::Named("get_weather".into()), true, weather.into(), true),
        (QwenXml, "", ToolChoice::Named("get_weather".into()), true, now.into(), false),
        (QwenJson, "", Auto, true, format!("text{json}\n{json}"), true),
        (QwenJson, "", Auto, true, json.replace("3", "3, \"more\": 1"), false),
        (QwenJson, "", Auto, true, json.replace("3", "\"3\""), false),
        (QwenJson, "", Required, false, json.into(), true),
        (QwenJson, "", Required, false, format!("{json}\n{json}"), false),
    ];
    let tokenizers = [QwenXml, QwenJson].map(|dialect| {
        [MarksAre::Special, MarksAre::Several].map(|marks| {
            let tokenizer = tokenizer(dialect, marks);
            (Grammars::new(&tokenizer, WIDTH), tokenizer)
        })
    });
    for (dialect, prompt, choice, parallel, answer, expected) in cases {
        let grammar = dialect.grammar(prompt, &tools(), &choice, parallel).unwrap();
        for (grammars, tokenizer) in &tokenizers[usize::from(dialect == QwenJson)] {
            let constraint = grammars.constraint(&grammar).unwrap();
            assert_eq!(
                allows(constraint, tokenizer, WIDTH, &answer),
                expected,
                "{choice:?} {parallel} {answer:?}"
            );
        }
    }
}

#[test]
fn forms_come_after_thoughts() {
    let dialect = Dialect::QwenXml;
    let tokenizer = tokenizer(dialect, MarksAre::Plain);
    let grammars = Grammars::new(&tokenizer, WIDTH);
    let open = "<|im_start|>assistant\n<think>\n";
    let closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    let number = Grammar::JsonSchema(json!({"type": "integer"}));
    let cases = [
        (open, &number, "Hm.\n</think>\n\n12", true),
        (open, &number, "Hm.</think>12", true),
        (open, &number, "12", false),
        (open, &number, "Hm.</think>\n\n\n12", false),
        (open, &number, "Hm.</think>\n\nx", false),
        ("", &number, "12", true),
        ("", &number, "<think>Hm.</think>\n\n12", false),
        (closed, &number, "12", true),
        (closed, &number, "<think>Hm.</think>12", false),
        (open, &Grammar::JsonObject, "Hm.</think>\n\n{\"a\": 1}", true),
        (open, &Grammar::Regex("^a/{2}".into()), "Hm.</think>a//", true),
        (open, &Grammar::Lark("start: b \"}\"\nb: \"b\"{2}".into()), "Hm.</think>\nbb}", true),
    ];
    for (prompt, form, answer, expected) in cases {
        let grammar = dialect.after_thoughts(prompt, form);
        let constraint = grammars.constraint(&grammar).unwrap();
        assert_eq!(allows(constraint, &tokenizer, WIDTH, answer), expected, "{prompt:?} {form:?} {answer:?}");
    }
    let wrong = dialect.after_thoughts(open, &Grammar::JsonSchema(json!({"type": "strin"})));
    assert!(
        matches!(grammars.constraint(&wrong), Err(crate::Error::InvalidGrammar { reason, .. }) if reason.contains("strin"))
    );
}

#[test]
fn nothing_to_keep_valid_is_no_grammar() {
    let cases: [(Dialect, Vec<Json>, ToolChoice); 5] = [
        (Dialect::QwenXml, tools(), ToolChoice::None),
        (Dialect::QwenXml, vec![], ToolChoice::Auto),
        (Dialect::QwenXml, tools(), ToolChoice::Named("unknown".into())),
        (Dialect::Plain, tools(), ToolChoice::Required),
        (Dialect::Thinking, tools(), ToolChoice::Auto),
    ];
    for (dialect, tools, choice) in cases {
        assert!(dialect.grammar("", &tools, &choice, true).is_none());
    }
}

#[test]
fn odd_schemas_of_tools_still_give_grammars() {
    let numbers = |n: usize| -> serde_json::Map<String, Json> {
        (0..n).map(|n| (format!("p{n}"), json!({"type": "integer"}))).collect()
    };
    let all: Vec<String> = (0..64).map(|n| format!("p{n}")).collect();
    let parameters = [
        json!(null),
        json!({}),
        json!(true),
        json!({"type": "object", "properties": {"a": {}}, "required": ["a", "b"]}),
        json!({"type": "object", "properties": numbers(100), "required": ["p99"]}),
        json!({"type": "object", "properties": numbers(64), "required": all}),
        json!({"properties": {"a b": {"type": "string"}, "c\"/\u{7f}": {"enum": ["\u{7f}\n", "x"]}}}),
        json!({"properties": {"a": {"$ref": "#/$defs/tree"}},
            "$defs": {"tree": {"type": "object", "properties": {"more": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}}),
        json!({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "array"}]}, "b": {"type": "object"},
            "c": {"not": {"type": "null"}}, "d": {"type": "array", "uniqueItems": true, "items": {"type": "boolean"}}}}),
    ];
    for (dialect, _) in CALLING {
        let tokenizer = tokenizer(dialect, MarksAre::Special);
        let grammars = Grammars::new(&tokenizer, WIDTH);
        let model = FakeModel { tokenizer: &tokenizer, width: WIDTH, wishes: wishes(dialect) };
        for parameters in &parameters {
            let tools = [json!({"name": "f", "parameters": parameters}), json!({"no": "name"})];
            let grammar = dialect.grammar("", &tools, &ToolChoice::Required, false).unwrap();
            let mut constraint = grammars.constraint(&grammar).unwrap();
            let Some(answer) = model.answer(&mut constraint, &mut Random::new(7), 300) else { continue };
            let mut reader = dialect.reader("", &tools);
            let pieces = [reader.push(&answer), reader.finish()].concat();
            assert!(
                pieces.iter().any(|piece| matches!(piece, Piece::Call { .. })),
                "{dialect:?} {answer:?} {pieces:?}"
            );
        }
    }
}
