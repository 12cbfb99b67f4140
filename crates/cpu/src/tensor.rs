//! Activations.

use std::ops::Range;
use std::sync::Arc;

use ::backend::{Handle, Shape};

/// An activation or a learned vector in memory; clones share the values.
#[derive(Clone)]
pub struct Tensor {
    shape: Shape,
    values: Arc<Vec<f32>>,
}

impl Tensor {
    pub(crate) fn new(shape: Shape, values: Vec<f32>) -> Self {
        debug_assert_eq!(shape.len(), values.len());
        Self { shape, values: Arc::new(values) }
    }

    pub(crate) fn with_shape(self, shape: Shape) -> Self {
        Self { shape, values: self.values }
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    pub(crate) fn row(&self, t: usize) -> &[f32] {
        self.rows(t..t + 1)
    }

    pub(crate) fn rows(&self, rows: Range<usize>) -> &[f32] {
        &self.values[rows.start * self.shape.cols..rows.end * self.shape.cols]
    }

    /// The values for overwriting: without a copy when this is the only handle.
    pub(crate) fn into_values(self) -> Vec<f32> {
        Arc::try_unwrap(self.values).unwrap_or_else(|shared| shared.as_ref().clone())
    }
}

impl Handle for Tensor {
    fn shape(&self) -> Shape {
        self.shape
    }
}
