//! Gemma 4: layers that see a window and, every so often, one that sees all; a norm before and after everything; a dense
//! unit and experts side by side, or the dense unit alone; small models give every layer an input of its own.

mod config;
mod layer;

use backend::{Backend, Batch, CacheFloat, Factor, KvShape, Norm};
use checkpoint::Checkpoint;

use crate::Result;
use crate::config::Fields;
use crate::loader::Loader;
use crate::model::{Built, Log, Network, Summary};
use crate::state::{self, LayerShape, State};
use config::Config;
use layer::{Hidden, Layer};

/// Where the inputs of single layers come from: a table of their own, and a projection of the embedding.
struct LayerInputs<B: Backend> {
    width: usize,
    table: B::Matrix,
    projection: B::Matrix,
    norm: B::Tensor,
}

/// A whole model.
struct Gemma<B: Backend> {
    config: Config,
    embed_tokens: B::Matrix,
    layer_inputs: Option<LayerInputs<B>>,
    layers: Vec<Layer<B>>,
    /// For each layer, which of the sequence's caches it uses.
    cache_of: Vec<usize>,
    norm: B::Tensor,
    lm_head: Option<B::Matrix>,
}

impl<B: Backend> LayerInputs<B> {
    fn load(model: &Loader<'_, B>, config: &Config, (width, entries): (usize, usize)) -> Result<Self> {
        let all = config.sliding.len() * width;
        Ok(Self {
            width,
            table: model.matrix("embed_tokens_per_layer", entries, all)?,
            projection: model.matrix("per_layer_model_projection", all, config.hidden)?,
            norm: model.norm("per_layer_projection_norm", width)?,
        })
    }

    /// All layers' inputs `[n, layers * width]`: `(rms(P h d^-0.5) * w + table[token] * sqrt(width)) / sqrt(2)`.
    fn forward(&self, b: &B, h: &B::Tensor, batch: &Batch<B>, config: &Config) -> Result<B::Tensor> {
        let (n, layers) = (batch.rows(), config.sliding.len());
        let table = b.embed(&self.table, batch, (self.width as f32).sqrt())?;
        let projected = b.matmul(h, &self.projection)?;
        let table = b.reshape(table, n * layers, self.width)?;
        let projected = b.reshape(projected, n * layers, self.width)?;
        // The norm takes the factor d^-0.5 away again, but for its eps: rms(c x; eps) = rms(x; eps / c^2).
        let eps = config.eps * config.hidden as f32;
        let half = Factor::Scalar(0.5f32.sqrt());
        let inputs = b.norm_add(&table, &projected, &self.norm, eps, half)?;
        Ok(b.reshape(inputs, n, layers * self.width)?)
    }
}

impl<B: Backend> Network<B> for Gemma<B> {
    fn forward(&self, b: &B, batch: &Batch<B>, states: &mut [&mut State<B>]) -> Result<B::Tensor> {
        let h = b.embed(&self.embed_tokens, batch, (self.config.hidden as f32).sqrt())?;
        let inputs = self.layer_inputs.as_ref().map(|i| i.forward(b, &h, batch, &self.config)).transpose()?;
        let mut hidden = Hidden::Whole(h);
        for (i, layer) in self.layers.iter().enumerate() {
            let input = match (&self.layer_inputs, &inputs) {
                (Some(LayerInputs { width, .. }), Some(all)) => Some(b.columns(all, i * width, *width)?),
                _ => None,
            };
            hidden = layer.forward(b, hidden, input, batch, state::caches(states, self.cache_of[i]))?;
        }
        hidden.whole(b)
    }

    fn logits(&self, b: &B, hidden: &B::Tensor) -> Result<B::Tensor> {
        let norm = Norm { w: &self.norm, eps: self.config.eps };
        let [logits] = b.norm_matmuls(hidden, norm, [self.lm_head.as_ref().unwrap_or(&self.embed_tokens)])?;
        Ok(match self.config.soft_cap {
            Some(cap) => b.soft_cap(logits, cap)?,
            None => logits,
        })
    }

    fn layer_shapes(&self, float: CacheFloat) -> Vec<LayerShape> {
        let shape = |i: usize| {
            let attention = self.config.attention(i);
            LayerShape::Kv(KvShape {
                heads: attention.kv_heads,
                key_dim: attention.head_dim,
                value_dim: attention.head_dim,
                float,
                window: attention.window,
            })
        };
        (0..self.config.first_shared).map(shape).collect()
    }

    fn embeds_all(&self) -> bool {
        let Config { per_layer, vocabulary, .. } = self.config;
        per_layer.is_none_or(|(_, entries)| entries >= vocabulary)
    }
}

pub(crate) fn load<B: Backend>(
    checkpoint: &Checkpoint,
    backend: &B,
    family: &str,
    log: Log<'_>,
) -> Result<Built<B>> {
    let config = Config::read(Fields(checkpoint.config().root()), Fields(checkpoint.config().text()))?;
    let Config { vocabulary, hidden, context, tied, .. } = config;
    let prefix = if family == "gemma4" { "language_model." } else { "" };
    let root = Loader::new(checkpoint, backend, prefix, log);
    let model = root.at("model");
    let layers = 0..config.sliding.len();
    let layer = |i: usize| model.at("layers").at(i);
    // A layer ends in the next one's first product, where that is faster.
    let first_norms: Vec<Vec<f32>> =
        layers.clone().map(|i| Layer::first_norm(&layer(i), &config)).collect::<Result<_>>()?;
    let network = Gemma {
        embed_tokens: model.matrix("embed_tokens", vocabulary, hidden)?,
        layer_inputs: config.per_layer.map(|shape| LayerInputs::load(&model, &config, shape)).transpose()?,
        layers: layers
            .clone()
            .map(|i| {
                let norms = (&first_norms[i][..], first_norms.get(i + 1).map(Vec::as_slice));
                Layer::load(&layer(i), &config, i, norms)
            })
            .collect::<Result<_>>()?,
        cache_of: layers.map(|i| config.kv_layer(i)).collect::<Result<_>>()?,
        norm: model.norm("norm", hidden)?,
        lm_head: if tied { None } else { Some(root.matrix("lm_head", vocabulary, hidden)?) },
        config,
    };
    let parts = network.config.describe();
    Ok((Box::new(network), Summary { family: family.into(), vocabulary, hidden, context, parts }))
}
