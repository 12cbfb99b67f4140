//! Affine quantisation.

/// Rows quantised by [`quantize_affine`].
#[derive(Clone, Debug, PartialEq)]
pub struct AffineRows {
    /// The codes of each row as one little-endian bit stream, that is as little-endian u32 words; rows follow
    /// without gaps.
    pub codes: Vec<u8>,
    /// One per group.
    pub scales: Vec<f32>,
    /// One per group.
    pub biases: Vec<f32>,
}

/// Quantises rows of `cols` values: `value = code * scale + bias` with unsigned codes of `bits` bits.
///
/// The end of a group's range that is larger in magnitude becomes the bias and is met exactly; the scale is
/// then nudged so that zero is a code too. Codes of one bit are the two ends of the range, 0 the lower.
/// Ties round to even. As MLX does, weights in bf16 or f16 are
/// quantised in f32, and scales and biases rounded to their type afterwards: codes do not depend on that
/// rounding.
///
/// # Panics
/// If the layout does not exist (bits in {1,2,3,4,5,6,8}, group in {32,64,128}), the group does not divide
/// `cols`, or `cols` does not divide the number of values.
pub fn quantize_affine(values: &[f32], cols: usize, bits: u32, group: usize) -> AffineRows {
    assert!(matches!(bits, 1..=6 | 8), "no affine layout has {bits} bits");
    assert!(matches!(group, 32 | 64 | 128), "no affine layout has groups of {group}");
    assert!(
        cols > 0 && cols.is_multiple_of(group) && values.len().is_multiple_of(cols),
        "{} values, rows of {cols}, groups of {group}",
        values.len()
    );

    let groups = values.len() / group;
    let mut rows = AffineRows {
        codes: Vec::with_capacity(values.len() / 8 * bits as usize),
        scales: Vec::with_capacity(groups),
        biases: Vec::with_capacity(groups),
    };
    let top = ((1u32 << bits) - 1) as f32;
    for values in values.chunks_exact(group) {
        let (scale, bias) = scale_and_bias(values, top);
        rows.scales.push(scale);
        rows.biases.push(bias);
        // Eight codes are `bits` whole bytes, and a group is a multiple of eight codes.
        for eight in values.chunks_exact(8) {
            let mut packed = 0u64;
            for (i, value) in eight.iter().enumerate() {
                let code = ((value - bias) / scale).round_ties_even().clamp(0.0, top) as u64;
                packed |= code << (i as u32 * bits);
            }
            rows.codes.extend(&packed.to_le_bytes()[..bits as usize]);
        }
    }
    rows
}

fn scale_and_bias(values: &[f32], top: f32) -> (f32, f32) {
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // MLX's floor: a constant group would otherwise divide by zero.
    let width = ((max - min) / top).max(1e-7);
    if top == 1.0 {
        return (width, min);
    }
    let (edge, scale) = if min.abs() > max.abs() { (min, width) } else { (max, -width) };
    let steps = (edge / scale).round_ties_even();
    if steps == 0.0 { (scale, 0.0) } else { (edge / steps, edge) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_round_to_even() {
        let mut values = [0.0; 32];
        values[..6].copy_from_slice(&[15.0, 0.0, 0.5, 1.5, 2.5, 3.5]);
        let rows = quantize_affine(&values, 32, 4, 32);
        // What mx.quantize gives: 0xffcceef0 in the first word.
        assert_eq!(rows.codes[..4], 0xffcceef0u32.to_le_bytes());
        assert_eq!((rows.scales[0], rows.biases[0]), (-1.0, 15.0));
    }

    #[test]
    fn one_bit_is_either_end() {
        let mut values = [0.0; 32];
        values[..4].copy_from_slice(&[3.0, -1.0, 1.0, 1.5]);
        let rows = quantize_affine(&values, 32, 1, 32);
        // What mx.quantize gives; 1 is in the middle, and goes to the even code.
        assert_eq!(rows, AffineRows { codes: vec![0b1001, 0, 0, 0], scales: vec![4.0], biases: vec![-1.0] });
    }

    #[test]
    fn zero_groups_stay_zero() {
        let rows = quantize_affine(&[0.0; 64], 64, 3, 64);
        assert_eq!(rows, AffineRows { codes: vec![0; 24], scales: vec![-1e-7], biases: vec![0.0] });
    }
}
