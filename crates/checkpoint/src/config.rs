//! `config.json`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{Error, Quantization, Result, json::read_text};

/// `config.json`: the values as they are, and the quantisation section understood. What the other fields mean
/// is the business of each model family.
#[derive(Clone, Debug)]
pub struct Config {
    path: PathBuf,
    root: Value,
    quantization: Quantization,
}

impl Config {
    /// Reads the file.
    pub(crate) fn open(path: &Path) -> Result<Config> {
        match read_text(path)? {
            Ok(text) => Config::from_str(&text, path),
            Err(problem) => Err(Error::ConfigNotJson { path: path.to_owned(), problem }),
        }
    }

    /// Parses the text of a `config.json`; `path` is for messages.
    pub fn from_str(text: &str, path: &Path) -> Result<Config> {
        let not_json = |problem| Error::ConfigNotJson { path: path.to_owned(), problem };
        let root: Value = serde_json::from_str(text).map_err(|error| not_json(error.to_string()))?;
        if !root.is_object() {
            return Err(not_json("the outermost value must be an object".to_owned()));
        }
        let quantization = Quantization::from_config(&root, path)?;
        Ok(Config { path: path.to_owned(), root, quantization })
    }

    /// The family the model belongs to, as the file names it.
    pub fn model_type(&self) -> Result<&str> {
        match self.root.get("model_type") {
            Some(Value::String(name)) => Ok(name),
            Some(_) => Err(self.field_error("model_type", "must be a string")),
            None => Err(self.field_error("model_type", "is missing")),
        }
    }

    /// The whole file.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// `text_config` where there is one (checkpoints that can also see or hear), else the root.
    pub fn text(&self) -> &Value {
        self.root.get("text_config").filter(|text| text.is_object()).unwrap_or(&self.root)
    }

    /// How the weights were quantised.
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// An [`Error::ConfigField`] of this file: `problem` reads after the field's name, as in "is missing".
    pub fn field_error(&self, field: &str, problem: &str) -> Error {
        Error::ConfigField { path: self.path.clone(), field: field.to_owned(), problem: problem.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::from_str(text, Path::new("folder/config.json"))
    }

    #[test]
    fn text_config_is_preferred() {
        let config = read(r#"{"model_type": "outer", "text_config": {"hidden_size": 8}}"#).unwrap();
        assert_eq!(config.model_type().unwrap(), "outer");
        assert_eq!(config.text()["hidden_size"], 8);
        let config = read(r#"{"hidden_size": 9, "text_config": null}"#).unwrap();
        assert_eq!(config.text()["hidden_size"], 9);
    }

    #[test]
    fn errors_name_the_file_and_the_field() {
        for text in ["", "{", "[]", "3", "{\"a\": 1,}", &"[".repeat(100_000)] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, Error::ConfigNotJson { .. }), "{error}");
            assert!(error.to_string().contains("folder/config.json"), "{error}");
        }
        for text in ["{}", r#"{"model_type": 3}"#] {
            let config = read(text).unwrap();
            let error = config.model_type().unwrap_err();
            assert!(matches!(&error, Error::ConfigField { field, .. } if field == "model_type"), "{error}");
            assert!(error.to_string().contains("folder/config.json"), "{error}");
        }
    }
}
