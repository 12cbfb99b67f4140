//! Model folders in MLX format: `config.json`, memory-mapped safetensors, quantised layouts, writing.
//! No compute.
//!
//! [`Checkpoint::open`] maps every shard of a folder and checks the headers; [`Checkpoint::matrix`],
//! [`Checkpoint::stack`] and [`Checkpoint::vector`] hand out weights as MLX stores them, [`Checkpoint::stack_of`] and
//! [`Checkpoint::tensor_weight`] as only Hugging Face does: weights that have been checked against the shape
//! the model expects. Weights share the mapping: nothing is copied and nothing is read from disk until it is
//! used.
//!
//! Files come from strangers. Whatever is in them, the answer is a checked weight or an [`Error`] that names
//! the file or the tensor; never a panic, and never an allocation out of proportion
//! to the file.
//!
//! [`FolderWriter`] and [`write_file`] write what the reader reads, [`quantize`] makes the quantised rows.

mod bytes;
mod checkpoint;
mod config;
mod error;
mod float;
mod folder_writer;
mod header;
mod json;
mod load;
mod out_file;
mod plane;
mod quantization;
pub mod quantize;
mod shards;
mod small_floats;
mod weight;

pub use bytes::{Bytes, MappedFile};
pub use checkpoint::{Checkpoint, Tensor, read_file};
pub use config::Config;
pub use error::{Error, Result};
pub use float::Float;
pub use folder_writer::{DRAFTER_FILE, FolderWriter};
pub use out_file::{TensorSpec, write_file};
pub use plane::Plane;
pub use quantization::{Mode, QuantSpec, Quantization};
pub use quantize::{AffineRows, FloatRows, quantize_affine, quantize_mxfp4, quantize_mxfp8, quantize_nvfp4};
pub use safetensors::Dtype;
pub use weight::{Format, Weight};
