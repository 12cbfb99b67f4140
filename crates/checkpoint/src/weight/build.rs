//! Weights from bytes, checked for size.

use super::{Format, Weight};
use crate::{
    Bytes, Error, Float, Mode, Plane, QuantSpec, Result,
    small_floats::{E2M1_MAX, E4M3_MAX},
};

/// Neighbours that share an e8m0 scale.
pub(crate) const E8M0_GROUP: usize = 32;
/// Neighbours that share an e4m3 scale.
const NVFP4_GROUP: usize = 16;
/// The largest product of an e2m1 code and an e4m3 scale.
pub(crate) const NVFP4_RANGE: f32 = E2M1_MAX * E4M3_MAX;

impl Weight {
    /// A weight of plain floats. Fails unless `bytes` holds exactly `count * rows * cols` of them.
    pub fn plain(
        name: impl Into<String>,
        count: usize,
        rows: usize,
        cols: usize,
        float: Float,
        bytes: Bytes,
    ) -> Result<Weight> {
        let name = name.into();
        let data = Plane::new(&name, count, rows, cols as u128 * float.bytes() as u128, bytes)?;
        Ok(Self::bare(name, count, rows, cols, Format::Plain(float), data))
    }

    /// An affine-quantised weight. Fails unless the layout exists, groups divide the rows, and every part has
    /// exactly the bytes its shape needs.
    #[expect(
        clippy::too_many_arguments,
        reason = "a format is this many facts, and callers read better flat"
    )]
    pub fn affine(
        name: impl Into<String>,
        count: usize,
        rows: usize,
        cols: usize,
        bits: u32,
        group: usize,
        scale_float: Float,
        data: Bytes,
        scales: Bytes,
        biases: Bytes,
    ) -> Result<Weight> {
        let name = name.into();
        QuantSpec { mode: Mode::Affine, bits, group }.check(&name)?;
        if !cols.is_multiple_of(group) {
            return Err(Error::PartialGroup { name, cols, group });
        }
        let groups = (cols / group) as u128 * scale_float.bytes() as u128;
        // Exact: groups are multiples of 32, so a row is whole u32 words at any width.
        let codes = cols as u128 * bits as u128 / 8;
        let data = Plane::new(&name, count, rows, codes, data)?;
        let scales = Some(Plane::new(&format!("{name}.scales"), count, rows, groups, scales)?);
        let biases = Some(Plane::new(&format!("{name}.biases"), count, rows, groups, biases)?);
        let format = Format::Affine { bits, group, scale: scale_float };
        Ok(Weight { scales, biases, ..Self::bare(name, count, rows, cols, format, data) })
    }

    /// A weight of 4-bit floats with a power of two per 32. Fails unless 32 divides the rows and every part has exactly
    /// the bytes its shape needs.
    pub fn mxfp4(
        name: impl Into<String>,
        count: usize,
        rows: usize,
        cols: usize,
        data: Bytes,
        scales: Bytes,
    ) -> Result<Weight> {
        Self::small_floats(name.into(), [count, rows, cols], Format::Mxfp4, (4, E8M0_GROUP), data, scales)
    }

    /// A weight of 8-bit floats with a power of two per 32. Fails as [`Weight::mxfp4`].
    pub fn mxfp8(
        name: impl Into<String>,
        count: usize,
        rows: usize,
        cols: usize,
        data: Bytes,
        scales: Bytes,
    ) -> Result<Weight> {
        Self::small_floats(name.into(), [count, rows, cols], Format::Mxfp8, (8, E8M0_GROUP), data, scales)
    }

    /// A weight of 4-bit floats with an 8-bit float per 16, and as `global_scale` one number per matrix, or one for all
    /// (see [`Weight::global_factor`]). Fails as [`Weight::mxfp4`], with 16 for 32, or if the global scale has another
    /// length.
    pub fn nvfp4(
        name: impl Into<String>,
        count: usize,
        rows: usize,
        cols: usize,
        data: Bytes,
        scales: Bytes,
        global_scale: Option<Vec<f32>>,
    ) -> Result<Weight> {
        let weight = Self::small_floats(
            name.into(),
            [count, rows, cols],
            Format::Nvfp4,
            (4, NVFP4_GROUP),
            data,
            scales,
        )?;
        let global_scale = match global_scale {
            // With rows there are no more matrices than bytes; without, the count can be anything.
            Some(one) if one.len() == 1 && weight.stored_bytes() > 0 => Some(vec![one[0]; count]),
            other => other,
        };
        match &global_scale {
            Some(scales) if scales.len() != count => Err(Error::WrongShape {
                name: format!("{}.global_scale", weight.name),
                expected: vec![count],
                found: vec![scales.len()],
            }),
            _ => Ok(Weight { global_scale, ..weight }),
        }
    }

    /// A weight of 8-bit floats with a scale per block `[block_rows, block_cols]`; `scales` are f32,
    /// `[count, ceil(rows / block_rows), ceil(cols / block_cols)]`. Fails unless every part has exactly the bytes its
    /// shape needs, and blocks have sides.
    #[expect(
        clippy::too_many_arguments,
        reason = "a format is this many facts, and callers read better flat"
    )]
    pub fn fp8_blocks(
        name: impl Into<String>,
        count: usize,
        rows: usize,
        cols: usize,
        block_rows: usize,
        block_cols: usize,
        data: Bytes,
        scales: Bytes,
    ) -> Result<Weight> {
        let name = name.into();
        if block_rows == 0 || block_cols == 0 {
            let found = format!("fp8 with blocks of {block_rows} x {block_cols}");
            return Err(crate::quantization::unsupported(&name, found));
        }
        let data = Plane::new(&name, count, rows, cols as u128, data)?;
        let across = cols.div_ceil(block_cols) as u128 * Float::F32.bytes() as u128;
        let scales = Plane::shared(&format!("{name}.scale_inv"), count, rows, block_rows, across, scales)?;
        let format = Format::Fp8Blocks { block_rows, block_cols };
        Ok(Weight { scales: Some(scales), ..Self::bare(name, count, rows, cols, format, data) })
    }

    fn small_floats(
        name: String,
        [count, rows, cols]: [usize; 3],
        format: Format,
        (bits, group): (u128, usize),
        data: Bytes,
        scales: Bytes,
    ) -> Result<Weight> {
        if !cols.is_multiple_of(group) {
            return Err(Error::PartialGroup { name, cols, group });
        }
        let data = Plane::new(&name, count, rows, cols as u128 * bits / 8, data)?;
        let groups = (cols / group) as u128;
        let scales = Plane::new(&format!("{name}.scales"), count, rows, groups, scales)?;
        Ok(Weight { scales: Some(scales), ..Self::bare(name, count, rows, cols, format, data) })
    }

    fn bare(name: String, count: usize, rows: usize, cols: usize, format: Format, data: Plane) -> Weight {
        let (scales, biases, global_scale, bias) = (None, None, None, None);
        Weight { name, count, rows, cols, format, data, scales, biases, global_scale, bias }
    }
}
