//! What a family is to the rest: a table.

use checkpoint::{Checkpoint, Config, Mode, QuantSpec};

use crate::config::Fields;
use crate::families::{deepseek_v3, gemma4, qwen3, qwen3_5};
use crate::spec::Spec;
use crate::weights::Role;
use crate::{Error, Result};

/// All families.
pub const FAMILIES: &[&Family] = &[
    &qwen3_5::FAMILY,
    &qwen3_5::NEXT,
    &qwen3::MOE,
    &qwen3::DENSE,
    &deepseek_v3::FAMILY,
    &gemma4::FAMILY,
    &gemma4::TEXT,
];

/// Everything that is particular about a family. Its weights and their shapes follow from the
/// [`Spec`] that it reads.
pub struct Family {
    /// Values of `model_type`.
    pub types: &'static [&'static str],
    /// Branch, with a dot at its end, in which mlx-lm's class keeps the text model.
    pub prefix: &'static str,
    /// Reads `config.json`: the text model's fields, then the whole file's, which are the same
    /// where there is no other.
    pub(crate) read: fn(Fields<'_>, Fields<'_>) -> Result<Spec>,
    /// What is to be added to norms as a checkpoint stores them.
    pub(crate) norm_offset: fn(&Checkpoint) -> f32,
    /// How mlx-lm quantises routers and gates of shared experts: `quant_predicate` of its class.
    pub router: Quantise,
    /// Values that keep their type where others are cast: `cast_predicate` of mlx-lm's class.
    pub keeps_type: &'static [Role],
    /// Shapes of real models.
    pub presets: &'static [Preset],
}

/// How a matrix is quantised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantise {
    /// Like the rest.
    Ordinary,
    /// So, unless a recipe says otherwise.
    As(QuantSpec),
    /// Not a layer that mlx-lm can quantise.
    Never,
}

impl Quantise {
    /// What most of mlx-lm's classes say of routers.
    pub const WIDE: Quantise = Quantise::As(QuantSpec { mode: Mode::Affine, bits: 8, group: 64 });
}

/// A shape that `synth` can make.
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The text of its `config.json`, without `quantization`.
    pub config: &'static str,
    /// Files beside the weights.
    pub files: &'static [(&'static str, &'static [u8])],
}

impl Family {
    /// The family of a `config.json`.
    pub fn of(config: &Config) -> Result<&'static Family> {
        let found = config.model_type()?;
        FAMILIES.iter().find(|family| family.types.contains(&found)).copied().ok_or_else(|| {
            let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.types).copied().collect();
            Error::UnknownFamily { found: found.into(), known: known.join(", ") }
        })
    }

    /// The model that a `config.json` declares.
    pub fn spec(&self, config: &Config) -> Result<Spec> {
        (self.read)(Fields(config.text()), Fields(config.root()))
    }

    /// How a matrix of this role is quantised.
    pub fn quantise(&self, role: Role) -> Quantise {
        match role {
            Role::Router { .. } | Role::SharedGate => self.router,
            _ => Quantise::Ordinary,
        }
    }
}

/// Norms as they are used.
pub(crate) fn no_offset(_: &Checkpoint) -> f32 {
    0.0
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_preset_is_read_by_its_family() {
        for family in FAMILIES {
            for Preset { name, config, .. } in family.presets {
                let config = Config::from_str(config, Path::new(name)).unwrap();
                assert_eq!(Family::of(&config).unwrap().types, family.types, "{name}");
                let spec = family.spec(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
                let weights = spec.weights(family.prefix);
                let mut paths: Vec<&str> = weights.iter().map(|w| w.path.as_str()).collect();
                paths.sort_unstable();
                assert!(paths.windows(2).all(|pair| pair[0] != pair[1]), "{name}: a name twice");
                assert!(paths.iter().all(|path| path.starts_with(family.prefix)), "{name}");
            }
        }
    }

    #[test]
    fn each_model_type_has_one_family() {
        let mut types: Vec<&str> = FAMILIES.iter().flat_map(|family| family.types).copied().collect();
        types.sort_unstable();
        assert!(types.windows(2).all(|pair| pair[0] != pair[1]), "{types:?}");
    }
}
