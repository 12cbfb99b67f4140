//! Views, sizes and layouts of weights.

use super::{decode::eight_codes, *};
use crate::{Bytes, Error, quantize_affine};

fn floats(values: impl IntoIterator<Item = f32>) -> Bytes {
    Bytes::from_vec(values.into_iter().flat_map(f32::to_le_bytes).collect())
}

fn affine(count: usize, rows: usize, cols: usize, bits: u32, group: usize) -> Weight {
    let values: Vec<f32> =
        (0..count * rows * cols).map(|i| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect();
    let q = quantize_affine(&values, cols, bits, group);
    let (scales, biases) = (floats(q.scales), floats(q.biases));
    let data = Bytes::from_vec(q.codes);
    Weight::affine("w", count, rows, cols, bits, group, Float::F32, data, scales, biases).unwrap()
}

fn decoded(weight: &Weight, matrix: usize, row: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; weight.cols];
    weight.decode_row(matrix, row, &mut out);
    out
}

#[test]
fn codes_are_one_little_endian_stream() {
    // Every width over a stream whose value is known as one big number: 0x0807060504030201.
    let stream: Vec<u8> = (1..=8).collect();
    let whole = u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
    for bits in [1, 2, 3, 4, 5, 6, 8] {
        let codes = eight_codes(&stream[..bits], bits);
        let expected = std::array::from_fn(|i| (whole >> (i * bits) & ((1 << bits) - 1)) as u8);
        assert_eq!(codes, expected, "{bits} bits");
    }
}

#[test]
fn row_ranges_are_the_same_rows() {
    for mut weight in [affine(3, 6, 64, 3, 32), {
        Weight::plain("p", 3, 6, 5, Float::F32, floats((0..90).map(|i| i as f32))).unwrap()
    }] {
        weight.bias = Some((0..18).map(|i| i as f32).collect());
        for range in [0..3, 3..6, 1..2, 6..6, 0..6] {
            let part = weight.row_range(range.clone());
            // A range of a range must count from the inner one.
            let again = part.row_range(0..part.rows);
            assert_eq!((part.count, part.rows, part.cols), (3, range.len(), weight.cols));
            for matrix in 0..3 {
                for (i, row) in range.clone().enumerate() {
                    assert_eq!(decoded(&part, matrix, i), decoded(&weight, matrix, row));
                    assert_eq!(decoded(&again, matrix, i), decoded(&weight, matrix, row));
                    assert_eq!(
                        part.bias.as_ref().unwrap()[matrix * range.len() + i],
                        (matrix * 6 + row) as f32
                    );
                }
            }
            assert_eq!(part.stored_bytes() * 6, weight.stored_bytes() * range.len() as u64);
        }
    }
}

#[test]
fn parts_must_have_the_size_of_the_shape() {
    let w = affine(1, 2, 64, 4, 32);
    let build = |rows, cols, bits, group, data: Bytes, scales: Bytes, biases: Bytes| {
        Weight::affine("some.w", 1, rows, cols, bits, group, Float::F32, data, scales, biases)
    };
    let data = || Bytes::from_vec(w.data.matrix(0).to_vec());
    let scales = || Bytes::from_vec(w.scales.as_ref().unwrap().matrix(0).to_vec());
    build(2, 64, 4, 32, data(), scales(), scales()).unwrap();
    for result in [
        build(3, 64, 4, 32, data(), scales(), scales()),
        build(2, 64, 5, 32, data(), scales(), scales()),
        build(2, 64, 4, 64, data(), scales(), scales()),
        build(2, 64, 4, 32, data(), scales().slice(0..8), scales()),
        build(2, 64, 4, 32, data(), scales(), scales().slice(0..8)),
        build(usize::MAX, usize::MAX & !127, 8, 32, data(), scales(), scales()),
        Weight::plain("some.w", usize::MAX, usize::MAX, usize::MAX, Float::F32, data()),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::WrongSize { .. }), "{error}");
        assert!(error.to_string().contains("some.w"), "{error}");
    }
    let error = build(2, 65, 4, 32, data(), scales(), scales()).unwrap_err();
    assert!(matches!(error, Error::PartialGroup { .. }), "{error}");
    let error = build(2, 64, 7, 32, data(), scales(), scales()).unwrap_err();
    assert!(matches!(error, Error::UnsupportedQuantization { .. }), "{error}");
}

#[test]
fn an_empty_stack_of_impossible_matrices_is_harmless() {
    let w = Weight::plain("w", 0, usize::MAX, usize::MAX, Float::F32, Bytes::from_vec(vec![])).unwrap();
    assert_eq!(w.row_range(5..9).stored_bytes(), 0);
    assert_eq!(w.stored_bytes(), 0);
}

#[test]
#[should_panic(expected = "rows 2..3 of matrix 0 in 3 matrices of 2 rows")]
fn a_row_past_the_end_is_not_the_next_matrix() {
    affine(3, 2, 32, 4, 32).data.row(0, 2);
}

/// One weight of every format: small floats with every code but those that are no numbers.
fn every_format(count: usize, rows: usize, cols: usize) -> Vec<Weight> {
    let (values, groups) = (count * rows * cols, |group: usize| count * rows * cols / group);
    let bytes =
        |n: usize, modulus: usize| Bytes::from_vec((0..n).map(|i| ((i * 37) % modulus) as u8).collect());
    let global = (0..count).map(|m| 1.5 + m as f32).collect();
    let (down, across) = (rows.div_ceil(5), cols.div_ceil(24));
    let blocks = floats((0..count * down * across).map(|i| 1.0 + i as f32));
    vec![
        Weight::plain("w", count, rows, cols, Float::F32, floats((0..values).map(|i| i as f32))).unwrap(),
        affine(count, rows, cols, 3, 32),
        Weight::mxfp4("w", count, rows, cols, bytes(values / 2, 256), bytes(groups(32), 255)).unwrap(),
        Weight::mxfp8("w", count, rows, cols, bytes(values, 127), bytes(groups(32), 251)).unwrap(),
        Weight::nvfp4("w", count, rows, cols, bytes(values / 2, 256), bytes(groups(16), 127), Some(global))
            .unwrap(),
        Weight::fp8_blocks("w", count, rows, cols, 5, 24, bytes(values, 127), blocks).unwrap(),
    ]
}

#[test]
fn views_are_the_same_rows_in_every_format() {
    for mut weight in every_format(3, 14, 64) {
        weight.bias = Some((0..42).map(|i| i as f32).collect());
        for range in [0..14, 3..9, 7..14, 13..14] {
            let part = weight.row_range(range.clone());
            let inner = part.row_range(1.min(part.rows)..part.rows);
            for matrix in 0..3 {
                for (i, row) in range.clone().enumerate() {
                    assert_eq!(
                        decoded(&part, matrix, i),
                        decoded(&weight, matrix, row),
                        "{:?}",
                        weight.format
                    );
                    if i > 0 {
                        assert_eq!(decoded(&inner, matrix, i - 1), decoded(&weight, matrix, row));
                    }
                }
            }
        }
    }
}

#[test]
fn heads_are_slices_of_one_matrix() {
    // 3 heads of 8 rows: with blocks of 5 rows every head starts at another place of its block.
    for mut weight in every_format(1, 24, 64) {
        weight.bias = Some((0..24).map(|i| i as f32).collect());
        for range in [0..8, 0..5, 5..8, 7..8, 8..8] {
            let heads = weight.head_rows(3, range.clone());
            assert_eq!((heads.count, heads.rows, heads.cols), (3, range.len(), 64));
            for head in 0..3 {
                for (i, row) in range.clone().enumerate() {
                    let whole = decoded(&weight, 0, head * 8 + row);
                    assert_eq!(decoded(&heads, head, i), whole, "{:?}", weight.format);
                    assert_eq!(heads.bias.as_ref().unwrap()[head * range.len() + i], (head * 8 + row) as f32);
                    // A range of the heads' rows.
                    assert_eq!(decoded(&heads.row_range(i..i + 1), head, 0), whole);
                }
            }
            if range.len() == 8 {
                assert_eq!(heads.stored_bytes(), weight.stored_bytes());
            }
        }
        // Heads of a range of rows: 3 heads of 6 from row 4 on.
        let part = weight.row_range(4..22).head_rows(3, 2..6);
        for (head, i) in (0..3).flat_map(|head| (0..4).map(move |i| (head, i))) {
            assert_eq!(decoded(&part, head, i), decoded(&weight, 0, 4 + head * 6 + 2 + i));
        }
    }
}

#[test]
fn rows_of_a_block_share_their_scales() {
    let weight = &every_format(1, 14, 64)[5];
    let scales = weight.row_range(4..14).scales.unwrap();
    assert_eq!((scales.rows_sharing(), scales.row_bytes()), (5, 12));
    // Row 4 ends the first block, row 5 starts the next.
    assert_ne!(scales.row(0, 0), scales.row(0, 1));
    assert_eq!(scales.row(0, 1), scales.row(0, 5));
    assert_eq!(weight.row_range(4..6).stored_bytes(), 2 * 64 + 2 * 12);
    assert_eq!(weight.row_range(5..10).stored_bytes(), 5 * 64 + 12);
    assert_eq!(weight.row_range(5..5).stored_bytes(), 0);
}

#[test]
#[should_panic(expected = "5 rows share one stored row")]
fn shared_rows_are_no_memory_without_gaps() {
    every_format(1, 14, 64)[5].scales.as_ref().unwrap().matrix(0);
}

#[test]
#[should_panic(expected = "rows 0..9 of 3 heads in 1 matrices of 24 rows")]
fn a_head_ends_where_the_next_begins() {
    every_format(1, 24, 64)[0].head_rows(3, 0..9);
}

#[test]
fn small_floats_must_have_the_size_of_the_shape() {
    let bytes = |n: usize| Bytes::from_vec(vec![0; n]);
    let wrong_size = [
        Weight::mxfp4("some.w", 1, 2, 64, bytes(63), bytes(4)),
        Weight::mxfp4("some.w", 1, 2, 64, bytes(64), bytes(5)),
        Weight::mxfp8("some.w", 1, 2, 64, bytes(64), bytes(4)),
        Weight::mxfp8("some.w", 1, 2, 64, bytes(128), bytes(3)),
        Weight::nvfp4("some.w", 1, 2, 64, bytes(64), bytes(4), None),
        Weight::nvfp4("some.w", 1, 2, 64, bytes(32), bytes(8), None),
        Weight::fp8_blocks("some.w", 1, 5, 7, 2, 3, bytes(34), bytes(36)),
        Weight::fp8_blocks("some.w", 1, 5, 7, 2, 3, bytes(35), bytes(32)),
        Weight::fp8_blocks("some.w", usize::MAX, usize::MAX, usize::MAX, 1, 1, bytes(35), bytes(32)),
        Weight::mxfp8("some.w", usize::MAX, usize::MAX, usize::MAX & !31, bytes(128), bytes(3)),
    ];
    for result in wrong_size {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::WrongSize { .. }), "{error}");
        assert!(error.to_string().contains("some.w"), "{error}");
    }
    for result in [
        Weight::mxfp4("some.w", 1, 2, 48, bytes(48), bytes(3)),
        Weight::mxfp8("some.w", 1, 2, 48, bytes(96), bytes(3)),
        Weight::nvfp4("some.w", 1, 2, 24, bytes(24), bytes(3), None),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::PartialGroup { .. }), "{error}");
    }
    let error = Weight::nvfp4("some.w", 2, 1, 16, bytes(16), bytes(2), Some(vec![1.0; 3])).unwrap_err();
    assert!(error.to_string().contains("some.w.global_scale"), "{error}");
    let error = Weight::fp8_blocks("some.w", 1, 5, 7, 0, 3, bytes(35), bytes(0)).unwrap_err();
    assert!(matches!(error, Error::UnsupportedQuantization { .. }), "{error}");
    // Stacks of nothing may claim anything, and cost nothing.
    for weight in [
        Weight::nvfp4("w", usize::MAX, 0, 16, bytes(0), bytes(0), None),
        Weight::fp8_blocks("w", 0, usize::MAX, usize::MAX, 128, 128, bytes(0), bytes(0)),
        Weight::fp8_blocks("w", usize::MAX, 5, 0, 128, 128, bytes(0), bytes(0)),
    ] {
        assert_eq!(weight.unwrap().stored_bytes(), 0);
    }
    Weight::nvfp4("w", usize::MAX, 0, 16, bytes(0), bytes(0), Some(vec![1.0])).unwrap_err();
    let mut nothing = Weight::plain("w", usize::MAX, 0, 16, Float::F32, bytes(0)).unwrap();
    nothing.bias = Some(Vec::new());
    assert_eq!(nothing.row_range(0..0).bias, Some(Vec::new()));
}
