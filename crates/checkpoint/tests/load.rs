//! Matrices, stacks and vectors out of a folder, and every way in which their tensors can be wrong.

mod common;

use checkpoint::{Checkpoint, Dtype, Error, Float, Format, Result, Weight, quantize_affine};
use common::*;
use serde_json::{Value, json};

type Tensors = Vec<(&'static str, Dtype, &'static [usize], Vec<u8>)>;

/// `w` is 2 x 64 with 4 bits in groups of 32, right in every respect.
fn quantised() -> Tensors {
    let values: Vec<f32> = (0..128).map(|i| (i % 37) as f32 - 11.0).collect();
    let q = quantize_affine(&values, 64, 4, 32);
    vec![
        ("w.weight", Dtype::U32, &[2, 8], q.codes),
        ("w.scales", Dtype::F32, &[2, 2], floats(q.scales)),
        ("w.biases", Dtype::F32, &[2, 2], floats(q.biases)),
    ]
}

fn load<T>(config: &Value, tensors: &Tensors, get: impl FnOnce(&Checkpoint) -> Result<T>) -> Result<T> {
    let dir = model(config, tensors);
    get(&Checkpoint::open(dir.path()).unwrap())
}

fn matrix(tensors: &Tensors) -> Result<Weight> {
    load(&affine_config(4, 32), tensors, |c| c.matrix("w", 2, 64))
}

#[test]
fn a_quantised_matrix_decodes() {
    let weight = matrix(&quantised()).unwrap();
    assert_eq!(weight.format, Format::Affine { bits: 4, group: 32, scale: Float::F32 });
    assert_eq!((weight.name.as_str(), weight.count, weight.rows, weight.cols), ("w", 1, 2, 64));
    assert_eq!((weight.data.row_bytes(), weight.data.matrix(0).len()), (32, 64));
    assert_eq!(weight.stored_bytes(), 64 + 16 + 16);
    for (i, value) in decoded(&weight).iter().enumerate() {
        // Half a step of the widest group: 37 values apart over 15 steps, nudged.
        assert!((value - ((i % 37) as f32 - 11.0)).abs() < 1.4, "value {i} is {value}");
    }
}

#[test]
fn data_may_start_at_any_address() {
    let aligned = decoded(&matrix(&quantised()).unwrap());
    for shift in 1..4 {
        let mut tensors = quantised();
        tensors.insert(0, ("pad", Dtype::U8, [&[1][..], &[2], &[3]][shift - 1], vec![7; shift]));
        tensors.push(("w.bias", Dtype::BF16, &[2], vec![0x80, 0x3f, 0, 0x40]));
        let weight = matrix(&tensors).unwrap();
        assert_eq!(decoded(&weight), aligned);
        assert_eq!(weight.bias.as_deref(), Some(&[1.0, 2.0][..]));
    }
    // Other writers pad the header to no boundary at all.
    let dir = folder(&json!({}));
    let header = r#"{"p.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
    for pad in 0..8 {
        put(
            dir.path(),
            "model.safetensors",
            raw(&(header.to_owned() + &" ".repeat(pad)), &floats([1.5, -2.0])),
        );
        let weight = Checkpoint::open(dir.path()).unwrap().matrix("p", 1, 2).unwrap();
        assert_eq!(decoded(&weight), [1.5, -2.0]);
    }
}

#[test]
fn plain_weights_of_every_type_decode() {
    let half = |bits: &[u16]| bits.iter().flat_map(|b| b.to_le_bytes()).collect::<Vec<u8>>();
    for (dtype, float, bytes) in [
        (Dtype::F32, Float::F32, floats([1.0, -2.0, 0.5])),
        (Dtype::F16, Float::F16, half(&[0x3c00, 0xc000, 0x3800])),
        (Dtype::BF16, Float::Bf16, half(&[0x3f80, 0xc000, 0x3f00])),
    ] {
        let tensors: Tensors = vec![("w.weight", dtype, &[1, 3], bytes)];
        // A plain weight in a quantised checkpoint is no contradiction: the scales decide.
        let weight = load(&affine_config(4, 32), &tensors, |c| c.matrix("w", 1, 3)).unwrap();
        assert_eq!(weight.format, Format::Plain(float));
        assert_eq!(decoded(&weight), [1.0, -2.0, 0.5]);
        assert_eq!(weight.stored_bytes(), 3 * float.bytes() as u64);
    }
}

#[test]
fn stacks_have_a_bias_per_matrix() {
    let tensors: Tensors =
        vec![("e.weight", Dtype::F32, &[3, 2, 4], ramp(24)), ("e.bias", Dtype::F32, &[3, 2], ramp(6))];
    let weight = load(&json!({}), &tensors, |c| {
        let weight = c.stack("e", 3, 2, 4)?;
        assert!(c.unused().is_empty());
        Ok(weight)
    })
    .unwrap();
    assert_eq!(decoded(&weight), (0..24).map(|i| i as f32 / 8.0).collect::<Vec<_>>());
    assert_eq!(weight.data.row(2, 1), &ramp(24)[80..]);
    assert_eq!(weight.data.rows(1, 0..2), &ramp(24)[32..64]);
    let upper = weight.row_range(1..2);
    assert_eq!(upper.bias.unwrap(), [1.0 / 8.0, 3.0 / 8.0, 5.0 / 8.0]);
}

#[test]
fn exceptions_decide_the_layout() {
    let values: Vec<f32> = (0..128).map(|i| i as f32).collect();
    let q = quantize_affine(&values, 128, 8, 128);
    let mut tensors = quantised();
    tensors.extend([
        ("gate.weight", Dtype::U32, &[1, 32][..], q.codes),
        ("gate.scales", Dtype::F32, &[1, 1], floats(q.scales)),
        ("gate.biases", Dtype::F32, &[1, 1], floats(q.biases)),
        ("norm.weight", Dtype::F32, &[1, 4], ramp(4)),
    ]);
    let config = json!({"quantization": {
        "bits": 4, "group_size": 32, "gate": {"bits": 8, "group_size": 128}, "norm": false
    }});
    let dir = model(&config, &tensors);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let gate = checkpoint.matrix("gate", 1, 128).unwrap();
    assert_eq!(gate.format, Format::Affine { bits: 8, group: 128, scale: Float::F32 });
    for (value, expected) in decoded(&gate).iter().zip(&values) {
        assert!((value - expected).abs() <= 0.25, "{value} for {expected}");
    }
    assert_eq!(checkpoint.matrix("norm", 1, 4).unwrap().format, Format::Plain(Float::F32));
    assert_eq!(checkpoint.unused(), ["w.biases", "w.scales", "w.weight"]);
    checkpoint.matrix("w", 2, 64).unwrap();
    assert!(checkpoint.unused().is_empty());
}

#[test]
fn scales_without_a_config_are_an_error() {
    let without = json!({});
    let excepted = json!({"quantization": {"bits": 4, "group_size": 32, "w": false}});
    for config in [without, excepted] {
        let error = load(&config, &quantised(), |c| c.matrix("w", 2, 64)).unwrap_err();
        assert!(matches!(error, Error::UndeclaredQuantization { .. }), "{error}");
        assert_names(&error, &["`w`", "config.json", "group_size"]);
    }
}

#[test]
fn missing_tensors_are_named() {
    for (i, name) in ["w.weight", "w.scales", "w.biases"].into_iter().enumerate() {
        let mut tensors = quantised();
        tensors.remove(i);
        let error = matrix(&tensors).unwrap_err();
        assert!(matches!(&error, Error::MissingTensor { name: n, .. } if n == name), "{error}");
        assert_names(&error, &[name]);
    }
    for get in [
        |c: &Checkpoint| c.vector("absent", &[2]).map(|_| ()),
        |c: &Checkpoint| c.tensor("absent").map(|_| ()),
    ] {
        let error = load(&json!({}), &quantised(), get).unwrap_err();
        assert!(matches!(error, Error::MissingTensor { .. }), "{error}");
        assert_names(&error, &["absent"]);
    }
}

#[test]
fn wrong_shapes_say_what_was_expected() {
    let cases: [(&str, &'static [usize], Dtype, &str); 5] = [
        ("w.weight", &[2, 9], Dtype::U32, "[2, 8]"),
        ("w.weight", &[1, 2, 8], Dtype::U32, "[2, 8]"),
        ("w.scales", &[2, 1], Dtype::F32, "[2, 2]"),
        ("w.biases", &[4], Dtype::F32, "[2, 2]"),
        ("w.bias", &[3], Dtype::F32, "[2]"),
    ];
    for (name, shape, dtype, expected) in cases {
        let mut tensors = quantised();
        tensors.retain(|tensor| tensor.0 != name);
        tensors.push((name, dtype, shape, vec![0; 4 * shape.iter().product::<usize>()]));
        let error = matrix(&tensors).unwrap_err();
        assert!(matches!(&error, Error::WrongShape { name: n, .. } if n == name), "{error}");
        assert_names(&error, &[name, expected, &format!("{shape:?}")]);
    }
    let plain: Tensors = vec![("p.weight", Dtype::F32, &[2, 3], ramp(6))];
    for (rows, cols) in [(3, 2), (2, 4), (1, 3), (usize::MAX, usize::MAX)] {
        let error = load(&json!({}), &plain, |c| c.matrix("p", rows, cols)).unwrap_err();
        assert!(matches!(error, Error::WrongShape { .. }), "{error}");
        assert_names(&error, &["p.weight", "[2, 3]"]);
    }
    let error = load(&json!({}), &plain, |c| c.stack("p", 1, 2, 3)).unwrap_err();
    assert_names(&error, &["p.weight", "[1, 2, 3]", "[2, 3]"]);
}

#[test]
fn absurd_sizes_from_a_config_do_not_overflow() {
    for cols in [usize::MAX & !127, 1 << (usize::BITS - 1), 1 << (usize::BITS - 4)] {
        for rows in [2, usize::MAX] {
            load(&affine_config(4, 32), &quantised(), |c| c.matrix("w", rows, cols)).unwrap_err();
            load(&affine_config(4, 32), &quantised(), |c| c.stack("w", usize::MAX, rows, cols)).unwrap_err();
        }
    }
}

#[test]
fn shapes_overrule_a_default_but_not_an_entry() {
    let format = Format::Affine { bits: 4, group: 32, scale: Float::F32 };
    for config in [affine_config(4, 32), affine_config(8, 32), affine_config(4, 128), affine_config(2, 64)] {
        assert_eq!(load(&config, &quantised(), |c| c.matrix("w", 2, 64)).unwrap().format, format);
    }
    let config = json!({"quantization": {"bits": 4, "group_size": 32, "w": {"bits": 8, "group_size": 32}}});
    let error = load(&config, &quantised(), |c| c.matrix("w", 2, 64)).unwrap_err();
    assert_names(&error, &["w.weight", "[2, 16]", "[2, 8]"]);
}

#[test]
fn rows_must_be_whole_groups() {
    let config = json!({"quantization": {"bits": 4, "group_size": 32, "w": {"bits": 4, "group_size": 128}}});
    let error = load(&config, &quantised(), |c| c.matrix("w", 2, 64)).unwrap_err();
    assert!(matches!(error, Error::PartialGroup { cols: 64, group: 128, .. }), "{error}");
    assert_names(&error, &["w.weight", "64", "128"]);
}

#[test]
fn wrong_types_say_what_was_expected() {
    let cases: [(&str, Dtype, &'static [usize], usize, &str); 4] = [
        ("w.weight", Dtype::I32, &[2, 8], 64, "U32"),
        ("w.scales", Dtype::U8, &[2, 2], 4, "F32, F16 or BF16"),
        ("w.biases", Dtype::BF16, &[2, 2], 8, "F32"),
        ("w.bias", Dtype::I32, &[2], 8, "F32, F16 or BF16"),
    ];
    for (name, dtype, shape, bytes, expected) in cases {
        let mut tensors = quantised();
        tensors.retain(|tensor| tensor.0 != name);
        tensors.push((name, dtype, shape, vec![0; bytes]));
        let error = matrix(&tensors).unwrap_err();
        assert!(matches!(&error, Error::WrongDtype { name: n, .. } if n == name), "{error}");
        assert_names(&error, &[name, expected, &dtype.to_string()]);
    }
    let plain: Tensors = vec![("p.weight", Dtype::F64, &[1, 1], vec![0; 8])];
    for get in [
        |c: &Checkpoint| c.matrix("p", 1, 1).map(|_| ()),
        |c: &Checkpoint| c.vector("p.weight", &[1]).map(|_| ()),
    ] {
        let error = load(&json!({}), &plain, get).unwrap_err();
        assert!(matches!(error, Error::WrongDtype { .. }), "{error}");
        assert_names(&error, &["p.weight", "F64", "F32, F16 or BF16"]);
    }
}

#[test]
fn vectors_ignore_axes_of_one() {
    let tensors: Tensors = vec![("conv", Dtype::F32, &[3, 1, 2], ramp(6)), ("one", Dtype::F32, &[], ramp(1))];
    let dir = model(&json!({}), &tensors);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    for shape in [&[3, 1, 2][..], &[3, 2], &[3, 2, 1], &[1, 3, 2]] {
        assert_eq!(checkpoint.vector("conv", shape).unwrap().len(), 6);
    }
    assert_eq!(checkpoint.vector("one", &[1]).unwrap(), [0.0]);
    for shape in [&[2, 3][..], &[6], &[]] {
        let error = checkpoint.vector("conv", shape).unwrap_err();
        assert!(matches!(error, Error::WrongShape { .. }), "{error}");
        assert_names(&error, &["conv", "[3, 1, 2]"]);
    }
}
