//! One layer: a block that mixes tokens, and one that does not.

use backend::{Attention, Backend, Batch, Checked, GatedDelta, LatentAttention, Mlp, Moe, Norm, Residual};

use super::{LayerInput, attention, feed_forward, gated_delta, latent_attention};
use crate::Result;
use crate::loader::Loader;
use crate::spec::{FeedForward, LayerSpec, Mixer as MixerSpec};

/// How a layer mixes tokens.
enum Mixer<B: Backend> {
    Attention(Attention<B>),
    Latent(LatentAttention<B>),
    GatedDelta(GatedDelta<B>),
}

/// What it makes of each token then.
enum Feed<B: Backend> {
    Mlp(Mlp<B>),
    Moe(Moe<B>),
}

/// One layer.
pub(crate) struct Layer<B: Backend> {
    mixer: Mixer<B>,
    feed: Feed<B>,
    input: Option<LayerInput<B>>,
}

impl<B: Backend> Layer<B> {
    /// `loader` is the layer's place in the tree; `has_input` says whether the layer has an input of its own.
    pub fn load(loader: &Loader<'_, B>, spec: &LayerSpec, eps: f32, has_input: bool) -> Result<Self> {
        let scalar =
            if spec.scalar { loader.values("layer_scalar")?.first().copied().unwrap_or(1.0) } else { 1.0 };
        let norm = |name: &str| loader.norm(name, eps);
        let residual = |after: Option<&str>, factor| {
            Ok::<_, crate::Error>(match after {
                None => Residual::Plain,
                Some(name) => Residual::PostNorm { norm: norm(name)?, factor },
            })
        };
        let before: Norm<B::Tensor> = norm(spec.norms.before_mixer)?;
        let mixer = match &spec.mixer {
            MixerSpec::Attention(spec_of) => {
                let residual = residual(spec.norms.after_mixer, 1.0)?;
                Mixer::Attention(attention::load(&loader.at("self_attn"), spec_of, before, residual)?)
            }
            MixerSpec::Latent(spec_of) => {
                Mixer::Latent(latent_attention::load(&loader.at("self_attn"), spec_of, before)?)
            }
            MixerSpec::GatedDelta(spec_of) => {
                Mixer::GatedDelta(gated_delta::load(&loader.at("linear_attn"), spec_of, before)?)
            }
        };
        let (before, factor) = (norm(spec.norms.before_feed)?, if has_input { 1.0 } else { scalar });
        let residual = residual(spec.norms.after_feed, factor)?;
        let feed = match &spec.feed {
            FeedForward::Mlp(mlp) => Feed::Mlp(feed_forward::load_mlp(loader, mlp, before, residual)?),
            FeedForward::Moe(moe) => Feed::Moe(feed_forward::load_moe(loader, moe, before, residual)?),
        };
        let input = has_input.then(|| LayerInput::load(loader, eps, scalar)).transpose()?;
        Ok(Self { mixer, feed, input })
    }

    /// The first half; the layer's caches or states are those of layer `i` of the pool.
    pub fn mix(
        &self,
        b: &Checked<'_, B>,
        h: B::Hidden,
        batch: &Batch<B>,
        slabs: &mut B::Slabs,
        i: usize,
    ) -> Result<B::Hidden> {
        if let Feed::Moe(moe) = &self.feed {
            // What the mixer adds seldom changes the first choices.
            b.prefetch(&h, moe)?;
        }
        Ok(match &self.mixer {
            Mixer::Attention(w) => b.attention(h, w, batch, slabs, i)?,
            Mixer::Latent(w) => b.latent_attention(h, w, batch, slabs, i)?,
            Mixer::GatedDelta(w) => b.gated_delta(h, w, batch, slabs, i)?,
        })
    }

    /// The second half; `input` is the layer's own, for models that have such.
    pub fn feed(&self, b: &Checked<'_, B>, h: B::Hidden, input: Option<B::Tensor>) -> Result<B::Hidden> {
        let h = match &self.feed {
            Feed::Mlp(w) => b.mlp(h, w)?,
            Feed::Moe(w) => b.moe(h, w)?,
        };
        match (&self.input, input) {
            (Some(own), Some(input)) => own.forward(b, h, &input),
            _ => Ok(h),
        }
    }
}
