//! A head that guesses the token after the next: multi-token prediction, as the Qwen and DeepSeek families are trained with it.
//!
//! For a position whose next token is known, `x = join [norm(embedding of that token) | norm(hidden)]`, then one decoder layer
//! with a cache of its own, a norm, and the model's own `lm_head`. `hidden` is what leaves the model's final norm. For a guess after a guess the head's
//! own output stands in its place.

use backend::{Backend, Batch, CacheFloat};

use super::{DecoderConfig, Layer, Mixer, MoeConfig};
use crate::Result;
use crate::config::Fields;
use crate::loader::Loader;
use crate::state::{LayerShape, State};

/// Where a family keeps the parts of its head.
pub(crate) struct DrafterNames {
    pub embedding_norm: &'static str,
    pub hidden_norm: &'static str,
    pub join: &'static str,
    /// The branch of the layer; `None`: its weights lie beside the others.
    pub layer: Option<&'static str>,
    pub norm: &'static str,
}

/// The head's own weights.
pub(crate) struct Drafter<B: Backend> {
    embedding_norm: B::Tensor,
    hidden_norm: B::Tensor,
    join: B::Matrix,
    layer: Layer<B>,
    norm: B::Tensor,
}

impl<B: Backend> Drafter<B> {
    /// `None` where the checkpoint lacks one of the weights around the layer: then there is no head, or a part of one that nobody
    /// could use. The layer has experts where its files have a router.
    pub fn load(
        loader: &Loader<'_, B>,
        names: &DrafterNames,
        fields: Fields<'_>,
        config: &DecoderConfig,
        moe: Option<&MoeConfig>,
        mixer: impl FnOnce(&Loader<'_, B>) -> Result<Mixer<B>>,
    ) -> Result<Option<Self>> {
        let DrafterNames { embedding_norm, hidden_norm, join, layer, norm } = *names;
        let parts = [embedding_norm, hidden_norm, join, norm];
        if !parts.iter().all(|part| loader.contains(&format!("{part}.weight"))) {
            return Ok(None);
        }
        let hidden = config.hidden;
        let branch = layer.map(|layer| loader.at(layer));
        let branch = branch.as_ref().unwrap_or(loader);
        let moe = moe.filter(|_| branch.contains("mlp.gate.weight"));
        Ok(Some(Self {
            embedding_norm: loader.norm(embedding_norm, hidden)?,
            hidden_norm: loader.norm(hidden_norm, hidden)?,
            join: loader.matrix(join, hidden, 2 * hidden)?,
            layer: Layer::load(branch, fields, hidden, moe, mixer)?,
            norm: loader.norm(norm, hidden)?,
        }))
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

    /// What it keeps of a sequence.
    pub fn shape(&self, float: CacheFloat) -> LayerShape {
        self.drafter.layer.shape(float)
    }
}
