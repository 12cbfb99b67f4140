//! Integer products in plain loops: for machines without vector instructions that we know, and the oracle of the others.

use half::{bf16, f16};

use super::codes::{Codes, FP4_CODES, Packing, ScaleType};
use super::rounded::Rounded;

/// Whole numbers in their natural order.
pub(super) fn arrange(numbers: &[i16], out: &mut [i8]) {
    for (number, out) in numbers.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = number.to_le_bytes().map(|b| b as i8);
    }
}

/// Scale or bias `i` of some.
pub(super) fn scale(scale_type: ScaleType, bytes: &[u8], i: usize) -> f32 {
    let pair = || [bytes[2 * i], bytes[2 * i + 1]];
    match scale_type {
        ScaleType::Bf16 => bf16::from_le_bytes(pair()).to_f32(),
        ScaleType::F16 => f16::from_le_bytes(pair()).to_f32(),
        ScaleType::F32 => f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap_or([0; 4])),
        ScaleType::E8m0 => e8m0(bytes[i]),
    }
}

/// `2^(b - 127)`; 255 is NaN.
pub(super) fn e8m0(byte: u8) -> f32 {
    match byte {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        b => f32::from_bits(u32::from(b) << 23),
    }
}

/// Code `i` of a row.
fn code(packing: Packing, row: &[u8], i: usize) -> i32 {
    let bits = packing.bits();
    let (byte, shift) = (i * bits / 8, i * bits % 8);
    let word = u16::from(row[byte]) | (u16::from(row.get(byte + 1).copied().unwrap_or(0)) << 8);
    let stored = usize::from((word >> shift) & ((1 << bits) - 1));
    match packing {
        Packing::Bits(_) => stored as i32,
        Packing::Fp4 => i32::from(FP4_CODES[stored]),
    }
}

/// `y[i] = W[first + i] x[t]`
pub(super) fn rows(w: &Codes<'_>, first: usize, x: &Rounded, t: usize, y: &mut [f32]) {
    let (row_bytes, scale_bytes) = (w.row_bytes(), w.scale_row_bytes());
    let numbers = x.data[t * x.stride..][..x.stride].as_chunks::<2>().0;
    let sums = &x.sums[t * x.sum_stride()..];
    for (r, y) in (first..).zip(y) {
        let row = &w.codes[r * row_bytes..][..row_bytes];
        let scales = &w.scales[r * scale_bytes..][..scale_bytes];
        let mut total = 0.0;
        for (g, group_sum) in sums.iter().take(w.groups()).enumerate() {
            let numbers = &numbers[g * w.group..][..w.group];
            let mut sum = 0;
            for (i, number) in numbers.iter().enumerate() {
                let number = i16::from_le_bytes(number.map(|b| b as u8));
                sum += code(w.packing, row, g * w.group + i) * i32::from(number);
            }
            let s = scale(w.scale_type, scales, g);
            let bias = match w.packing {
                Packing::Bits(_) => scale(w.scale_type, &w.biases[r * scale_bytes..], g),
                Packing::Fp4 => s * w.bias_factor(),
            };
            total += s * w.scale_factor() * sum as f32 + bias * group_sum;
        }
        *y = x.scales[t] * total;
    }
}
