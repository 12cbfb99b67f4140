//! What becomes of every weight.

use std::collections::BTreeSet;
use std::path::Path;

use checkpoint::{Checkpoint, Dtype, Float, Mode, QuantSpec, TensorSpec};
use models::{Family, Kind, ListedWeight, Outline, Part, Quantise, Stored, WeightSpec};
use serde_json::{Map, Value, json};

use super::error::{Error, Result};
use super::files::cast;
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
        outline: Outline,
        default: QuantSpec,
        mixed: Option<&str>,
    ) -> Result<Plan> {
        let family = outline.family();
        let paths = |of_drafter: bool| {
            let specs = outline.weights().iter().map(|weight| &weight.spec);
            specs
                .filter(|spec| (spec.part == Part::Drafter) == of_drafter && spec.is_matrix())
                .filter(|spec| family.quantise(spec.role) != Quantise::Never)
                .map(|spec| spec.path.as_str())
                .collect::<Vec<_>>()
        };
        let open = |name| Recipe::open(name, default, &paths(false), &paths(true));
        let recipe = mixed.map(open).transpose()?;
        let mut planner = Planner {
            folder: checkpoint.folder(),
            cast: cast(checkpoint.config().root()),
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
        let (drafter, model): (Vec<_>, Vec<_>) =
            outline.into_weights().into_iter().partition(|weight| weight.spec.part == Part::Drafter);
        model.into_iter().try_for_each(|weight| planner.add(weight))?;
        planner.plan.drafter = planner.plan.weights.len();
        drafter.into_iter().try_for_each(|weight| planner.add(weight))?;
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
    /// Of the source, for messages.
    folder: &'a Path,
    family: &'static Family,
    /// The type that floats are cast to.
    cast: Option<Float>,
    recipe: Option<Recipe>,
    plan: Plan,
}

impl Planner<'_> {
    fn add(&mut self, weight: ListedWeight) -> Result<()> {
        let ListedWeight { spec, stored } = weight;
        match stored {
            Stored::Values { values, float } => {
                let keeps = self.family.keeps_type.contains(&spec.role);
                self.values(spec.tensor(), spec.shape(), values, float, keeps);
                Ok(())
            }
            Stored::Matrices { weight, transposed, bias } => {
                let stacked = !matches!(spec.kind, Kind::Matrix { .. });
                self.matrices(spec, Matrices::new(*weight, stacked, transposed), bias.unwrap_or(Float::F32))
            }
        }
    }

    fn values(&mut self, name: String, shape: Vec<usize>, values: Vec<f32>, had: Float, keeps: bool) {
        let float = if keeps { had } else { self.cast.unwrap_or(had) };
        self.plan.parameters += values.len() as u64;
        self.plan.weights.push(Planned {
            path: name,
            contents: Contents::Values { shape, values, had },
            float,
        });
    }

    fn matrices(&mut self, spec: WeightSpec, source: Matrices, bias: Float) -> Result<()> {
        let had = source.float().map_err(|found| Error::AlreadyQuantised {
            folder: self.folder.into(),
            name: spec.path.clone(),
            found,
        })?;
        if let Some((shape, values)) = source.bias() {
            self.values(format!("{}.bias", spec.path), shape, values, bias, false);
        }
        let layout = self.layout(&spec, source.cols());
        self.plan.parameters += source.values();
        self.plan.weights.push(Planned {
            path: spec.path,
            contents: Contents::Matrices { source: Box::new(source), layout },
            float: self.cast.unwrap_or(had),
        });
        Ok(())
    }

    /// How a matrix is quantised, if at all; a layout other than the default gets its entry in the config.
    fn layout(&mut self, WeightSpec { path, role, .. }: &WeightSpec, cols: usize) -> Option<QuantSpec> {
        let default = self.plan.default;
        let by_family = self.family.quantise(*role);
        let verdict = match &self.recipe {
            _ if by_family == Quantise::Never => Verdict::Keep,
            Some(recipe) => recipe.verdict(path),
            None => Verdict::Silent,
        };
        let (layout, entry) = match (verdict, by_family) {
            (Verdict::Keep, _) | (_, Quantise::Never) => return None,
            (Verdict::Quantise(layout), _) => (layout, Some(Value::Object(layout_json(layout)))),
            // mlx-lm's predicates name no mode: it is affine.
            (Verdict::Silent, Quantise::As(layout)) => {
                (layout, Some(json!({"group_size": layout.group, "bits": layout.bits})))
            }
            (Verdict::Silent, Quantise::Ordinary) => (default, None),
        };
        // mlx-lm looks at the default group also where a family has another; files of patterns are our own.
        let by_pattern = matches!(self.recipe, Some(Recipe::Patterns { .. })) && verdict != Verdict::Silent;
        if !cols.is_multiple_of(layout.group) || (!by_pattern && !cols.is_multiple_of(default.group)) {
            self.plan.skipped.push((path.clone(), cols));
            return None;
        }
        self.plan.entries.extend(entry.map(|entry| (path.clone(), entry)));
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
