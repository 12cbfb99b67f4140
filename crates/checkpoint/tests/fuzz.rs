//! Damaged and hostile files: whatever is in them, reading ends in a value or an error, without a panic and
//! without a large allocation.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use checkpoint::{
    Checkpoint, Config, Dtype, Weight, quantize_affine, quantize_mxfp4, quantize_mxfp8, quantize_nvfp4,
};
use common::*;
use proptest::{
    collection::vec,
    prelude::*,
    sample::Index,
    test_runner::{Config as Settings, TestRunner},
};
use serde_json::json;

/// Remembers the largest allocation of the whole test program.
struct Watch;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static WATCH: Watch = Watch;

/// The files here are a few KB; test machinery takes some more.
const ENOUGH: usize = 4 << 20;

fn run<S: Strategy>(cases: u32, strategy: S, check: impl Fn(S::Value)) {
    // Failures print their input; files of old failures would only clutter the tree.
    let settings = Settings { cases, failure_persistence: None, ..Settings::default() };
    TestRunner::new(settings)
        .run(&strategy, |input| {
            check(input);
            Ok(())
        })
        .unwrap();
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest < ENOUGH, "something allocated {largest} bytes");
}

/// Opens the folder and asks for everything in it, in every way, with the shapes it claims and others.
fn exercise(folder: &Path) {
    let Ok(checkpoint) = Checkpoint::open(folder) else { return };
    let names: Vec<String> = checkpoint.names().map(str::to_owned).collect();
    for name in &names {
        let tensor = checkpoint.tensor(name).unwrap();
        assert_eq!(tensor.bytes.len() * 8, tensor.shape.iter().product::<usize>() * tensor.dtype.bitsize());
        let _ = checkpoint.vector(name, &tensor.shape);
        let path = name.strip_suffix(".weight").unwrap_or(name);
        let last = |back: usize| tensor.shape.iter().rev().nth(back).copied().unwrap_or(1);
        let spec = checkpoint.config().quantization().for_path(path);
        let unpacked = spec.map_or(0, |spec| last(0).wrapping_mul(32) / spec.bits as usize);
        for cols in [last(0), unpacked, 64] {
            for weight in [
                checkpoint.matrix(path, last(1), cols),
                checkpoint.stack(path, last(2), last(1), cols),
                checkpoint.matrix(path, 2, cols),
                checkpoint.tensor_weight(name, last(2), last(1), cols),
                checkpoint.stack_of(&[path.to_owned(), "w".to_owned()], last(1), cols),
                checkpoint.stack_of(&[path.to_owned(), path.to_owned()], last(1), cols),
            ] {
                let Ok(weight) = weight else { continue };
                decode_last(&weight);
                decode_last(&weight.row_range(weight.rows / 2..weight.rows));
                if weight.count == 1 && weight.rows.is_multiple_of(2) {
                    decode_last(&weight.head_rows(2, weight.rows / 4..weight.rows / 2));
                }
                // A stack may name a matrix twice, and scales that were not f32 are now.
                assert!(weight.stored_bytes() <= 4 * checkpoint.total_bytes());
            }
        }
    }
    assert!(checkpoint.unused().is_empty());
}

fn decode_last(weight: &Weight) {
    if weight.count > 0 && weight.rows > 0 {
        let mut out = vec![0.0; weight.cols];
        weight.decode_row(weight.count - 1, weight.rows - 1, &mut out);
    }
}

fn config_text() -> String {
    json!({
        "model_type": "test",
        "quantization": {
            "bits": 4, "group_size": 32, "mode": "affine",
            "other": {"bits": 8, "group_size": 64}, "p": false,
            "mx8": {"mode": "mxfp8"}, "nv": {"bits": 4, "group_size": 16, "mode": "nvfp4"}
        },
        "text_config": {"quantization_config": {"bits": 3, "group_size": 64, "quant_method": "x"}}
    })
    .to_string()
}

/// A small model that has everything, and its file split into header text and data.
fn valid_model() -> (tempfile::TempDir, String, Vec<u8>) {
    let values: Vec<f32> = (0..128).map(|i| (i % 37) as f32 - 11.0).collect();
    let q = quantize_affine(&values, 64, 4, 32);
    let [mx4, mx8, nv] =
        [quantize_mxfp4, quantize_mxfp8, quantize_nvfp4].map(|quantise| quantise(&values, 64));
    let dir = folder(&json!({}));
    put(dir.path(), "config.json", config_text());
    put_tensors(
        dir.path(),
        "model.safetensors",
        &[
            ("w.weight", Dtype::U32, &[2, 8], q.codes),
            ("w.scales", Dtype::F32, &[2, 2], floats(q.scales)),
            ("w.biases", Dtype::F32, &[2, 2], floats(q.biases)),
            ("w.bias", Dtype::BF16, &[2], vec![0; 4]),
            ("e.weight", Dtype::F16, &[3, 2, 4], vec![1; 48]),
            ("mx4.weight", Dtype::U32, &[2, 8], mx4.codes),
            ("mx4.scales", Dtype::U8, &[2, 2], mx4.scales),
            ("mx8.weight", Dtype::U32, &[2, 16], mx8.codes),
            ("mx8.scales", Dtype::U8, &[2, 2], mx8.scales),
            ("nv.weight", Dtype::U32, &[2, 8], nv.codes),
            ("nv.scales", Dtype::U8, &[2, 4], nv.scales),
            ("nv.global_scale", Dtype::F32, &[1], floats([3.0])),
            ("fp8.weight", Dtype::F8_E4M3, &[4, 5], (0..20).collect()),
            ("fp8.weight_scale_inv", Dtype::BF16, &[1, 1], vec![0x80, 0x3f]),
        ],
    );
    exercise(dir.path());
    let file = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (dir, String::from_utf8(file[8..header].to_vec()).unwrap(), file[header..].to_vec())
}

/// A change to some bytes.
#[derive(Debug, Clone)]
enum Edit {
    Set(Index, u8),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Repeat(Index, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        (any::<Index>(), 1usize..40).prop_map(|(at, n)| Edit::Remove(at, n)),
        (any::<Index>(), vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        (any::<Index>(), 1usize..40).prop_map(|(at, n)| Edit::Repeat(at, n)),
    ]
}

fn apply(edits: &[Edit], bytes: &mut Vec<u8>) {
    for edit in edits {
        match edit {
            _ if bytes.is_empty() => return,
            Edit::Set(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Edit::Remove(at, n) => {
                let at = at.index(bytes.len());
                bytes.drain(at..(at + n).min(bytes.len()));
            }
            Edit::Insert(at, new) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, new.iter().copied());
            }
            Edit::Repeat(at, n) => {
                let at = at.index(bytes.len());
                let piece = bytes[at..(at + n).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
}

/// A replacement of some number, name or bracket in JSON text: the text mostly stays JSON, and means
/// something else.
#[derive(Debug, Clone)]
struct Swap(Index, &'static str);

fn swap() -> impl Strategy<Value = Swap> {
    let words = prop::sample::select(
        &[
            "0",
            "1",
            "2",
            "3",
            "4",
            "8",
            "24",
            "32",
            "64",
            "-1",
            "1e3",
            "4.5",
            "null",
            "true",
            "[]",
            "{}",
            "\"\"",
            "4294967296",
            "9223372036854775807",
            "18446744073709551615",
            "18446744073709551616",
            "\"U8\"",
            "\"F4\"",
            "\"F32\"",
            "\"U32\"",
            "\"F64\"",
            "\"w.weight\"",
            "\"w.scales\"",
            "\"e.weight\"",
            "\"mxfp4\"",
            "\"nvfp4\"",
            "\"fp8\"",
            "\"F8_E4M3\"",
            "\"F8_E8M0\"",
            "\"BF16\"",
            "\"e.weight_scale_inv\"",
            "\"w.global_scale\"",
            "128",
            "16",
            "\"bits\"",
        ][..],
    );
    (any::<Index>(), words).prop_map(|(at, word)| Swap(at, word))
}

fn apply_swaps(swaps: &[Swap], text: &str) -> String {
    let mut text = text.to_owned();
    for Swap(at, word) in swaps {
        let tokens = scalars(&text);
        if tokens.is_empty() {
            break;
        }
        text.replace_range(at.get(&tokens).clone(), word);
    }
    text
}

/// Where the numbers, strings and words of JSON text without escapes are.
fn scalars(text: &str) -> Vec<std::ops::Range<usize>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut i = 0;
    while i < bytes.len() {
        let start = i;
        if bytes[i] == b'"' {
            i = bytes[i + 1..].iter().position(|&b| b == b'"').map_or(bytes.len(), |n| i + n + 2);
            found.push(start..i);
        } else if bytes[i].is_ascii_alphanumeric() || bytes[i] == b'-' {
            while i < bytes.len() && (bytes[i].is_ascii_alphanumeric() || b"-.".contains(&bytes[i])) {
                i += 1;
            }
            found.push(start..i);
        } else {
            i += 1;
        }
    }
    found
}

#[test]
fn random_files() {
    let dir = folder(&json!({}));
    let bytes = vec(any::<u8>(), 0..200);
    // A plausible header length lets the rest of the bytes be looked at.
    let length = prop_oneof![any::<u64>().boxed(), (0u64..256).boxed()];
    run(1500, (any::<bool>(), length, bytes), |(prefixed, length, mut bytes)| {
        if prefixed {
            bytes.splice(..0, length.to_le_bytes());
        }
        put(dir.path(), "model.safetensors", bytes);
        exercise(dir.path());
    });
}

#[test]
fn mutated_files() {
    let (dir, header, data) = valid_model();
    run(1500, vec(edit(), 1..4), |edits| {
        let mut file = raw(&header, &data);
        apply(&edits, &mut file);
        put(dir.path(), "model.safetensors", file);
        exercise(dir.path());
    });
}

#[test]
fn mutated_headers() {
    let (dir, header, data) = valid_model();
    run(3000, (vec(swap(), 0..4), vec(edit(), 0..2)), |(swaps, edits)| {
        let mut header = apply_swaps(&swaps, &header).into_bytes();
        apply(&edits, &mut header);
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend(&data);
        put(dir.path(), "model.safetensors", file);
        exercise(dir.path());
    });
}

#[test]
fn mutated_indexes() {
    let (dir, _, _) = valid_model();
    std::fs::rename(dir.path().join("model.safetensors"), dir.path().join("part.safetensors")).unwrap();
    let index =
        json!({"weight_map": {"w.weight": "part.safetensors", "e.weight": "part.safetensors"}}).to_string();
    run(1000, (vec(swap(), 0..3), vec(edit(), 0..2)), |(swaps, edits)| {
        let mut text = apply_swaps(&swaps, &index).into_bytes();
        apply(&edits, &mut text);
        put(dir.path(), "model.safetensors.index.json", text);
        exercise(dir.path());
    });
}

#[test]
fn random_configs() {
    run(2000, vec(any::<u8>(), 0..200), |bytes| {
        let _ = Config::from_str(&String::from_utf8_lossy(&bytes), Path::new("config.json"));
    });
}

/// As Hugging Face writes it: no section of MLX.
fn foreign_config_text() -> String {
    let section = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
    json!({"model_type": "test", "quantization_config": section}).to_string()
}

#[test]
fn mutated_configs() {
    let (dir, _, _) = valid_model();
    let texts = [config_text(), foreign_config_text()];
    run(4000, (any::<bool>(), vec(swap(), 0..4), vec(edit(), 0..2)), |(foreign, swaps, edits)| {
        let mut text = apply_swaps(&swaps, &texts[usize::from(foreign)]).into_bytes();
        apply(&edits, &mut text);
        if let Ok(config) = Config::from_str(&String::from_utf8_lossy(&text), Path::new("config.json")) {
            let _ = config.model_type();
            let _ = (config.text(), config.quantization().for_path("other"));
        }
        put(dir.path(), "config.json", text);
        exercise(dir.path());
    });
}
