//! One step of a layer.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::state::{Entry, Expert, Need};
use crate::store::Shared;
use crate::{Error, Result};

/// Most experts that are handed out at once, so that reading ahead finds slots.
const MOST: usize = 32;

/// Uses per expert from which on a step will need nearly all experts of the next layer too.
const DENSE: usize = 2;

/// The experts of one step of a layer, in ascending order, as they arrive.
pub struct Pass<'a> {
    shared: &'a Shared,
    layer: usize,
    experts: Vec<usize>,
    /// How many have been handed out.
    done: usize,
}

impl<'a> Pass<'a> {
    pub(crate) fn begin(shared: &'a Shared, layer: usize, tokens: usize, uses: &[(usize, usize)]) -> Self {
        let experts: Vec<usize> = uses.iter().map(|(expert, _)| *expert).collect();
        assert!(experts.is_sorted_by(|a, b| a < b), "experts in ascending order, each once");
        let mut state = shared.lock();
        state.frequencies.count(layer, tokens, uses.iter().copied());
        state.layer = layer;
        state.needed.clear();
        state.missing.clear();
        for &expert in &experts {
            // What failed before is tried again.
            state.failures.remove(&(layer, expert));
            state.needed.insert(Need { ahead: false, expert });
            let key = (layer, expert);
            let is_new = state.unused.remove(&key);
            if is_new || !state.entries.contains_key(&key) {
                state.stats.misses += 1;
            } else {
                state.stats.hits += 1;
            }
            match state.entries.get_mut(&key) {
                Some(Entry::Reading(arrivals)) => arrivals.earlier = true,
                Some(Entry::Here(_)) => {}
                None => {
                    state.missing.insert(Need { ahead: false, expert });
                }
            }
        }
        let guessed = std::mem::take(&mut state.guessed);
        if !guessed.is_empty() {
            state.settle(&guessed);
        }
        let uses: usize = uses.iter().map(|(_, count)| count).sum();
        if layer + 1 < state.layers() && uses >= DENSE * state.experts(layer + 1) {
            for expert in 0..state.experts(layer + 1) {
                state.needed.insert(Need { ahead: true, expert });
                if !state.entries.contains_key(&(layer + 1, expert)) {
                    state.missing.insert(Need { ahead: true, expert });
                }
            }
        }
        shared.fill(&mut state);
        drop(state);
        Self { shared, layer, experts, done: 0 }
    }

    /// The next experts that are here, at least one; waits for it if it is not. None at the end. What was handed out before should
    /// be dropped by then: its slots may be needed.
    pub fn wait(&mut self) -> Result<Vec<Arc<Expert>>> {
        let Some(&first) = self.experts.get(self.done) else { return Ok(Vec::new()) };
        let key = (self.layer, first);
        let mut state = self.shared.lock();
        self.shared.fill(&mut state);
        let begun = Instant::now();
        while !matches!(state.entries.get(&key), Some(Entry::Here(_))) {
            if let Some(error) = state.failures.remove(&key) {
                return Err(error);
            }
            let silent = begun.max(state.heard).elapsed();
            let patience = self.shared.options.patience;
            if silent >= patience {
                return Err(Error::Silent { seconds: patience.as_secs() });
            }
            let waited = self.shared.news.wait_timeout(state, patience - silent);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            self.shared.fill(&mut state);
        }
        state.stats.waited[self.layer] += begun.elapsed();
        let mut here = Vec::new();
        for &expert in self.experts[self.done..].iter().take(MOST) {
            let Some(Entry::Here(found)) = state.entries.get(&(self.layer, expert)) else { break };
            here.push(found.clone());
            state.needed.remove(&Need { ahead: false, expert });
            state.unused.remove(&(self.layer, expert));
        }
        self.done += here.len();
        Ok(here)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // What was needed and never handed out, after an error, is not needed any more.
        if self.done < self.experts.len() {
            let mut state = self.shared.lock();
            state.needed.clear();
            state.missing.clear();
        }
    }
}
