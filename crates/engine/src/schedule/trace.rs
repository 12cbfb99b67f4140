//! A trace of the loop: plan, submit, collect and commit of every step.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::plan::Plan;

/// A part of a step, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Which tokens of which sequences run.
    Plan,
    /// The batch is made and starts.
    Submit,
    /// Its logits or tokens arrive.
    Collect,
    /// Tokens are chosen and told, drafts accepted or rejected.
    Commit,
}

/// One part of one step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepEvent {
    /// Number of the step, from 1.
    pub step: u64,
    /// Which part of it.
    pub phase: Phase,
    /// Sequences in the step.
    pub sequences: usize,
    /// Tokens in the step, draft tokens included.
    pub tokens: usize,
    /// How long this part took.
    pub took: Duration,
}

impl fmt::Display for StepEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, phase, sequences, tokens, took } = self;
        let (phase, us) = (format!("{phase:?}").to_lowercase(), 1e6 * took.as_secs_f64());
        write!(f, "step {step}: {phase:7} {us:>9.1} us, {sequences} sequences, {tokens} tokens")
    }
}

/// Where a loop's [`StepEvent`]s go; nowhere by default.
#[derive(Clone, Default)]
pub struct Trace(Option<Arc<dyn Fn(StepEvent) + Send + Sync>>);

impl Trace {
    /// A trace that calls `tell` with every part of every step, on the loop's thread.
    pub fn to(tell: impl Fn(StepEvent) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    /// A trace of a line per part on the standard error stream.
    pub fn stderr() -> Self {
        Self::to(|event| eprintln!("{event}"))
    }

    /// The clock, where somebody listens.
    pub(super) fn clock(&self) -> Option<Instant> {
        self.0.is_some().then(Instant::now)
    }

    /// Tells a part that began at `since`.
    pub(super) fn tell(&self, phase: Phase, plan: &Plan, since: Option<Instant>) {
        if let (Some(tell), Some(since)) = (&self.0, since) {
            let tokens = plan.parts.iter().map(|part| part.tokens.len()).sum();
            let (step, sequences) = (plan.number, plan.parts.len());
            tell(StepEvent { step, phase, sequences, tokens, took: since.elapsed() });
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Trace" } else { "no trace" })
    }
}
