//! From a model's outline to weights on a backend.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Display;

use backend::{Backend, Norm};
use checkpoint::Weight;

use crate::outline::ListedWeight;
use crate::stored::Stored;
use crate::{Error, Result};

/// The weights of a model that no layer has taken yet, by path.
pub(crate) type Untaken = RefCell<HashMap<String, Stored>>;

/// The weights of an outline.
pub(crate) fn untaken(weights: Vec<ListedWeight>) -> Untaken {
    RefCell::new(weights.into_iter().map(|weight| (weight.spec.path, weight.stored)).collect())
}

/// A place in the tree of names, and the backend its weights go to. Shapes are those of the list;
/// layers know the names.
pub(crate) struct Loader<'a, B> {
    pub backend: &'a B,
    weights: &'a Untaken,
    path: String,
}

impl<'a, B: Backend> Loader<'a, B> {
    /// The root of the tree. `prefix` stands before all names.
    pub fn new(weights: &'a Untaken, backend: &'a B, prefix: &str) -> Self {
        Self { backend, weights, path: prefix.to_owned() }
    }

    /// A branch of the tree.
    pub fn at(&self, branch: impl Display) -> Self {
        Self { path: format!("{}{branch}.", self.path), ..*self }
    }

    /// Takes a weight from the list.
    fn take(&self, name: &str) -> Result<Stored> {
        let path = format!("{}{name}", self.path);
        self.weights.borrow_mut().remove(&path).ok_or(Error::NotListed { path })
    }

    fn weight(&self, name: &str) -> Result<(Weight, bool)> {
        match self.take(name)? {
            Stored::Matrices { weight, transposed, .. } => Ok((*weight, transposed)),
            Stored::Values { .. } => Err(Error::NotListed { path: format!("{}{name}", self.path) }),
        }
    }

    /// Matrices over one input.
    pub fn linear(&self, names: &[&str]) -> Result<B::Linear> {
        let weight = |name: &&str| Ok(self.weight(name)?.0);
        let weights = names.iter().map(weight).collect::<Result<Vec<_>>>()?;
        Ok(self.backend.linear(&weights.iter().collect::<Vec<_>>())?)
    }

    /// One matrix per head.
    pub fn head_matrices(&self, name: &str) -> Result<B::HeadMatrices> {
        let (weight, transposed) = self.weight(name)?;
        Ok(self.backend.head_matrices(&weight, transposed)?)
    }

    /// A gated unit's three projections.
    fn unit(&self) -> Result<[Weight; 3]> {
        let [gate, up, down] = ["gate_proj", "up_proj", "down_proj"].map(|name| self.weight(name));
        Ok([gate?.0, up?.0, down?.0])
    }

    /// The experts of a layer in the branch `stacked`, and a shared one in a branch of its own.
    pub fn experts(&self, stacked: &str, shared: Option<&str>) -> Result<B::Experts> {
        let stacks = self.at(stacked).unit()?;
        let shared = shared.map(|branch| self.at(branch).unit()).transpose()?;
        Ok(self.backend.expert_weights(stacks.each_ref(), shared.as_ref().map(<[Weight; 3]>::each_ref))?)
    }

    /// Plain values under the name of the list: of a norm, without `.weight`.
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        match self.take(name)? {
            Stored::Values { values, .. } => Ok(values),
            Stored::Matrices { .. } => Err(Error::NotListed { path: format!("{}{name}", self.path) }),
        }
    }

    /// The same as a row on the backend.
    pub fn vector(&self, name: &str) -> Result<B::Tensor> {
        let values = self.values(name)?;
        Ok(self.backend.vector(1, values.len(), &values)?)
    }

    /// A norm, by the name of its weight.
    pub fn norm(&self, name: &str, eps: f32) -> Result<Norm<B::Tensor>> {
        Ok(Norm { w: self.vector(name)?, eps })
    }
}
