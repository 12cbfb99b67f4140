//! What a checkpoint will hold: names, types, shapes and contents of its tensors, as mlx-lm's
//! quantiser leaves them.

use std::path::Path;

use checkpoint::{Config, Dtype, Float, QuantSpec, TensorSpec};
use models::{Family, Part, Quantise, Role, WeightSpec};
use serde_json::{Map, Value, json};

use super::error::Result;
use super::random::Fill;

/// Tensors of odd sizes go behind all others, so that those stay aligned to this many bytes within
/// a shard.
const ALIGNMENT: u64 = 64;

/// One tensor to be.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub spec: TensorSpec,
    pub fill: Fill,
    /// Names the random numbers: scales and biases of a matrix share theirs.
    pub stream: String,
}

impl Planned {
    /// Bytes it takes.
    pub fn bytes(&self) -> u64 {
        self.spec.shape.iter().product::<usize>() as u64 * self.spec.dtype.bitsize() as u64 / 8
    }
}

/// The tensors of a checkpoint, collected.
#[derive(Debug)]
pub(super) struct Plan {
    default: QuantSpec,
    exceptions: Vec<(String, QuantSpec)>,
    tensors: Vec<Planned>,
    /// The first tensor of the drafting head.
    drafter: Option<usize>,
}

impl Plan {
    /// The tensors of the model that a `config.json` declares, whose matrices are quantised as
    /// told; with a drafting head, where it is wanted and the family has such. The config learns
    /// how they were quantised.
    pub fn new(config: &mut Value, default: QuantSpec, drafter: bool) -> Result<Plan> {
        let declared = Config::from_str(&config.to_string(), Path::new("config.json"))?;
        let family = Family::of(&declared)?;
        let spec = family.spec(&declared)?;
        let spec = if drafter { spec } else { spec.without_drafter() };
        let mut plan = Plan { default, exceptions: Vec::new(), tensors: Vec::new(), drafter: None };
        for weight in spec.weights(family.prefix) {
            if weight.part == Part::Drafter {
                plan.drafter.get_or_insert(plan.tensors.len());
            }
            plan.add(family, &weight);
        }
        // mlx-lm writes it under both names.
        for name in ["quantization", "quantization_config"] {
            config[name] = plan.quantization();
        }
        Ok(plan)
    }

    /// Bytes of all tensors.
    pub fn total_bytes(&self) -> u64 {
        self.tensors.iter().map(Planned::bytes).sum()
    }

    /// The tensors in the order in which they are best stored, those of a drafting head apart.
    pub fn into_tensors(mut self) -> (Vec<Planned>, Vec<Planned>) {
        let mut drafter = self.tensors.split_off(self.drafter.unwrap_or(self.tensors.len()));
        for tensors in [&mut self.tensors, &mut drafter] {
            tensors.sort_by_key(|tensor| !tensor.bytes().is_multiple_of(ALIGNMENT));
        }
        (self.tensors, drafter)
    }

    /// The `quantization` section of `config.json`.
    pub fn quantization(&self) -> Value {
        let QuantSpec { mode, bits, group } = self.default;
        let mut section = Map::new();
        section.insert("group_size".into(), json!(group));
        section.insert("bits".into(), json!(bits));
        section.insert("mode".into(), json!(mode.name()));
        for (path, spec) in &self.exceptions {
            section.insert(path.clone(), json!({"group_size": spec.group, "bits": spec.bits}));
        }
        Value::Object(section)
    }

    fn add(&mut self, family: &Family, weight: &WeightSpec) {
        if !weight.is_matrix() {
            let float = if family.keeps_type.contains(&weight.role) { Float::F32 } else { Float::Bf16 };
            let (name, shape) = (weight.tensor(), weight.shape());
            return self.push(name.clone(), float.dtype(), shape.clone(), values(weight.role, &shape), name);
        }
        let mut shape = weight.shape();
        let [.., rows, cols] = shape[..] else { return };
        let by_family = family.quantise(weight.role);
        let deviation = match by_family {
            // Rounded otherwise than a quotient is, and the same bytes as ever.
            Quantise::Never => (cols as f32).powf(-0.5),
            _ => gain(weight.role, rows, cols) / (cols as f32).sqrt(),
        };
        // mlx-lm looks at the default group, also where another one applies.
        if by_family == Quantise::Never || !cols.is_multiple_of(self.default.group) {
            let fill = Fill::spread(deviation);
            return self.push(weight.tensor(), Dtype::BF16, shape, fill, weight.tensor());
        }
        let QuantSpec { bits, group, .. } = match by_family {
            Quantise::As(layout) => {
                self.exceptions.push((weight.path.clone(), layout));
                layout
            }
            Quantise::Ordinary | Quantise::Never => self.default,
        };
        let step = Fill::step(deviation, bits);
        let part = |part: &str| format!("{}.{part}", weight.path);
        let last = shape.len() - 1;
        shape[last] = cols / 32 * bits as usize;
        self.push(part("weight"), Dtype::U32, shape.clone(), Fill::Codes, part("weight"));
        shape[last] = cols / group;
        let fill = Fill::Scales { step };
        self.push(part("scales"), Dtype::BF16, shape.clone(), fill, part("scales"));
        self.push(part("biases"), Dtype::BF16, shape, Fill::Biases { step, bits }, part("scales"));
    }

    fn push(&mut self, name: String, dtype: Dtype, shape: Vec<usize>, fill: Fill, stream: String) {
        self.tensors.push(Planned { spec: TensorSpec { name, dtype, shape }, fill, stream });
    }
}

/// How many times as large as its inputs the outputs of a matrix are, so that activations stay near
/// 1.
fn gain(role: Role, rows: usize, cols: usize) -> f32 {
    match role {
        // Rows are looked up, not summed over: values near 1, on a par with what the layers add.
        Role::Embedding { scale } => (cols as f32).sqrt() / scale,
        Role::Head => 2.0,
        // The input comes divided by its length.
        Role::Router { normed: true } => (cols as f32).sqrt(),
        // What has to come out near 1 is the product of the transposed matrix with the latent.
        Role::IntoLatent => (cols as f32 / rows as f32).sqrt(),
        _ => 1.0,
    }
}

/// What values that are no matrix are filled with.
fn values(role: Role, shape: &[usize]) -> Fill {
    match role {
        Role::Factor { about } => Fill::around(about),
        Role::RouterBias => Fill::Uniform { low: 0.0, high: 0.1 },
        Role::Convolution => Fill::spread((shape[1] as f32).powf(-0.5)),
        Role::Decay => Fill::DecayRate,
        Role::TimeStep => Fill::TimeStep,
        _ => Fill::spread(1.0),
    }
}
