//! Rows of a weight as floats, for products in f32.

use checkpoint::{Float, Format, Weight};

use super::Set;
use super::codes::{Codes, FP4_CODES, Packing};
use super::scalar;
use crate::vector::{vectorised, widen_half};

/// Decodes row `row` of matrix `m`, of which `codes` is the view if its format has one.
pub(crate) fn decode_row(
    set: Set,
    weight: &Weight,
    m: usize,
    codes: Option<&Codes<'_>>,
    row: usize,
    out: &mut [f32],
) {
    match (codes, weight.format) {
        (Some(codes), _) => decode_codes(set, codes, row, out),
        (None, Format::Plain(float)) => decode_floats(set, float, weight.data.row(m, row), out),
        (None, _) => weight.decode_row(m, row, out),
    }
}

fn decode_codes(set: Set, w: &Codes<'_>, row: usize, out: &mut [f32]) {
    let (row_bytes, scale_bytes) = (w.row_bytes(), w.scale_row_bytes());
    let scales = &w.scales[row * scale_bytes..][..scale_bytes];
    let group_bytes = w.group * w.packing.bits() / 8;
    let stored = w.codes[row * row_bytes..][..row_bytes].chunks_exact(group_bytes);
    for (g, (out, stored)) in out.chunks_exact_mut(w.group).zip(stored).enumerate() {
        let scale = scalar::scale(w.scale_type, scales, g);
        let bias = match w.packing {
            Packing::Bits(_) => scalar::scale(w.scale_type, &w.biases[row * scale_bytes..], g),
            Packing::Fp4 => scale * w.bias_factor(),
        };
        decode_group(set, w.packing, stored, scale * w.scale_factor(), bias, out);
    }
}

vectorised! {
    fn decode_group<A>(packing: Packing, stored: &[u8], scale: f32, bias: f32, out: &mut [f32]) {
        match packing {
            Packing::Bits(8) => {
                out.iter_mut().zip(stored).for_each(|(out, b)| *out = f32::from(*b) * scale + bias);
            }
            Packing::Bits(4) => {
                for (out, b) in out.as_chunks_mut::<2>().0.iter_mut().zip(stored) {
                    *out = [f32::from(b & 15) * scale + bias, f32::from(b >> 4) * scale + bias];
                }
            }
            Packing::Fp4 => {
                for (out, b) in out.as_chunks_mut::<2>().0.iter_mut().zip(stored) {
                    let value = |code: u8| f32::from(FP4_CODES[usize::from(code)]) * scale + bias;
                    *out = [value(b & 15), value(b >> 4)];
                }
            }
            Packing::Bits(2) => {
                for (out, b) in out.as_chunks_mut::<4>().0.iter_mut().zip(stored) {
                    *out = std::array::from_fn(|i| f32::from((b >> (2 * i)) & 3) * scale + bias);
                }
            }
            Packing::Bits(bits) => {
                let mask = (1u64 << bits) - 1;
                // Eight codes fill whole bytes at any width.
                for (out, stored) in out.as_chunks_mut::<8>().0.iter_mut().zip(stored.chunks_exact(bits as usize)) {
                    let mut word = [0; 8];
                    word[..bits as usize].copy_from_slice(stored);
                    let word = u64::from_le_bytes(word);
                    *out = std::array::from_fn(|i| ((word >> (i as u32 * bits)) & mask) as f32 * scale + bias);
                }
            }
        }
    }
}

vectorised! {
    fn decode_floats<A>(float: Float, bytes: &[u8], out: &mut [f32]) {
        match float {
            Float::F32 => {
                let values = bytes.as_chunks::<4>().0;
                out.iter_mut().zip(values).for_each(|(out, b)| *out = f32::from_le_bytes(*b));
            }
            Float::F16 => {
                let values = bytes.as_chunks::<2>().0;
                out.iter_mut().zip(values).for_each(|(out, b)| *out = widen_half(u16::from_le_bytes(*b)));
            }
            Float::Bf16 => {
                let values = bytes.as_chunks::<2>().0;
                for (out, b) in out.iter_mut().zip(values) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                }
            }
        }
    }
}
