//! A whole decoder: embedding, layers, final norm, head.

use backend::{Backend, Batch, Checked, Head, Norm};

use super::{Drafter, Layer, LayerInputs};
use crate::Result;
use crate::loader::Loader;
use crate::spec::Spec;

/// A decoder with its weights.
pub(crate) struct Decoder<B: Backend> {
    embed_tokens: B::Linear,
    embed_scale: f32,
    layer_inputs: Option<LayerInputs<B>>,
    layers: Vec<Layer<B>>,
    /// For each layer, the number in the pool of the one whose caches or state it uses.
    state_of: Vec<usize>,
    norm: Norm<B::Tensor>,
    /// Absent when the embedding table is the head.
    lm_head: Option<B::Linear>,
    soft_cap: Option<f32>,
    drafter: Option<Drafter<B>>,
}

impl<B: Backend> Decoder<B> {
    /// `root` is where `model` and `lm_head` are found.
    pub fn load(root: &Loader<'_, B>, spec: &Spec) -> Result<Self> {
        let model = root.at("model");
        let inputs = spec.layer_inputs;
        let layer = |(i, layer)| Layer::load(&model.at("layers").at(i), layer, spec.eps, inputs.is_some());
        Ok(Self {
            layer_inputs: inputs.map(|inputs| LayerInputs::load(&model, spec, inputs.width)).transpose()?,
            layers: spec.layers.iter().enumerate().map(layer).collect::<Result<_>>()?,
            state_of: spec.states(),
            embed_tokens: model.linear(&["embed_tokens"])?,
            embed_scale: spec.embed_scale,
            norm: model.norm("norm", spec.eps)?,
            lm_head: if spec.tied { None } else { Some(root.linear(&["lm_head"])?) },
            soft_cap: spec.soft_cap,
            drafter: spec.drafter.as_ref().map(|head| Drafter::load(root, head, spec.eps)).transpose()?,
        })
    }

    /// Hidden states of a batch before the final norm.
    pub fn forward(&self, b: &Checked<'_, B>, batch: &Batch<B>, slabs: &mut B::Slabs) -> Result<B::Tensor> {
        let h = b.embed(&self.embed_tokens, batch, self.embed_scale)?;
        let inputs = self.layer_inputs.as_ref();
        let inputs =
            inputs.map(|own| Ok::<_, crate::Error>((own, own.forward(b, &h, batch)?))).transpose()?;
        let mut h = b.hidden(h);
        for (i, layer) in self.layers.iter().enumerate() {
            h = layer.mix(b, h, batch, slabs, self.state_of[i])?;
            let input = inputs.as_ref().map(|(own, all)| own.of_layer(b, all, i)).transpose()?;
            h = layer.feed(b, h, input)?;
        }
        Ok(b.tensor(h)?)
    }

    /// Logits of hidden states.
    pub fn logits(&self, b: &Checked<'_, B>, hidden: &B::Tensor) -> Result<B::Tensor> {
        let head = Head { norm: &self.norm, linear: self.head(), soft_cap: self.soft_cap };
        Ok(b.logits(hidden, &head)?)
    }

    fn head(&self) -> &B::Linear {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }

    /// The head that drafts, where there is one.
    pub fn drafter(&self) -> Option<&Drafter<B>> {
        self.drafter.as_ref()
    }

    /// What the drafting head takes of the hidden states.
    pub fn drafter_input(&self, b: &Checked<'_, B>, hidden: &B::Tensor) -> Result<B::Tensor> {
        Ok(b.rms_norm(hidden, Some(&self.norm.w), self.norm.eps)?)
    }

    /// Embeddings of a batch's tokens, as the drafting head takes them.
    pub fn embed(&self, b: &Checked<'_, B>, batch: &Batch<B>) -> Result<B::Tensor> {
        Ok(b.embed(&self.embed_tokens, batch, 1.0)?)
    }

    /// Logits of what the drafting head puts out: the model's own head, whose norm it has applied.
    pub fn draft_logits(&self, b: &Checked<'_, B>, output: &B::Tensor) -> Result<B::Tensor> {
        Ok(b.matmul(output, self.head())?)
    }
}
