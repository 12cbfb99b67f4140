//! Matrices as stored, and the reference decoder of every format.

use std::ops::Range;

use crate::{Bytes, Error, Float, Mode, Plane, QuantSpec, Result};

/// How the rows of a weight are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Format {
    /// One float per value.
    Plain(Float),
    /// A row is one little-endian bit stream: code `i`, unsigned, sits at bits `[i*bits, (i+1)*bits)`. The
    /// value is `code * scale + bias`, with one scale and one bias of type `scale` per `group` neighbours.
    Affine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Neighbours in a row that share a scale and a bias: 32, 64 or 128.
        group: usize,
        /// Type of the scales and biases.
        scale: Float,
    },
}

/// A matrix `[rows, cols]`, or a stack of `count` equal ones, as stored: `y = W x (+ bias)`.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Tensor path, for messages.
    pub name: String,
    /// Matrices in the stack; 1 for a single matrix.
    pub count: usize,
    /// Outputs of a matrix.
    pub rows: usize,
    /// Inputs of a matrix.
    pub cols: usize,
    /// How rows are stored.
    pub format: Format,
    /// Values or codes.
    pub data: Plane,
    /// One scale per group, for quantised formats.
    pub scales: Option<Plane>,
    /// One bias per group, for formats that have them.
    pub biases: Option<Plane>,
    /// Bias of the linear layer, `count * rows` long.
    pub bias: Option<Vec<f32>>,
}

impl Weight {
    /// A weight of plain floats. Fails unless `bytes` holds exactly `count * rows * cols` of them.
    pub fn plain(
        name: impl Into<String>,
        count: usize,
        rows: usize,
        cols: usize,
        float: Float,
        bytes: Bytes,
    ) -> Result<Weight> {
        let name = name.into();
        let data = Plane::new(&name, count, rows, cols as u128 * float.bytes() as u128, bytes)?;
        let format = Format::Plain(float);
        Ok(Weight { name, count, rows, cols, format, data, scales: None, biases: None, bias: None })
    }

    /// An affine-quantised weight. Fails unless the layout exists, groups divide the rows, and every part has
    /// exactly the bytes its shape needs.
    #[expect(
        clippy::too_many_arguments,
        reason = "a format is this many facts, and callers read better flat"
    )]
    pub fn affine(
        name: impl Into<String>,
        count: usize,
        rows: usize,
        cols: usize,
        bits: u32,
        group: usize,
        scale_float: Float,
        data: Bytes,
        scales: Bytes,
        biases: Bytes,
    ) -> Result<Weight> {
        let name = name.into();
        QuantSpec { mode: Mode::Affine, bits, group }.check(&name)?;
        if !cols.is_multiple_of(group) {
            return Err(Error::PartialGroup { name, cols, group });
        }
        let groups = (cols / group) as u128 * scale_float.bytes() as u128;
        // Exact: groups are multiples of 32, so a row is whole u32 words at any width.
        let codes = cols as u128 * bits as u128 / 8;
        let data = Plane::new(&name, count, rows, codes, data)?;
        let scales = Some(Plane::new(&format!("{name}.scales"), count, rows, groups, scales)?);
        let biases = Some(Plane::new(&format!("{name}.biases"), count, rows, groups, biases)?);
        let format = Format::Affine { bits, group, scale: scale_float };
        Ok(Weight { name, count, rows, cols, format, data, scales, biases, bias: None })
    }

    /// The same rows of every matrix of the stack, sharing the bytes (a fused gate_up splits into gate and up
    /// so).
    ///
    /// # Panics
    /// If the range reaches beyond the rows.
    pub fn row_range(&self, range: Range<usize>) -> Weight {
        let part = |plane: &Plane| plane.row_range(range.clone());
        let bias = |bias: &Vec<f32>| {
            (0..self.count)
                .flat_map(|m| &bias[m * self.rows + range.start..m * self.rows + range.end])
                .copied()
                .collect()
        };
        Weight {
            name: self.name.clone(),
            rows: range.len(),
            data: part(&self.data),
            scales: self.scales.as_ref().map(part),
            biases: self.biases.as_ref().map(part),
            bias: self.bias.as_ref().map(bias),
            ..*self
        }
    }

    /// Decodes one row into `out`, in f32. The reference for every format: plain loops, checked against MLX.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not `cols` long.
    pub fn decode_row(&self, matrix: usize, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "`{}` has rows of {} values", self.name, self.cols);
        let data = self.data.row(matrix, row);
        match self.format {
            Format::Plain(float) => {
                for (i, value) in out.iter_mut().enumerate() {
                    *value = float.get(data, i);
                }
            }
            Format::Affine { bits, group, scale } => {
                let (Some(scales), Some(biases)) = (&self.scales, &self.biases) else {
                    unreachable!("an affine weight is built with scales and biases")
                };
                let (scales, biases) = (scales.row(matrix, row), biases.row(matrix, row));
                let bits = bits as usize;
                let groups = out.chunks_exact_mut(group).zip(data.chunks_exact(group * bits / 8));
                for (g, (values, codes)) in groups.enumerate() {
                    let (s, b) = (scale.get(scales, g), scale.get(biases, g));
                    // Eight codes fill whole bytes at any width.
                    for (values, codes) in
                        values.as_chunks_mut::<8>().0.iter_mut().zip(codes.chunks_exact(bits))
                    {
                        for (value, code) in values.iter_mut().zip(eight_codes(codes, bits)) {
                            *value = f32::from(code) * s + b;
                        }
                    }
                }
            }
        }
    }

    /// Bytes the rows occupy in the file: codes, scales and biases. The linear layer's bias is not counted.
    pub fn stored_bytes(&self) -> u64 {
        let planes = [Some(&self.data), self.scales.as_ref(), self.biases.as_ref()];
        planes.into_iter().flatten().map(Plane::stored_bytes).sum()
    }
}

/// The eight codes in `bits` bytes of a little-endian stream.
fn eight_codes(stream: &[u8], bits: usize) -> [u8; 8] {
    let mut word = [0; 8];
    word[..bits].copy_from_slice(stream);
    let word = u64::from_le_bytes(word);
    std::array::from_fn(|i| ((word >> (i * bits)) & ((1 << bits) - 1)) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize_affine;

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
        for bits in [2, 3, 4, 5, 6, 8] {
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
        let data = || w.data.bytes().clone();
        let scales = || w.scales.as_ref().unwrap().bytes().clone();
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
}
