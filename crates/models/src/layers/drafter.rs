//! A head that guesses the token after the next: multi-token prediction, as the Qwen and DeepSeek families are trained with it.
//!
//! For a position whose next token is known, `x = join [norm(embedding of that token) | norm(hidden)]`, then one decoder layer
//! with a cache of its own, a norm, and the model's own `lm_head`. `hidden` is what leaves the model's final norm. For a guess after a guess the head's
//! own output stands in its place.

use backend::{Backend, Batch};

use super::Layer;
use crate::Result;
use crate::loader::Loader;
use crate::spec::{DrafterNames, DrafterSpec};
use crate::state::State;

/// The head's own weights.
pub(crate) struct Drafter<B: Backend> {
    embedding_norm: B::Tensor,
    hidden_norm: B::Tensor,
    join: B::Matrix,
    layer: Layer<B>,
    norm: B::Tensor,
}

impl<B: Backend> Drafter<B> {
    pub fn load(root: &Loader<'_, B>, spec: &DrafterSpec, eps: f32) -> Result<Self> {
        let DrafterNames { embedding_norm, hidden_norm, join, layer, norm } = spec.names;
        let head = root.at(&spec.branch);
        let layer = match layer {
            Some(branch) => Layer::load(&head.at(branch), &spec.layer, eps)?,
            None => Layer::load(&head, &spec.layer, eps)?,
        };
        Ok(Self {
            embedding_norm: head.vector(embedding_norm)?,
            hidden_norm: head.vector(hidden_norm)?,
            join: head.matrix(join)?,
            layer,
            norm: head.vector(norm)?,
        })
    }
}

/// The head with what it shares with its model.
pub(crate) struct Drafts<'a, B: Backend> {
    pub drafter: &'a Drafter<B>,
    pub embed_tokens: &'a B::Matrix,
    /// The model's final norm.
    pub norm: &'a B::Tensor,
    pub lm_head: &'a B::Matrix,
    pub eps: f32,
}

impl<B: Backend> Drafts<'_, B> {
    /// What the head takes of the model's hidden states.
    pub fn hidden(&self, b: &B, hidden: &B::Tensor) -> Result<B::Tensor> {
        Ok(b.rms_norm(hidden, Some(self.norm), self.eps)?)
    }

    /// The head's outputs for `rows` of a batch, where there are any. The batch's tokens are those that follow the positions of
    /// `hidden`. Other rows only leave their keys and values in the cache.
    pub fn forward(
        &self,
        b: &B,
        batch: &Batch<B>,
        hidden: &B::Tensor,
        states: &mut [&mut State<B>],
        rows: &[usize],
    ) -> Result<Option<B::Tensor>> {
        let (Drafter { embedding_norm, hidden_norm, join, layer, norm }, eps) = (self.drafter, self.eps);
        let embedded = b.rms_norm(&b.embed(self.embed_tokens, batch, 1.0)?, Some(embedding_norm), eps)?;
        let hidden = b.rms_norm(hidden, Some(hidden_norm), eps)?;
        let x = b.matmul(&b.join_columns(&embedded, &hidden)?, join)?;
        let x = layer.mix(b, eps, x, batch, states, 0)?;
        if rows.is_empty() {
            return Ok(None);
        }
        let x = if rows.len() == batch.rows() { x } else { b.select_rows(&x, rows)? };
        Ok(Some(b.rms_norm(&layer.feed(b, eps, x)?, Some(norm), eps)?))
    }

    pub fn logits(&self, b: &B, output: &B::Tensor) -> Result<B::Tensor> {
        Ok(b.matmul(output, self.lm_head)?)
    }
}
