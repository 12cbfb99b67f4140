//! Reading `config.json`: fields with their types, defaults and limits, and errors that name the field.

use backend::{Pairing, RopeSpec, YarnSpec};
use serde_json::Value;

use crate::{Error, Result};

/// Widths and counts beyond this are a broken file; below it, products of two of them cannot overflow.
const LARGEST: u64 = 1 << 28;

/// More layers than this are a broken file too.
const MOST_LAYERS: usize = 4096;
/// As are more rotated channels of a head.
const MOST_ROTATED: usize = 8192;

/// The fields of one object of the config.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub &'a Value);

pub(crate) fn problem(field: &str, problem: impl Into<String>) -> Error {
    Error::Config { field: field.into(), problem: problem.into() }
}

impl<'a> Fields<'a> {
    /// The value of a field; null counts as absent.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|v| !v.is_null())
    }

    /// `default` where the file does not name the field. Null is no value rather than the default, as
    /// it is to mlx-lm and transformers.
    pub fn or_default<T>(&self, field: &str, value: Option<T>, default: T) -> Option<T> {
        value.or_else(|| self.0.get(field).is_none().then_some(default))
    }

    /// A nested object, when there is one.
    pub fn object(&self, field: &str) -> Option<Fields<'a>> {
        self.get(field).filter(|v| v.is_object()).map(Fields)
    }

    fn read<T>(&self, field: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(field) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| problem(field, format!("is {value}, expected {what}")))
    }

    fn required<T>(field: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| problem(field, "is missing"))
    }

    /// A count that may be zero or absent.
    pub fn count(&self, field: &str) -> Result<Option<usize>> {
        let count = |v: &Value| v.as_u64().filter(|n| *n < LARGEST).map(|n| n as usize);
        self.read(field, "a whole number below 2^28", count)
    }

    /// A width or count that must be there and not zero.
    pub fn size(&self, field: &str) -> Result<usize> {
        match Self::required(field, self.count(field)?)? {
            0 => Err(problem(field, "is 0, expected at least 1")),
            n => Ok(n),
        }
    }

    /// The same with a default.
    pub fn size_or(&self, field: &str, default: usize) -> Result<usize> {
        if self.get(field).is_some() { self.size(field) } else { Ok(default) }
    }

    /// `num_hidden_layers`.
    pub fn layers(&self) -> Result<usize> {
        const FIELD: &str = "num_hidden_layers";
        match self.size(FIELD)? {
            n if n > MOST_LAYERS => Err(problem(FIELD, format!("is {n}, expected at most {MOST_LAYERS}"))),
            n => Ok(n),
        }
    }

    /// A finite number.
    pub fn number(&self, field: &str) -> Result<Option<f64>> {
        self.read(field, "a number", Value::as_f64)
    }

    /// A number above zero.
    pub fn positive(&self, field: &str) -> Result<Option<f64>> {
        self.read(field, "a number above 0", |v| v.as_f64().filter(|n| *n > 0.0))
    }

    /// The same where it must be there.
    pub fn required_positive(&self, field: &str) -> Result<f64> {
        Self::required(field, self.positive(field)?)
    }

    /// true or false, with a default. Null is false, as in Python.
    pub fn flag(&self, field: &str, default: bool) -> Result<bool> {
        let flag = self.read(field, "true or false", Value::as_bool)?;
        Ok(self.or_default(field, flag, default).unwrap_or(false))
    }

    /// A string.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>> {
        self.read(field, "a string", Value::as_str)
    }

    /// A list of whole numbers; empty when absent.
    pub fn counts(&self, field: &str) -> Result<Vec<usize>> {
        let list = |v: &Value| v.as_array()?.iter().map(|v| v.as_u64().map(|n| n as usize)).collect();
        Ok(self.read(field, "a list of whole numbers", list)?.unwrap_or_default())
    }

    /// Which of the layers are of the first of two kinds in `layer_types`; `None` when absent.
    pub fn layer_types(&self, layers: usize, kinds: [&str; 2]) -> Result<Option<Vec<bool>>> {
        let Some(types) = self.get("layer_types") else { return Ok(None) };
        let is_first = |kind: &Value| Some(kinds.iter().position(|known| kind == known)? == 0);
        let list: Option<Vec<bool>> = types.as_array().and_then(|list| list.iter().map(is_first).collect());
        let list = list.filter(|list| list.len() >= layers).ok_or_else(|| {
            let [first, second] = kinds;
            problem("layer_types", format!("is not a list of {layers} times {first} or {second}"))
        })?;
        Ok(Some(list[..layers].to_vec()))
    }
}

/// That `total` splits into equal parts.
pub(crate) fn divisible(field: &str, total: usize, by_field: &str, by: usize) -> Result<usize> {
    if !total.is_multiple_of(by) {
        return Err(problem(field, format!("is {total}, expected a multiple of {by_field} = {by}")));
    }
    Ok(total / by)
}

/// The kind of a rotary embedding, in either spelling.
fn rope_kind<'a>(scaling: Fields<'a>) -> Result<&'a str> {
    Ok(match scaling.text("type")? {
        Some(kind) => kind,
        None => scaling.text("rope_type")?.unwrap_or("default"),
    })
}

/// YaRN's parameters, when it is that.
pub(crate) fn yarn(scaling: Fields<'_>) -> Result<Option<YarnSpec>> {
    if !matches!(rope_kind(scaling)?, "yarn" | "deepseek_yarn") {
        return Ok(None);
    }
    let or = |field, default| Ok::<_, Error>(scaling.number(field)?.unwrap_or(default));
    Ok(Some(YarnSpec {
        factor: scaling.required_positive("factor")?,
        original_context: scaling.positive("original_max_position_embeddings")?.unwrap_or(4096.0),
        beta_fast: or("beta_fast", 32.0)?,
        beta_slow: or("beta_slow", 1.0)?,
        mscale: or("mscale", 1.0)?,
        mscale_all_dim: or("mscale_all_dim", 0.0)?,
    }))
}

/// The rotary embedding of `dim` channels of a head, from `rope_scaling` or `rope_parameters`.
pub(crate) fn rope(
    dim: usize,
    theta: f64,
    pairing: Pairing,
    scaling: Option<Fields<'_>>,
) -> Result<RopeSpec> {
    if dim < 2 || !dim.is_multiple_of(2) {
        let problem_text = format!("leaves {dim} rotated channels, expected an even number above 0");
        return Err(problem("partial_rotary_factor", problem_text));
    }
    if dim > MOST_ROTATED {
        return Err(problem("head_dim", format!("rotates {dim} channels, expected at most {MOST_ROTATED}")));
    }
    let Some(scaling) = scaling else { return Ok(RopeSpec::plain(dim, theta, pairing)) };
    if let Some(yarn) = yarn(scaling)? {
        return Ok(RopeSpec::yarn(dim, theta, pairing, &yarn));
    }
    match rope_kind(scaling)? {
        // Text alone has one position for all sections of a multimodal embedding.
        "default" | "mrope" => Ok(RopeSpec::plain(dim, theta, pairing)),
        "linear" => Ok(RopeSpec::linear(dim, theta, pairing, scaling.required_positive("factor")?)),
        "proportional" => {
            let rotated = (dim as f64 * scaling.positive("partial_rotary_factor")?.unwrap_or(1.0)) as usize;
            let factor = scaling.positive("factor")?.unwrap_or(1.0);
            Ok(RopeSpec::proportional(dim, rotated.min(dim), theta, pairing, factor))
        }
        other => Err(problem(
            "rope_scaling",
            format!("has type {other:?}; supported are default, linear, yarn, mrope and proportional"),
        )),
    }
}
