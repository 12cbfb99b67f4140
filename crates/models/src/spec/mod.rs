//! A model as plain data: what a family reads from `config.json`, without weights or a backend.
//!
//! A [`Spec`] says everything that loading, measuring, quantising and describing a model need: its
//! layers' parts with their shapes and options, and so [the list of its weights](Spec::weights) and
//! what it keeps of a sequence.

mod attention;
mod describe;
mod feed_forward;
mod gated_delta;
mod latent_attention;

use backend::CacheFloat;
use backend::pool::LayerShape;

use crate::Result;
use crate::config::Fields;
use crate::weights::{Branch, Part, Role, WeightSpec};

pub(crate) use attention::{AttentionDefaults, AttentionSpec};
pub(crate) use feed_forward::{
    Beside, FeedForward, MlpSpec, MoeNames, MoeSpec, RoutingSpec, SharedSpec, read_top_k,
};
pub(crate) use gated_delta::GatedDeltaSpec;
pub(crate) use latent_attention::LatentSpec;

/// How a layer mixes tokens.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Mixer {
    /// Grouped-query attention, at `self_attn`.
    Attention(AttentionSpec),
    /// Multi-head latent attention, at `self_attn`.
    Latent(LatentSpec),
    /// Gated DeltaNet, at `linear_attn`.
    GatedDelta(GatedDeltaSpec),
}

/// The norms around a layer's two halves, by name. There is a norm where there is a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Norms {
    /// Of the mixer's input.
    pub before_mixer: &'static str,
    /// Of what the mixer adds.
    pub after_mixer: Option<&'static str>,
    /// Of the feed-forward's input.
    pub before_feed: &'static str,
    /// Of what the feed-forward adds.
    pub after_feed: Option<&'static str>,
}

impl Norms {
    /// `h += mixer(norm(h)); h += feed(norm(h))`
    pub const PRE: Norms = Norms {
        before_mixer: "input_layernorm",
        after_mixer: None,
        before_feed: "post_attention_layernorm",
        after_feed: None,
    };
    /// `h += norm(mixer(norm(h))); h += norm(feed(norm(h)))`
    pub const SANDWICH: Norms = Norms {
        before_mixer: "input_layernorm",
        after_mixer: Some("post_attention_layernorm"),
        before_feed: "pre_feedforward_layernorm",
        after_feed: Some("post_feedforward_layernorm"),
    };
}

/// One layer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LayerSpec {
    pub norms: Norms,
    pub mixer: Mixer,
    pub feed: FeedForward,
    /// Whether a learned `layer_scalar` multiplies its result.
    pub scalar: bool,
}

/// Extra inputs of every layer: a row of a table for each token, with a part for each layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LayerInputs {
    pub width: usize,
    pub entries: usize,
}

/// Where a family keeps the parts of its drafting head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DrafterNames {
    pub embedding_norm: &'static str,
    pub hidden_norm: &'static str,
    /// From both to the layer's input.
    pub join: &'static str,
    /// The branch of the layer; `None`: its weights lie beside the others.
    pub layer: Option<&'static str>,
    /// The norm of the layer's output.
    pub norm: &'static str,
}

/// A head that guesses the token after the next: one more layer (multi-token prediction).
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct DrafterSpec {
    pub names: DrafterNames,
    pub branch: String,
    pub layer: LayerSpec,
    /// What the layer has in place of experts where the files have no router.
    pub dense: Option<MlpSpec>,
}

/// A whole text model.
#[derive(Clone, PartialEq, Debug)]
pub struct Spec {
    /// Entries of the vocabulary: width of the logits.
    pub vocabulary: usize,
    /// Width of the hidden states.
    pub hidden: usize,
    pub(crate) eps: f32,
    /// Whether the embedding table is also the head.
    pub(crate) tied: bool,
    /// Longest sequence the model was made for, when the config says so.
    pub context: Option<usize>,
    /// Factor on embeddings.
    pub(crate) embed_scale: f32,
    /// `c * tanh(x / c)` on logits, when given.
    pub(crate) soft_cap: Option<f32>,
    pub(crate) layers: Vec<LayerSpec>,
    pub(crate) layer_inputs: Option<LayerInputs>,
    pub(crate) drafter: Option<DrafterSpec>,
}

impl Mixer {
    fn weights(&self, layer: &mut Branch<'_>, hidden: usize) {
        match self {
            Self::Attention(spec) => spec.weights(layer.at("self_attn").part(Part::Attention), hidden),
            Self::Latent(spec) => spec.weights(layer.at("self_attn").part(Part::Attention), hidden),
            Self::GatedDelta(spec) => spec.weights(layer.at("linear_attn").part(Part::Attention), hidden),
        }
    }

    fn shape(&self, float: CacheFloat) -> LayerShape {
        match self {
            Self::Attention(spec) => LayerShape::Kv(spec.cache(float)),
            Self::Latent(spec) => LayerShape::Kv(spec.cache(float)),
            Self::GatedDelta(spec) => LayerShape::Recurrent(spec.shape),
        }
    }

    /// The layer whose cache it reads in place of its own.
    fn reads(&self) -> Option<usize> {
        match self {
            Self::Attention(spec) => spec.reads_cache_of,
            Self::Latent(_) | Self::GatedDelta(_) => None,
        }
    }
}

impl LayerSpec {
    fn weights(&self, layer: &mut Branch<'_>, hidden: usize, inputs: Option<LayerInputs>) {
        let Norms { before_mixer, after_mixer, before_feed, after_feed } = self.norms;
        layer.norm(before_mixer, hidden);
        self.mixer.weights(layer, hidden);
        after_mixer.iter().for_each(|norm| layer.norm(norm, hidden));
        layer.norm(before_feed, hidden);
        self.feed.weights(layer, hidden);
        after_feed.iter().for_each(|norm| layer.norm(norm, hidden));
        if let Some(LayerInputs { width, .. }) = inputs {
            layer.matrix("per_layer_input_gate", width, hidden, Role::Projection);
            layer.matrix("per_layer_projection", hidden, width, Role::Projection);
            layer.norm("post_per_layer_input_norm", hidden);
        }
        if self.scalar {
            layer.values("layer_scalar", &[1], Role::FACTOR);
        }
    }
}

impl DrafterSpec {
    fn weights(&self, mut head: Branch<'_>, hidden: usize) {
        let DrafterNames { embedding_norm, hidden_norm, join, layer, norm } = self.names;
        head.norm(embedding_norm, hidden);
        head.norm(hidden_norm, hidden);
        head.matrix(join, hidden, 2 * hidden, Role::Projection);
        match layer {
            Some(branch) => self.layer.weights(&mut head.at(branch), hidden, None),
            None => self.layer.weights(&mut head, hidden, None),
        }
        head.norm(norm, hidden);
    }
}

impl Spec {
    /// A model of these layers, with the fields that all families have under the same names.
    pub(crate) fn read(fields: Fields<'_>, layers: Vec<LayerSpec>) -> Result<Self> {
        Ok(Self {
            vocabulary: fields.size("vocab_size")?,
            hidden: fields.size("hidden_size")?,
            eps: eps(fields)?,
            tied: fields.flag("tie_word_embeddings", false)?,
            context: fields.count("max_position_embeddings")?,
            embed_scale: 1.0,
            soft_cap: None,
            layers,
            layer_inputs: None,
            drafter: None,
        })
    }

    /// Whether it has a drafting head.
    pub fn has_drafter(&self) -> bool {
        self.drafter.is_some()
    }

    /// The same without one.
    pub fn without_drafter(self) -> Self {
        Self { drafter: None, ..self }
    }

    /// Every weight of the model, those of a drafting head last. `prefix` is where mlx-lm's class
    /// keeps the text model.
    pub fn weights(&self, prefix: &str) -> Vec<WeightSpec> {
        let Self { vocabulary, hidden, embed_scale, .. } = *self;
        let mut list = Vec::new();
        let mut root = Branch::root(&mut list, prefix);
        let mut model = root.at("model");
        let embedding = Role::Embedding { scale: embed_scale };
        model.part(Part::Head).matrix("embed_tokens", vocabulary, hidden, embedding);
        if let Some(LayerInputs { width, entries }) = self.layer_inputs {
            let all = self.layers.len() * width;
            let table = Role::Embedding { scale: (width as f32).sqrt() };
            model.matrix("embed_tokens_per_layer", entries, all, table);
            model.matrix("per_layer_model_projection", all, hidden, Role::Projection);
            model.norm("per_layer_projection_norm", width);
        }
        for (i, layer) in self.layers.iter().enumerate() {
            layer.weights(&mut model.at(format_args!("layers.{i}")), hidden, self.layer_inputs);
        }
        model.norm("norm", hidden);
        if !self.tied {
            root.part(Part::Head).matrix("lm_head", vocabulary, hidden, Role::Head);
        }
        if let Some(drafter) = &self.drafter {
            drafter.weights(root.at(&drafter.branch).part(Part::Drafter), hidden);
        }
        list
    }

    /// What each layer with a state of its own keeps of a sequence.
    pub fn layer_shapes(&self, float: CacheFloat) -> Vec<LayerShape> {
        let own = self.layers.iter().filter(|layer| layer.mixer.reads().is_none());
        own.map(|layer| layer.mixer.shape(float)).collect()
    }

    /// What the drafting head keeps of a sequence, where there is one.
    pub fn draft_shape(&self, float: CacheFloat) -> Option<LayerShape> {
        Some(self.drafter.as_ref()?.layer.mixer.shape(float))
    }

    /// For each layer, which of the [shapes](Self::layer_shapes) is its state's.
    pub(crate) fn states(&self) -> Vec<usize> {
        let mut own = 0;
        let mut states = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            match layer.mixer.reads() {
                Some(earlier) => states.push(states[earlier]),
                None => {
                    states.push(own);
                    own += 1;
                }
            }
        }
        states
    }

    /// Whether every id below the vocabulary can be embedded.
    pub(crate) fn embeds_all(&self) -> bool {
        self.layer_inputs.is_none_or(|inputs| inputs.entries >= self.vocabulary)
    }
}

/// The eps of the norms.
pub(crate) fn eps(fields: Fields<'_>) -> Result<f32> {
    Ok(fields.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32)
}
