//! Activations.

use ::backend::{Handle, Shape};

use crate::pool::Buffer;

/// An activation or a learned vector on the device; clones share the values. Operations never change one: an argument that
/// might be overwritten is written elsewhere, which costs no more.
#[derive(Clone)]
pub struct Tensor {
    shape: Shape,
    buffer: Buffer,
}

impl Tensor {
    pub(crate) fn new(shape: Shape, buffer: Buffer) -> Self {
        Self { shape, buffer }
    }

    /// The same values under another shape.
    pub(crate) fn with_shape(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl Handle for Tensor {
    type Shape = Shape;

    fn shape(&self) -> Shape {
        self.shape
    }
}
