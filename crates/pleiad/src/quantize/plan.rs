//! What becomes of every weight.

use std::collections::BTreeSet;

use checkpoint::{Checkpoint, Dtype, Float, Mode, QuantSpec, TensorSpec};
use models::{Loaded, Weights};
use serde_json::{Map, Value, json};

use super::error::{Error, Result};
use super::family::{self, Role};
use super::recipe::{Recipe, Verdict};
use super::source::Matrices;

/// Tensors of odd sizes go behind all others, so that those stay aligned to this many bytes within a shard.
const ALIGNMENT: u64 = 64;

/// A weight to be.
pub(super) struct Planned {
    /// Tensor name, or the path of a matrix.
    pub path: String,
    pub contents: Contents,
    /// Type of the floats: values, scales and biases.
    pub float: Float,
}

/// What is in it.
pub(super) enum Contents {
    /// Plain values, in the type they had.
    Values { shape: Vec<usize>, values: Vec<f32>, had: Float },
    /// Matrices, quantised where there is a layout.
    Matrices { source: Box<Matrices>, layout: Option<QuantSpec> },
}

/// All weights of a checkpoint to be.
pub struct Plan {
    default: QuantSpec,
    pub(super) weights: Vec<Planned>,
    /// The first of them that belongs to the drafting head; those have a file of their own.
    pub(super) drafter: usize,
    /// Paths with an entry of their own in the config.
    entries: Vec<(String, Value)>,
    /// Matrices that stay plain because groups do not divide their rows: path and width.
    skipped: Vec<(String, usize)>,
    /// Values in all weights.
    parameters: u64,
}

impl Plan {
    /// Decides about every weight of a model. `mixed` is a recipe's name or file.
    pub fn new(
        checkpoint: &Checkpoint,
        weights: Weights,
        default: QuantSpec,
        mixed: Option<&str>,
    ) -> Result<Plan> {
        let family = checkpoint.config().model_type()?.to_owned();
        let matrix = |(path, loaded): &(String, Loaded)| {
            !matches!(loaded, Loaded::Values { .. }) && family::role(&family, path) != Role::Fixed
        };
        let [layers, head] = [&weights.model, &weights.drafter].map(|weights| {
            weights.iter().filter(|w| matrix(w)).map(|(path, _)| path.as_str()).collect::<Vec<_>>()
        });
        let recipe = mixed.map(|name| Recipe::open(name, default, &layers, &head)).transpose()?;
        let mut planner = Planner {
            checkpoint,
            cast: family::cast(checkpoint.config().root()),
            family,
            recipe,
            plan: Plan {
                default,
                weights: Vec::new(),
                drafter: 0,
                entries: Vec::new(),
                skipped: Vec::new(),
                parameters: 0,
            },
        };
        planner.add(weights.model)?;
        planner.plan.drafter = planner.plan.weights.len();
        planner.add(weights.drafter)?;
        planner.finish()
    }

    /// Matrices that stay plain because groups do not divide their rows: path and width.
    pub fn skipped(&self) -> &[(String, usize)] {
        &self.skipped
    }

    /// Bytes of the checkpoint to be.
    pub fn total_bytes(&self) -> u64 {
        self.weights.iter().flat_map(Planned::specs).map(|spec| bytes_of(&spec)).sum()
    }

    /// Bytes that will be read.
    pub fn source_bytes(&self) -> u64 {
        self.weights.iter().map(Planned::source_bytes).sum()
    }

    /// Bits of the checkpoint to be for each value of the model, scales and all.
    pub fn bits_per_weight(&self) -> f64 {
        self.total_bytes() as f64 * 8.0 / (self.parameters as f64).max(1.0)
    }

    /// The `quantization` section of `config.json`.
    pub fn quantization(&self) -> Value {
        let mut section = layout_json(self.default);
        section.extend(self.entries.iter().cloned());
        Value::Object(section)
    }
}

impl Planned {
    /// Its tensors, in the order in which they are written.
    pub fn specs(&self) -> Vec<TensorSpec> {
        let tensor = |name: &str, dtype, shape| TensorSpec { name: name.into(), dtype, shape };
        let part = |part: &str, dtype, shape| tensor(&format!("{}.{part}", self.path), dtype, shape);
        let float = self.float.dtype();
        match &self.contents {
            Contents::Values { shape, .. } => vec![tensor(&self.path, float, shape.clone())],
            Contents::Matrices { source, layout: None } => {
                vec![part("weight", float, source.shape(source.cols()))]
            }
            Contents::Matrices { source, layout: Some(QuantSpec { mode, bits, group }) } => {
                let words = source.cols() * *bits as usize / 32;
                let scales = source.shape(source.cols() / group);
                let mut specs = vec![part("weight", Dtype::U32, source.shape(words))];
                match mode {
                    Mode::Affine => {
                        specs.push(part("scales", float, scales.clone()));
                        specs.push(part("biases", float, scales));
                    }
                    Mode::Mxfp4 | Mode::Mxfp8 | Mode::Nvfp4 => specs.push(part("scales", Dtype::U8, scales)),
                }
                specs
            }
        }
    }

    fn source_bytes(&self) -> u64 {
        match &self.contents {
            Contents::Values { values, had, .. } => (values.len() * had.bytes()) as u64,
            Contents::Matrices { source, .. } => source.stored_bytes(),
        }
    }
}

fn bytes_of(spec: &TensorSpec) -> u64 {
    spec.shape.iter().product::<usize>() as u64 * spec.dtype.bitsize() as u64 / 8
}

fn layout_json(QuantSpec { mode, bits, group }: QuantSpec) -> Map<String, Value> {
    [("group_size", json!(group)), ("bits", json!(bits)), ("mode", json!(mode.name()))]
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect()
}

/// A plan in the making.
struct Planner<'a> {
    checkpoint: &'a Checkpoint,
    family: String,
    cast: Option<Float>,
    recipe: Option<Recipe>,
    plan: Plan,
}

impl Planner<'_> {
    /// The type in which a tensor that has one is written.
    fn float(&self, name: &str, had: Float) -> Float {
        if family::keeps_its_type(&self.family, name) { had } else { self.cast.unwrap_or(had) }
    }

    fn add(&mut self, weights: Vec<(String, Loaded)>) -> Result<()> {
        weights.into_iter().try_for_each(|(path, loaded)| match loaded {
            Loaded::Values { shape, values } => {
                self.values(path, shape, values);
                Ok(())
            }
            Loaded::Matrix(weight) => self.matrices(path, Matrices::new(weight, false, false)),
            Loaded::Stack { weight, .. } => self.matrices(path, Matrices::new(weight, true, false)),
            Loaded::Heads { weight, transposed } => {
                self.matrices(path, Matrices::new(weight, true, transposed))
            }
        })
    }

    fn values(&mut self, name: String, shape: Vec<usize>, values: Vec<f32>) {
        let had = stored_float(self.checkpoint, &name);
        let float = self.float(&name, had);
        self.plan.parameters += values.len() as u64;
        self.plan.weights.push(Planned {
            path: name,
            contents: Contents::Values { shape, values, had },
            float,
        });
    }

    fn matrices(&mut self, path: String, source: Matrices) -> Result<()> {
        let had = source.float().map_err(|found| Error::AlreadyQuantised {
            folder: self.checkpoint.folder().into(),
            name: path.clone(),
            found,
        })?;
        if let Some((shape, values)) = source.bias() {
            self.values(format!("{path}.bias"), shape, values);
        }
        let layout = self.layout(&path, source.cols());
        let float = self.float(&format!("{path}.weight"), had);
        self.plan.parameters += source.values();
        self.plan.weights.push(Planned {
            path,
            contents: Contents::Matrices { source: Box::new(source), layout },
            float,
        });
        Ok(())
    }

    /// How a matrix is quantised, if at all; a layout other than the default gets its entry in the config.
    fn layout(&mut self, path: &str, cols: usize) -> Option<QuantSpec> {
        let default = self.plan.default;
        let role = family::role(&self.family, path);
        let verdict = match &self.recipe {
            _ if role == Role::Fixed => Verdict::Keep,
            Some(recipe) => recipe.verdict(path),
            None => Verdict::Silent,
        };
        let (layout, entry) = match (verdict, role) {
            (Verdict::Keep, _) | (_, Role::Fixed) => return None,
            (Verdict::Quantise(layout), _) => (layout, Some(Value::Object(layout_json(layout)))),
            // mlx-lm's predicates name no mode: it is affine.
            (Verdict::Silent, Role::Decides(layout)) => {
                (layout, Some(json!({"group_size": layout.group, "bits": layout.bits})))
            }
            (Verdict::Silent, Role::Ordinary) => (default, None),
        };
        // mlx-lm looks at the default group also where a family has another; files of patterns are our own.
        let by_pattern = matches!(self.recipe, Some(Recipe::Patterns { .. })) && verdict != Verdict::Silent;
        if !cols.is_multiple_of(layout.group) || (!by_pattern && !cols.is_multiple_of(default.group)) {
            self.plan.skipped.push((path.to_owned(), cols));
            return None;
        }
        self.plan.entries.extend(entry.map(|entry| (path.to_owned(), entry)));
        Some(layout)
    }

    fn finish(mut self) -> Result<Plan> {
        let quantised =
            |weight: &Planned| matches!(weight.contents, Contents::Matrices { layout: Some(_), .. });
        if !self.plan.weights.iter().any(quantised) {
            let widths: BTreeSet<usize> = self.plan.skipped.iter().map(|(_, width)| *width).collect();
            return Err(Error::Nothing {
                group: self.plan.default.group,
                widths: widths.into_iter().collect(),
            });
        }
        let odd =
            |weight: &Planned| weight.specs().iter().any(|spec| !bytes_of(spec).is_multiple_of(ALIGNMENT));
        let (model, drafter) = self.plan.weights.split_at_mut(self.plan.drafter);
        model.sort_by_key(odd);
        drafter.sort_by_key(odd);
        Ok(self.plan)
    }
}

/// The type of a tensor in the source, by mlx-lm's name for it: it may be stored under one of several branches.
fn stored_float(checkpoint: &Checkpoint, name: &str) -> Float {
    let inner = name.strip_prefix("language_model.").unwrap_or(name);
    let inside = inner.strip_prefix("model.").map(|rest| format!("model.language_model.{rest}"));
    let names =
        [Some(name.to_owned()), Some(inner.to_owned()), Some(format!("language_model.{inner}")), inside];
    names
        .into_iter()
        .flatten()
        .filter(|name| checkpoint.contains(name))
        .find_map(|name| Float::from_dtype(checkpoint.tensor(&name).ok()?.dtype))
        .unwrap_or(Float::F32)
}
