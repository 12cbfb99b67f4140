//! Quantised matrices as integer kernels see them: every format is unsigned codes with a scale and a bias per group.

use checkpoint::{Float, Format, Weight};

/// How the codes of a row lie in its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Packing {
    /// A little-endian stream of codes of so many bits: 1, 2, 3, 4, 5, 6 or 8.
    Bits(u32),
    /// Four bits that stand for one of 16 floats (e2m1). Twice the value plus 12 is a whole number from 0 to 24, and that
    /// is the code which kernels use; see [`Codes::scale_factor`].
    Fp4,
}

impl Packing {
    /// Bits of a stored code.
    pub fn bits(self) -> usize {
        match self {
            Packing::Bits(bits) => bits as usize,
            Packing::Fp4 => 4,
        }
    }
}

/// Twice the value plus 12 of every e2m1 code.
pub(crate) const FP4_CODES: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];

/// Most groups in a row that integer kernels take: 32,768 columns in groups of 32. No model comes near.
pub(crate) const MAX_GROUPS: usize = 1024;

/// How scales and biases are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScaleType {
    Bf16,
    F16,
    F32,
    /// A power of two, one byte.
    E8m0,
}

impl ScaleType {
    pub fn bytes(self) -> usize {
        match self {
            ScaleType::Bf16 | ScaleType::F16 => 2,
            ScaleType::F32 => 4,
            ScaleType::E8m0 => 1,
        }
    }
}

/// One quantised matrix `[rows, cols]`: `w = scale * code + bias`, one scale and one bias per `group` neighbours.
#[derive(Clone, Copy)]
pub(crate) struct Codes<'a> {
    pub packing: Packing,
    pub group: usize,
    pub rows: usize,
    pub cols: usize,
    pub scale_type: ScaleType,
    /// `rows` rows of `cols * bits / 8` bytes.
    pub codes: &'a [u8],
    /// `rows` rows of `cols / group` scales.
    pub scales: &'a [u8],
    /// As the scales; empty for [`Packing::Fp4`], where a bias is a multiple of its scale.
    pub biases: &'a [u8],
}

impl<'a> Codes<'a> {
    /// Matrix `m` of a weight, if its format is one that integer kernels know.
    pub fn of(weight: &'a Weight, m: usize) -> Option<Self> {
        let (packing, group, scale_type) = match weight.format {
            Format::Affine { bits, group, scale } => {
                let scale = match scale {
                    Float::Bf16 => ScaleType::Bf16,
                    Float::F16 => ScaleType::F16,
                    Float::F32 => ScaleType::F32,
                };
                (Packing::Bits(bits), group, scale)
            }
            Format::Mxfp4 => (Packing::Fp4, 32, ScaleType::E8m0),
            Format::Plain(_) | Format::Mxfp8 | Format::Nvfp4 | Format::Fp8Blocks { .. } => return None,
        };
        let (rows, cols) = (weight.rows, weight.cols);
        if cols / group > MAX_GROUPS {
            return None;
        }
        let codes = Codes {
            packing,
            group,
            rows,
            cols,
            scale_type,
            codes: weight.data.matrix(m),
            scales: weight.scales.as_ref()?.matrix(m),
            biases: weight.biases.as_ref().map_or(&[], |biases| biases.matrix(m)),
        };
        codes.check();
        Some(codes)
    }

    /// What kernels rely on when they read without further checks.
    fn check(&self) {
        assert!(self.cols.is_multiple_of(self.group) && matches!(self.group, 32 | 64 | 128));
        assert_eq!(self.codes.len(), self.rows * self.row_bytes());
        assert_eq!(self.scales.len(), self.rows * self.scale_row_bytes());
        match self.packing {
            Packing::Bits(bits) => {
                assert!(matches!(bits, 1..=6 | 8));
                assert_eq!(self.biases.len(), self.scales.len());
            }
            Packing::Fp4 => assert!(self.biases.is_empty()),
        }
    }

    pub fn row_bytes(&self) -> usize {
        self.cols * self.packing.bits() / 8
    }

    pub fn scale_row_bytes(&self) -> usize {
        self.groups() * self.scale_type.bytes()
    }

    /// Groups in a row.
    pub fn groups(&self) -> usize {
        self.cols / self.group
    }

    /// What a stored scale is multiplied with to be the scale of a code.
    pub fn scale_factor(&self) -> f32 {
        match self.packing {
            Packing::Bits(_) => 1.0,
            Packing::Fp4 => 0.5,
        }
    }

    /// The bias as a multiple of the stored scale, for formats that store none.
    pub fn bias_factor(&self) -> f32 {
        match self.packing {
            Packing::Bits(_) => 0.0,
            Packing::Fp4 => -6.0,
        }
    }
}
