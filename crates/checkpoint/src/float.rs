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
