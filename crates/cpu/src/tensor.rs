//! Activations.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ::backend::{Handle, Shape};

use crate::arena::Buffer;
use crate::kernels::Set;
use crate::ops::transpose::transpose;

/// An activation or a learned vector in memory; clones share the values.
#[derive(Clone)]
pub struct Tensor {
    shape: Shape,
    values: Arc<Values>,
}

struct Values {
    buffer: Buffer,
    /// The same turned round, once somebody has asked for it, and the shape they had then.
    turned: OnceLock<(Shape, Buffer)>,
}

impl Values {
    fn new(buffer: Buffer) -> Arc<Self> {
        Arc::new(Self { buffer, turned: OnceLock::new() })
    }
}

impl Tensor {
    pub(crate) fn new(shape: Shape, values: Buffer) -> Self {
        debug_assert_eq!(shape.len(), values.len());
        Self { shape, values: Values::new(values) }
    }

    /// The same values under another shape.
    pub(crate) fn with_shape(self, shape: Shape) -> Self {
        Self { shape, values: self.values }
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.values.buffer
    }

    pub(crate) fn row(&self, t: usize) -> &[f32] {
        self.rows(t..t + 1)
    }

    pub(crate) fn rows(&self, rows: Range<usize>) -> &[f32] {
        &self.values()[rows.start * self.shape.cols..rows.end * self.shape.cols]
    }

    /// The values column after column. Made once and kept, for learned matrices that are read in that order.
    pub(crate) fn turned(&self, set: Set) -> Cow<'_, [f32]> {
        let turn = || {
            let Shape { rows, cols } = self.shape;
            let mut turned = self.values.buffer.duplicate();
            transpose(set, rows, cols, (self.values(), cols), (&mut turned, rows));
            turned
        };
        match self.values.turned.get_or_init(|| (self.shape, turn())) {
            (shape, turned) if *shape == self.shape => Cow::Borrowed(turned),
            _ => Cow::Owned(turn().to_vec()),
        }
    }

    /// The values for overwriting: without a copy when this is the only handle.
    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        if Arc::get_mut(&mut self.values).is_none() {
            self.values = Values::new(self.values.buffer.duplicate());
        }
        let values = Arc::get_mut(&mut self.values).expect("the only handle: made above where it was not");
        values.turned = OnceLock::new();
        &mut values.buffer
    }
}

impl Handle for Tensor {
    type Shape = Shape;

    fn shape(&self) -> Shape {
        self.shape
    }
}
