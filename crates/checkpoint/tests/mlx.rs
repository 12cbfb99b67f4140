//! A file written by MLX (see `data/make_affine.py`): read, decoded and quantised again, the same to the bit.

mod common;

use checkpoint::{Checkpoint, Format, quantize_affine};
use common::*;
use serde_json::{Map, json};

const LAYOUTS: [(u32, usize); 18] = {
    let (bits, groups) = ([2, 3, 4, 5, 6, 8], [32, 64, 128]);
    let mut all = [(0, 0); 18];
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
        assert_eq!(ours.codes, weight.data.rows(0, 0..rows), "codes of {path}");
        // Bytes, not floats: the sign of a zero counts.
        assert_eq!(floats(ours.scales), weight.scales.as_ref().unwrap().rows(0, 0..rows), "scales of {path}");
        assert_eq!(floats(ours.biases), weight.biases.as_ref().unwrap().rows(0, 0..rows), "biases of {path}");

        let mut decoded = vec![f32::NAN; rows * cols];
        for (row, out) in decoded.chunks_exact_mut(cols).enumerate() {
            weight.decode_row(0, row, out);
        }
        let expected = checkpoint.tensor(&format!("{path}.decoded_fnv1a")).unwrap();
        assert_eq!(fnv1a(floats(decoded)), *expected.bytes, "decoded values of {path}");
    }
    assert!(checkpoint.unused().is_empty());
}
