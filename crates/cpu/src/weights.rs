//! Weights: the mapped file itself, or copies of it where the model is larger than memory, with the shape the operations ask for.

use ::backend::{Handle, Shape};
use checkpoint::Weight;

/// A matrix `[out, in]`.
pub struct Matrix(pub(crate) Weight);

impl Handle for Matrix {
    fn shape(&self) -> Shape {
        Shape { rows: self.0.rows, cols: self.0.cols }
    }
}

/// One matrix per head.
pub struct HeadMatrices {
    pub(crate) weight: Weight,
    pub(crate) transposed: bool,
}

impl HeadMatrices {
    /// `[out, in]` of one head's product.
    pub(crate) fn product_shape(&self) -> Shape {
        let Weight { rows, cols, .. } = self.weight;
        if self.transposed { Shape { rows: cols, cols: rows } } else { Shape { rows, cols } }
    }
}

/// The experts of one layer.
pub struct Experts {
    pub(crate) gate: Weight,
    pub(crate) up: Weight,
    pub(crate) down: Weight,
    /// Their layer in the store that reads them; where they are used from the mapped file, nothing.
    pub(crate) layer: Option<usize>,
    /// Gate, up and down of the one that every token passes through.
    pub(crate) shared: Option<[Weight; 3]>,
}
