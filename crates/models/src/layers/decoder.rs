//! The frame the Qwen and DeepSeek families share: embedding, pre-normed residual layers, final norm, head.

use backend::{Backend, Batch, Norm};

use super::drafter::{Drafter, Drafts};
use super::{Attention, FeedForward, GatedDelta, LatentAttention};
use crate::Result;
use crate::loader::Loader;
use crate::model::Network;
use crate::spec::{LayerSpec, Mixer as MixerSpec, Spec};
use crate::state::{self, State};

/// How a layer mixes tokens.
pub(crate) enum Mixer<B: Backend> {
    Attention(Attention<B>),
    GatedDelta(GatedDelta<B>),
    Latent(LatentAttention<B>),
}

/// One residual layer: `h += mixer(norm(h)); h += feed_forward(norm(h))`.
pub(crate) struct Layer<B: Backend> {
    input_norm: B::Tensor,
    mixer: Mixer<B>,
    post_norm: B::Tensor,
    feed_forward: FeedForward<B>,
}

impl<B: Backend> Layer<B> {
    /// `loader` is the layer's place in the tree.
    pub fn load(loader: &Loader<'_, B>, spec: &LayerSpec, eps: f32) -> Result<Self> {
        let mixer = |spec: &MixerSpec| {
            Ok::<_, crate::Error>(match spec {
                MixerSpec::Attention(spec) => {
                    Mixer::Attention(Attention::load(&loader.at("self_attn"), spec, eps)?)
                }
                MixerSpec::Latent(spec) => {
                    Mixer::Latent(LatentAttention::load(&loader.at("self_attn"), spec)?)
                }
                MixerSpec::GatedDelta(spec) => {
                    Mixer::GatedDelta(GatedDelta::load(&loader.at("linear_attn"), spec)?)
                }
            })
        };
        Ok(Self {
            input_norm: loader.vector(spec.norms.before_mixer)?,
            mixer: mixer(&spec.mixer)?,
            post_norm: loader.vector(spec.norms.before_feed)?,
            feed_forward: FeedForward::load(loader, &spec.feed)?,
        })
    }

    /// The first half; the layer's caches are number `i` of the states.
    pub fn mix(
        &self,
        b: &B,
        eps: f32,
        h: B::Tensor,
        batch: &Batch<B>,
        states: &mut [&mut State<B>],
        i: usize,
    ) -> Result<B::Tensor> {
        let norm = Norm { w: &self.input_norm, eps };
        match &self.mixer {
            Mixer::Attention(attention) => attention.forward(b, h, norm, batch, state::caches(states, i)),
            Mixer::Latent(attention) => attention.forward(b, h, norm, batch, state::caches(states, i)),
            Mixer::GatedDelta(delta) => delta.forward(b, h, norm, batch, state::recurrent(states, i)),
        }
    }

    /// The second half.
    pub fn feed(&self, b: &B, eps: f32, h: B::Tensor) -> Result<B::Tensor> {
        self.feed_forward.forward(b, h, Norm { w: &self.post_norm, eps })
    }
}

/// A whole decoder.
pub(crate) struct Decoder<B: Backend> {
    eps: f32,
    embed_tokens: B::Matrix,
    layers: Vec<Layer<B>>,
    norm: B::Tensor,
    /// Absent when the embedding table is the head.
    lm_head: Option<B::Matrix>,
    drafter: Option<Drafter<B>>,
}

impl<B: Backend> Decoder<B> {
    /// `root` is where `model` and `lm_head` are found.
    pub fn load(root: &Loader<'_, B>, spec: &Spec) -> Result<Self> {
        let model = root.at("model");
        let layer = |(i, layer)| Layer::load(&model.at("layers").at(i), layer, spec.eps);
        Ok(Self {
            eps: spec.eps,
            layers: spec.layers.iter().enumerate().map(layer).collect::<Result<_>>()?,
            embed_tokens: model.matrix("embed_tokens")?,
            norm: model.vector("norm")?,
            lm_head: if spec.tied { None } else { Some(root.matrix("lm_head")?) },
            drafter: spec.drafter.as_ref().map(|head| Drafter::load(root, head, spec.eps)).transpose()?,
        })
    }

    fn head(&self) -> &B::Matrix {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens)
    }
}

impl<B: Backend> Network<B> for Decoder<B> {
    fn forward(&self, b: &B, batch: &Batch<B>, states: &mut [&mut State<B>]) -> Result<B::Tensor> {
        let mut h = b.embed(&self.embed_tokens, batch, 1.0)?;
        for (i, layer) in self.layers.iter().enumerate() {
            if let FeedForward::Sparse(moe) = &layer.feed_forward {
                // What the mixer adds seldom changes the first choices.
                b.expect_moe(&h, Norm { w: &layer.post_norm, eps: self.eps }, moe)?;
            }
            h = layer.mix(b, self.eps, h, batch, states, i)?;
            h = layer.feed(b, self.eps, h)?;
        }
        Ok(h)
    }

    fn logits(&self, b: &B, hidden: &B::Tensor) -> Result<B::Tensor> {
        let norm = Norm { w: &self.norm, eps: self.eps };
        let [logits] = b.norm_matmuls(hidden, norm, [self.head()])?;
        Ok(logits)
    }

    fn drafts(&self) -> Option<Drafts<'_, B>> {
        let Self { embed_tokens, norm, eps, .. } = self;
        let drafter = self.drafter.as_ref()?;
        Some(Drafts { drafter, embed_tokens, norm, lm_head: self.head(), eps: *eps })
    }
}
