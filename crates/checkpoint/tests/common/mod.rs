//! Folders made by hand, byte by byte, so that they can be wrong in any way.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::{fs, path::Path};

use checkpoint::{Checkpoint, Dtype, Error, TensorSpec, Weight, write_file};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A safetensors file from header text and data, right or wrong.
pub fn raw(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// An empty folder with this config.
pub fn folder(config: &Value) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "config.json", config.to_string());
    dir
}

/// A folder with this config and these tensors.
pub fn model(config: &Value, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) -> TempDir {
    let dir = folder(config);
    put_tensors(dir.path(), "model.safetensors", tensors);
    dir
}

pub fn put(dir: &Path, name: &str, contents: impl AsRef<[u8]>) {
    fs::write(dir.join(name), contents).unwrap();
}

pub fn put_tensors(dir: &Path, name: &str, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (spec(name, *dtype, shape), bytes.as_slice()))
        .collect();
    write_file(&dir.join(name), &tensors).unwrap();
}

pub fn spec(name: &str, dtype: Dtype, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

pub fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// `n` different floats.
pub fn ramp(n: usize) -> Vec<u8> {
    floats((0..n).map(|i| i as f32 / 8.0))
}

pub fn affine_config(bits: u32, group: usize) -> Value {
    json!({"model_type": "test", "quantization": {"bits": bits, "group_size": group}})
}

/// All values of a weight.
pub fn decoded(weight: &Weight) -> Vec<f32> {
    let mut all = vec![f32::NAN; weight.count * weight.rows * weight.cols];
    for (i, out) in all.chunks_exact_mut(weight.cols).enumerate() {
        weight.decode_row(i / weight.rows, i % weight.rows, out);
    }
    all
}

/// The error of opening a folder; its message must name all of `named`.
#[track_caller]
pub fn open_error(dir: &Path, named: &[&str]) -> Error {
    let error = Checkpoint::open(dir).expect_err("must not open");
    assert_names(&error, named);
    error
}

#[track_caller]
pub fn assert_names(error: &Error, named: &[&str]) {
    let text = error.to_string();
    for name in named {
        assert!(text.contains(name), "`{name}` is not in: {text}");
    }
}
