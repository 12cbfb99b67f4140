//! Files written by MLX (see `data/*.py`): read, decoded and quantised again, the same to the bit.

mod common;

use checkpoint::{
    Checkpoint, FloatRows, Format, Weight, quantize_affine, quantize_mxfp4, quantize_mxfp8, quantize_nvfp4,
};
use common::*;
use serde_json::{Map, json};

const LAYOUTS: [(u32, usize); 21] = {
    let (bits, groups) = ([1, 2, 3, 4, 5, 6, 8], [32, 64, 128]);
    let mut all = [(0, 0); 21];
    let mut i = 0;
    while i < all.len() {
        all[i] = (bits[i / 3], groups[i % 3]);
        i += 1;
    }
    all
};

fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> [u8; 8] {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step).to_le_bytes()
}

#[track_caller]
fn check_decoded(checkpoint: &Checkpoint, path: &str, weight: &Weight) {
    let mut decoded = vec![f32::NAN; weight.rows * weight.cols];
    for (row, out) in decoded.chunks_exact_mut(weight.cols).enumerate() {
        weight.decode_row(0, row, out);
    }
    let expected = checkpoint.tensor(&format!("{path}.decoded_fnv1a")).unwrap();
    assert_eq!(fnv1a(floats(decoded)), *expected.bytes, "decoded values of {path}");
}

#[test]
fn quantising_and_decoding_equal_mlx_to_the_bit() {
    let exceptions: Map<_, _> = LAYOUTS
        .iter()
        .map(|&(bits, group)| (format!("b{bits}g{group}"), json!({"bits": bits, "group_size": group})))
        .collect();
    let dir = folder(&json!({ "quantization": exceptions }));
    put(dir.path(), "model.safetensors", include_bytes!("data/affine.safetensors"));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let (rows, cols) = (4, 128);
    let values = checkpoint.vector("values", &[rows, cols]).unwrap();

    for (bits, group) in LAYOUTS {
        let path = format!("b{bits}g{group}");
        let weight = checkpoint.matrix(&path, rows, cols).unwrap();
        assert!(matches!(weight.format, Format::Affine { bits: b, group: g, .. } if (b, g) == (bits, group)));

        let ours = quantize_affine(&values, cols, bits, group);
        assert_eq!(ours.codes, weight.data.matrix(0), "codes of {path}");
        // Bytes, not floats: the sign of a zero counts.
        assert_eq!(floats(ours.scales), weight.scales.as_ref().unwrap().matrix(0), "scales of {path}");
        assert_eq!(floats(ours.biases), weight.biases.as_ref().unwrap().matrix(0), "biases of {path}");
        check_decoded(&checkpoint, &path, &weight);
    }
    assert!(checkpoint.unused().is_empty());
}

type Quantise = fn(&[f32], usize) -> FloatRows;

#[test]
fn float_modes_equal_mlx_to_the_bit() {
    let modes: [(&str, Format, Quantise); 3] = [
        ("mxfp4", Format::Mxfp4, quantize_mxfp4),
        ("mxfp8", Format::Mxfp8, quantize_mxfp8),
        ("nvfp4", Format::Nvfp4, quantize_nvfp4),
    ];
    // The default is wrong for all of them: types and shapes tell.
    let dir = folder(&affine_config(4, 64));
    put(dir.path(), "model.safetensors", include_bytes!("data/floats.safetensors"));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let (rows, cols) = (5, 128);
    let values = checkpoint.vector("values", &[rows, cols]).unwrap();
    let rounded = checkpoint::Float::Bf16.encode(&values);
    let rounded: Vec<f32> = (0..values.len()).map(|i| checkpoint::Float::Bf16.get(&rounded, i)).collect();

    for (mode, format, quantise) in modes {
        for (path, values) in [(mode.to_owned(), &values), (format!("{mode}_bf16"), &rounded)] {
            let weight = checkpoint.matrix(&path, rows, cols).unwrap();
            assert_eq!(weight.format, format);
            let ours = quantise(values, cols);
            assert_eq!(ours.scales, weight.scales.as_ref().unwrap().matrix(0), "scales of {path}");
            assert_eq!(ours.codes, weight.data.matrix(0), "codes of {path}");
            check_decoded(&checkpoint, &path, &weight);
        }
        let path = format!("{mode}_codes");
        check_decoded(&checkpoint, &path, &checkpoint.matrix(&path, 4, cols).unwrap());
    }
    for path in ["nvfp4_one", "nvfp4_other"] {
        let weight = checkpoint.matrix(path, rows, cols).unwrap();
        assert!(weight.global_scale.is_some());
        check_decoded(&checkpoint, path, &weight);
    }
    let weight = checkpoint.matrix("fp8", 130, 140).unwrap();
    assert_eq!(weight.format, Format::Fp8Blocks { block_rows: 128, block_cols: 128 });
    check_decoded(&checkpoint, "fp8", &weight);
    assert!(checkpoint.unused().is_empty());
}
