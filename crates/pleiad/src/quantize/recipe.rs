//! Which matrices differ from the rest: mlx-lm's recipes, and files of patterns.

use std::path::{Path, PathBuf};

use checkpoint::{Mode, QuantSpec};
use clap::ValueEnum;
use serde_json::{Map, Value};

use super::error::{Error, Result};
use super::layout::ModeChoice;

/// mlx-lm's recipes: name, bits of most matrices, bits of those that matter more.
const RECIPES: [(&str, u32, u32); 4] =
    [("mixed_2_6", 2, 6), ("mixed_3_4", 3, 4), ("mixed_3_6", 3, 6), ("mixed_4_6", 4, 6)];

/// How to quantise each matrix.
pub enum Recipe {
    /// One of mlx-lm's own: more bits for the head, and for values and down projections of some layers.
    Mixed { low: QuantSpec, high: QuantSpec, layers: usize },
    /// Patterns from a file.
    Patterns { path: PathBuf, patterns: Vec<Pattern> },
}

/// A pattern of paths, and what becomes of those that match.
pub struct Pattern {
    text: String,
    /// `None`: they stay as they are.
    layout: Option<QuantSpec>,
}

/// What a recipe says of a matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing: the family decides.
    Silent,
    /// Quantise so.
    Quantise(QuantSpec),
    /// Leave it as it is.
    Keep,
}

impl Recipe {
    /// Finds a recipe by name or reads the file, for a model with these matrices and a drafting head with those; `default` is what the
    /// flags ask for.
    pub fn open(name: &str, default: QuantSpec, paths: &[&str], drafter: &[&str]) -> Result<Recipe> {
        if let Some((name, low, high)) = RECIPES.into_iter().find(|(known, ..)| *known == name) {
            if default.mode != Mode::Affine {
                return Err(Error::Usage(format!("the recipe {name} is affine: leave out --mode")));
            }
            if !paths.iter().any(|path| path.contains("down_proj")) {
                return Err(Error::Usage(format!("{name} needs a model with down projections")));
            }
            let layers = paths.iter().filter_map(|path| layer_of(path)).max().map_or(0, |last| last + 1);
            let with = |bits| QuantSpec { bits, ..default };
            return Ok(Recipe::Mixed { low: with(low), high: with(high), layers });
        }
        let path = Path::new(name);
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let known = RECIPES.map(|(name, ..)| name).join(", ");
                return Err(Error::UnknownRecipe { name: name.into(), known });
            }
            Err(source) => return Err(Error::File { path: path.into(), source }),
        };
        let recipe = Recipe::Patterns { path: path.into(), patterns: read_patterns(&text, path, default)? };
        recipe.check_used(&[paths, drafter].concat())?;
        Ok(recipe)
    }

    fn check_used(&self, paths: &[&str]) -> Result<()> {
        let Recipe::Patterns { path, patterns } = self else { return Ok(()) };
        match patterns.iter().find(|pattern| !paths.iter().any(|path| pattern.matches(path))) {
            None => Ok(()),
            Some(unused) => Err(Error::UnusedPattern {
                path: path.clone(),
                pattern: unused.text.clone(),
                example: paths.first().copied().unwrap_or("lm_head").into(),
            }),
        }
    }

    /// What to do with a matrix.
    pub fn verdict(&self, path: &str) -> Verdict {
        match self {
            Recipe::Mixed { low, high, layers } => {
                let index = layer_of(path).unwrap_or(0);
                let first = layers / 8;
                // As mlx-lm's own predicate has it: the first and the last eighth, and every third between.
                let chosen = index < first || index >= 7 * layers / 8 || (index - first) % 3 == 2;
                let values = ["v_proj", "v_a_proj", "v_b_proj"].iter().any(|part| path.contains(part));
                let more = path.contains("lm_head") || (chosen && (values || path.contains("down_proj")));
                Verdict::Quantise(if more { *high } else { *low })
            }
            Recipe::Patterns { patterns, .. } => {
                match patterns.iter().find(|pattern| pattern.matches(path)) {
                    None => Verdict::Silent,
                    Some(Pattern { layout: Some(layout), .. }) => Verdict::Quantise(*layout),
                    Some(Pattern { layout: None, .. }) => Verdict::Keep,
                }
            }
        }
    }
}

impl Pattern {
    fn matches(&self, path: &str) -> bool {
        if self.text.contains('*') { glob(&self.text, path) } else { path.contains(&self.text) }
    }
}

/// Whether a text is a pattern in which `*` stands for anything.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    // Taking each piece where it first occurs leaves the most for those after it.
    for piece in middle.split('*') {
        match text.find(piece) {
            Some(at) => text = &text[at + piece.len()..],
            None => return false,
        }
    }
    text.ends_with(last)
}

/// The number of the layer a path belongs to.
fn layer_of(path: &str) -> Option<usize> {
    path.split('.').find_map(|part| part.parse().ok())
}

fn read_patterns(text: &str, path: &Path, default: QuantSpec) -> Result<Vec<Pattern>> {
    let problem = |problem: String| Error::Recipe { path: path.into(), problem };
    let entries: Map<String, Value> =
        serde_json::from_str(text).map_err(|e| problem(format!("is not a JSON object of patterns: {e}")))?;
    if entries.is_empty() {
        return Err(problem("has no patterns".into()));
    }
    let pattern = |(text, value): (String, Value)| {
        let layout = match &value {
            Value::Bool(false) => None,
            Value::Bool(true) => Some(default),
            Value::Object(entry) => {
                Some(read_layout(entry, default).map_err(|e| problem(format!("`{text}`: {e}")))?)
            }
            _ => {
                return Err(problem(format!(
                    "`{text}` is {value}; expected {{\"bits\": .., \"group_size\": .., \"mode\": ..}} or false"
                )));
            }
        };
        Ok(Pattern { text, layout })
    };
    entries.into_iter().map(pattern).collect()
}

/// Bits, group and mode of an entry; what is missing is that of the flags, or of another mode its own.
fn read_layout(entry: &Map<String, Value>, default: QuantSpec) -> std::result::Result<QuantSpec, String> {
    if let Some(other) = entry.keys().find(|key| !["bits", "group_size", "mode"].contains(&key.as_str())) {
        return Err(format!("there is no setting `{other}`; there are bits, group_size and mode"));
    }
    let number = |key: &str| match entry.get(key) {
        None => Ok(None),
        Some(value) => value
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .map(Some)
            .ok_or_else(|| format!("{key} is {value}; expected a whole number")),
    };
    let (bits, group) = (number("bits")?, number("group_size")?.map(|n| n as usize));
    let mode = match entry.get("mode") {
        None => default.mode.name(),
        Some(Value::String(name)) => name,
        Some(other) => return Err(format!("mode is {other}; expected a name like \"affine\"")),
    };
    let choice = ModeChoice::from_str(mode, false).map_err(|_| format!("there is no mode {mode:?}"))?;
    let same = mode == default.mode.name();
    let layout =
        choice.layout(bits.or(same.then_some(default.bits)), group.or(same.then_some(default.group)));
    layout.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: QuantSpec = QuantSpec { mode: Mode::Affine, bits: 4, group: 64 };

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text, expected) in [
            ("*.v_proj", "model.layers.0.self_attn.v_proj", true),
            ("*.v_proj", "model.layers.0.self_attn.v_proj2", false),
            ("model.layers.*.mlp.*", "model.layers.12.mlp.gate", true),
            ("model.layers.*.mlp.*", "language_model.model.layers.12.mlp.gate", false),
            ("*layers.1.*down*", "model.layers.1.mlp.down_proj", true),
            ("*layers.1.*down*", "model.layers.11.mlp.down_proj", false),
            ("a*b*b", "ab", false),
            ("a*b*b", "abb", true),
            ("*", "", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_pattern_that_matches_decides() {
        let text = r#"{"lm_head": {"bits": 8}, "*.experts.*": {"mode": "mxfp4"}, "embed": false, "e": {"group_size": 32}}"#;
        let patterns = read_patterns(text, Path::new("r.json"), DEFAULT).unwrap();
        let recipe = Recipe::Patterns { path: "r.json".into(), patterns };
        let layout = |mode, bits, group| Verdict::Quantise(QuantSpec { mode, bits, group });
        assert_eq!(recipe.verdict("lm_head"), layout(Mode::Affine, 8, 64));
        assert_eq!(recipe.verdict("model.experts.up"), layout(Mode::Mxfp4, 4, 32));
        assert_eq!(recipe.verdict("model.embed_tokens"), Verdict::Keep);
        assert_eq!(recipe.verdict("model.other"), layout(Mode::Affine, 4, 32));
        assert_eq!(recipe.verdict("x"), Verdict::Silent);
        let error = recipe.check_used(&["model.embed"]).unwrap_err().to_string();
        assert!(error.contains("`lm_head`") && error.contains("r.json"), "{error}");
    }

    #[test]
    fn damaged_recipes_are_refused() {
        for (text, word) in [
            ("", "JSON"),
            ("[]", "JSON"),
            ("{}", "no patterns"),
            (r#"{"a": 4}"#, "expected"),
            (r#"{"a": {"bits": "4"}}"#, "whole number"),
            (r#"{"a": {"bits": 7}}"#, "7 bits"),
            (r#"{"a": {"mode": "fp3"}}"#, "fp3"),
            (r#"{"a": {"group": 64}}"#, "`group`"),
            (r#"{"a": {"mode": "mxfp8", "bits": 4}}"#, "mxfp8 with 4 bits"),
        ] {
            let error = read_patterns(text, Path::new("r.json"), DEFAULT).err().unwrap().to_string();
            assert!(error.contains(word) && error.contains("r.json"), "{text}: {error}");
        }
    }

    #[test]
    fn recipes_of_mlx_lm() {
        let paths: Vec<String> = (0..16).map(|i| format!("model.layers.{i}.mlp.down_proj")).collect();
        let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
        let recipe = Recipe::open("mixed_3_6", DEFAULT, &paths, &[]).unwrap();
        let bits = |path: &str| match recipe.verdict(path) {
            Verdict::Quantise(spec) => spec.bits,
            other => panic!("{other:?}"),
        };
        // What mlx-lm's predicate gives for 16 layers.
        let down: Vec<u32> = paths.iter().map(|path| bits(path)).collect();
        assert_eq!(down, [6, 6, 3, 3, 6, 3, 3, 6, 3, 3, 6, 3, 3, 6, 6, 6]);
        assert_eq!(bits("lm_head"), 6);
        assert_eq!(bits("model.layers.0.self_attn.v_proj"), 6);
        assert_eq!(bits("model.layers.0.self_attn.kv_a_proj_with_mqa"), 6);
        assert_eq!(bits("model.layers.0.self_attn.q_proj"), 3);
        assert_eq!(bits("model.embed_tokens"), 3);
    }
}
