//! One function per operation, on slices whose shapes the caller has checked.

pub(crate) mod attention;
pub(crate) mod dense;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod gdn;
pub(crate) mod latent;
pub(crate) mod layout;
pub(crate) mod norm;
pub(crate) mod pairs;
pub(crate) mod product;
pub(crate) mod q8;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod schedule;
pub(crate) mod softmax;
pub(crate) mod transpose;

pub(crate) use elementwise::{silu_lane, tanh};

use crate::Machine;

/// Values that a task should have at least: to hand over fewer takes longer than to work on them.
const TASK_VALUES: usize = 1 << 13;

impl Machine {
    /// Calls `task(first row, rows)` for pieces of `y`, which has rows of `width` values: for all rows at once on this
    /// thread where they are few, for more on all threads.
    pub(crate) fn rows(&self, y: &mut [f32], width: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
        if y.is_empty() {
            return;
        }
        let rows = (TASK_VALUES / width).max(1);
        self.pool.pieces(y, rows * width, |i, piece| task(i * rows, piece));
    }
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
