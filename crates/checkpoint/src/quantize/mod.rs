//! Quantising, the same to the bit as `mx.quantize` of MLX on the CPU.

mod affine;
mod float;

pub use affine::{AffineRows, quantize_affine};
pub use float::{FloatRows, quantize_mxfp4, quantize_mxfp8, quantize_nvfp4};
