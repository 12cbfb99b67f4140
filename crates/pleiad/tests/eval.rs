//! `pleiad eval` as a user meets it. data/expected.py says what mlx-lm found for the same ids.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use engine::Tokenizer;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn pleiad(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleiad"));
    command.args(args).stdin(Stdio::null()).output().expect("the program starts")
}

/// Runs, expects success, returns the standard output.
fn answer(args: &[&str]) -> String {
    let output = pleiad(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What `eval --json` says.
fn eval(args: &[&str]) -> Value {
    serde_json::from_str(&answer(&[&["eval", "--json"], args].concat())).unwrap()
}

/// Runs, expects exit code 2 and an error that names each of `words`.
fn refused(args: &[&str], words: &[&str]) {
    let output = pleiad(&[&["eval"], args].concat());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(!error.contains("panicked"), "{args:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{args:?}: no `{word}` in: {error}");
    }
}

fn close(found: &Value, expected: &Value, what: &str) {
    let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
    assert!((found - expected).abs() <= 1e-4 * expected.abs(), "{what}: {found}, expected {expected}");
}

fn joined(ids: &[Value]) -> String {
    ids.iter().map(Value::to_string).collect::<Vec<_>>().join(",")
}

#[test]
fn the_numbers_are_those_of_mlx_lm() {
    let expected: Value = serde_json::from_str(include_str!("data/expected.json")).unwrap();
    for case in expected["eval"].as_array().unwrap() {
        let name = case["fixture"].as_str().unwrap();
        let (model, ids) = (fixture(name), joined(case["ids"].as_array().unwrap()));
        let context = case["context"].to_string();
        let mut args = vec![path(&model), "--ids", &ids, "--context", &context, "--numerics", "exact"];
        let other = case["against"].as_str().map(fixture);
        if let Some(other) = &other {
            args.extend(["--against", path(other)]);
        }
        let found = eval(&args);
        assert_eq!(found["tokens_scored"], case["tokens_scored"], "{name}");
        close(&found["model"]["perplexity"], &case["perplexity"], name);
        let nats = found["model"]["nats_per_token"].as_f64().unwrap();
        close(&nats.exp().into(), &case["perplexity"], name);
        assert!(found["model"]["bits_per_byte"].is_null());
        if other.is_some() {
            close(&found["reference"]["perplexity"], &case["reference_perplexity"], name);
            for number in ["kl_mean", "kl_max", "top1_agreement"] {
                close(&found[number], &case[number], number);
            }
        }
    }
}

#[test]
fn a_model_is_no_distance_from_itself() {
    let model = fixture("qwen3_moe-6bit");
    let found = eval(&[path(&model), "--ids", "1,2,3,4,5,6,7", "--against", path(&model)]);
    assert_eq!((&found["kl_mean"], &found["kl_max"]), (&0.0.into(), &0.0.into()));
    assert_eq!(found["top1_agreement"], 1.0);
    assert_eq!(found["model"]["perplexity"], found["reference"]["perplexity"]);
}

#[test]
fn text_is_scored_as_its_tokens() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let model = at("tiny");
    answer(&["synth", "tiny", path(&model)]);
    let text = "The sky is blue, and the grass is green. ".repeat(9) + "Größe 日本";
    fs::write(at("text"), &text).unwrap();
    let tokens = Tokenizer::open(&model).unwrap().encode(&text, false).unwrap();
    let list = tokens.iter().map(u32::to_string).collect::<Vec<_>>();
    fs::write(at("ids"), list.join("\n")).unwrap();

    let of_text = eval(&[path(&model), "--text", path(&at("text")), "--context", "50"]);
    let of_ids = eval(&[path(&model), "--ids", path(&at("ids")), "--context", "50"]);
    assert_eq!(of_text["model"]["perplexity"], of_ids["model"]["perplexity"]);
    let windows = tokens.chunks(50).filter(|window| window.len() > 1).count();
    assert_eq!(of_text["windows"], windows);
    // Another step over the prompt is another order of sums at most.
    let of_list = eval(&[path(&model), "--ids", &list.join(","), "--context", "50"]);
    assert_eq!(of_list, of_ids);

    let nats = of_text["model"]["nats_per_token"].as_f64().unwrap();
    let bits = nats / 2f64.ln() * tokens.len() as f64 / text.len() as f64;
    close(&of_text["model"]["bits_per_byte"], &bits.into(), "bits per byte");

    let printed = answer(&["eval", path(&model), "--text", path(&at("text")), "--against", path(&model)]);
    for word in ["perplexity", "nats/token", "bits/byte", "reference", "divergence", "same choice", "100.00%"]
    {
        assert!(printed.contains(word), "no `{word}` in: {printed}");
    }
}

#[test]
fn what_cannot_be_scored_is_said() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let tiny = at("tiny");
    answer(&["synth", "tiny", path(&tiny)]);
    let (model, other) = (fixture("qwen3_5_moe-4bit"), fixture("qwen3_5_moe-bf16"));
    fs::write(at("empty"), "").unwrap();
    fs::write(at("latin"), b"caf\xe9").unwrap();
    fs::write(at("text"), "A text.").unwrap();
    fs::write(at("ids"), "1, 2\n x").unwrap();

    refused(&[path(&tiny), "--text", path(&at("empty"))], &["empty"]);
    refused(&[path(&tiny), "--text", path(&at("latin"))], &["UTF-8", "byte 3"]);
    refused(&[path(&tiny), "--text", path(&at("none"))], &["none"]);
    refused(&[path(&model), "--text", path(&at("text"))], &["tokenizer.json", "--ids"]);
    refused(&[path(&model)], &["--text"]);
    refused(&[path(&model), "--ids", "5"], &["two tokens"]);
    refused(&[path(&model), "--ids", "5,6", "--context", "1"], &["two tokens"]);
    refused(&[path(&model), "--ids", "5,999999"], &["999999"]);
    refused(&[path(&model), "--ids", path(&at("ids"))], &["`x`"]);
    refused(&[path(&model), "--ids", "5,y"], &["`y`"]);
    refused(&[path(&model), "--ids", "5,6", "--against", path(&other)], &["256", "160", "vocabulary"]);
    refused(&[path(&model), "--ids", "5,6", "--against", path(&at("none"))], &["none"]);
}

/// On real text, with real routing: fast numerics must not be worse than a hair.
#[test]
fn fast_numerics_are_as_good_on_the_model_in_the_box() {
    let texts = fs::read_to_string(fixture("../box/eval/text.jsonl")).unwrap();
    let texts = texts.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    // Some of every source.
    let text: String =
        texts.map(|text| text["text"].as_str().unwrap().chars().take(150).collect::<String>()).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    fs::write(&file, text).unwrap();
    let report = eval(&["box", "--text", path(&file), "--against-numerics", "exact"]);
    let number = |name: &str, field: &str| report[name][field].as_f64().unwrap();
    let ratio = number("model", "perplexity") / number("reference", "perplexity");
    assert!((ratio - 1.0).abs() < 1e-3, "perplexity changes by a factor of {ratio}");
    let divergence = report["kl_mean"].as_f64().unwrap();
    assert!(divergence > 0.0 && divergence < 1e-3, "divergence {divergence}");
    assert!(report["tokens_scored"].as_u64().unwrap() > 1000);
}
