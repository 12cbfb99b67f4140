//! The reference decoder of every format: plain loops, checked against MLX.

use super::{Format, Weight};
use crate::{
    Float,
    small_floats::{E2M1, E4M3, e8m0},
};

impl Weight {
    /// Decodes one row into `out`, in f32.
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
                let Some(biases) = &self.biases else {
                    unreachable!("an affine weight is built with biases")
                };
                let biases = biases.row(matrix, row);
                affine(data, self.scale_row(matrix, row), biases, bits as usize, group, scale, out);
            }
            Format::Mxfp4 => {
                for (group, scale) in groups(out, data, 32, 16).zip(self.scale_row(matrix, row)) {
                    four_bits(group, e8m0(*scale));
                }
            }
            Format::Mxfp8 => {
                for (group, scale) in groups(out, data, 32, 32).zip(self.scale_row(matrix, row)) {
                    eight_bits(group, e8m0(*scale));
                }
            }
            Format::Nvfp4 => {
                // This order of the products is MLX's: any other differs in the last bit.
                let factor = self.global_factor(matrix);
                for (group, scale) in groups(out, data, 16, 8).zip(self.scale_row(matrix, row)) {
                    four_bits(group, E4M3[usize::from(*scale)] * factor);
                }
            }
            Format::Fp8Blocks { block_cols, .. } => {
                // mlx-lm turns these into bf16 when it loads them. Here the product stays in f32, which is what is
                // stored: it differs from mlx-lm by that rounding.
                let scales = self.scale_row(matrix, row);
                let blocks = out.chunks_mut(block_cols).zip(data.chunks(block_cols));
                for (i, group) in blocks.enumerate() {
                    eight_bits(group, Float::F32.get(scales, i));
                }
            }
        }
    }

    /// The scale of one group of a row as a float, with everything that goes into it; for [`Format::Plain`] 1.
    ///
    /// # Panics
    /// If there is no such row or group.
    pub fn scale(&self, matrix: usize, row: usize, group: usize) -> f32 {
        match self.format {
            Format::Plain(_) => 1.0,
            Format::Affine { scale, .. } => scale.get(self.scale_row(matrix, row), group),
            Format::Mxfp4 | Format::Mxfp8 => e8m0(self.scale_row(matrix, row)[group]),
            Format::Nvfp4 => {
                E4M3[usize::from(self.scale_row(matrix, row)[group])] * self.global_factor(matrix)
            }
            Format::Fp8Blocks { .. } => Float::F32.get(self.scale_row(matrix, row), group),
        }
    }

    fn scale_row(&self, matrix: usize, row: usize) -> &[u8] {
        let Some(scales) = &self.scales else { unreachable!("a quantised weight is built with scales") };
        scales.row(matrix, row)
    }
}

/// Values and codes, group by group; `bytes` is what the codes of a group take.
fn groups<'a>(
    out: &'a mut [f32],
    data: &'a [u8],
    group: usize,
    bytes: usize,
) -> impl Iterator<Item = (&'a mut [f32], &'a [u8])> {
    out.chunks_exact_mut(group).zip(data.chunks_exact(bytes))
}

fn four_bits((values, codes): (&mut [f32], &[u8]), scale: f32) {
    for (pair, byte) in values.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
        *pair = [byte & 15, byte >> 4].map(|code| E2M1[usize::from(code)] * scale);
    }
}

fn eight_bits((values, codes): (&mut [f32], &[u8]), scale: f32) {
    for (value, code) in values.iter_mut().zip(codes) {
        *value = E4M3[usize::from(*code)] * scale;
    }
}

fn affine(
    data: &[u8],
    scales: &[u8],
    biases: &[u8],
    bits: usize,
    group: usize,
    float: Float,
    out: &mut [f32],
) {
    for (g, (values, codes)) in groups(out, data, group, group * bits / 8).enumerate() {
        let (s, b) = (float.get(scales, g), float.get(biases, g));
        // Eight codes fill whole bytes at any width.
        for (values, codes) in values.as_chunks_mut::<8>().0.iter_mut().zip(codes.chunks_exact(bits)) {
            for (value, code) in values.iter_mut().zip(eight_codes(codes, bits)) {
                *value = f32::from(code) * s + b;
            }
        }
    }
}

/// The eight codes in `bits` bytes of a little-endian stream.
pub(super) fn eight_codes(stream: &[u8], bits: usize) -> [u8; 8] {
    let mut word = [0; 8];
    word[..bits].copy_from_slice(stream);
    let word = u64::from_le_bytes(word);
    std::array::from_fn(|i| ((word >> (i * bits)) & ((1 << bits) - 1)) as u8)
}
