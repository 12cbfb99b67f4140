//! The `quantization` section of `config.json`: how each weight was quantised.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value};

use crate::{Error, Result};

const AFFINE: &str = "affine with 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128";
const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
const GROUPS: [usize; 3] = [32, 64, 128];

/// What a quantised code means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Unsigned code times a scale plus a bias, both per group.
    Affine,
    /// 4-bit floats (e2m1) with a power-of-two scale per group of 32.
    Mxfp4,
    /// 8-bit floats (e4m3) with a power-of-two scale per group of 32.
    Mxfp8,
    /// 4-bit floats (e2m1) with an 8-bit float scale per group of 16.
    Nvfp4,
}

/// How one weight was quantised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct QuantSpec {
    /// What a code means.
    pub mode: Mode,
    /// Bits of a code.
    pub bits: u32,
    /// Neighbours in a row that share a scale.
    pub group: usize,
}

/// How the weights of a checkpoint were quantised: a default, and exceptions by tensor path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Quantization {
    /// For every weight that is not an exception; `None` when the checkpoint is not quantised.
    pub default: Option<QuantSpec>,
    /// `None`: that weight is not quantised.
    exceptions: BTreeMap<String, Option<QuantSpec>>,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Affine, Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4];

    /// The name in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Mxfp8 => "mxfp8",
            Mode::Nvfp4 => "nvfp4",
        }
    }

    /// What MLX takes where the config names the mode alone. For all modes but affine it is the only choice.
    fn defaults(self) -> QuantSpec {
        let (bits, group) = match self {
            Mode::Affine => (4, 64),
            Mode::Mxfp4 => (4, 32),
            Mode::Mxfp8 => (8, 32),
            Mode::Nvfp4 => (4, 16),
        };
        QuantSpec { mode: self, bits, group }
    }
}

impl QuantSpec {
    /// Fails unless the layout exists; `path` is the tensor or config field to blame.
    pub(crate) fn check(self, path: &str) -> Result<QuantSpec> {
        let exists = match self.mode {
            Mode::Affine => BITS.contains(&self.bits) && GROUPS.contains(&self.group),
            fixed => self == fixed.defaults(),
        };
        if exists { Ok(self) } else { Err(unsupported(path, self.describe())) }
    }

    pub(crate) fn describe(self) -> String {
        format!("{} with {} bits and groups of {}", self.mode.name(), self.bits, self.group)
    }
}

impl Quantization {
    /// How the weight at `path` (a tensor name without `.weight`) was quantised.
    pub fn for_path(&self, path: &str) -> Option<QuantSpec> {
        match self.exceptions.get(path) {
            Some(exception) => *exception,
            None => self.default,
        }
    }

    /// Whether the config has an entry of its own for the weight at `path`.
    pub(crate) fn names(&self, path: &str) -> bool {
        self.exceptions.contains_key(path)
    }

    /// The weights that do not follow the default, by path; `None` means not quantised.
    pub fn exceptions(&self) -> impl Iterator<Item = (&str, Option<QuantSpec>)> {
        self.exceptions.iter().map(|(path, spec)| (path.as_str(), *spec))
    }

    /// Finds the section: `quantization` is MLX's own. `quantization_config` is Hugging Face's name for what
    /// any tool did; MLX writes its section under that name too, and only then do we understand it.
    pub(crate) fn from_config(root: &Value, path: &Path) -> Result<Quantization> {
        if let Some(section) = present(root.get("quantization")) {
            return Self::from_section(section, "quantization", path);
        }
        let (name, section) = match present(root.get("quantization_config")) {
            Some(section) => ("quantization_config", section),
            None => match present(root.get("text_config").and_then(|text| text.get("quantization_config"))) {
                Some(section) => ("text_config.quantization_config", section),
                None => return Ok(Quantization::default()),
            },
        };
        match present(section.get("quant_method")) {
            Some(Value::String(method)) if method == "mlx" => {}
            Some(method) => return Err(unsupported(name, format!("quant_method {method}"))),
            None => {}
        }
        if section.get("bits").is_some() && section.get("group_size").is_some() {
            Self::from_section(section, name, path)
        } else {
            Ok(Quantization::default())
        }
    }

    fn from_section(section: &Value, name: &str, path: &Path) -> Result<Quantization> {
        let Value::Object(section) = section else {
            return Err(field(path, name, "must be an object"));
        };
        let has = |key: &str| present(section.get(key)).is_some();
        // mlx-lm insists on both numbers here (an exception may leave them to the mode's defaults), so a
        // section with only one of them is damaged rather than terse.
        let default = match (has("bits"), has("group_size")) {
            (true, true) => Some(spec(section, name, name, path)?),
            (false, false) if has("mode") => Some(spec(section, name, name, path)?),
            (false, false) => None,
            (false, true) => return Err(field(path, &format!("{name}.bits"), "is missing")),
            (true, false) => return Err(field(path, &format!("{name}.group_size"), "is missing")),
        };
        let mut exceptions = BTreeMap::new();
        for (key, value) in section {
            match value {
                Value::Bool(false) => exceptions.insert(key.clone(), None),
                Value::Object(own) if ["bits", "group_size", "mode"].iter().any(|k| own.contains_key(*k)) => {
                    let at = format!("{name}.{key}");
                    exceptions.insert(key.clone(), Some(spec(own, key, &at, path)?))
                }
                // `true` repeats the default; anything else is some tool's note.
                _ => None,
            };
        }
        Ok(Quantization { default, exceptions })
    }
}

/// `tensor` is blamed for a layout that does not exist, `at` for a value of the wrong kind.
fn spec(section: &Map<String, Value>, tensor: &str, at: &str, path: &Path) -> Result<QuantSpec> {
    let mode = match present(section.get("mode")) {
        None => Mode::Affine,
        Some(Value::String(name)) => *Mode::ALL
            .iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| unsupported(tensor, format!("mode `{name}`")))?,
        Some(_) => return Err(field(path, &format!("{at}.mode"), "must be a string")),
    };
    let whole = |key: &str, default: u64| match present(section.get(key)) {
        None => Ok(default),
        Some(value) => {
            value.as_u64().ok_or_else(|| field(path, &format!("{at}.{key}"), "must be a whole number"))
        }
    };
    let defaults = mode.defaults();
    let bits = whole("bits", defaults.bits.into())?;
    let group = whole("group_size", defaults.group as u64)?;
    match (u32::try_from(bits), usize::try_from(group)) {
        (Ok(bits), Ok(group)) => QuantSpec { mode, bits, group }.check(tensor),
        _ => Err(unsupported(tensor, format!("{} with {bits} bits and groups of {group}", mode.name()))),
    }
}

/// JSON null counts as absent.
fn present(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| !value.is_null())
}

pub(crate) fn unsupported(path: &str, found: String) -> Error {
    Error::UnsupportedQuantization { path: path.to_owned(), found, supported: AFFINE.to_owned() }
}

fn field(path: &Path, field: &str, problem: &str) -> Error {
    Error::ConfigField { path: path.to_owned(), field: field.to_owned(), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(root: Value) -> Result<Quantization> {
        Quantization::from_config(&root, Path::new("some/config.json"))
    }

    const fn affine(bits: u32, group: usize) -> QuantSpec {
        QuantSpec { mode: Mode::Affine, bits, group }
    }

    #[test]
    fn exceptions_go_before_the_default() {
        let q = read(json!({"quantization": {
            "group_size": 64, "bits": 4,
            "a.gate": {"group_size": 32, "bits": 8},
            "a.terse": {"bits": 6},
            "a.plain": false,
            "a.same": true,
            "a.fp": {"mode": "mxfp4"},
            "linear_class": "x", "notes": {"by": "someone"}
        }}))
        .unwrap();
        assert_eq!(q.default, Some(affine(4, 64)));
        assert_eq!(q.for_path("a.gate"), Some(affine(8, 32)));
        assert_eq!(q.for_path("a.terse"), Some(affine(6, 64)));
        assert_eq!(q.for_path("a.plain"), None);
        assert_eq!(q.for_path("a.same"), Some(affine(4, 64)));
        assert_eq!(q.for_path("a.fp"), Some(QuantSpec { mode: Mode::Mxfp4, bits: 4, group: 32 }));
        assert_eq!(q.for_path("a.gate.inner"), Some(affine(4, 64)), "exact paths only");
        assert_eq!(q.exceptions().count(), 4);
    }

    #[test]
    fn the_section_is_found_where_mlx_lm_looks() {
        let ours = json!({"group_size": 128, "bits": 3});
        let theirs = json!({"quant_method": "gptq", "group_size": 128, "bits": 4});
        let found = |root| read(root).unwrap().default;
        assert_eq!(found(json!({})), None);
        assert_eq!(found(json!({"quantization": null, "quantization_config": {}})), None);
        assert_eq!(found(json!({"quantization_config": ours})), Some(affine(3, 128)));
        assert_eq!(found(json!({"text_config": {"quantization_config": ours}})), Some(affine(3, 128)));
        assert_eq!(found(json!({"quantization": ours, "quantization_config": theirs})), Some(affine(3, 128)));
        let error = read(json!({"quantization_config": theirs})).unwrap_err();
        assert!(
            matches!(&error, Error::UnsupportedQuantization { path, .. } if path == "quantization_config")
        );
        assert!(error.to_string().contains("gptq"), "{error}");
    }

    #[test]
    fn only_layouts_that_exist_pass() {
        for (section, blamed) in [
            (json!({"group_size": 64, "bits": 7}), "quantization"),
            (json!({"group_size": 16, "bits": 4}), "quantization"),
            (json!({"group_size": 64, "bits": 4, "mode": "turbo"}), "quantization"),
            (json!({"group_size": 64, "bits": 4, "mode": "mxfp4"}), "quantization"),
            (json!({"group_size": 64, "bits": u64::MAX}), "quantization"),
            (json!({"group_size": 64, "bits": 4, "x.y": {"bits": 1}}), "x.y"),
        ] {
            let error = read(json!({ "quantization": section })).unwrap_err();
            assert!(
                matches!(&error, Error::UnsupportedQuantization { path, .. } if path == blamed),
                "{error}"
            );
            assert!(error.to_string().contains("2, 3, 4, 5, 6 or 8 bits"), "{error}");
        }
        for mode in Mode::ALL {
            assert_eq!(mode.defaults().check("x").unwrap(), mode.defaults());
        }
    }

    #[test]
    fn values_of_the_wrong_kind_name_file_and_field() {
        for (section, blamed) in [
            (json!(4), "quantization"),
            (json!({"bits": 4}), "quantization.group_size"),
            (json!({"group_size": 64}), "quantization.bits"),
            (json!({"group_size": 64, "bits": 4.5}), "quantization.bits"),
            (json!({"group_size": -64, "bits": 4}), "quantization.group_size"),
            (json!({"group_size": 64, "bits": 4, "mode": 1}), "quantization.mode"),
            (json!({"group_size": 64, "bits": 4, "x.y": {"bits": "4"}}), "quantization.x.y.bits"),
        ] {
            let error = read(json!({ "quantization": section })).unwrap_err();
            assert!(matches!(&error, Error::ConfigField { field, .. } if field == blamed), "{error}");
            assert!(error.to_string().contains("some/config.json"), "{error}");
        }
    }
}
