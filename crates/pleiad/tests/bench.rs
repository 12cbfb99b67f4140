//! `pleiad bench` as a user meets it. Only shapes and signs of numbers are tested: how fast a machine is, is its own affair.

#![cfg_attr(not(feature = "box"), allow(dead_code, unused_imports))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// A short run on a model of the fixtures.
const SHORT: [&str; 7] = ["--quick", "--prefill", "16", "--decode", "4", "--repeat", "2"];

fn bench(cache: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleiad"));
    command.env("XDG_CACHE_HOME", cache).arg("bench").args(args).stdin(Stdio::null());
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn done(args: &[&str]) -> String {
    let output = bench(Path::new("."), args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn refused(args: &[&str], words: &[&str]) {
    let output = bench(Path::new("."), args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(output.stdout.is_empty() && !error.contains("panicked"), "{args:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{args:?}: no `{word}` in: {error}");
    }
}

fn positive(value: &Value) -> f64 {
    let number = value.as_f64().unwrap_or(0.0);
    assert!(number > 0.0 && number.is_finite(), "{value}");
    number
}

#[test]
#[cfg(feature = "box")]
fn one_object_says_everything() {
    let args = ["--json", "--threads", "1", "--contexts", "40,0,16,3", "--answers", "3,1", "--chunk", "7"];
    let told = done(&[&SHORT[..], &args].concat());
    assert_eq!(told.lines().count(), 1, "{told}");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["engine"], concat!("pleiad ", env!("CARGO_PKG_VERSION")));
    assert_eq!(told["model"], "the model in the box");
    assert_eq!(told["sampling"]["temperature"], 0.0);
    assert_eq!((&told["threads"], &told["profile"]), (&json!(1), &json!([])));
    assert!(told["backend"].as_str().unwrap().contains("CPU") && told["numerics"].is_string(), "{told}");
    for (what, tokens) in [("prefill", 16), ("decode", 4)] {
        let found = &told[what];
        assert_eq!(found["tokens"], tokens);
        assert!(positive(&found["best"]) >= positive(&found["median"]), "{found}");
    }
    // Those asked for and the one behind the prompt, in order.
    let contexts: Vec<&Value> = told["contexts"].as_array().unwrap().iter().map(|c| &c["context"]).collect();
    assert_eq!(contexts, [0, 3, 16, 40]);
    assert_eq!(told["contexts"][2]["best"], told["decode"]["best"]);
    // Those that were decoded at once.
    for (i, answers) in [3, 1].into_iter().enumerate() {
        let found = &told["answers"][i];
        assert_eq!(found["answers"], answers);
        assert!(positive(&found["best"]) >= positive(&found["median"]), "{found}");
    }
    let per_token = positive(&told["weight_bytes_per_token"]);
    let parts: f64 = told["weight_bytes_by_part"].as_object().unwrap().values().map(positive).sum();
    assert_eq!(parts, per_token);
    // Four bits and scales of some thirteen million parameters, most of them in experts that a token does not visit.
    assert!((1e6..6e6).contains(&per_token), "{per_token}");
    let share = positive(&told["decode"]["best"]) * per_token / positive(&told["bandwidth"]);
    assert!((share / positive(&told["share_of_limit"]) - 1.0).abs() < 0.01, "{told}");
    positive(&told["bandwidth_one_thread"]);
    positive(&told["open_seconds"]);
    assert!(!cfg!(target_os = "linux") || positive(&told["peak_memory"]) > per_token, "{told}");
}

/// Names of the tags of an XML text, each of which must be closed.
fn tags(xml: &str) -> Vec<String> {
    let (mut open, mut seen) = (Vec::new(), Vec::new());
    for tag in xml.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split([' ', '/']).next().unwrap().to_owned();
        seen.push(name.clone());
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<String>::new());
    seen
}

#[test]
fn a_table_and_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("speed.svg");
    let model = fixture("gemma4-moe-bf16");
    let args =
        [model.to_str().unwrap(), "--svg", picture.to_str().unwrap(), "--contexts", "0,64", "--profile"];
    let told = done(&[&SHORT[..], &args].concat());
    for words in ["gemma4", "prefill", "decode", "tokens/s", "per token", "bandwidth", "limit", "opened"] {
        assert!(told.contains(words), "no `{words}` in:\n{told}");
    }
    let lines = |name: &str| told.lines().filter(|line| line.starts_with(name)).count();
    // Three contexts, and the heading of where the time went.
    assert_eq!((lines("prefill  "), lines("decode  "), lines("matmul  ")), (2, 4, 2), "{told}");
    let drawn = fs::read_to_string(&picture).unwrap();
    let tags = tags(&drawn);
    assert_eq!(tags[0], "svg");
    // Two panels with three points of two values each, and the legend.
    assert_eq!(tags.iter().filter(|tag| *tag == "circle").count(), 2 * 3 * 2 + 2);
    assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the picture is left");
}

#[test]
fn sampled_decoding_is_measured_too() {
    let model = fixture("qwen3-2bit");
    let args = [model.to_str().unwrap(), "--temperature", "0.5", "--top-k", "20", "--answers", "2", "--json"];
    let told: Value = serde_json::from_str(&done(&[&SHORT[..], &args].concat())).unwrap();
    assert_eq!((&told["sampling"]["temperature"], &told["sampling"]["top_k"]), (&json!(0.5), &json!(20)));
    positive(&told["decode"]["best"]);
    positive(&told["answers"][0]["best"]);
    refused(&[model.to_str().unwrap(), "--temperature", "-1"], &["temperature"]);
}

#[test]
fn a_preset_is_made_and_removed() {
    let cache = tempfile::tempdir().unwrap();
    let output = bench(cache.path(), &[&SHORT[..], &["tiny", "--layers", "2", "--json"]].concat());
    let notes = text(&output.stderr);
    assert!(output.status.success(), "{notes}");
    assert!(notes.contains("made ") && notes.contains("removed "), "{notes}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["model"], "tiny, 2 layers, random weights");
    assert_eq!(fs::read_dir(cache.path().join("pleiad")).unwrap().count(), 0);
}

#[test]
fn bad_arguments() {
    refused(&["gpt-5"], &["gpt-5", "no such preset", "qwen3.6-35b-a3b"]);
    refused(&["no/such/folder"], &["no/such/folder"]);
    refused(&["no/model"], &["pleiad pull no/model"]);
    refused(&["tiny", "--layers", "5"], &["1 to 4 layers"]);
    let model = fixture("qwen3-2bit");
    let model = model.to_str().unwrap();
    refused(&[model, "--layers", "2"], &["--layers", "preset"]);
    for flag in ["--prefill", "--decode", "--repeat", "--threads"] {
        refused(&[model, flag, "0"], &[flag]);
    }
    refused(&[model, "--answers", "0"], &["--answers", "0"]);
    refused(&[model, "--contexts", "1,x"], &["--contexts", "x"]);
    refused(&[model, "--context", "100"], &["512 tokens", "--context is 100"]);
    refused(&[model, "--prefill", "8", "--contexts", "2000000000"], &["2000000032", "free"]);
    refused(&[model, "--prefill", "8", "--memory", "1k"], &["caches", "free"]);
    refused(&[model, "--svg", "no/such/folder/file.svg"], &["no/such/folder/file.svg"]);
    #[cfg(feature = "box")]
    refused(&["--prefill", "3000000"], &["3000000 tokens", "the model's context"]);
}
