//! The frame the Qwen and DeepSeek families share: embedding, pre-normed residual layers, final norm, head.

use backend::{Backend, Batch, CacheFloat, Norm};

use super::drafter::{Drafter, Drafts};
use super::{Attention, FeedForward, GatedDelta, LatentAttention, MoeConfig};
use crate::Result;
use crate::config::Fields;
use crate::loader::Loader;
use crate::model::{Network, Summary};
use crate::state::{self, LayerShape, State};

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
    /// `loader` is the layer's place in the tree; `mixer` loads what mixes tokens there; `moe` is given where the layer
    /// has experts.
    pub fn load(
        loader: &Loader<'_, B>,
        fields: Fields<'_>,
        hidden: usize,
        moe: Option<&MoeConfig>,
        mixer: impl FnOnce(&Loader<'_, B>) -> Result<Mixer<B>>,
    ) -> Result<Self> {
        Ok(Self {
            input_norm: loader.norm("input_layernorm", hidden)?,
            mixer: mixer(loader)?,
            post_norm: loader.norm("post_attention_layernorm", hidden)?,
            feed_forward: FeedForward::load(&loader.at("mlp"), fields, hidden, moe)?,
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

    pub fn shape(&self, float: CacheFloat) -> LayerShape {
        match &self.mixer {
            Mixer::Attention(attention) => LayerShape::Kv(attention.kv_shape(float)),
            Mixer::Latent(attention) => LayerShape::Kv(attention.kv_shape(float)),
            Mixer::GatedDelta(delta) => LayerShape::Recurrent(delta.shape()),
        }
    }
}

/// What the frame itself needs to know.
pub(crate) struct DecoderConfig {
    pub vocabulary: usize,
    pub hidden: usize,
    pub layers: usize,
    pub eps: f32,
    /// Whether the embedding table is also the head.
    pub tied: bool,
    /// Longest sequence the model was made for.
    pub context: Option<usize>,
}

impl DecoderConfig {
    pub fn read(fields: Fields<'_>) -> Result<Self> {
        Ok(Self {
            vocabulary: fields.size("vocab_size")?,
            hidden: fields.size("hidden_size")?,
            layers: fields.size("num_hidden_layers")?,
            eps: fields.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            tied: fields.flag("tie_word_embeddings", false)?,
            context: fields.count("max_position_embeddings")?,
        })
    }

    /// What to tell people, with a line for each part.
    pub fn summary(&self, family: &str, parts: Vec<(String, String)>) -> Summary {
        let Self { vocabulary, hidden, context, .. } = *self;
        Summary { family: family.into(), vocabulary, hidden, context, parts }
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
    /// `root` is where `model` and `lm_head` are found; `mixer` loads what mixes tokens in the layer of a number, from
    /// that layer's place in the tree.
    pub fn load(
        root: &Loader<'_, B>,
        fields: Fields<'_>,
        config: &DecoderConfig,
        moe: Option<&MoeConfig>,
        mixer: impl Fn(&Loader<'_, B>, usize) -> Result<Mixer<B>>,
    ) -> Result<Self> {
        let DecoderConfig { vocabulary, hidden, layers, eps, tied, .. } = *config;
        let model = root.at("model");
        let layer = |i: usize| {
            let moe = moe.filter(|moe| moe.covers(i));
            Layer::load(&model.at("layers").at(i), fields, hidden, moe, |layer| mixer(layer, i))
        };
        let layers = (0..layers).map(layer).collect::<Result<_>>()?;
        Ok(Self {
            eps,
            embed_tokens: model.matrix("embed_tokens", vocabulary, hidden)?,
            layers,
            norm: model.norm("norm", hidden)?,
            lm_head: if tied { None } else { Some(root.matrix("lm_head", vocabulary, hidden)?) },
            drafter: None,
        })
    }

    /// The same with a head that guesses.
    pub fn with_drafter(self, drafter: Option<Drafter<B>>) -> Self {
        Self { drafter, ..self }
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

    fn layer_shapes(&self, float: CacheFloat) -> Vec<LayerShape> {
        self.layers.iter().map(|layer| layer.shape(float)).collect()
    }

    fn drafts(&self) -> Option<Drafts<'_, B>> {
        let Self { embed_tokens, norm, eps, .. } = self;
        let drafter = self.drafter.as_ref()?;
        Some(Drafts { drafter, embed_tokens, norm, lm_head: self.head(), eps: *eps })
    }
}
