//! Weights: the mapped file itself, or copies of it where the model is larger than memory, with the shape the operations ask for.

use ::backend::{ExpertShape, Handle, HeadShape, LinearShape, Shape};
use checkpoint::Weight;

/// Matrices `[out, in]` over one input.
pub struct Linear(pub(crate) Vec<Weight>);

impl Linear {
    /// The matrix, where there is one.
    pub(crate) fn only(&self) -> &Weight {
        &self.0[0]
    }
}

impl Handle for Linear {
    type Shape = LinearShape;

    fn shape(&self) -> LinearShape {
        LinearShape::new(self.only().cols, self.0.iter().map(|weight| weight.rows))
    }
}

/// One matrix per head.
pub struct HeadMatrices {
    pub(crate) weight: Weight,
    pub(crate) transposed: bool,
}

impl Handle for HeadMatrices {
    type Shape = HeadShape;

    fn shape(&self) -> HeadShape {
        let Weight { count: heads, rows, cols, .. } = self.weight;
        let matrix = if self.transposed { Shape { rows: cols, cols: rows } } else { Shape { rows, cols } };
        HeadShape { heads, matrix }
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

impl Handle for Experts {
    type Shape = ExpertShape;

    fn shape(&self) -> ExpertShape {
        let Weight { count, rows: width, cols: hidden, .. } = self.gate;
        ExpertShape { count, hidden, width }
    }
}
