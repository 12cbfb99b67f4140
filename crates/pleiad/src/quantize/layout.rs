//! How weights can be quantised, as flags and recipes say it.

use checkpoint::{Mode, QuantSpec};
use clap::ValueEnum;

use super::error::{Error, Result};

/// What a code means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ModeChoice {
    /// An integer, times a scale, plus a bias
    Affine,
    /// A 4-bit float, times a power of two per 32
    Mxfp4,
    /// An 8-bit float, times a power of two per 32
    Mxfp8,
    /// A 4-bit float, times an 8-bit float per 16
    Nvfp4,
}

impl ModeChoice {
    fn mode(self) -> Mode {
        match self {
            ModeChoice::Affine => Mode::Affine,
            ModeChoice::Mxfp4 => Mode::Mxfp4,
            ModeChoice::Mxfp8 => Mode::Mxfp8,
            ModeChoice::Nvfp4 => Mode::Nvfp4,
        }
    }

    /// Bits and group where none are asked for; for all modes but affine the only ones.
    fn defaults(self) -> (u32, usize) {
        match self {
            ModeChoice::Affine => (4, 64),
            ModeChoice::Mxfp4 => (4, 32),
            ModeChoice::Mxfp8 => (8, 32),
            ModeChoice::Nvfp4 => (4, 16),
        }
    }

    /// The layout with these bits and this group, where it exists.
    pub fn layout(self, bits: Option<u32>, group: Option<usize>) -> Result<QuantSpec> {
        let (default_bits, default_group) = self.defaults();
        let (bits, group) = (bits.unwrap_or(default_bits), group.unwrap_or(default_group));
        let exists = match self {
            ModeChoice::Affine => matches!(bits, 1..=6 | 8) && matches!(group, 32 | 64 | 128),
            fixed => (bits, group) == fixed.defaults(),
        };
        let spec = QuantSpec { mode: self.mode(), bits, group };
        if exists { Ok(spec) } else { Err(Error::Layout { what: describe(spec) }) }
    }
}

/// A layout for people.
pub fn describe(QuantSpec { mode, bits, group }: QuantSpec) -> String {
    format!("{} with {bits} bits in groups of {group}", mode.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_layouts_of_mlx_exist() {
        for bits in [1, 2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                ModeChoice::Affine.layout(Some(bits), Some(group)).unwrap();
            }
        }
        for (bits, group) in [(0, 64), (7, 64), (16, 64), (4, 16), (4, 0), (4, 256)] {
            assert!(ModeChoice::Affine.layout(Some(bits), Some(group)).is_err(), "{bits} {group}");
        }
        let spec = ModeChoice::Nvfp4.layout(None, None).unwrap();
        assert_eq!((spec.bits, spec.group), (4, 16));
        assert!(ModeChoice::Mxfp4.layout(Some(8), None).is_err());
        assert!(ModeChoice::Mxfp8.layout(None, Some(64)).is_err());
    }
}
