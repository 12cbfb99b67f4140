//! A block of rows to bytes.

use checkpoint::{Float, Mode, QuantSpec, quantize_affine, quantize_mxfp4, quantize_mxfp8, quantize_nvfp4};

/// Quantised rows as they are stored.
pub(super) struct Encoded {
    pub codes: Vec<u8>,
    pub scales: Vec<u8>,
    /// Empty where the layout has none.
    pub biases: Vec<u8>,
}

/// Rounds values to what a type can hold.
pub(super) fn round_to(float: Float, values: &mut [f32]) {
    let mut bytes = Vec::with_capacity(4);
    for value in values {
        bytes.clear();
        float.put(*value, &mut bytes);
        *value = float.get(&bytes, 0);
    }
}

/// Quantises rows of `cols` values; scales and biases are of type `float` where the layout has floats there.
pub(super) fn encode(values: &[f32], cols: usize, layout: QuantSpec, float: Float) -> Encoded {
    let rows = match layout.mode {
        Mode::Affine => {
            let rows = quantize_affine(values, cols, layout.bits, layout.group);
            let (scales, biases) = (float.encode(&rows.scales), float.encode(&rows.biases));
            return Encoded { codes: rows.codes, scales, biases };
        }
        Mode::Mxfp4 => quantize_mxfp4(values, cols),
        Mode::Mxfp8 => quantize_mxfp8(values, cols),
        Mode::Nvfp4 => quantize_nvfp4(values, cols),
    };
    Encoded { codes: rows.codes, scales: rows.scales, biases: Vec::new() }
}
