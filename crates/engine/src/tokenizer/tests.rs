use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{SamplingParams, TemplateInput};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tokenizer")
}

fn fixture_cases(name: &str) -> Vec<Json> {
    serde_json::from_str(&fs::read_to_string(fixture().join(name)).unwrap()).unwrap()
}

fn ids(json: &Json) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// A model folder with these JSON files.
fn folder(files: &[(&str, Json)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, json) in files {
        fs::write(dir.path().join(name), json.to_string()).unwrap();
    }
    dir
}

fn word_level(vocab: &[&str], decoder: Json) -> Json {
    let vocab: serde_json::Map<_, _> =
        vocab.iter().enumerate().map(|(id, token)| (token.to_string(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<s>"}
    })
}

/// A vocabulary as SentencePiece makes it, with its two usual decoders.
fn sentence_piece(decoder: Json) -> Tokenizer {
    let vocab = [
        "<s>", "▁", "▁a", "b", "▁▁c", "é", "昴", "\n", "�", "<0x20>", "<0x41>", "<0xC3>", "<0xA9>", "<0xE6>",
        "<0x98>", "<0xB4>", "<0xF0>", "<0x9F>", "<0x8C>", "<0xFF>",
    ];
    let dir = folder(&[("tokenizer.json", word_level(&vocab, decoder))]);
    Tokenizer::open(dir.path()).unwrap()
}

/// Llama's: replace, bytes, join, drop one space at the beginning.
fn llama_decoder() -> Json {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    ]})
}

fn metaspace_decoder() -> Json {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut stream = tokenizer.stream(skip_special);
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id).unwrap()).collect();
    pieces.push(stream.finish());
    pieces
}

#[test]
fn encodes_and_decodes_like_the_reference() {
    let tokenizer = Tokenizer::open(&fixture()).unwrap();
    let cases = fixture_cases("expected.json");
    assert!(cases.len() > 20);
    for case in cases {
        let (text, decoded) = (case["text"].as_str().unwrap(), case["decoded"].as_str().unwrap());
        let encoded = tokenizer.encode(text, false).unwrap();
        assert_eq!(encoded, ids(&case["ids"]), "{text:?}");
        assert_eq!(tokenizer.decode(&encoded, false).unwrap(), decoded);
        assert_eq!(streamed(&tokenizer, &encoded, false).concat(), decoded);
        let bytes: Vec<u8> = encoded.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap()).collect();
        assert_eq!(bytes, decoded.as_bytes());
    }
    for case in fixture_cases("partial.json") {
        assert_eq!(
            streamed(&tokenizer, &ids(&case["ids"]), false).concat(),
            case["decoded"].as_str().unwrap()
        );
    }
}

#[test]
fn reads_what_the_fixture_folder_says() {
    let tokenizer = Tokenizer::open(&fixture()).unwrap();
    assert_eq!(tokenizer.eos_ids(), [480, 482]);
    assert!(tokenizer.is_eos(482) && !tokenizer.is_eos(481));
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (None, Some("<|im_end|>")));
    assert_eq!(tokenizer.vocab_size(), 485);
    assert_eq!(tokenizer.token_text(481).as_deref(), Some("<|im_start|>"));
    assert_eq!(tokenizer.token_text(100_000), None);
    assert_eq!(tokenizer.token_id("<|im_start|>"), Some(481));
    assert!(tokenizer.is_special(482) && !tokenizer.is_special(483) && !tokenizer.is_special(5));
    assert_eq!(tokenizer.decode(&[482, 64, 483, 999_999], true).unwrap(), "a<think>");

    let mut params = SamplingParams::default();
    tokenizer.generation_defaults().apply(&mut params);
    assert_eq!((params.temperature, params.top_k, params.top_p), (0.6, 20, 0.95));

    let input = TemplateInput {
        messages: vec![json!({"role": "user", "content": "Hi"})],
        add_generation_prompt: true,
        ..TemplateInput::default()
    };
    let text = tokenizer.chat_template(false).unwrap().render(&input).unwrap();
    assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(tokenizer.encode(&text, false).unwrap()[0], 481);
}

#[test]
fn missing_and_corrupt_files_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let error = Tokenizer::open(empty.path()).unwrap_err();
    assert!(matches!(error, Error::TokenizerMissing { .. }));
    assert!(error.to_string().contains("--ids"), "{error}");

    let good = word_level(&["<s>", "a"], json!(null));
    for (name, text) in [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{\"model\": 5}"),
        ("tokenizer_config.json", "not json"),
        ("generation_config.json", "{\"temperature\": \"hot\"}"),
        ("config.json", "[1,"),
    ] {
        let dir = folder(&[("tokenizer.json", good.clone())]);
        fs::write(dir.path().join(name), text).unwrap();
        match Tokenizer::open(dir.path()) {
            Err(Error::InvalidFile { path, .. }) => assert!(path.ends_with(name)),
            other => panic!("{name} {text}: {other:?}"),
        }
    }
    let dir = folder(&[("tokenizer.json", good)]);
    fs::write(dir.path().join("chat_template.jinja"), [0xff, 0xfe]).unwrap();
    assert!(matches!(Tokenizer::open(dir.path()), Err(Error::InvalidFile { .. })));
}

#[test]
fn end_tokens_come_from_every_file() {
    let dir = folder(&[
        ("tokenizer.json", word_level(&["<s>", "a", "b", "c", "d", "e"], json!(null))),
        ("config.json", json!({"eos_token_id": null, "text_config": {"eos_token_id": [1, 2]}})),
        ("generation_config.json", json!({"eos_token_id": 3, "do_sample": false, "temperature": 0.6})),
        ("tokenizer_config.json", json!({"eos_token": {"content": "e"}, "bos_token": {"content": "<s>"}})),
    ]);
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    assert_eq!(tokenizer.eos_ids(), [1, 2, 3, 5]);
    assert_eq!((tokenizer.bos_token(), tokenizer.eos_token()), (Some("<s>"), Some("e")));
    let mut params = SamplingParams::default();
    tokenizer.generation_defaults().apply(&mut params);
    assert_eq!(params.temperature, 0.0);
    assert!(!tokenizer.has_chat_template());
    assert!(matches!(tokenizer.chat_template(false), Err(Error::NoChatTemplate)));
}

#[test]
fn the_jinja_file_comes_before_the_config() {
    let render = |dir: &Path, tools: bool| {
        let tokenizer = Tokenizer::open(dir).unwrap();
        tokenizer.chat_template(tools).unwrap().render(&TemplateInput::default()).unwrap()
    };
    let list = json!([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]);
    let dir = folder(&[
        ("tokenizer.json", word_level(&["<s>"], json!(null))),
        ("tokenizer_config.json", json!({"chat_template": list})),
    ]);
    assert_eq!(render(dir.path(), false), "plain");
    assert_eq!(render(dir.path(), true), "tools");
    fs::write(dir.path().join("chat_template.jinja"), "file").unwrap();
    assert_eq!(render(dir.path(), false), "file");
    assert_eq!(render(dir.path(), true), "file");
}

#[test]
fn leading_spaces_are_dropped_once() {
    for decoder in [llama_decoder(), metaspace_decoder()] {
        let tokenizer = sentence_piece(decoder);
        assert_eq!(streamed(&tokenizer, &[2, 2, 3, 4], true), ["a", " a", "b", "  c", ""]);
        // A skipped token does not count as the beginning of the text.
        assert_eq!(streamed(&tokenizer, &[0, 2, 0, 2], true), ["", "a", "", " a", ""]);
    }
}

#[test]
fn byte_tokens_wait_for_the_character() {
    let tokenizer = sentence_piece(llama_decoder());
    // é and 🌟-like sequences from byte tokens, each directly behind another.
    assert_eq!(
        streamed(&tokenizer, &[3, 11, 12, 11, 12, 13, 14, 15, 3], true),
        ["b", "", "é", "", "é", "", "", "昴", "b", ""]
    );
    // Hopeless bytes are replaced as soon as that is known, the good ones around them are not.
    assert_eq!(streamed(&tokenizer, &[11, 12, 19, 11, 3], true), ["", "é", "\u{fffd}", "", "\u{fffd}b", ""]);
    assert_eq!(streamed(&tokenizer, &[11, 10], true), ["", "\u{fffd}A", ""]);
    assert_eq!(streamed(&tokenizer, &[3, 16, 17], true), ["b", "", "", "\u{fffd}\u{fffd}"]);
    assert_eq!(tokenizer.token_bytes(12), Some(vec![0xa9]));
    assert_eq!(tokenizer.token_bytes(2), Some(b" a".to_vec()));
}

#[test]
fn the_alphabet_covers_every_byte_once() {
    let mut seen = [false; 256];
    for c in (0..0x200).filter_map(char::from_u32) {
        if let Some(byte) = alphabet_byte(c) {
            assert!(!std::mem::replace(&mut seen[usize::from(byte)], true), "{byte:#x} twice");
        }
    }
    assert!(seen.iter().all(|seen| *seen));
    assert_eq!(
        (alphabet_byte('Ġ'), alphabet_byte('Ċ'), alphabet_byte('ł')),
        (Some(b' '), Some(b'\n'), Some(0xa0))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Random ids of a byte-level vocabulary are mostly broken characters.
    #[test]
    fn byte_level_stream_agrees_with_decode(
        ids in prop::collection::vec(0u32..490, 0..60),
        skip_special in any::<bool>(),
    ) {
        thread_local!(static TOKENIZER: Tokenizer = Tokenizer::open(&fixture()).unwrap());
        TOKENIZER.with(|tokenizer| {
            let whole = tokenizer.decode(&ids, skip_special).unwrap();
            assert_eq!(streamed(tokenizer, &ids, skip_special).concat(), whole);
        });
    }

    /// Random pieces and whole characters made of byte tokens.
    #[test]
    fn piece_stream_agrees_with_decode(
        units in prop::collection::vec(
            prop::sample::select(vec![
                vec![0u32], vec![1], vec![2], vec![3], vec![4], vec![5], vec![6], vec![7], vec![8], vec![9], vec![10],
                vec![11, 12], vec![13, 14, 15],
            ]), 0..30),
        skip_special in any::<bool>(),
    ) {
        let ids = units.concat();
        for decoder in [llama_decoder(), metaspace_decoder()] {
            let tokenizer = sentence_piece(decoder);
            let whole = tokenizer.decode(&ids, skip_special).unwrap();
            prop_assert_eq!(streamed(&tokenizer, &ids, skip_special).concat(), whole);
        }
    }
}
