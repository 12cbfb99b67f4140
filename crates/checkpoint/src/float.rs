//! The floating-point types weights are stored in.

use half::{bf16, f16};
use safetensors::Dtype;

/// Floating types a plain tensor, a scale or a bias can have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl Float {
    pub(crate) const EXPECTED: &str = "F32, F16 or BF16";

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }

    /// Value `i` of an array of this type, little-endian, at any alignment.
    ///
    /// # Panics
    /// If `bytes` is too short to hold a value `i`.
    #[inline]
    pub fn get(self, bytes: &[u8], i: usize) -> f32 {
        let two = || [bytes[2 * i], bytes[2 * i + 1]];
        match self {
            Float::F32 => {
                let b = &bytes[4 * i..4 * i + 4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
            Float::F16 => f16::from_le_bytes(two()).to_f32(),
            Float::Bf16 => bf16::from_le_bytes(two()).to_f32(),
        }
    }

    /// Appends a value in this type, little-endian: to nearest, ties to even; too large is infinity.
    #[inline]
    pub fn put(self, value: f32, bytes: &mut Vec<u8>) {
        match self {
            Float::F32 => bytes.extend(value.to_le_bytes()),
            Float::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            Float::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
        }
    }

    /// A whole array in this type: [`Float::put`] of each value.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(values.len() * self.bytes());
        values.iter().for_each(|value| self.put(*value, &mut bytes));
        bytes
    }

    /// The safetensors type of the same values.
    pub fn dtype(self) -> Dtype {
        match self {
            Float::F32 => Dtype::F32,
            Float::F16 => Dtype::F16,
            Float::Bf16 => Dtype::BF16,
        }
    }

    /// The floating type of a safetensors type, where it is one that we read.
    pub fn from_dtype(dtype: Dtype) -> Option<Float> {
        match dtype {
            Dtype::F32 => Some(Float::F32),
            Dtype::F16 => Some(Float::F16),
            Dtype::BF16 => Some(Float::Bf16),
            _ => None,
        }
    }

    /// Decodes a whole array.
    pub(crate) fn decode(self, bytes: &[u8]) -> Vec<f32> {
        (0..bytes.len() / self.bytes()).map(|i| self.get(bytes, i)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_the_nearest_value() {
        let two = |float: Float, value: f32| {
            let bytes = float.encode(&[value]);
            u16::from_le_bytes([bytes[0], bytes[1]])
        };
        for (value, bf16, f16) in [
            (1.0, 0x3f80, 0x3c00),
            (-0.0, 0x8000, 0x8000),
            // Half way between two values of bf16: to the even one, down and up.
            (f32::from_bits(0x3f80_8000), 0x3f80, 0x3c04),
            (f32::from_bits(0x3f81_8000), 0x3f82, 0x3c0c),
            (f32::from_bits(0x3f80_8001), 0x3f81, 0x3c04),
            // The same for f16.
            (f32::from_bits(0x3f80_1000), 0x3f80, 0x3c00),
            (f32::from_bits(0x3f80_3000), 0x3f80, 0x3c02),
            (65519.0, 0x4780, 0x7bff),
            (65520.0, 0x4780, 0x7c00),
            (f32::MAX, 0x7f80, 0x7c00),
            (2f32.powi(-25), 0x3300, 0x0000),
            (2f32.powi(-25).next_up(), 0x3300, 0x0001),
            (f32::from_bits(1 << 16), 0x0001, 0x0000),
        ] {
            assert_eq!((two(Float::Bf16, value), two(Float::F16, value)), (bf16, f16), "{value:e}");
            assert_eq!(Float::F32.encode(&[value]), value.to_le_bytes());
        }
        assert!(Float::Bf16.get(&Float::Bf16.encode(&[f32::from_bits(0x7f80_0001)]), 0).is_nan());
        assert_eq!(Float::F16.encode(&[1.0, -2.0]), [0x00, 0x3c, 0x00, 0xc0]);
    }

    #[test]
    fn reads_every_type_at_odd_addresses() {
        let mut bytes = vec![0];
        bytes.extend(1.5f32.to_le_bytes());
        bytes.extend(f16::from_f32(-0.25).to_le_bytes());
        bytes.extend(bf16::from_f32(3.0).to_le_bytes());
        assert_eq!(Float::F32.get(&bytes[1..], 0), 1.5);
        assert_eq!(Float::F16.get(&bytes[1..], 2), -0.25);
        assert_eq!(Float::Bf16.get(&bytes[1..], 3), 3.0);
        for float in [Float::F32, Float::F16, Float::Bf16] {
            assert_eq!(Float::from_dtype(float.dtype()), Some(float));
            assert_eq!(float.dtype().bitsize(), 8 * float.bytes());
        }
    }
}
