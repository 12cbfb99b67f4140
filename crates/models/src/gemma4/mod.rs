//! Gemma 4: layers that see a window and, every so often, one that sees all; a norm before and after everything; a dense
//! unit and experts side by side, or the dense unit alone; small models give every layer an input of its own.

mod layer;

use backend::{Backend, Batch, Factor, Norm};

use crate::Result;
use crate::loader::Loader;
use crate::model::Network;
use crate::spec::{LayerSpec, Spec};
use crate::state::{self, State};
use layer::{Hidden, Layer};

/// Where the inputs of single layers come from: a table of their own, and a projection of the embedding.
struct LayerInputs<B: Backend> {
    width: usize,
    table: B::Matrix,
    projection: B::Matrix,
    norm: B::Tensor,
}

/// A whole model.
pub(crate) struct Gemma<B: Backend> {
    spec: Spec,
    embed_tokens: B::Matrix,
    layer_inputs: Option<LayerInputs<B>>,
    layers: Vec<Layer<B>>,
    /// For each layer, which of the sequence's caches it uses.
    state_of: Vec<usize>,
    norm: B::Tensor,
    lm_head: Option<B::Matrix>,
}

impl<B: Backend> LayerInputs<B> {
    fn load(model: &Loader<'_, B>, width: usize) -> Result<Self> {
        Ok(Self {
            width,
            table: model.matrix("embed_tokens_per_layer")?,
            projection: model.matrix("per_layer_model_projection")?,
            norm: model.vector("per_layer_projection_norm")?,
        })
    }

    /// All layers' inputs `[n, layers * width]`: `(rms(P h d^-0.5) * w + table[token] * sqrt(width)) / sqrt(2)`.
    fn forward(&self, b: &B, h: &B::Tensor, batch: &Batch<B>, spec: &Spec) -> Result<B::Tensor> {
        let (n, layers) = (batch.rows(), spec.layers.len());
        let table = b.embed(&self.table, batch, (self.width as f32).sqrt())?;
        let projected = b.matmul(h, &self.projection)?;
        let table = b.reshape(table, n * layers, self.width)?;
        let projected = b.reshape(projected, n * layers, self.width)?;
        // The norm takes the factor d^-0.5 away again, but for its eps: rms(c x; eps) = rms(x; eps / c^2).
        let eps = spec.eps * spec.hidden as f32;
        let half = Factor::Scalar(0.5f32.sqrt());
        let inputs = b.norm_add(&table, &projected, &self.norm, eps, half)?;
        Ok(b.reshape(inputs, n, layers * self.width)?)
    }
}

impl<B: Backend> Network<B> for Gemma<B> {
    fn forward(&self, b: &B, batch: &Batch<B>, states: &mut [&mut State<B>]) -> Result<B::Tensor> {
        let h = b.embed(&self.embed_tokens, batch, self.spec.embed_scale)?;
        let inputs = self.layer_inputs.as_ref().map(|i| i.forward(b, &h, batch, &self.spec)).transpose()?;
        let mut hidden = Hidden::Whole(h);
        for (i, layer) in self.layers.iter().enumerate() {
            let input = match (&self.layer_inputs, &inputs) {
                (Some(LayerInputs { width, .. }), Some(all)) => Some(b.columns(all, i * width, *width)?),
                _ => None,
            };
            hidden = layer.forward(b, hidden, input, batch, state::caches(states, self.state_of[i]))?;
        }
        hidden.whole(b)
    }

    fn logits(&self, b: &B, hidden: &B::Tensor) -> Result<B::Tensor> {
        let norm = Norm { w: &self.norm, eps: self.spec.eps };
        let [logits] = b.norm_matmuls(hidden, norm, [self.lm_head.as_ref().unwrap_or(&self.embed_tokens)])?;
        Ok(match self.spec.soft_cap {
            Some(cap) => b.soft_cap(logits, cap)?,
            None => logits,
        })
    }
}

impl<B: Backend> Gemma<B> {
    /// `root` is where `model` and `lm_head` are found.
    pub fn load(root: &Loader<'_, B>, spec: &Spec) -> Result<Self> {
        let model = root.at("model");
        let layer = |i: usize| model.at("layers").at(i);
        // A layer ends in the next one's first product, where that is faster.
        let first_norm = |(i, spec): (usize, &LayerSpec)| layer(i).values(spec.norms.before_mixer);
        let first_norms: Vec<Vec<f32>> =
            spec.layers.iter().enumerate().map(first_norm).collect::<Result<_>>()?;
        let load_layer = |(i, layer_spec): (usize, &LayerSpec)| {
            let norms = (&first_norms[i][..], first_norms.get(i + 1).map(Vec::as_slice));
            Layer::load(&layer(i), spec, layer_spec, norms)
        };
        Ok(Self {
            embed_tokens: model.matrix("embed_tokens")?,
            layer_inputs: spec.layer_inputs.map(|i| LayerInputs::load(&model, i.width)).transpose()?,
            layers: spec.layers.iter().enumerate().map(load_layer).collect::<Result<_>>()?,
            state_of: spec.states(),
            norm: model.vector("norm")?,
            lm_head: if spec.tied { None } else { Some(root.matrix("lm_head")?) },
            spec: spec.clone(),
        })
    }
}
