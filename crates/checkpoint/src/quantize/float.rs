//! Quantisation to 4-bit and 8-bit floats.
//!
//! The result is that of `mx.quantize` on the CPU (MLX 0.32) of the same values in f32 or bf16, except where that is
//! not a rounding of the weights at all. A group whose scale would be subnormal (its largest magnitude below some 1e-36)
//! gets the scale of some other number from MLX; here it is rounded up as others are. A value some 2^25 times as large
//! as its `nvfp4` scale can be becomes zero in MLX, and here the largest code. MLX on Metal differs from both: e2m1
//! ties go to even, and a negative number that becomes zero keeps its sign.

use crate::small_floats::{E2M1_MAX, E4M3, E4M3_MAX, e8m0, to_e2m1, to_e4m3, to_e8m0_up};

/// Rows quantised by [`quantize_mxfp4`], [`quantize_mxfp8`] or [`quantize_nvfp4`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloatRows {
    /// The codes of each row as one little-endian bit stream, that is as little-endian u32 words; rows follow
    /// without gaps.
    pub codes: Vec<u8>,
    /// One byte per group.
    pub scales: Vec<u8>,
}

/// Quantises rows of `cols` values to e2m1 with an e8m0 scale per 32: the smallest power of two by which the largest
/// magnitude of the group becomes at most 6.
///
/// # Panics
/// If 32 does not divide `cols`, or `cols` does not divide the number of values.
pub fn quantize_mxfp4(values: &[f32], cols: usize) -> FloatRows {
    quantize(values, cols, 32, E2M1_MAX, mx_scale, four_bits)
}

/// Quantises rows of `cols` values to e4m3 with an e8m0 scale per 32: the smallest power of two by which the largest
/// magnitude of the group becomes at most 448.
///
/// # Panics
/// If 32 does not divide `cols`, or `cols` does not divide the number of values.
pub fn quantize_mxfp8(values: &[f32], cols: usize) -> FloatRows {
    quantize(values, cols, 32, E4M3_MAX, mx_scale, |values, codes| {
        codes.extend(values.iter().map(|v| to_e4m3(*v)))
    })
}

/// Quantises rows of `cols` values to e2m1 with an e4m3 scale per 16, the nearest to a sixth of the group's largest
/// magnitude, and no global scale. Groups of magnitudes below some 0.006 become zero, and what is above 2688 is lost.
///
/// # Panics
/// If 16 does not divide `cols`, or `cols` does not divide the number of values.
pub fn quantize_nvfp4(values: &[f32], cols: usize) -> FloatRows {
    let scale = |wanted| {
        let byte = to_e4m3(wanted);
        (byte, E4M3[usize::from(byte)])
    };
    quantize(values, cols, 16, E2M1_MAX, scale, four_bits)
}

fn mx_scale(wanted: f32) -> (u8, f32) {
    let byte = to_e8m0_up(wanted);
    (byte, e8m0(byte))
}

fn four_bits(values: &[f32], codes: &mut Vec<u8>) {
    codes.extend(values.chunks_exact(2).map(|pair| to_e2m1(pair[0]) | to_e2m1(pair[1]) << 4));
}

fn quantize(
    values: &[f32],
    cols: usize,
    group: usize,
    top: f32,
    scale: impl Fn(f32) -> (u8, f32),
    encode: impl Fn(&[f32], &mut Vec<u8>),
) -> FloatRows {
    assert!(
        cols > 0 && cols.is_multiple_of(group) && values.len().is_multiple_of(cols),
        "{} values, rows of {cols}, groups of {group}",
        values.len()
    );
    let mut rows = FloatRows {
        codes: Vec::with_capacity(values.len()),
        scales: Vec::with_capacity(values.len() / group),
    };
    let mut scaled = vec![0.0; group];
    for values in values.chunks_exact(group) {
        let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        let (byte, scale) = scale(largest / top);
        rows.scales.push(byte);
        for (scaled, value) in scaled.iter_mut().zip(values) {
            // A scale that rounded to zero makes the group zero.
            *scaled = if scale == 0.0 { 0.0 } else { value / scale };
        }
        encode(&scaled, &mut rows.codes);
    }
    rows.codes.shrink_to_fit();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_stays_in_range() {
        let mut values = [0.0; 32];
        (values[0], values[1], values[31]) = (6.5, -6.5, 0.4);
        let rows = quantize_mxfp4(&values, 32);
        assert_eq!(rows.scales, [128]);
        // 3.25 of the scale is 3, 0.2 is nothing.
        assert_eq!((rows.codes[0], rows.codes[15]), (0xd5, 0x00));
        let rows = quantize_mxfp8(&values, 32);
        assert_eq!((rows.scales[0], E4M3[usize::from(rows.codes[0])] * e8m0(rows.scales[0])), (121, 6.5));
        let rows = quantize_nvfp4(&values, 32);
        assert_eq!((rows.codes[0], &rows.scales[..]), (0xf7, &[57, 25][..]));
    }

    #[test]
    fn hopeless_values_do_as_well_as_they_can() {
        // Not checked against MLX, which loses them.
        for tiny in [1e-40, 1e-38, 3e-37] {
            let rows = quantize_mxfp4(&[tiny; 32], 32);
            assert!(rows.scales[0] <= 5, "{tiny}: {:?}", rows.scales);
            let rows = quantize_mxfp8(&[-tiny; 32], 32);
            assert!(rows.scales[0] <= 5, "{tiny}: {:?}", rows.scales);
        }
        let rows = quantize_nvfp4(&[-3e38; 16], 16);
        assert_eq!((rows.codes, rows.scales), (vec![0xff; 8], vec![0x7e]));
        for values in [[f32::INFINITY; 32], [f32::NAN; 32], [f32::MAX; 32]] {
            quantize_mxfp4(&values, 32);
            quantize_mxfp8(&values, 32);
            quantize_nvfp4(&values, 32);
        }
    }
}
