//! GPUs as a user meets them: whichever this computer has, software included. Without any, tests that run a model are
//! skipped, and say so; what is refused is refused everywhere.

#![cfg(feature = "gpu")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn pleiad(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleiad"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs, expects success, returns the standard output and the notes beside it.
fn answer(args: &[&str]) -> (String, String) {
    let output = pleiad(args).output().expect("the program starts");
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

fn refused(output: &Output, words: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(!error.contains("panicked"), "{error}");
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
}

/// The number of a GPU to test with.
fn gpu() -> Option<String> {
    let found = gpu::adapters().first().map(|adapter| adapter.index.to_string());
    if found.is_none() {
        testing::skipped("gpu", "this computer has no GPU, and no software that stands in for one");
    }
    found
}

#[test]
fn flags_that_make_no_sense() {
    let model = fixture("qwen3-2bit");
    let try_with = |flags: &[&str], words: &[&str]| {
        let run = [&["run", path(&model), "--ids", "1,2", "--max-tokens", "1"], flags].concat();
        refused(&pleiad(&run).output().unwrap(), words);
    };
    match gpu::adapters().first() {
        Some(adapter) => try_with(&["--gpu", "99"], &["no GPU 99", &adapter.to_string()]),
        None => try_with(&["--gpu", "99"], &["no GPU was found"]),
    }
    try_with(&["--gpu", "first"], &["--gpu", "first", "pleiad inspect"]);
    try_with(&["--gpu", "-1"], &["-1"]);
    try_with(&["--gpu", "0", "--backend", "cpu"], &["--gpu", "--backend cpu"]);
    try_with(&["--backend", "gpu", "--kernels", "scalar"], &["--kernels", "GPU"]);
    try_with(&["--backend", "tpu"], &["tpu", "auto, cpu, gpu"]);
}

/// A child of its own whose Vulkan finds no driver. Elsewhere there is no such switch.
#[test]
#[cfg(target_os = "linux")]
fn a_computer_without_gpus() {
    let model = fixture("qwen3-2bit");
    let without = |args: &[&str]| {
        let mut command = pleiad(args);
        command.env("VK_DRIVER_FILES", "/nonexistent").env("VK_ICD_FILENAMES", "/nonexistent");
        command.output().unwrap()
    };
    let run = |flags: &[&str]| {
        let ids = ["run", path(&model), "--ids", "1,2", "--max-tokens", "2", "--greedy", "--print-ids"];
        without(&[&ids, flags].concat())
    };
    refused(&run(&["--backend", "gpu"]), &["no GPU was found", "Vulkan"]);
    refused(&run(&["--gpu", "0"]), &["no GPU was found"]);
    let auto = run(&["--backend", "auto"]);
    assert!(auto.status.success() && text(&auto.stderr).contains("CPU"), "{}", text(&auto.stderr));
    assert_eq!(auto.stdout, run(&["--backend", "cpu"]).stdout);
    let told = without(&["inspect", path(&model)]);
    assert!(told.status.success(), "{}", text(&told.stderr));
    assert!(text(&told.stdout).lines().any(|line| line.starts_with("GPUs") && line.ends_with("none")));
}

#[test]
fn inspect_lists_them() {
    let (told, _) = answer(&["inspect", path(&fixture("qwen3-2bit"))]);
    for adapter in gpu::adapters() {
        assert!(told.contains(&adapter.to_string()), "no `{adapter}` in:\n{told}");
    }
    let Some(number) = gpu() else { return };
    let (told, _) = answer(&["inspect", path(&fixture("qwen3-2bit")), "--gpu", &number]);
    assert!(told.lines().any(|line| line.starts_with("machine") && line.contains("GPU")), "{told}");
}

#[test]
fn logits_and_ids_are_those_of_the_cpu() {
    let Some(number) = gpu() else { return };
    let model = fixture("qwen3_5_moe-4bit");
    let run = |more: &[&str]| {
        let ids = ["run", path(&model), "--ids", "5,17,3,80", "--max-tokens", "8", "--greedy", "--print-ids"];
        answer(&[&ids[..], &["--numerics", "exact"], more].concat()).0
    };
    assert_eq!(run(&["--gpu", &number]), run(&["--backend", "cpu"]));

    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    answer(&["logits", path(&model), "--ids", "5,17,3", "--gpu", &number, "--out", path(&out)]);
    let logits = &checkpoint::read_file(&out).unwrap()["logits"];
    assert!(logits.bytes.as_chunks().0.iter().all(|b| f32::from_le_bytes(*b).is_finite()));
}

#[test]
#[cfg(feature = "box")]
fn the_model_in_the_box_answers() {
    let Some(number) = gpu() else { return };
    let (told, notes) = answer(&["run", "What is the capital of France?", "--greedy", "--gpu", &number]);
    assert_eq!(told, "Paris\n");
    assert!(notes.contains("GPU"), "{notes}");
    // Nobody waits for a GPU to open who did not ask for one.
    let (told, notes) = answer(&["run", "What is the capital of France?", "--greedy"]);
    assert_eq!(told, "Paris\n");
    assert!(notes.contains("CPU"), "{notes}");
}

#[test]
#[cfg(feature = "box")]
fn the_model_in_the_box_predicts_alike() {
    let Some(number) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    fs::write(
        &file,
        "Seen from the shore, the sea has no end. One wave after another turns white and breaks.",
    )
    .unwrap();
    let eval = ["eval", "box", "--json", "--text", path(&file), "--numerics", "exact"];
    let report = |more: &[&str]| -> Value {
        serde_json::from_str(&answer(&[&eval, more].concat()).0).expect("a report")
    };
    let found = report(&["--gpu", &number, "--against-backend", "cpu"]);
    let machine = |side: &str| found[side]["machine"].as_str().unwrap().to_owned();
    assert!(machine("model").contains("GPU") && machine("reference").contains("CPU"), "{found}");
    let divergence = found["kl_mean"].as_f64().unwrap();
    assert!(divergence < 1e-6, "{found}");
    assert_eq!(found["top1_agreement"], 1.0);
    assert!(found["tokens_scored"].as_u64().unwrap() > 10);
}

#[test]
#[cfg(feature = "box")]
fn bench_counts_dispatches() {
    let Some(number) = gpu() else { return };
    let bench = ["bench", "--json", "--prefill", "16", "--decode", "4", "--repeat", "1", "--gpu", &number];
    let found: Value = serde_json::from_str(&answer(&bench).0).unwrap();
    for speed in ["/prefill/best", "/decode/median", "/dispatches_per_token", "/open_seconds"] {
        assert!(found.pointer(speed).and_then(Value::as_f64).unwrap() > 0.0, "{speed}: {found}");
    }
    for unknown in ["threads", "bandwidth", "share_of_limit"] {
        assert!(found[unknown].is_null(), "{unknown}: {found}");
    }
    assert!(found["backend"].as_str().unwrap().contains("GPU"), "{found}");
}
