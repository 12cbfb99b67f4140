//! From a checkpoint's names to weights on a backend.

use backend::Backend;
use checkpoint::{Checkpoint, Weight};

use crate::Result;

/// A place in a checkpoint's tree of names, and the backend its weights go to.
pub(crate) struct Loader<'a, B> {
    pub checkpoint: &'a Checkpoint,
    pub backend: &'a B,
    path: String,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// The root of the tree; `prefix` is empty or ends where the first name begins.
    pub fn new(checkpoint: &'a Checkpoint, backend: &'a B, prefix: &str) -> Self {
        Self { checkpoint, backend, path: prefix.into() }
    }

    /// A branch of the tree.
    pub fn at(&self, branch: impl std::fmt::Display) -> Self {
        Self { path: format!("{}{branch}.", self.path), ..*self }
    }

    fn name(&self, leaf: &str) -> String {
        format!("{}{leaf}", self.path)
    }

    /// A linear layer `[rows, cols]`.
    pub fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<B::Matrix> {
        let weight = self.checkpoint.matrix(&self.name(name), rows, cols)?;
        Ok(self.backend.matrix(&weight)?)
    }

    /// A stack of linear layers as stored.
    pub fn stack(&self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Weight> {
        Ok(self.checkpoint.stack(&self.name(name), count, rows, cols)?)
    }

    /// A learned vector, under its full name.
    pub fn vector(&self, name: &str, len: usize) -> Result<B::Tensor> {
        self.table(name, 1, len)
    }

    /// A learned table of plain floats, under its full name.
    pub fn table(&self, name: &str, rows: usize, cols: usize) -> Result<B::Tensor> {
        let values = self.checkpoint.vector(&self.name(name), &[rows, cols])?;
        Ok(self.backend.upload(rows, cols, &values)?)
    }

    /// The weight of a norm.
    pub fn norm(&self, name: &str, len: usize) -> Result<B::Tensor> {
        self.vector(&format!("{name}.weight"), len)
    }
}
