//! What a checkpoint will hold: names, types, shapes and contents of its tensors, as mlx-lm's quantiser leaves them.

use std::fmt::Display;

use checkpoint::{Dtype, Float, Mode, QuantSpec, TensorSpec};
use serde_json::{Map, Value, json};

use super::random::Fill;

/// How mlx-lm quantises routers and gates of shared experts, whatever the rest has.
const ROUTER: QuantSpec = QuantSpec { mode: Mode::Affine, bits: 8, group: 64 };

/// Tensors of odd sizes go behind all others, so that those stay aligned to this many bytes within a shard.
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
    /// Nothing yet; matrices will be quantised as told.
    pub fn new(default: QuantSpec) -> Plan {
        Plan { default, exceptions: Vec::new(), tensors: Vec::new(), drafter: None }
    }

    /// The root of the tree of names.
    pub fn root(&mut self) -> Branch<'_> {
        Branch { plan: self, path: String::new() }
    }

    /// The same for a drafting head, when everything else is planned.
    pub fn drafter(&mut self) -> Branch<'_> {
        self.drafter = Some(self.tensors.len());
        self.root()
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
}

/// A place in the tree of names.
pub(super) struct Branch<'a> {
    plan: &'a mut Plan,
    path: String,
}

impl Branch<'_> {
    /// A branch of this one.
    pub fn at(&mut self, name: impl Display) -> Branch<'_> {
        Branch { path: format!("{}{name}.", self.path), plan: self.plan }
    }

    /// A linear layer `[rows, cols]` whose outputs are about as large as its inputs.
    pub fn linear(&mut self, name: &str, rows: usize, cols: usize) {
        self.linear_with_gain(name, rows, cols, 1.0);
    }

    /// The same with outputs `gain` times as large.
    pub fn linear_with_gain(&mut self, name: &str, rows: usize, cols: usize, gain: f32) {
        self.matrix(name, &[], rows, cols, gain, None);
    }

    /// A stack of linear layers `[count, rows, cols]`.
    pub fn stack(&mut self, name: &str, count: usize, rows: usize, cols: usize) {
        self.stack_with_gain(name, count, rows, cols, 1.0);
    }

    /// The same with outputs `gain` times as large.
    pub fn stack_with_gain(&mut self, name: &str, count: usize, rows: usize, cols: usize, gain: f32) {
        self.matrix(name, &[count], rows, cols, gain, None);
    }

    /// A linear layer that decides over others and is kept more precisely.
    pub fn router(&mut self, name: &str, rows: usize, cols: usize, gain: f32) {
        self.matrix(name, &[], rows, cols, gain, Some(ROUTER));
    }

    /// The weight of a norm.
    pub fn norm(&mut self, name: &str, width: usize) {
        self.norm_around(name, width, 1.0);
    }

    /// The weight of a norm that also scales.
    pub fn norm_around(&mut self, name: &str, width: usize, centre: f32) {
        self.plain(&format!("{name}.weight"), &[width], Float::Bf16, Fill::around(centre));
    }

    /// A tensor that is not quantised, under its full name.
    pub fn plain(&mut self, name: &str, shape: &[usize], float: Float, fill: Fill) {
        let name = format!("{}{name}", self.path);
        self.push(name.clone(), float.dtype(), shape.to_vec(), fill, name);
    }

    fn matrix(
        &mut self,
        name: &str,
        stack: &[usize],
        rows: usize,
        cols: usize,
        gain: f32,
        exception: Option<QuantSpec>,
    ) {
        let path = format!("{}{name}", self.path);
        let shape = |cols: usize| [stack, &[rows, cols]].concat();
        let deviation = gain / (cols as f32).sqrt();
        // mlx-lm looks at the default group, also where another one applies.
        if !cols.is_multiple_of(self.plan.default.group) {
            let name = format!("{path}.weight");
            return self.push(name.clone(), Dtype::BF16, shape(cols), Fill::spread(deviation), name);
        }
        self.plan.exceptions.extend(exception.map(|spec| (path.clone(), spec)));
        let QuantSpec { bits, group, .. } = exception.unwrap_or(self.plan.default);
        let step = Fill::step(deviation, bits);
        let part = |part: &str| format!("{path}.{part}");
        self.push(part("weight"), Dtype::U32, shape(cols / 32 * bits as usize), Fill::Codes, part("weight"));
        self.push(part("scales"), Dtype::BF16, shape(cols / group), Fill::Scales { step }, part("scales"));
        let fill = Fill::Biases { step, bits };
        self.push(part("biases"), Dtype::BF16, shape(cols / group), fill, part("scales"));
    }

    fn push(&mut self, name: String, dtype: Dtype, shape: Vec<usize>, fill: Fill, stream: String) {
        self.plan.tensors.push(Planned { spec: TensorSpec { name, dtype, shape }, fill, stream });
    }
}
