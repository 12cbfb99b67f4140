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

/// Bytes from the device as whole numbers.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b)).collect()
}

/// Bytes from the device as floats.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

impl Handle for Tensor {
    type Shape = Shape;

    fn shape(&self) -> Shape {
        self.shape
    }
}
