//! Inputs of single layers (small Gemma models): a row of a table for each token, with a part for each layer.

use backend::{Activation, Backend, Batch, Checked, Norm};

use crate::Result;
use crate::loader::Loader;
use crate::spec::Spec;

/// Where the inputs come from: a table of their own, and a projection of the embedding.
pub(crate) struct LayerInputs<B: Backend> {
    width: usize,
    layers: usize,
    table: B::Linear,
    projection: B::Linear,
    norm: Norm<B::Tensor>,
}

impl<B: Backend> LayerInputs<B> {
    pub fn load(model: &Loader<'_, B>, spec: &Spec, width: usize) -> Result<Self> {
        // The projection's factor d^-0.5 is taken away again by the norm, but for its eps:
        // rms(c x; eps) = rms(x; eps / c^2).
        let eps = spec.eps * spec.hidden as f32;
        Ok(Self {
            width,
            layers: spec.layers.len(),
            table: model.linear(&["embed_tokens_per_layer"])?,
            projection: model.linear(&["per_layer_model_projection"])?,
            norm: model.norm("per_layer_projection_norm", eps)?,
        })
    }

    /// All layers' inputs `[n, layers * width]`: `(rms(P h d^-0.5) * w + table[token] * sqrt(width)) / sqrt(2)`.
    pub fn forward(&self, b: &Checked<'_, B>, h: &B::Tensor, batch: &Batch<B>) -> Result<B::Tensor> {
        let Self { width, layers, norm, .. } = self;
        let n = batch.rows();
        let table = b.embed(&self.table, batch, (*width as f32).sqrt())?;
        let table = b.reshape(table, n * layers, *width)?;
        let projected = b.reshape(b.matmul(h, &self.projection)?, n * layers, *width)?;
        let inputs = b.norm_add(&table, &projected, &norm.w, norm.eps, 0.5f32.sqrt())?;
        Ok(b.reshape(inputs, n, layers * width)?)
    }

    /// The input of layer `i`.
    pub fn of_layer(&self, b: &Checked<'_, B>, all: &B::Tensor, i: usize) -> Result<B::Tensor> {
        Ok(b.columns(all, i * self.width, self.width)?)
    }
}

/// What a layer does with its input: `(h + rms(P (gelu(G h) * input)) * w) * factor`.
pub(crate) struct LayerInput<B: Backend> {
    gate: B::Linear,
    projection: B::Linear,
    norm: Norm<B::Tensor>,
    factor: f32,
}

impl<B: Backend> LayerInput<B> {
    pub fn load(layer: &Loader<'_, B>, eps: f32, factor: f32) -> Result<Self> {
        Ok(Self {
            gate: layer.linear(&["per_layer_input_gate"])?,
            projection: layer.linear(&["per_layer_projection"])?,
            norm: layer.norm("post_per_layer_input_norm", eps)?,
            factor,
        })
    }

    pub fn forward(&self, b: &Checked<'_, B>, h: B::Hidden, input: &B::Tensor) -> Result<B::Hidden> {
        let Self { gate, projection, norm, factor } = self;
        let h = b.tensor(h)?;
        let x = b.glu(b.matmul(&h, gate)?, input, Activation::GeluTanh)?;
        let x = b.matmul(&x, projection)?;
        Ok(b.hidden(b.norm_add(&h, &x, &norm.w, norm.eps, *factor)?))
    }
}
