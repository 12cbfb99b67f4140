//! Weights on a machine.

use checkpoint::Weight;

use crate::{ExpertShape, Handle, HeadShape, LinearShape, Result, RopeSpec, Shape};

/// Takes weights over from a checkpoint. On the CPU they stay in the mapped file.
pub trait Weights: Sized + 'static {
    /// An activation or a learned vector.
    type Tensor: Handle<Shape = Shape> + Clone + Send;
    /// Matrices `[out, in]` over one input, each quantised or plain, with its optional bias: `W x` includes the bias.
    type Linear: Handle<Shape = LinearShape> + Send;
    /// One matrix per attention head, for latent attention.
    type HeadMatrices: Handle<Shape = HeadShape> + Send;
    /// The gate, up and down matrices of all experts of a layer, and of the shared one.
    type Experts: Handle<Shape = ExpertShape> + Send;
    /// A prepared rotary embedding; its shape is the number of rotated channels.
    type Rope: Handle<Shape = usize> + Send;

    /// Takes over matrices over one input: together they may cost less than one by one.
    fn linear(&self, weights: &[&Weight]) -> Result<Self::Linear>;

    /// Takes over one matrix per head. `transposed` where the stored matrix is `[in, out]`, so that `y = W^T x`.
    fn head_matrices(&self, weight: &Weight, transposed: bool) -> Result<Self::HeadMatrices>;

    /// Takes over stacks `gate [E, width, d]`, `up [E, width, d]`, `down [E, d, width]`, and the same matrices of
    /// a shared expert, of a width of its own.
    fn expert_weights(&self, stacks: [&Weight; 3], shared: Option<[&Weight; 3]>) -> Result<Self::Experts>;

    /// Takes over learned values `[rows, cols]` that are no matrix to multiply with: the weight of a norm, a bias.
    fn vector(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Self::Tensor>;

    /// Prepares a rotary embedding.
    fn rope_table(&self, spec: &RopeSpec) -> Result<Self::Rope>;

    /// Bytes that caches may still take on the device; `None` where that is unknown.
    fn free_memory(&self) -> Option<u64>;
}
