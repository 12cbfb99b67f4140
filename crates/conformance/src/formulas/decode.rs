//! Stored weights to numbers, bit by bit.

use checkpoint::Float;

/// Value `i` of an array of floats.
pub fn float(kind: Float, bytes: &[u8], i: usize) -> f64 {
    let at = i * kind.bytes();
    let word =
        bytes[at..at + kind.bytes()].iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
    match kind {
        Float::F32 => f64::from(f32::from_bits(word)),
        Float::Bf16 => f64::from(f32::from_bits(word << 16)),
        Float::F16 => {
            let sign = if word >> 15 == 1 { -1.0 } else { 1.0 };
            let (exponent, fraction) = ((word >> 10 & 31) as i32, f64::from(word & 1023) / 1024.0);
            assert!(exponent < 31, "the samples are finite");
            match exponent {
                0 => sign * fraction * 2f64.powi(-14),
                _ => sign * (1.0 + fraction) * 2f64.powi(exponent - 15),
            }
        }
    }
}

/// All values of rows without gaps: `code * scale + bias`, code `i` being bits `[i*bits, (i+1)*bits)` of the stream.
/// Rows are whole bytes, so all rows together are one stream too.
pub fn affine(
    codes: &[u8],
    scales: &[u8],
    biases: &[u8],
    bits: usize,
    group: usize,
    scale: Float,
) -> Vec<f64> {
    let bit = |position: usize| u32::from(codes[position / 8] >> (position % 8) & 1);
    let value = |i: usize| {
        let code: u32 = (0..bits).map(|j| bit(i * bits + j) << j).sum();
        f64::from(code) * float(scale, scales, i / group) + float(scale, biases, i / group)
    };
    (0..codes.len() * 8 / bits).map(value).collect()
}

/// The 4-bit float `i` of a stream: sign, two bits of exponent with bias 1, one of mantissa.
pub fn e2m1(codes: &[u8], i: usize) -> f64 {
    small(u32::from(codes[i / 2] >> (i % 2 * 4)) & 15, 2, 1)
}

/// An 8-bit float: sign, four bits of exponent with bias 7, three of mantissa.
pub fn e4m3(code: u8) -> f64 {
    assert!(code & 127 != 127, "the samples are finite");
    small(u32::from(code), 4, 3)
}

fn small(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    let sign = if code >> (exponent_bits + mantissa_bits) == 1 { -1.0 } else { 1.0 };
    let exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    match exponent {
        0 => sign * fraction * 2f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2f64.powi(exponent as i32 - bias),
    }
}
