//! An MTP head, which drafts the token after the next (multi-token prediction), as the Qwen and DeepSeek families are
//! trained with it.
//!
//! For a position whose next token is known, `x = join [norm(embedding of that token) | norm(hidden)]`, then one decoder
//! layer with a cache of its own, a norm, and the model's own `lm_head`. `hidden` is what leaves the model's final norm.
//! For a draft after a draft the head's own output stands in its place.

use backend::{Backend, Batch, Checked, Norm};

use super::Layer;
use crate::Result;
use crate::loader::Loader;
use crate::spec::DrafterSpec;

/// The head's own weights.
pub(crate) struct Drafter<B: Backend> {
    embedding_norm: Norm<B::Tensor>,
    hidden_norm: Norm<B::Tensor>,
    join: B::Linear,
    layer: Layer<B>,
    norm: Norm<B::Tensor>,
}

impl<B: Backend> Drafter<B> {
    /// `root` is where the head's branch is found.
    pub fn load(root: &Loader<'_, B>, spec: &DrafterSpec, eps: f32) -> Result<Self> {
        let (loader, names) = (root.at(&spec.branch), &spec.names);
        let layer = names.layer.map(|layer| loader.at(layer));
        Ok(Self {
            embedding_norm: loader.norm(names.embedding_norm, eps)?,
            hidden_norm: loader.norm(names.hidden_norm, eps)?,
            join: loader.linear(&[names.join])?,
            layer: Layer::load(layer.as_ref().unwrap_or(&loader), &spec.layer, eps, false)?,
            norm: loader.norm(names.norm, eps)?,
        })
    }

    /// The head's outputs for `rows` of a batch, where there are any. `embedded` are the tokens that follow the positions
    /// of `hidden`. Other rows only leave their keys and values in the cache.
    pub fn forward(
        &self,
        b: &Checked<'_, B>,
        batch: &Batch<B>,
        [embedded, hidden]: [&B::Tensor; 2],
        slabs: &mut B::Slabs,
        rows: &[usize],
    ) -> Result<Option<B::Tensor>> {
        let norm = |x: &B::Tensor, norm: &Norm<B::Tensor>| b.rms_norm(x, Some(&norm.w), norm.eps);
        let (embedded, hidden) = (norm(embedded, &self.embedding_norm)?, norm(hidden, &self.hidden_norm)?);
        let x = b.matmul(&b.join_columns(&embedded, &hidden)?, &self.join)?;
        let x = b.tensor(self.layer.mix(b, b.hidden(x), batch, slabs, 0)?)?;
        if rows.is_empty() {
            return Ok(None);
        }
        let x = if rows.len() == batch.rows() { x } else { b.select_rows(&x, rows)? };
        let x = b.tensor(self.layer.feed(b, b.hidden(x), None)?)?;
        Ok(Some(norm(&x, &self.norm)?))
    }
}
