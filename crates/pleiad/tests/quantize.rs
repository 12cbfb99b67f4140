//! `pleiad quantize` as a user meets it. What it writes must be what mlx-lm writes for the same source, bit for bit;
//! data/expected.py says how that was found.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use checkpoint::{Checkpoint, Dtype, read_file};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

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

/// Runs, expects success, returns the standard output and the standard error stream.
fn done(args: &[&str]) -> (String, String) {
    let output = pleiad(args);
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{args:?}: {err}");
    (out, err)
}

/// Runs, expects exit code 2 and an error that names each of `words`.
fn refused(args: &[&str], words: &[&str]) {
    let output = pleiad(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(!error.contains("panicked"), "{args:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{args:?}: no `{word}` in: {error}");
    }
}

/// A place for results.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Quantises a folder and returns the new one.
    fn quantize(&self, source: &Path, name: &str, flags: &[&str]) -> PathBuf {
        let to = self.at(name);
        done(&[&["quantize", path(source), path(&to)], flags].concat());
        to
    }
}

fn config(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Of every tensor's name, type, shape and bytes, in the order of names.
fn digest(folder: &Path) -> String {
    let mut hash = Sha256::new();
    for (name, tensor) in read_file(&folder.join("model.safetensors")).unwrap() {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        hash.update(format!("{name} {} {}\n", tensor.dtype, shape.join(",")));
        hash.update(&tensor.bytes[..]);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_result_is_that_of_mlx_lm() {
    let expected: Value = serde_json::from_str(include_str!("data/expected.json")).unwrap();
    let place = Place::new();
    for (i, case) in expected["quantize"].as_array().unwrap().iter().enumerate() {
        let text = |key: &str| case[key].as_str();
        let [bits, group] = ["bits", "group"].map(|key| case[key].to_string());
        let mut flags = vec!["--bits", &bits, "--group", &group, "--mode", text("mode").unwrap()];
        flags.extend(text("recipe").map(|name| ["--mixed", name]).into_iter().flatten());
        let to = place.quantize(&fixture(text("fixture").unwrap()), &i.to_string(), &flags);
        let config = config(&to);
        assert_eq!(config["quantization"], case["quantization"], "{case}");
        assert_eq!(config["quantization_config"], case["quantization"], "{case}");
        assert_eq!(digest(&to), text("digest").unwrap(), "{case}");
    }
}

#[test]
fn results_run_and_stay_close_to_the_source() {
    let place = Place::new();
    let ids: Vec<String> = (0..60).map(|i| (i * i * 31 % 96).to_string()).collect();
    for name in [
        "qwen3_5_moe-bf16",
        "qwen3_5_moe-bf16-hf",
        "qwen3-yarn-f16",
        "qwen3_moe-bf16",
        "qwen3_next-bf16",
        "deepseek_v3-plain-bf16",
        "deepseek_v3-fp8-hf",
        "gemma4-dense-bf16",
        "gemma4-moe-bf16",
        "qwen3_5_moe-mtp-bf16",
        "deepseek_v3-mtp-bf16",
    ] {
        let source = fixture(name);
        // Weights are random, so routers are easily turned and 4 bits go far; but models that have nothing in common are
        // 5 and more apart.
        let cases: [(&[&str], f64); 3] = [
            (&["--bits", "8", "--group", "32"], 0.05),
            (&["--bits", "4", "--group", "64"], 2.5),
            (&["--mode", "mxfp4"], 2.5),
        ];
        for (flags, bound) in cases {
            let to = place.quantize(&source, &format!("{name}{}", flags.join("")), flags);
            let (inspected, _) = done(&["inspect", path(&to)]);
            assert!(
                inspected.contains("unused") && inspected.contains("no tensor"),
                "{name} {flags:?}: {inspected}"
            );
            let (found, _) =
                done(&["eval", path(&to), "--ids", &ids.join(","), "--against", path(&source), "--json"]);
            let found: Value = serde_json::from_str(&found).unwrap();
            let kl = found["kl_mean"].as_f64().unwrap();
            assert!(kl > 0.0 && kl < bound, "{name} {flags:?}: {found}");
        }
    }
}

#[test]
fn the_names_of_the_source_do_not_matter() {
    let place = Place::new();
    for name in
        ["qwen3_5_moe-bf16", "qwen3_moe-bf16", "qwen3_next-bf16", "deepseek_v3-plain-bf16", "gemma4-moe-bf16"]
    {
        for flags in [["--group", "32"], ["--mode", "mxfp4"]] {
            let original = format!("{name}-hf");
            let a = place.quantize(&fixture(name), &format!("{name}{}", flags[0]), &flags);
            let b = place.quantize(&fixture(&original), &format!("{original}{}", flags[0]), &flags);
            assert_eq!(digest(&a), digest(&b), "{name} {flags:?}");
        }
    }
}

#[test]
fn what_mlx_lm_keeps_is_kept() {
    let place = Place::new();
    let qwen = Checkpoint::open(&place.quantize(&fixture("qwen3_5_moe-bf16-hf"), "qwen", &[])).unwrap();
    let dtype = |checkpoint: &Checkpoint, name: &str| checkpoint.tensor(name).unwrap().dtype;
    let layer = "language_model.model.layers.0";
    assert_eq!(dtype(&qwen, &format!("{layer}.linear_attn.A_log")), Dtype::F32);
    assert_eq!(dtype(&qwen, &format!("{layer}.input_layernorm.weight")), Dtype::BF16);
    assert_eq!(dtype(&qwen, &format!("{layer}.mlp.gate.weight")), Dtype::U32);
    let router = qwen.config().quantization().for_path(&format!("{layer}.mlp.gate")).unwrap();
    assert_eq!((router.bits, router.group), (8, 64));

    let deepseek =
        Checkpoint::open(&place.quantize(&fixture("deepseek_v3-plain-bf16-hf"), "deepseek", &[])).unwrap();
    let gate = deepseek.names().find(|name| name.ends_with("mlp.gate.weight")).unwrap();
    assert_eq!(dtype(&deepseek, gate), Dtype::BF16);
    assert_eq!(dtype(&deepseek, &gate.replace("weight", "e_score_correction_bias")), Dtype::F32);
    assert!(deepseek.contains("model.layers.0.self_attn.embed_q.weight"));
    assert!(!deepseek.names().any(|name| name.contains("kv_b_proj")));
}

/// mlx-lm reads `model*.safetensors` and would refuse a head in some families.
#[test]
fn a_drafting_head_is_quantised_into_a_file_of_its_own() {
    let place = Place::new();
    let file = |folder: &Path, name: &str| read_file(&folder.join(name)).unwrap();
    for (name, branch, join) in [
        ("qwen3_5_moe-mtp-bf16", "language_model.mtp.", "fc"),
        ("deepseek_v3-mtp-bf16", "model.layers.2.", "eh_proj"),
    ] {
        let to = place.quantize(&fixture(name), name, &["--group", "32"]);
        let head = file(&to, "mtp.safetensors");
        assert!(head.keys().all(|name| name.starts_with(branch)), "{name}");
        assert!(!file(&to, "model.safetensors").keys().any(|name| name.starts_with(branch)), "{name}");
        assert_eq!(head[&format!("{branch}{join}.weight")].dtype, Dtype::U32, "{name}");
        let (inspected, _) = done(&["inspect", path(&to)]);
        assert!(inspected.contains("drafting head"), "{name}: {inspected}");
    }
    let router = &config(&place.at("qwen3_5_moe-mtp-bf16"))["quantization"];
    assert_eq!(router["language_model.mtp.layers.0.mlp.gate"], json!({"group_size": 64, "bits": 8}));
    let hf = place.quantize(&fixture("qwen3_5_moe-mtp-bf16-hf"), "hf", &["--group", "32"]);
    for name in ["model.safetensors", "mtp.safetensors"] {
        let [a, b] = [&hf, &place.at("qwen3_5_moe-mtp-bf16")].map(|folder| file(folder, name));
        assert!(
            a.keys().eq(b.keys()) && a.iter().all(|(name, t)| t.bytes[..] == b[name].bytes[..]),
            "{name}"
        );
    }
}

#[test]
fn recipes_of_patterns() {
    let place = Place::new();
    let source = fixture("qwen3_5_moe-bf16");
    let recipe = place.at("recipe.json");
    let entries = json!({
        "lm_head": {"bits": 8},
        "*.switch_mlp.up_proj": {"mode": "mxfp4"},
        "embed_tokens": false,
        "mlp.gate": {"bits": 6, "group_size": 32},
    });
    fs::write(&recipe, entries.to_string()).unwrap();
    let to = place.quantize(&source, "to", &["--mixed", path(&recipe)]);
    let quantization = &config(&to)["quantization"];
    let at = |path: &str| quantization[format!("language_model.{path}")].clone();
    assert_eq!(at("lm_head"), json!({"group_size": 64, "bits": 8, "mode": "affine"}));
    assert_eq!(
        at("model.layers.1.mlp.switch_mlp.up_proj"),
        json!({"group_size": 32, "bits": 4, "mode": "mxfp4"})
    );
    assert_eq!(at("model.layers.1.mlp.gate"), json!({"group_size": 32, "bits": 6, "mode": "affine"}));
    assert_eq!(at("model.layers.1.mlp.shared_expert_gate"), json!({"group_size": 64, "bits": 8}));
    let made = Checkpoint::open(&to).unwrap();
    assert_eq!(made.tensor("language_model.model.embed_tokens.weight").unwrap().dtype, Dtype::BF16);
    done(&["eval", path(&to), "--ids", "1,2,3,4"]);

    let run = |recipe: &str, words: &[&str]| {
        refused(&["quantize", path(&source), path(&place.at("none")), "--mixed", recipe], words);
        assert!(!place.at("none").exists());
    };
    fs::write(&recipe, r#"{"lm_head": {"bits": 8}, "layers.*.k_proj": {"bits": 8}}"#).unwrap();
    run(path(&recipe), &["recipe.json", "`layers.*.k_proj`", "names no matrix", "language_model.model."]);
    fs::write(&recipe, r#"{"lm_head": {"bits": 7}}"#).unwrap();
    run(path(&recipe), &["recipe.json", "`lm_head`", "7 bits"]);
    run("mixed_5_6", &["mixed_5_6", "mixed_2_6", "JSON"]);
}

#[test]
fn the_tokenizer_comes_along() {
    let place = Place::new();
    let source = place.at("source");
    fs::create_dir(&source).unwrap();
    for entry in
        fs::read_dir(fixture("qwen3-yarn-f16")).unwrap().chain(fs::read_dir(fixture("tokenizer")).unwrap())
    {
        let entry = entry.unwrap();
        fs::copy(entry.path(), source.join(entry.file_name())).unwrap();
    }
    fs::write(source.join("generation_config.json"), r#"{"eos_token_id": [7, 8]}"#).unwrap();
    fs::write(source.join("chat_template.jinja"), "{{ messages }}").unwrap();
    let to = place.at("to");
    let (out, _) = done(&["quantize", path(&source), path(&to), "--group", "32"]);
    for word in ["kB to ", "bits per weight", path(&to)] {
        assert!(out.contains(word), "{out}");
    }
    assert_eq!(config(&to)["eos_token_id"], json!([7, 8]));
    let mut names: Vec<String> =
        fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let expected = [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names, expected);
    for name in ["tokenizer.json", "chat_template.jinja"] {
        assert_eq!(fs::read(to.join(name)).unwrap(), fs::read(source.join(name)).unwrap());
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let place = Place::new();
    let (source, to) = (fixture("qwen3_5_moe-bf16"), place.at("to"));
    let run = |source: &Path, flags: &[&str], words: &[&str]| {
        refused(&[&["quantize", path(source), path(&to)], flags].concat(), words);
        assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 0, "{flags:?} left something");
    };
    run(&source, &["--bits", "7"], &["7 bits", "1, 2, 3, 4, 5, 6 or 8"]);
    run(&source, &["--group", "48"], &["groups of 48", "32, 64 or 128"]);
    run(&source, &["--mode", "mxfp4", "--bits", "8"], &["mxfp4 with 8 bits"]);
    run(&source, &["--mode", "nvfp4", "--mixed", "mixed_3_6"], &["mixed_3_6", "--mode"]);
    run(&fixture("qwen3_5_moe-4bit"), &[], &["quantised already", "affine", "original"]);
    run(&fixture("qwen3_moe-mxfp4"), &[], &["quantised already", "mxfp4"]);
    run(&fixture("deepseek_v3-plain-bf16"), &["--group", "128"], &["no matrix", "128", "--group 64"]);
    run(&fixture("tokenizer"), &[], &["config.json"]);
    run(&fixture("no such folder"), &[], &["no such folder"]);

    let other = Place::new();
    fs::copy(source.join("model-00001-of-00003.safetensors"), other.at("model.safetensors")).unwrap();
    fs::write(other.at("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    run(other.0.path(), &[], &["mamba", "qwen3_moe"]);

    fs::create_dir(&to).unwrap();
    refused(&["quantize", path(&source), path(&to)], &["already exists", path(&to)]);
}
