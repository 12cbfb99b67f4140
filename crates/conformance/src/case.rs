//! What a case is, and how its outputs are judged.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use backend::{Backend, Checked, Error};

use crate::host::{Rows, flat};
use crate::random::Rng;

/// The largest error a case accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// `|got - expected| / |expected|`, both as vectors.
    pub l2: f64,
    /// The largest error of one value, relative to the root mean square of the expected ones.
    pub max: f64,
}

impl Bound {
    /// No error at all: rows that only move, ids.
    pub const EXACT: Bound = Bound { l2: 0.0, max: 0.0 };

    /// A bound on the whole, and thirty times it on a single value, which may be an outlier.
    pub const fn l2(l2: f64) -> Bound {
        Bound { l2, max: 30.0 * l2 }
    }
}

/// What an output should be.
#[derive(Clone, Debug)]
pub enum Expected {
    /// The formula's values, within the case's bound.
    Close(Vec<f64>),
    /// The same values.
    Exact(Vec<f32>),
}

/// One array that a case read back.
#[derive(Clone, Debug)]
pub struct Output {
    /// Which one.
    pub label: String,
    /// What came back.
    pub values: Vec<f32>,
    /// What should have.
    pub expected: Expected,
    /// Whether the expected values may be all alike; otherwise that is a mistake in the case.
    pub flat: bool,
}

impl Output {
    /// Values to compare within the bound.
    pub fn close(label: impl Into<String>, values: Vec<f32>, expected: &Rows) -> Output {
        Output { label: label.into(), values, expected: Expected::Close(flat(expected)), flat: false }
    }

    /// Values that must be the same.
    pub fn exact(label: impl Into<String>, values: Vec<f32>, expected: Vec<f32>) -> Output {
        Output { label: label.into(), values, expected: Expected::Exact(expected), flat: false }
    }

    /// Whole numbers that must be the same.
    pub fn ids(label: impl Into<String>, ids: &[u32], expected: impl IntoIterator<Item = usize>) -> Output {
        let expected = expected.into_iter().map(|e| e as f32).collect();
        Output { flat: true, ..Output::exact(label, ids.iter().map(|e| *e as f32).collect(), expected) }
    }

    /// The expected values may be all alike.
    pub fn flat(self) -> Output {
        Output { flat: true, ..self }
    }

    /// `(l2, max)` errors, or what is wrong apart from size.
    fn measure(&self) -> Result<(f64, f64), String> {
        let expected: Vec<f64> = match &self.expected {
            Expected::Close(values) => values.clone(),
            Expected::Exact(values) => values.iter().map(|v| f64::from(*v)).collect(),
        };
        if self.values.len() != expected.len() {
            return Err(format!("{} values came back, expected {}", self.values.len(), expected.len()));
        }
        if !self.flat {
            healthy(&expected)?;
        }
        if let Some(i) = self.values.iter().position(|v| !v.is_finite()) {
            return Err(format!("value {i} is {}, expected {}", self.values[i], expected[i]));
        }
        if let Expected::Exact(exact) = &self.expected {
            if let Some(i) = (0..exact.len()).find(|i| exact[*i] != self.values[*i]) {
                return Err(format!("value {i} is {}, expected exactly {}", self.values[i], exact[i]));
            }
            return Ok((0.0, 0.0));
        }
        let errors = self.values.iter().zip(&expected).map(|(v, e)| (f64::from(*v) - e).abs());
        let size = norm(expected.iter().copied()).max(1e-300);
        let max = errors.clone().fold(0.0, f64::max);
        Ok((norm(errors) / size, max / (size / (expected.len() as f64).sqrt())))
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|v| v * v).sum::<f64>().sqrt()
}

/// That expected values are finite and differ: an oracle of zeros would agree with anything.
fn healthy(expected: &[f64]) -> Result<(), String> {
    if expected.iter().any(|v| !v.is_finite()) {
        return Err("the expected values are not finite: mend the case".into());
    }
    let n = expected.len() as f64;
    let mean = expected.iter().sum::<f64>() / n;
    let spread = norm(expected.iter().map(|v| v - mean)) / n.sqrt();
    let zeros = expected.iter().filter(|v| **v == 0.0).count();
    if spread == 0.0 || spread < 1e-3 * mean.abs() || 4 * zeros > 3 * expected.len() {
        return Err(format!(
            "the expected values are degenerate (mean {mean:.3e}, spread {spread:.3e}): mend the case"
        ));
    }
    Ok(())
}

/// Why a case gave no outputs.
#[derive(Debug)]
pub enum Fault {
    /// The backend refused.
    Backend(Error),
    /// Something is not as it should be.
    Wrong(String),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Backend(error)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Backend(error) => write!(f, "the backend refused: {error}"),
            Fault::Wrong(text) => f.write_str(text),
        }
    }
}

/// What a case's run gives.
pub type CaseResult = Result<Vec<Output>, Fault>;

type Run<B> = Box<dyn Fn(&Checked<'_, B>, &mut Rng) -> CaseResult + Send + Sync>;

/// One operation on one shape.
pub struct Case<B: Backend> {
    /// `operation/what and which shape`.
    pub name: String,
    /// The largest error accepted.
    pub bound: Bound,
    /// Whether it is one of a cross product whose factors other cases meet in pairs.
    pub combination: bool,
    run: Run<B>,
}

impl<B: Backend> Case<B> {
    /// A case of `operation`; `detail` says what is special and which shape.
    pub fn new(
        operation: &str,
        detail: impl fmt::Display,
        bound: Bound,
        run: impl Fn(&Checked<'_, B>, &mut Rng) -> CaseResult + Send + Sync + 'static,
    ) -> Case<B> {
        Case { name: format!("{operation}/{detail}"), bound, combination: false, run: Box::new(run) }
    }

    /// The case as one of a cross product, or not.
    pub fn combination(self, combination: bool) -> Case<B> {
        Case { combination, ..self }
    }

    /// The operation this case is about.
    pub fn operation(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Whether it is about what must be refused.
    pub fn refusal(&self) -> bool {
        self.name.contains("/refused: ")
    }

    /// Whether fast numerics round in it.
    pub fn rounds(&self) -> bool {
        rounds(&self.name)
    }

    /// Runs the case and returns what came back, without judging it. A panic is a fault.
    pub fn outputs(&self, b: &B) -> CaseResult {
        catch_unwind(AssertUnwindSafe(|| (self.run)(&Checked(b), &mut Rng::named(&self.name))))
            .unwrap_or_else(|_| Err(Fault::Wrong("the backend panicked".into())))
    }

    /// Judges what came back.
    pub fn judge(&self, result: &CaseResult) -> Outcome {
        let mut outcome = Outcome {
            name: self.name.clone(),
            bound: self.bound,
            l2: 0.0,
            max: 0.0,
            time: Duration::ZERO,
            failure: None,
        };
        let mut fail = |label: &str, what: String| {
            let label = label.to_owned();
            outcome.failure.get_or_insert(Failure { name: self.name.clone(), label, what });
        };
        match result {
            Err(fault) => fail("", fault.to_string()),
            Ok(outputs) => {
                for output in outputs {
                    match output.measure() {
                        Err(what) => fail(&output.label, what),
                        Ok((l2, max)) => {
                            if l2 > self.bound.l2 || max > self.bound.max {
                                fail(&output.label, over(l2, max, self.bound));
                            }
                            (outcome.l2, outcome.max) = (outcome.l2.max(l2), outcome.max.max(max));
                        }
                    }
                }
            }
        }
        outcome
    }

    /// Runs the case and judges it.
    pub fn check(&self, b: &B) -> Outcome {
        let begun = Instant::now();
        let outcome = self.judge(&self.outputs(b));
        Outcome { time: begun.elapsed(), ..outcome }
    }
}

fn over(l2: f64, max: f64, bound: Bound) -> String {
    format!(
        "relative L2 error {l2:.2e} (bound {:.2e}), largest {max:.2e} (bound {:.2e})",
        bound.l2, bound.max
    )
}

/// What became of a case.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The case.
    pub name: String,
    /// What it accepts.
    pub bound: Bound,
    /// The largest relative L2 error of its outputs.
    pub l2: f64,
    /// The largest error of a single value, relative to the root mean square.
    pub max: f64,
    /// How long it took, with its formula.
    pub time: Duration,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
}

/// A failed case.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The case, with its shape.
    pub name: String,
    /// Which of its outputs.
    pub label: String,
    /// What is wrong with it, with the error measured and the bound.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label.as_str() {
            "" => write!(f, "{}: {}", self.name, self.what),
            label => write!(f, "{}: {label}: {}", self.name, self.what),
        }
    }
}

/// Runs cases.
pub fn run<B: Backend>(b: &B, cases: impl IntoIterator<Item = Case<B>>) -> Vec<Outcome> {
    cases.into_iter().map(|case| case.check(b)).collect()
}

/// The most that fast numerics may be off in a product, whatever the activations.
const FAST: Bound = Bound::l2(1e-2);

/// Operations in which fast numerics round.
const ROUNDED: &[&str] = &[
    "linear",
    "matmul",
    "matmuls",
    "matmul_add",
    "gate_up",
    "shared_expert",
    "experts",
    "expert_weights",
    "head_matrices",
    "mla_absorb_q",
    "mla_unabsorb",
    "attention",
    "latent_attention",
    "gated_delta",
    "logits",
    "mlp",
    "moe",
];

/// Operations in which fast numerics round where caches are of f16 or of codes, which the names of such cases say.
const ROUNDED_BY_CACHES: &[&str] =
    &["sdpa", "mla_attention", "kv_append", "save_kv", "load_kv", "copy", "grow", "truncate", "release"];

/// The operation that a case's name begins with.
fn operation(name: &str) -> &str {
    name.split_once('/').map_or(name, |(operation, _)| operation)
}

/// Whether fast numerics round in a case.
fn rounds(name: &str) -> bool {
    let operation = operation(name);
    let cached = ["f16", "q8"].iter().any(|float| name.contains(float));
    ROUNDED.contains(&operation) || ROUNDED_BY_CACHES.contains(&operation) && cached
}

/// Every case, with the bound of fast numerics for those that round.
pub fn all_fast<B: Backend>() -> Vec<Case<B>> {
    let loosen = |case: Case<B>| {
        // Refusals and the like have no bound, and keep none.
        let bound = if case.rounds() && case.bound != Bound::EXACT { FAST } else { case.bound };
        Case { bound, ..case }
    };
    crate::all().into_iter().map(loosen).collect()
}

/// Whether fast numerics round in products of this operation.
pub fn is_product(operation: &str) -> bool {
    ROUNDED.contains(&operation)
}

/// Says how many cases there were and which came nearest to its bound.
///
/// # Panics
/// If one has failed, with all that have.
pub fn report(outcomes: &[Outcome]) {
    let failures: Vec<String> =
        outcomes.iter().filter_map(|o| o.failure.as_ref()).map(|f| format!("  {f}")).collect();
    let worst = |o: &&Outcome| if o.bound.l2 > 0.0 { o.l2 / o.bound.l2 } else { 0.0 };
    if let Some(nearest) = outcomes.iter().max_by(|a, b| worst(a).total_cmp(&worst(b))) {
        println!(
            "{} cases, {} failed; nearest to its bound: {} with {:.2e} of {:.2e}",
            outcomes.len(),
            failures.len(),
            nearest.name,
            nearest.l2,
            nearest.bound.l2
        );
    }
    let mut slowest: Vec<&Outcome> = outcomes.iter().collect();
    slowest.sort_by_key(|o| std::cmp::Reverse(o.time));
    let all: Duration = outcomes.iter().map(|o| o.time).sum();
    println!("{:.0} s in all, of which", all.as_secs_f64());
    for outcome in slowest.iter().take(3) {
        println!("  {:.1} s: {}", outcome.time.as_secs_f64(), outcome.name);
    }
    // Of what may round a little, the product that is off most.
    for (what, attention) in [("product", false), ("attention over halves or codes", true)] {
        let of = |o: &&Outcome| rounds(&o.name) && ROUNDED.contains(&operation(&o.name)) != attention;
        if let Some(worst) = outcomes.iter().filter(of).max_by(|a, b| a.l2.total_cmp(&b.l2)) {
            println!("the worst {what}: {} with {:.2e}", worst.name, worst.l2);
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} cases failed:\n{}",
        failures.len(),
        outcomes.len(),
        failures.join("\n")
    );
}
