//! Activations on the host, as the cases make them and the formulas read them.

use std::ops::Range;

use backend::{Checked, Ops, Result};

use crate::formulas::codes::rounded;

/// Rows of f64: what the formulas compute with.
pub type Rows = Vec<Vec<f64>>;

/// `[rows, cols]` values in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Number of rows: tokens.
    pub rows: usize,
    /// Number of columns: channels.
    pub cols: usize,
    /// The values, row after row.
    pub values: Vec<f32>,
}

impl Host {
    /// Values by row and column.
    pub fn from_fn(rows: usize, cols: usize, mut value: impl FnMut(usize, usize) -> f32) -> Host {
        let values = (0..rows * cols).map(|i| value(i / cols, i % cols)).collect();
        Host { rows, cols, values }
    }

    /// One row.
    pub fn vector(values: Vec<f32>) -> Host {
        Host { rows: 1, cols: values.len(), values }
    }

    /// The same values on a backend.
    pub fn on<B: Ops>(&self, b: &Checked<'_, B>) -> Result<B::Tensor> {
        b.upload(self.rows, self.cols, &self.values)
    }

    /// Row `t`.
    pub fn row(&self, t: usize) -> &[f32] {
        &self.values[t * self.cols..(t + 1) * self.cols]
    }

    /// Some of the rows.
    pub fn slice(&self, rows: Range<usize>) -> Host {
        let values = self.values[rows.start * self.cols..rows.end * self.cols].to_vec();
        Host { rows: rows.len(), cols: self.cols, values }
    }

    /// The rows of several, one after the other.
    pub fn stack(parts: &[Host]) -> Host {
        let values = parts.iter().flat_map(|p| p.values.iter().copied()).collect();
        Host { rows: parts.iter().map(|p| p.rows).sum(), cols: parts[0].cols, values }
    }

    /// The same values under a factor.
    pub fn scaled(mut self, factor: f32) -> Host {
        self.values.iter_mut().for_each(|v| *v *= factor);
        self
    }

    /// The values widened, by rows.
    pub fn wide(&self) -> Rows {
        (0..self.rows).map(|t| self.row(t).iter().map(|v| f64::from(*v)).collect()).collect()
    }

    /// The values rounded to half precision and widened, by rows: what an f16 cache keeps.
    pub fn wide_f16(&self) -> Rows {
        (0..self.rows)
            .map(|t| self.row(t).iter().map(|v| half::f16::from_f32(*v).to_f64()).collect())
            .collect()
    }

    /// What a cache of codes keeps, by rows, each of several of `width` values.
    pub fn wide_q8(&self, width: usize) -> Rows {
        (0..self.rows).map(|t| self.row(t).chunks_exact(width).flat_map(rounded).collect()).collect()
    }

    /// Each row followed by another's.
    pub fn beside(&self, other: &Host) -> Host {
        let values = (0..self.rows).flat_map(|t| [self.row(t), other.row(t)].concat()).collect();
        Host { rows: self.rows, cols: self.cols + other.cols, values }
    }
}

/// All values of `rows`, one row after the other.
pub fn flat(rows: &Rows) -> Vec<f64> {
    rows.concat()
}
