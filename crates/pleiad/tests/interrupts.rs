//! Programs that are stopped half way: what has the final name is whole, and nothing else has it.

#![cfg(unix)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use checkpoint::{Dtype, FolderWriter, TensorSpec};
use serde_json::json;

/// Long enough for a busy machine to start a program.
const PATIENCE: Duration = Duration::from_secs(60);

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn partial(dst: &Path) -> PathBuf {
    PathBuf::from(format!("{}.partial", dst.display()))
}

/// Starts a program and waits until it writes into `place`.
fn started(args: &[&str], cache: &Path, writes: impl Fn() -> bool) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pleiad"));
    command.args(args).env("XDG_CACHE_HOME", cache).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while !writes() {
        assert_eq!(child.try_wait().unwrap(), None, "{args:?}: it ended before it wrote");
        assert!(start.elapsed() < PATIENCE, "{args:?}: it does not write");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

/// Ctrl-C.
fn interrupt(mut child: Child) -> ExitStatus {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    child.wait().unwrap()
}

/// Ctrl-C removes what was written; a program that is killed cannot, but leaves it under another name, and the next run
/// says so.
fn stops_cleanly(folder: &Path, args: &[&str], dst: &Path) {
    let start = || started(args, folder, || partial(dst).exists());
    let status = interrupt(start());
    assert_eq!(status.code(), Some(130), "{args:?}");
    assert!(!dst.exists() && !partial(dst).exists(), "{args:?}");

    let mut child = start();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!dst.exists() && partial(dst).exists(), "{args:?}");
    let again = Command::new(env!("CARGO_BIN_EXE_pleiad")).args(args).output().unwrap();
    let error = String::from_utf8(again.stderr).unwrap();
    assert_eq!(again.status.code(), Some(2), "{error}");
    assert!(error.contains("interrupted") && error.contains(path(&partial(dst))), "{error}");
}

#[test]
fn synth() {
    let folder = tempfile::tempdir().unwrap();
    let dst = folder.path().join("model");
    stops_cleanly(folder.path(), &["synth", "deepseek-mini", path(&dst)], &dst);
}

/// A plain checkpoint that takes a while to quantise: most of it is the table of a large vocabulary.
fn plain(dst: &Path) {
    let (hidden, vocabulary) = (256, 600_000);
    let config = json!({
        "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": 1, "intermediate_size": hidden,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": hidden, "vocab_size": vocabulary,
        "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
    });
    let tensor = |name: &str, shape: &[usize]| TensorSpec {
        name: format!("model.{name}.weight"),
        dtype: Dtype::BF16,
        shape: shape.to_vec(),
    };
    let mut tensors = vec![tensor("embed_tokens", &[vocabulary, hidden]), tensor("norm", &[hidden])];
    for name in ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"] {
        tensors.push(tensor(&format!("layers.0.{name}"), &[hidden]));
    }
    for name in ["q", "k", "v", "o"].map(|n| format!("self_attn.{n}_proj")) {
        tensors.push(tensor(&format!("layers.0.{name}"), &[hidden, hidden]));
    }
    for name in ["gate", "up", "down"].map(|n| format!("mlp.{n}_proj")) {
        tensors.push(tensor(&format!("layers.0.{name}"), &[hidden, hidden]));
    }
    let sizes: Vec<usize> = tensors.iter().map(|t| 2 * t.shape.iter().product::<usize>()).collect();
    let mut writer = FolderWriter::create(dst, &config, tensors, 1 << 40).unwrap();
    for size in sizes {
        writer.write(&vec![0; size]).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn quantize() {
    let folder = tempfile::tempdir().unwrap();
    let (src, dst) = (folder.path().join("plain"), folder.path().join("model"));
    plain(&src);
    stops_cleanly(folder.path(), &["quantize", path(&src), path(&dst)], &dst);
}

#[test]
fn a_bench_takes_its_preset_away() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("pleiad");
    let entries = || fs::read_dir(&cache).map_or(0, |entries| entries.count());
    let args = ["bench", "deepseek-mini", "--quick"];
    let status = interrupt(started(&args, folder.path(), || entries() > 0));
    assert_eq!((status.code(), entries()), (Some(130), 0));

    // Also once it is made and runs.
    let args = ["bench", "tiny", "--repeat", "10000"];
    let made = || {
        fs::read_dir(&cache).is_ok_and(|mut all| all.any(|e| !path(&e.unwrap().path()).ends_with(".partial")))
    };
    let status = interrupt(started(&args, folder.path(), made));
    assert_eq!((status.code(), entries()), (Some(130), 0));
}
