//! Weights of small floats out of a folder: by the config, by types and shapes, and every way to be wrong.

mod common;

use checkpoint::{
    Checkpoint, Dtype, Error, Float, FloatRows, Format, Result, quantize_mxfp4, quantize_mxfp8,
    quantize_nvfp4,
};
use common::*;
use serde_json::{Value, json};

type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

fn load<T>(config: &Value, tensors: &Tensors, get: impl FnOnce(&Checkpoint) -> Result<T>) -> Result<T> {
    let tensors: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.as_str(), *dtype, shape.as_slice(), bytes.clone()))
        .collect();
    let dir = model(config, &tensors);
    get(&Checkpoint::open(dir.path()).unwrap())
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect()
}

/// `w` is 2 x 64 in one of the modes, right in every respect.
fn quantised(mode: &str) -> Tensors {
    let (FloatRows { codes, scales }, words, groups) = match mode {
        "mxfp4" => (quantize_mxfp4(&values(128), 64), 8, 2),
        "mxfp8" => (quantize_mxfp8(&values(128), 64), 16, 2),
        _ => (quantize_nvfp4(&values(128), 64), 8, 4),
    };
    vec![
        ("w.weight".into(), Dtype::U32, vec![2, words], codes),
        ("w.scales".into(), Dtype::U8, vec![2, groups], scales),
    ]
}

const MODES: [(&str, Format, u32, usize); 3] =
    [("mxfp4", Format::Mxfp4, 4, 32), ("mxfp8", Format::Mxfp8, 8, 32), ("nvfp4", Format::Nvfp4, 4, 16)];

fn config(mode: &str, bits: u32, group: usize) -> Value {
    json!({"quantization": {"bits": bits, "group_size": group, "mode": mode}})
}

fn named(mode: &str) -> Value {
    json!({"quantization": {"bits": 4, "group_size": 64, "w": {"mode": mode}}})
}

#[test]
fn the_mode_comes_from_the_config_or_from_types_and_shapes() {
    for (mode, format, bits, group) in MODES {
        let mut configs = vec![config(mode, bits, group), named(mode), affine_config(4, 64)];
        configs.extend(MODES.map(|(other, _, bits, group)| config(other, bits, group)));
        if mode != "nvfp4" {
            configs.push(json!({"quantization_config": {"quant_method": mode}}));
        }
        for config in configs {
            let weight = load(&config, &quantised(mode), |c| c.matrix("w", 2, 64)).unwrap();
            assert_eq!(weight.format, format, "{config}");
            assert_eq!(
                (weight.biases.is_none(), weight.scales.as_ref().unwrap().row_bytes()),
                (true, 64 / group)
            );
            for (value, expected) in decoded(&weight).iter().zip(values(128)) {
                // Half of the widest step, from 4 to 6.
                assert!((value - expected).abs() <= 1.0, "{value} for {expected} in {mode}");
            }
        }
    }
}

#[test]
fn affine_weights_among_small_floats_are_still_affine() {
    let q = checkpoint::quantize_affine(&values(128), 64, 8, 64);
    let tensors: Tensors = vec![
        ("w.weight".into(), Dtype::U32, vec![2, 16], q.codes),
        ("w.scales".into(), Dtype::F32, vec![2, 1], floats(q.scales)),
        ("w.biases".into(), Dtype::F32, vec![2, 1], floats(q.biases)),
    ];
    for (mode, _, bits, group) in MODES {
        let weight = load(&config(mode, bits, group), &tensors, |c| c.matrix("w", 2, 64)).unwrap();
        assert_eq!(weight.format, Format::Affine { bits: 8, group: 64, scale: Float::F32 });
        let error = load(&named(mode), &tensors, |c| c.matrix("w", 2, 64)).unwrap_err();
        assert!(matches!(error, Error::WrongDtype { .. }), "{error}");
        assert_names(&error, &["w.scales", "F32", "U8", mode]);
    }
}

#[test]
fn global_scales_are_one_or_one_per_matrix() {
    let mut tensors = quantised("nvfp4");
    for tensor in &mut tensors {
        tensor.2.insert(1, 1);
    }
    let plain = load(&named("nvfp4"), &tensors, |c| c.stack("w", 2, 1, 64)).unwrap();
    let global = |dtype, shape: &[usize], values: &[f32]| {
        let float = Float::from_dtype(dtype).unwrap();
        let mut tensors = tensors.clone();
        tensors.push(("w.global_scale".into(), dtype, shape.to_vec(), float.encode(values)));
        load(&named("nvfp4"), &tensors, |c| c.stack("w", 2, 1, 64))
    };
    for (shape, scales) in [
        (&[2][..], [5376.0, 1344.0]),
        (&[], [5376.0, 5376.0]),
        (&[1], [1344.0, 1344.0]),
        (&[1, 1], [2688.0; 2]),
    ] {
        let n = shape.iter().product::<usize>();
        let weight = global(Dtype::F32, shape, &scales[..n]).unwrap();
        let factor = |i: usize| scales[i / 64] / 2688.0;
        let expected: Vec<f32> = decoded(&plain).iter().enumerate().map(|(i, v)| v * factor(i)).collect();
        assert_eq!(decoded(&weight), expected);
        assert_eq!(weight.global_factor(1), factor(64));
        assert_eq!(weight.row_range(0..1).global_factor(1), factor(64));
    }
    assert_eq!(plain.global_factor(1), 1.0);
    let error = global(Dtype::F32, &[3], &[1.0; 3]).unwrap_err();
    assert!(matches!(error, Error::WrongShape { .. }), "{error}");
    assert_names(&error, &["w.global_scale", "[2]", "[3]"]);
}

#[test]
fn broken_small_floats_say_what_is_wrong() {
    for (mode, _, bits, group) in MODES {
        for config in [named(mode), config(mode, bits, group)] {
            let broken = |change: &dyn Fn(&mut Tensors)| {
                let mut tensors = quantised(mode);
                change(&mut tensors);
                load(&config, &tensors, |c| c.matrix("w", 2, 64)).unwrap_err()
            };
            let error = broken(&|t| t[1] = ("w.scales".into(), Dtype::I8, t[1].2.clone(), t[1].3.clone()));
            assert!(matches!(error, Error::WrongDtype { .. }), "{error}");
            assert_names(&error, &["w.scales", "I8"]);
            let error = broken(&|t| t[0].1 = Dtype::I32);
            assert!(matches!(error, Error::WrongDtype { .. }), "{error}");
            assert_names(&error, &["w.weight", "U32", "I32"]);
            let error = broken(&|t| t[1] = ("w.scales".into(), Dtype::U8, vec![2, 7], vec![0; 14]));
            assert!(matches!(error, Error::WrongShape { .. }), "{error}");
            assert_names(&error, &["w.scales", "[2, 7]"]);
            let error = broken(&|t| t[0] = ("w.weight".into(), Dtype::U32, vec![2, 9], vec![0; 72]));
            assert!(matches!(error, Error::WrongShape { .. }), "{error}");
            assert_names(&error, &["w.weight", "[2, 9]"]);
            let error = broken(&|t| drop(t.remove(1)));
            assert!(matches!(&error, Error::MissingTensor { name, .. } if name == "w.scales"), "{error}");
        }
        let error = load(&named(mode), &quantised(mode), |c| c.matrix("w", 2, 72)).unwrap_err();
        assert!(matches!(error, Error::PartialGroup { cols: 72, .. }), "{error}");
        for cols in [usize::MAX & !127, 1 << (usize::BITS - 1)] {
            load(&named(mode), &quantised(mode), |c| c.stack("w", usize::MAX, usize::MAX, cols)).unwrap_err();
        }
    }
}

/// `w` is 5 x 7 in fp8 with blocks of 2 x 3: blocks at both edges are partial.
fn fp8() -> Tensors {
    let codes = (0..35).map(|i| 0x30 + i).collect();
    let scales = (1..=9).map(|i| i as f32 / 4.0);
    vec![
        ("w.weight".into(), Dtype::F8_E4M3, vec![5, 7], codes),
        ("w.weight_scale_inv".into(), Dtype::F32, vec![3, 3], floats(scales)),
    ]
}

fn fp8_config(block: Value) -> Value {
    json!({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": block}})
}

/// A positive e4m3 number, from its bits.
fn e4m3(code: u8) -> f32 {
    (1.0 + f32::from(code & 7) / 8.0) * 2f32.powi(i32::from(code >> 3) - 7)
}

fn fp8_values() -> Vec<f32> {
    (0..35).map(|i| e4m3(0x30 + i as u8) * ((i / 7 / 2 * 3 + i % 7 / 3 + 1) as f32 / 4.0)).collect()
}

#[test]
fn fp8_blocks_decode() {
    let weight =
        |tensors: &Tensors| load(&fp8_config(json!([2, 3])), tensors, |c| c.matrix("w", 5, 7)).unwrap();
    let plain = weight(&fp8());
    assert_eq!(plain.format, Format::Fp8Blocks { block_rows: 2, block_cols: 3 });
    assert_eq!(decoded(&plain), fp8_values());
    assert_eq!(plain.stored_bytes(), 35 + 36);
    assert_eq!(plain.scales.as_ref().unwrap().rows_sharing(), 2);
    // Scales of other types are the same numbers; MLX keeps the codes as bytes.
    for dtype in [Dtype::BF16, Dtype::F16] {
        let mut tensors = fp8();
        let scales: Vec<f32> = (1..=9).map(|i| i as f32 / 4.0).collect();
        tensors[1] = (
            "w.weight_scale_inv".into(),
            dtype,
            vec![3, 3],
            Float::from_dtype(dtype).unwrap().encode(&scales),
        );
        tensors[0].1 = Dtype::U8;
        assert_eq!(decoded(&weight(&tensors)), fp8_values());
    }
    let mut tensors = fp8();
    tensors[1] = ("w.weight_scale_inv".into(), Dtype::F8_E8M0, vec![3, 3], vec![128; 9]);
    let doubled: Vec<f32> = (0..35).map(|i| 2.0 * e4m3(0x30 + i)).collect();
    assert_eq!(decoded(&weight(&tensors)), doubled);
    // Without a size in the config, or without a section, blocks are 128 x 128: one for all of this weight.
    tensors[1] = ("w.weight_scale_inv".into(), Dtype::F32, vec![1, 1], floats([2.0]));
    for config in [fp8_config(Value::Null), json!({})] {
        let weight = load(&config, &tensors, |c| c.matrix("w", 5, 7)).unwrap();
        assert_eq!(weight.format, Format::Fp8Blocks { block_rows: 128, block_cols: 128 });
        assert_eq!(decoded(&weight), doubled);
    }
}

#[test]
fn powers_of_two_per_32_are_mxfp8() {
    let q = quantize_mxfp8(&values(128), 64);
    for dtype in [Dtype::U8, Dtype::F8_E8M0] {
        let tensors: Tensors = vec![
            ("w.weight".into(), Dtype::F8_E4M3, vec![2, 64], q.codes.clone()),
            ("w.weight_scale_inv".into(), dtype, vec![2, 2], q.scales.clone()),
        ];
        let weight = load(&json!({}), &tensors, |c| c.matrix("w", 2, 64)).unwrap();
        assert_eq!(weight.format, Format::Mxfp8);
        let mlx = load(&named("mxfp8"), &quantised("mxfp8"), |c| c.matrix("w", 2, 64)).unwrap();
        assert_eq!(decoded(&weight), decoded(&mlx));
    }
}

#[test]
fn bare_names_are_stacks_or_matrices() {
    let mut tensors: Tensors = vec![
        ("fused".into(), Dtype::F32, vec![3, 2, 4], ramp(24)),
        ("flat".into(), Dtype::BF16, vec![2, 2], Float::Bf16.encode(&[1.0, 2.0, 3.0, 4.0])),
        ("q".into(), Dtype::F8_E4M3, vec![1, 5, 7], fp8()[0].3.clone()),
        ("q_scale_inv".into(), Dtype::F32, vec![1, 3, 3], fp8()[1].3.clone()),
        ("codes".into(), Dtype::U32, vec![1, 2, 2], vec![0; 16]),
        ("lone".into(), Dtype::F8_E4M3, vec![1, 2, 2], vec![0; 4]),
    ];
    tensors.sort_by_key(|t| std::cmp::Reverse(t.1.bitsize()));
    load(&fp8_config(json!([2, 3])), &tensors, |c| {
        let fused = c.tensor_weight("fused", 3, 2, 4)?;
        assert_eq!((fused.name.as_str(), fused.count, fused.rows, fused.cols), ("fused", 3, 2, 4));
        assert_eq!(decoded(&fused), (0..24).map(|i| i as f32 / 8.0).collect::<Vec<_>>());
        assert_eq!(decoded(&c.tensor_weight("flat", 1, 2, 2)?), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(decoded(&c.tensor_weight("q", 1, 5, 7)?), fp8_values());
        for (name, count, rows, cols, words) in [
            ("fused", 2, 3, 4, ["fused", "[2, 3, 4]", "[3, 2, 4]"]),
            ("flat", 2, 1, 2, ["flat", "[2, 1, 2]", "[2, 2]"]),
            ("absent", 1, 2, 2, ["absent", "missing", "tensor"]),
            ("codes", 1, 2, 2, ["codes", "codes.scales", "missing"]),
            ("lone", 1, 2, 2, ["lone_scale_inv", "missing", "tensor"]),
        ] {
            assert_names(&c.tensor_weight(name, count, rows, cols).unwrap_err(), &words);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn broken_fp8_says_what_is_wrong() {
    let broken = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = fp8();
        change(&mut tensors);
        load(&fp8_config(json!([2, 3])), &tensors, |c| c.matrix("w", 5, 7)).unwrap_err()
    };
    let error = broken(&|t| drop(t.remove(1)));
    assert!(matches!(&error, Error::MissingTensor { name, .. } if name == "w.weight_scale_inv"), "{error}");
    let error = broken(&|t| drop(t.remove(0)));
    assert!(matches!(&error, Error::MissingTensor { name, .. } if name == "w.weight"), "{error}");
    let error = broken(&|t| t[1].2 = vec![9, 1]);
    assert!(matches!(error, Error::WrongShape { .. }), "{error}");
    assert_names(&error, &["w.weight_scale_inv", "[3, 3]", "[9, 1]"]);
    let error = broken(&|t| t[0].2 = vec![7, 5]);
    assert!(matches!(error, Error::WrongShape { .. }), "{error}");
    let error = broken(&|t| t[1] = ("w.weight_scale_inv".into(), Dtype::I32, vec![3, 3], vec![0; 36]));
    assert!(matches!(error, Error::WrongDtype { .. }), "{error}");
    assert_names(&error, &["w.weight_scale_inv", "I32", "F32"]);
    let error = broken(&|t| t[0] = ("w.weight".into(), Dtype::F8_E5M2, vec![5, 7], vec![0; 35]));
    assert!(matches!(error, Error::WrongDtype { .. }), "{error}");
    assert_names(&error, &["w.weight", "F8_E5M2", "F8_E4M3"]);
    // Absurd blocks are one block; absurd shapes are an error.
    let huge = fp8_config(json!([usize::MAX, usize::MAX]));
    let error = load(&huge, &fp8(), |c| c.matrix("w", 5, 7)).unwrap_err();
    assert_names(&error, &["w.weight_scale_inv", "[1, 1]"]);
    for (rows, cols) in [(usize::MAX, 7), (5, usize::MAX), (usize::MAX, usize::MAX)] {
        load(&huge, &fp8(), |c| c.stack("w", usize::MAX, rows, cols)).unwrap_err();
    }
}
