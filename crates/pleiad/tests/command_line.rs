//! The program as a user meets it: answers on the standard output, notes and errors on the standard error stream, exit
//! code 2 for anything wrong with what it was given, and never a panic.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use checkpoint::read_file;
use serde_json::{Value, json};
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn pleiad(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleiad"));
    command.args(args).stdin(Stdio::null()).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Runs, expects success, returns the standard output.
fn answer(args: &[&str]) -> String {
    let output = pleiad(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs, expects exit code 2 and an error of one line or two that names each of `words`; returns it.
fn refused(args: &[&str], words: &[&str]) -> String {
    let output = pleiad(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(!error.contains("panicked"), "{args:?}: {error}");
    for word in words {
        assert!(error.contains(word), "{args:?}: no `{word}` in: {error}");
    }
    error
}

fn ids_of(fixture: &Path, name: &str) -> String {
    let ids = &read_file(&fixture.join("expected.safetensors")).unwrap()[name].bytes;
    let ids: Vec<String> = ids.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b).to_string()).collect();
    ids.join(",")
}

fn path(folder: &Path) -> &str {
    folder.to_str().unwrap()
}

/// A copy of a fixture to damage.
struct Copy(TempDir);

impl Copy {
    fn of(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(fixture(name)).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn edit_config(&self, edit: impl Fn(&mut Value)) -> &Self {
        let mut config: Value = serde_json::from_slice(&fs::read(self.file("config.json")).unwrap()).unwrap();
        edit(&mut config);
        fs::write(self.file("config.json"), config.to_string()).unwrap();
        self
    }

    fn edit_weights(&self, edit: impl Fn(&mut Vec<u8>)) -> &Self {
        let mut bytes = fs::read(self.file("model.safetensors")).unwrap();
        edit(&mut bytes);
        fs::write(self.file("model.safetensors"), bytes).unwrap();
        self
    }

    /// Changes the JSON of the header in place; it keeps its length.
    fn edit_header(&self, from: &str, to: &str) -> &Self {
        assert_eq!(from.len(), to.len());
        self.edit_weights(|bytes| {
            let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect("in the header");
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        })
    }

    /// Both commands that run a model must refuse it, and `inspect` too.
    fn refused(&self, words: &[&str]) -> String {
        let model = path(self.0.path());
        let out = self.file("out");
        refused(&["logits", model, "--ids", "1,2", "--out", path(&out)], words);
        assert!(!out.exists());
        refused(&["inspect", model], words);
        refused(&["run", model, "--ids", "1,2", "--greedy", "--max-tokens", "2", "--print-ids"], words)
    }
}

#[test]
fn ids_in_ids_out() {
    for name in ["qwen3_5_moe-4bit", "qwen3_next-4bit", "qwen3_moe-6bit", "qwen3-2bit"] {
        let model = fixture(name);
        let run = [
            "run",
            path(&model),
            "--ids",
            &ids_of(&model, "ids"),
            "--greedy",
            "--max-tokens",
            "24",
            "--print-ids",
            "--numerics",
            "exact",
        ];
        assert_eq!(answer(&run), ids_of(&model, "greedy") + "\n", "{name}");
    }
}

#[test]
fn logits_go_to_a_file() {
    let model = fixture("qwen3_5_moe-mixed");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    for chunk in ["512", "7"] {
        let ids = ids_of(&model, "ids");
        answer(&[
            "logits",
            path(&model),
            "--ids",
            &ids,
            "--numerics",
            "exact",
            "--chunk",
            chunk,
            "--out",
            path(&out),
        ]);
        let found = &read_file(&out).unwrap()["logits"];
        let expected = &read_file(&model.join("expected.safetensors")).unwrap()["logits"];
        assert_eq!((found.dtype, &found.shape), (expected.dtype, &expected.shape));
        let floats = |bytes: &[u8]| {
            bytes.as_chunks().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect::<Vec<_>>()
        };
        let (found, expected) = (floats(&found.bytes), floats(&expected.bytes));
        let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
        let error = square(&mut found.iter().zip(&expected).map(|(a, b)| a - b))
            / square(&mut expected.iter().copied());
        assert!(error.sqrt() < 1e-4, "{}", error.sqrt());
    }
}

#[test]
fn a_checkpoint_of_its_own_talks() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny");
    answer(&["synth", "tiny", path(&model)]);
    let ask = |more: &[&str]| {
        answer(&[&["run", path(&model), "Hello there", "--max-tokens", "12", "--seed", "7"], more].concat())
    };
    let first = ask(&[]);
    assert!(first.trim().len() > 1);
    assert_eq!(
        ask(&["--threads", "1", "--chunk", "3"]),
        first,
        "threads and chunks do not matter, the seed does"
    );
    assert_ne!(ask(&["--temperature", "2"]), first);
    assert_eq!(ask(&["--quiet"]), first);

    // A state file: the same answer, with less to compute.
    let state = folder.path().join("state");
    let with_state = |more: &[&str]| {
        let args = [
            &["run", path(&model), "Hello there", "--max-tokens", "12", "--greedy", "--state", path(&state)],
            more,
        ]
        .concat();
        let output = pleiad(&args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (fresh, notes) = with_state(&[]);
    assert!(!notes.contains("already known"), "{notes}");
    let (again, notes) = with_state(&[]);
    assert!(notes.contains("tokens from"), "{notes}");
    assert_eq!(again, fresh);

    // Stop strings end the answer before themselves.
    let stop: String = fresh.chars().skip(3).take(2).collect();
    let stopped =
        answer(&["run", path(&model), "Hello there", "--max-tokens", "12", "--greedy", "--stop", &stop]);
    assert!(
        !stopped.contains(&stop) && stopped.len() < fresh.len(),
        "{stopped:?} of {fresh:?} up to {stop:?}"
    );
}

#[test]
#[cfg(feature = "box")]
fn the_model_in_the_box_answers() {
    assert_eq!(answer(&["run", "What is the capital of France?", "--greedy"]), "Paris\n");
    assert_eq!(answer(&["run", "box", "What is 17 plus 25?", "--greedy"]), "42\n");
    let told = answer(&["inspect", "box"]);
    for words in ["the model in the box", "qwen3_5_moe", "Gated DeltaNet", "experts", "no tensor"] {
        assert!(told.contains(words), "no `{words}` in:\n{told}");
    }
    // A word may be a prompt, a path is a model.
    assert!(!answer(&["run", "Hello", "--greedy"]).trim().is_empty());
    refused(&["run", "no/such"], &["no/such", "pleiad pull"]);
    refused(&["run", "./nothing"], &["./nothing"]);
    refused(&["run", "box", "Hello", "--ids", "1"], &["--ids"]);
}

#[test]
#[cfg(feature = "box")]
fn questions_with_exact_answers_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let items = folder.path().join("items.jsonl");
    let item = |kind: &str, question: &str, answer: &str| {
        json!({"kind": kind, "messages": [{"role": "user", "content": question}], "answer": answer})
            .to_string()
    };
    let lines = [
        item("sum", "What is 2 plus 3?", "5"),
        item("sum", "What is 2 plus 2?", "5"),
        item("city", "What is the capital of France?", "Paris"),
    ];
    fs::write(&items, lines.join("\n")).unwrap();
    let told: Value =
        serde_json::from_str(&answer(&["eval", "box", "--items", path(&items), "--json"])).unwrap();
    assert_eq!((&told["right"], &told["asked"]), (&json!(2), &json!(3)));
    assert_eq!(told["kinds"]["sum"], json!({"right": 1, "asked": 2}));
    fs::write(&items, "{}").unwrap();
    refused(&["eval", "box", "--items", path(&items)], &["line 1", "kind"]);
    fs::write(&items, "").unwrap();
    refused(&["eval", "box", "--items", path(&items)], &["no items"]);
}

#[test]
fn prompts_come_from_pipes_too() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny");
    answer(&["synth", "tiny", path(&model)]);
    let run = |prompt: &str| {
        let args = ["run", path(&model), "--max-tokens", "4", "--greedy"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_pleiad"));
        let mut child = command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(prompt.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = run("Hello");
    assert!(output.status.success());
    assert_eq!(
        text(&output.stdout),
        answer(&["run", path(&model), "Hello", "--max-tokens", "4", "--greedy"])
    );
    assert_eq!(run("  \n").status.code(), Some(2));
}

#[test]
fn answers_have_the_form_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny");
    answer(&["synth", "tiny", path(&model)]);
    let ask = |more: &[&str]| answer(&[&["run", path(&model), "Hello", "--greedy"], more].concat());
    let digits = ask(&["--regex", "[0-9]{5}"]);
    assert!(digits.trim().len() == 5 && digits.trim().bytes().all(|b| b.is_ascii_digit()), "{digits}");
    let grammar = "start: \"yes\" | \"no\" \"t\"";
    let said = ask(&["--grammar", grammar, "--raw"]);
    assert!(["yes\n", "not\n"].contains(&said.as_str()), "{said}");
    let schema = r#"{"type": "object", "additionalProperties": false, "required": ["n"],
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}}"#;
    let said = ask(&["--json-schema", schema]);
    let object: Value = serde_json::from_str(&said).unwrap();
    assert!((0..10).contains(&object["n"].as_i64().unwrap()), "{said}");
    // The same from files.
    for (name, flag, text, expected) in [
        ("schema.json", "-j", schema, said),
        ("grammar.lark", "--grammar", grammar, ask(&["--grammar", grammar])),
    ] {
        let file = folder.path().join(name);
        fs::write(&file, text).unwrap();
        assert_eq!(ask(&[flag, path(&file)]), expected, "{name}");
    }

    let model = path(&model);
    let bad = |flags: &[&str], words: &[&str]| {
        let error = refused(&[&["run", model, "Hello"], flags].concat(), words);
        assert!(error.lines().count() <= 8, "{error}");
    };
    bad(&["--json-schema", "{"], &["--json-schema", "no such file", "as JSON", "column"]);
    bad(&["--json-schema", "no/such.json"], &["no/such.json", "no such file"]);
    fs::write(folder.path().join("broken.json"), "{\"type\": }").unwrap();
    bad(&["-j", path(&folder.path().join("broken.json"))], &["broken.json is not JSON", "column 10"]);
    bad(&["--json-schema", "3"], &["JSON schema", "a schema is an object"]);
    bad(&["--json-schema", "{\"type\": \"strin\"}"], &["JSON schema", "strin"]);
    bad(&["--regex", "(a"], &["regular expression"]);
    bad(&["--grammar", "start: nothing"], &["grammar", "nothing"]);
    bad(&["--regex", "a", "--grammar", "start: \"a\""], &["--regex", "--grammar", "cannot be used"]);
    bad(&["--logprobs", "many"], &["--logprobs", "many"]);
    refused(&["run", model, "--ids", "1", "--regex", "a"], &["--ids", "--regex", "cannot be used"]);
}

#[test]
fn tokens_are_told_with_their_log_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny");
    answer(&["synth", "tiny", path(&model)]);
    let ask = |more: &[&str]| {
        let args = ["run", path(&model), "Hello", "--max-tokens", "4", "--greedy"];
        answer(&[&args[..], more].concat())
    };
    let (plain, told) = (ask(&[]), ask(&["--logprobs", "2"]));
    let lines: Vec<&str> = told.strip_prefix(&plain).expect("the answer first").lines().collect();
    assert_eq!(lines.len(), 4, "{told}");
    for line in lines {
        let (logprob, rest) = line.trim_start().split_once("  ").unwrap();
        assert!(logprob.parse::<f64>().unwrap() < 0.0, "{line}");
        // The most probable token comes first, and greedily it is the one.
        let mut texts = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let told: Vec<Value> = texts.by_ref().map_while(Result::ok).collect();
        assert!(told.len() == 5 && told[0] == told[1] && told[2].as_f64() >= told[4].as_f64(), "{line}");
    }
    let model = fixture("qwen3-2bit");
    let ids =
        answer(&["run", path(&model), "--ids", "1,2", "--print-ids", "--max-tokens", "3", "--logprobs", "0"]);
    assert_eq!(ids.lines().count(), 4, "{ids}");
}

/// Draft tokens change no answer; every step is traced once.
#[test]
fn speculation_and_traces() {
    let model = fixture("qwen3_5_moe-mtp-bf16");
    let ids = [5, 6, 7, 8, 9, 10].repeat(6).iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let args = ["run", path(&model), "--ids", &ids, "--print-ids", "--max-tokens", "40", "--greedy"];
    let steps = |more: &[&str]| {
        let output = pleiad(&[&args[..], &["--numerics", "exact", "--trace-steps"], more].concat());
        let told = text(&output.stderr);
        assert!(output.status.success(), "{told}");
        let count = |phase: &str| {
            let of_phase = told.lines().filter(|line| line.starts_with("step ") && line.contains(phase));
            let numbers: Vec<&str> = of_phase.map(|line| line.split_once(':').unwrap().0).collect();
            assert!(numbers.iter().enumerate().all(|(i, n)| *n == format!("step {}", i + 1)), "{told}");
            numbers.len()
        };
        let counts = ["plan", "submit", "collect", "commit"].map(count);
        assert!(counts.iter().all(|n| *n == counts[0]), "{counts:?}");
        (text(&output.stdout), counts[0])
    };
    let (plain, all) = steps(&[]);
    let (speculated, fewer) = steps(&["--speculate"]);
    assert_eq!(speculated, plain);
    assert!(all == 40 && fewer <= all, "{fewer} of {all}");
}

#[test]
fn inspect_tells_what_is_there() {
    let told = answer(&["inspect", path(&fixture("qwen3_5_moe-bf16"))]);
    for words in [
        "qwen3_5_moe",
        "Gated DeltaNet",
        "experts",
        "bf16",
        "vision_tower.*",
        "mtp.*",
        "per token",
        "context",
    ] {
        assert!(told.contains(words), "no `{words}` in:\n{told}");
    }
    for name in ["qwen3_5_moe-mtp-bf16", "qwen3_5_moe-mtp-bf16-hf", "deepseek_v3-mtp-bf16"] {
        let told = answer(&["inspect", path(&fixture(name))]);
        for words in ["1 layer, with which `serve` guesses", "no tensor"] {
            assert!(told.contains(words), "no `{words}` in:\n{told}");
        }
    }
    // A part of a head is none.
    let told = answer(&["inspect", path(&fixture("qwen3_5_moe-bf16-hf"))]);
    assert!(told.contains("mtp.*: 5 (drafting head)") && !told.contains("`serve` guesses"), "{told}");
    let told = answer(&["inspect", path(&fixture("qwen3_5_moe-mixed"))]);
    for words in ["2-bit", "3-bit", "4-bit", "5-bit", "6-bit", "8-bit", "no tensor"] {
        assert!(told.contains(words), "no `{words}` in:\n{told}");
    }
}

#[test]
fn bad_arguments() {
    let model = fixture("qwen3-2bit");
    let model = path(&model);
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("o");
    let out = path(&out);
    refused(&["run", model, "--ids", "5,100000", "--greedy"], &["100000", "out of range", "vocabulary"]);
    refused(&["logits", model, "--ids", "5,100000", "--out", out], &["100000", "out of range"]);
    refused(&["run", model, "--ids", ""], &["empty"]);
    refused(&["logits", model, "--ids", "", "--out", out], &["empty"]);
    refused(&["run", model, "--ids", "5,x"], &["`x`", "token id"]);
    refused(&["run", model, "--ids", "1,2,3", "--context", "2"], &["3 tokens", "context holds 2"]);
    refused(
        &["run", model, "--ids", "1,2,3", "--context", "4000000000"],
        &["4000000000", "free", "longest that fits"],
    );
    refused(&["run", model, "--ids", "1,2,3", "--memory", "1k"], &["caches", "free"]);
    refused(&["run", model, "--ids", "1", "--temperature", "-1"], &["temperature"]);
    refused(&["run", model, "--ids", "1", "--top-p", "1.5"], &["top_p"]);
    refused(&["run", model, "--ids", "1", "--threads", "0"], &["threads"]);
    refused(&["run", model, "Hello"], &["tokenizer.json", "--ids"]);
    refused(&["run", "no/such/folder", "Hello"], &["no/such/folder"]);
    refused(&["logits", model, "--ids", "1", "--out", "no/such/folder/file"], &["no/such/folder"]);
    refused(&["synth", "gpt-5", out], &["gpt-5", "qwen3.6-35b-a3b"]);
    refused(&["synth", "tiny", model], &[model]);
    refused(&["synth", "tiny", out, "--layers", "0"], &["layers"]);
}

#[test]
fn bad_configs() {
    let copy = Copy::of("qwen3_5_moe-4bit");
    fs::write(copy.file("config.json"), "{\"model_type\": ").unwrap();
    copy.refused(&["config.json", "JSON"]);
    fs::write(copy.file("config.json"), [0xff, 0xfe, 0x00]).unwrap();
    copy.refused(&["config.json"]);
    fs::write(copy.file("config.json"), "[1, 2]").unwrap();
    copy.refused(&["config.json"]);
    fs::remove_file(copy.file("config.json")).unwrap();
    copy.refused(&["config.json"]);

    let copy = || Copy::of("qwen3_5_moe-4bit");
    copy().edit_config(|c| c["model_type"] = json!("gpt_oss")).refused(&[
        "gpt_oss",
        "qwen3_5_moe",
        "qwen3_next",
    ]);
    copy().edit_config(|c| c["model_type"] = Value::Null).refused(&["model_type"]);
    copy()
        .edit_config(|c| c["text_config"]["hidden_size"] = Value::Null)
        .refused(&["hidden_size", "missing"]);
    copy().edit_config(|c| c["text_config"]["hidden_size"] = json!("big")).refused(&["hidden_size", "big"]);
    copy()
        .edit_config(|c| c["text_config"]["num_experts_per_tok"] = json!(9999))
        .refused(&["num_experts_per_tok"]);
    copy().edit_config(|c| c["text_config"]["vocab_size"] = json!(u64::MAX)).refused(&["vocab_size"]);
    // None of these may take memory before it is refused.
    copy()
        .edit_config(|c| c["text_config"]["num_hidden_layers"] = json!(200_000_000))
        .refused(&["num_hidden_layers", "4096"]);
    copy().edit_config(|c| c["text_config"]["num_hidden_layers"] = json!(4096)).refused(&["layers."]);
    copy().edit_config(|c| c["text_config"]["head_dim"] = json!(200_000_000)).refused(&["head_dim", "8192"]);
    Copy::of("qwen3_moe-bf16-hf")
        .edit_config(|c| c["num_experts"] = json!(200_000_000))
        .refused(&["mlp.gate", "200000000"]);
    copy()
        .edit_config(|c| c["text_config"]["linear_num_value_heads"] = json!(3))
        .refused(&["linear_num_value_heads"]);
    copy()
        .edit_config(|c| c["text_config"]["linear_conv_kernel_dim"] = json!(0))
        .refused(&["linear_conv_kernel_dim"]);
    let mrope =
        |c: &mut Value| c["text_config"]["rope_parameters"] = json!({"type": "longrope", "rope_theta": 1e4});
    copy().edit_config(mrope).refused(&["longrope", "yarn"]);
    copy()
        .edit_config(|c| c["quantization"]["bits"] = json!(7))
        .refused(&["7 bits", "1, 2, 3, 4, 5, 6 or 8"]);
    copy().edit_config(|c| c["quantization"]["mode"] = json!("nf4")).refused(&["nf4"]);
}

#[test]
fn bad_weights() {
    let copy = || Copy::of("qwen3-5bit");
    // Missing, empty, truncated.
    let gone = copy();
    fs::remove_file(gone.file("model.safetensors")).unwrap();
    gone.refused(&["model.safetensors"]);
    copy().edit_weights(Vec::clear).refused(&["model.safetensors"]);
    copy().edit_weights(|b| b.truncate(b.len() - 1)).refused(&["model.safetensors", "incomplete"]);
    copy().edit_weights(|b| b.truncate(100)).refused(&["model.safetensors"]);
    // A header that lies.
    copy()
        .edit_weights(|b| b[..8].copy_from_slice(&u64::MAX.to_le_bytes()))
        .refused(&["model.safetensors", "header"]);
    copy().edit_weights(|b| b[8] = b'[').refused(&["model.safetensors", "header"]);
    copy().edit_header("\"data_offsets\":[0,", "\"data_offsets\":[1,").refused(&["model.safetensors"]);
    copy().edit_header("\"dtype\":\"U32\"", "\"dtype\":\"U16\"").refused(&["model.safetensors"]);
    copy().edit_header("\"dtype\":\"U32\"", "\"dtype\":\"I32\"").refused(&["I32", "U32"]);
    // A tensor that is not there, or not of the shape the config declares.
    copy().edit_header("model.norm.weight", "model.nork.weight").refused(&["model.norm.weight"]);
    copy().edit_config(|c| c["hidden_size"] = json!(32)).refused(&["expected"]);
    copy().edit_config(|c| c["vocab_size"] = json!(64)).refused(&["model.embed_tokens", "expected"]);

    let shards = Copy::of("qwen3_5_moe-bf16");
    fs::remove_file(shards.file("model-00002-of-00003.safetensors")).unwrap();
    shards.refused(&["model-00002-of-00003.safetensors", "2 of"]);
    let shards = Copy::of("qwen3_5_moe-bf16");
    fs::write(shards.file("model.safetensors.index.json"), "{}").unwrap();
    shards.refused(&["model.safetensors.index.json"]);
}

#[test]
fn a_broken_tokenizer_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("tiny");
    answer(&["synth", "tiny", path(&model)]);
    fs::write(model.join("tokenizer.json"), "{").unwrap();
    refused(&["run", path(&model), "Hello"], &["tokenizer.json"]);
}
