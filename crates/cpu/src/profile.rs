//! Time spent in each operation.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::backend::OperationTime;

/// Times by operation, in the order of their first calls.
#[derive(Default)]
pub(crate) struct Profile(Mutex<Vec<OperationTime>>);

impl Profile {
    fn times(&self) -> MutexGuard<'_, Vec<OperationTime>> {
        // An entry is never left half-changed by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures until what it returns is dropped.
    pub fn start(&self, name: &'static str) -> Running<'_> {
        Running { profile: self, name, start: Instant::now() }
    }

    fn add(&self, name: &'static str, time: Duration) {
        let mut times = self.times();
        match times.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => {
                entry.calls += 1;
                entry.time += time;
            }
            None => times.push(OperationTime { name, calls: 1, time }),
        }
    }

    /// All times since the last call.
    pub fn take(&self) -> Vec<OperationTime> {
        std::mem::take(&mut self.times())
    }
}

/// An operation that runs.
pub(crate) struct Running<'a> {
    profile: &'a Profile,
    name: &'static str,
    start: Instant,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.profile.add(self.name, self.start.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_times_add_up() {
        let profile = Profile::default();
        for name in ["embed", "matmul", "matmul"] {
            let _running = profile.start(name);
        }
        let times = profile.take();
        let calls: Vec<_> = times.iter().map(|t| (t.name, t.calls)).collect();
        assert_eq!(calls, [("embed", 1), ("matmul", 2)]);
        assert!(profile.take().is_empty());
    }
}
