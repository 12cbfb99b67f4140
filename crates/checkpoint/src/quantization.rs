//! The `quantization` section of `config.json`: how each weight was quantised.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value};

use crate::{Error, Result};

const SUPPORTED: &str = "affine with 1, 2, 3, 4, 5, 6 or 8 bits and groups of 32, 64 or 128, mxfp4 (4 bits, groups of 32), \
    mxfp8 (8 bits, groups of 32), nvfp4 (4 bits, groups of 16), and from other tools than MLX quant_method fp8 (e4m3 with \
    a scale per block), mxfp4 and mxfp8";
/// The blocks of DeepSeek's originals, which not every config names.
const FP8_BLOCK: [usize; 2] = [128, 128];
const BITS: [u32; 7] = [1, 2, 3, 4, 5, 6, 8];
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
    /// Rows and columns of a block that shares a scale, where the config gives them.
    fp8_block: Option<[usize; 2]>,
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

    fn describe(self) -> String {
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

    /// Rows and columns that share a scale in weights of 8-bit floats with scales per block (`weight_scale_inv`).
    pub fn fp8_block(&self) -> [usize; 2] {
        self.fp8_block.unwrap_or(FP8_BLOCK)
    }

    /// The weights that do not follow the default, by path; `None` means not quantised.
    pub fn exceptions(&self) -> impl Iterator<Item = (&str, Option<QuantSpec>)> {
        self.exceptions.iter().map(|(path, spec)| (path.as_str(), *spec))
    }

    /// Finds the section: `quantization` is MLX's own. `quantization_config` is Hugging Face's name for what
    /// any tool did; MLX writes its section under that name too. Of other tools' methods we understand those whose
    /// tensors say the rest themselves.
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
            None => {}
            Some(Value::String(method)) => match method.as_str() {
                "mlx" => {}
                "mxfp4" => return Ok(Self::of_mode(Mode::Mxfp4)),
                "mxfp8" => return Ok(Self::of_mode(Mode::Mxfp8)),
                "fp8" => return Self::fp8(section, name, path),
                _ => return Err(unsupported(name, format!("quant_method `{method}`"))),
            },
            Some(_) => return Err(field(path, &format!("{name}.quant_method"), "must be a string")),
        }
        if section.get("bits").is_some() && section.get("group_size").is_some() {
            Self::from_section(section, name, path)
        } else {
            Ok(Quantization::default())
        }
    }

    /// All weights in a mode that needs no more words.
    fn of_mode(mode: Mode) -> Quantization {
        Quantization { default: Some(mode.defaults()), ..Quantization::default() }
    }

    /// Hugging Face's `fp8`: e4m3 codes with a scale per block.
    fn fp8(section: &Value, name: &str, path: &Path) -> Result<Quantization> {
        match present(section.get("fmt")) {
            None => {}
            Some(Value::String(fmt)) if fmt == "e4m3" => {}
            Some(fmt) => return Err(unsupported(name, format!("quant_method `fp8` with fmt {fmt}"))),
        }
        let sides = present(section.get("weight_block_size")).map(|value| {
            let side =
                |i: usize| value.get(i)?.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            match (value.as_array().map(Vec::len), side(0), side(1)) {
                (Some(2), Some(rows), Some(cols)) => Ok([rows, cols]),
                _ => {
                    let at = format!("{name}.weight_block_size");
                    Err(field(path, &at, "must be two whole numbers, rows and columns of a block"))
                }
            }
        });
        // The scales of an MLX section, if the same config has one, were found before this.
        Ok(Quantization { fp8_block: sides.transpose()?, ..Quantization::default() })
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
        Ok(Quantization { default, exceptions, fp8_block: None })
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
    Error::UnsupportedQuantization { path: path.to_owned(), found, supported: SUPPORTED.to_owned() }
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
    fn methods_of_other_tools() {
        for (method, mode) in [("mxfp4", Mode::Mxfp4), ("mxfp8", Mode::Mxfp8)] {
            let q = read(json!({"quantization_config": {"quant_method": method, "bits": 3}})).unwrap();
            assert_eq!((q.default, q.exceptions().count()), (Some(mode.defaults()), 0));
        }
        let fp8 = |more: Value| {
            let mut section = json!({"quant_method": "fp8", "activation_scheme": "dynamic"});
            section.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            [
                json!({"quantization_config": section}),
                json!({"text_config": {"quantization_config": section}}),
            ]
            .map(read)
        };
        for (more, block) in [
            (json!({}), [128, 128]),
            (json!({"fmt": "e4m3", "weight_block_size": [64, 32]}), [64, 32]),
            (json!({"fmt": null, "weight_block_size": null}), [128, 128]),
        ] {
            for q in fp8(more).map(Result::unwrap) {
                assert_eq!((q.default, q.fp8_block()), (None, block));
            }
        }
        for sides in
            [json!(128), json!([128]), json!([1, 2, 3]), json!([0, 128]), json!([1.5, 2]), json!("128")]
        {
            for error in fp8(json!({"weight_block_size": sides})).map(Result::unwrap_err) {
                assert!(
                    matches!(&error, Error::ConfigField { field, .. } if field.ends_with("quantization_config.weight_block_size")),
                    "{error}"
                );
            }
        }
        for error in fp8(json!({"fmt": "e5m2"})).map(Result::unwrap_err) {
            assert!(error.to_string().contains("e5m2"), "{error}");
        }
        for method in ["awq", "bitsandbytes", "compressed-tensors", "modelopt", ""] {
            let error =
                read(json!({"quantization_config": {"quant_method": method, "bits": 4}})).unwrap_err();
            for word in
                ["quantization_config", &format!("`{method}`"), "mxfp4", "mxfp8", "nvfp4", "fp8", "affine"]
            {
                assert!(error.to_string().contains(word), "{error}");
            }
        }
        let error = read(json!({"quantization_config": {"quant_method": 3}})).unwrap_err();
        assert!(
            matches!(&error, Error::ConfigField { field, .. } if field == "quantization_config.quant_method")
        );
    }

    #[test]
    fn only_layouts_that_exist_pass() {
        for (section, blamed) in [
            (json!({"group_size": 64, "bits": 7}), "quantization"),
            (json!({"group_size": 16, "bits": 4}), "quantization"),
            (json!({"group_size": 64, "bits": 4, "mode": "turbo"}), "quantization"),
            (json!({"group_size": 64, "bits": 4, "mode": "mxfp4"}), "quantization"),
            (json!({"group_size": 64, "bits": u64::MAX}), "quantization"),
            (json!({"group_size": 64, "bits": 4, "x.y": {"bits": 0}}), "x.y"),
        ] {
            let error = read(json!({ "quantization": section })).unwrap_err();
            assert!(
                matches!(&error, Error::UnsupportedQuantization { path, .. } if path == blamed),
                "{error}"
            );
            assert!(error.to_string().contains("1, 2, 3, 4, 5, 6 or 8 bits"), "{error}");
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
