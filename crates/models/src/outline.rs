//! A checkpoint's model before it is on a backend.

use backend::CacheFloat;
use backend::pool::LayerShape;
use checkpoint::Checkpoint;

use crate::Result;
use crate::family::Family;
use crate::spec::Spec;
use crate::stored::{Source, Stored};
use crate::traffic::{Sizes, Traffic};
use crate::weights::{Part, WeightSpec};

/// A weight of the list, and what the checkpoint has of it.
pub struct ListedWeight {
    /// What it is.
    pub spec: WeightSpec,
    /// Its contents, where they lie.
    pub stored: Stored,
}

/// What a checkpoint's config declares and what its files have of it: every weight is there and has
/// the declared shape, and none is loaded. All that can be known of a model without a backend.
pub struct Outline {
    family: &'static Family,
    model_type: String,
    identity: String,
    spec: Spec,
    weights: Vec<ListedWeight>,
}

/// What people and the engine want to know of a model.
#[derive(Clone, Debug)]
pub struct Summary {
    /// `model_type` of the config.
    pub family: String,
    /// Entries of the vocabulary: width of the logits.
    pub vocabulary: usize,
    /// Width of the hidden states.
    pub hidden: usize,
    /// Longest sequence the model was made for, when the config says so.
    pub context: Option<usize>,
    /// One line per kind of layer and part, for people.
    pub parts: Vec<(String, String)>,
}

impl Outline {
    /// Reads the config and finds every weight; with `drafting`, those of a drafting head too, if
    /// the checkpoint has one.
    pub fn open(checkpoint: &Checkpoint, drafting: bool) -> Result<Self> {
        let config = checkpoint.config();
        let family = Family::of(config)?;
        let mut spec = family.spec(config)?;
        let mut source = Source::new(checkpoint, family.prefix, (family.norm_offset)(checkpoint));
        spec.drafter = match spec.drafter.take().filter(|_| drafting) {
            Some(head) => source.find_drafter(head)?,
            None => None,
        };
        let open = |spec: WeightSpec| Ok(ListedWeight { stored: source.open(&spec)?, spec });
        let weights = spec.weights(family.prefix).into_iter().map(open).collect::<Result<_>>()?;
        let (model_type, identity) = (config.model_type()?.to_owned(), checkpoint.identity());
        Ok(Self { family, model_type, identity, spec, weights })
    }

    /// The same without a drafting head.
    pub fn without_drafter(mut self) -> Self {
        self.spec = self.spec.without_drafter();
        self.weights.retain(|weight| weight.spec.part != Part::Drafter);
        self
    }

    /// Its family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// What the config declares; with a drafting head only if it is there and wanted.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// All weights, those of a drafting head last.
    pub fn weights(&self) -> &[ListedWeight] {
        &self.weights
    }

    /// The same to keep.
    pub fn into_weights(self) -> Vec<ListedWeight> {
        self.weights
    }

    /// The checkpoint's [identity](Checkpoint::identity).
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// What it is.
    pub fn summary(&self) -> Summary {
        let Spec { vocabulary, hidden, context, .. } = self.spec;
        Summary { family: self.model_type.clone(), vocabulary, hidden, context, parts: self.spec.describe() }
    }

    /// What one decoded token reads of the weights.
    pub fn traffic(&self) -> Traffic {
        Traffic::of(&self.weights)
    }

    /// What its weights take.
    pub fn sizes(&self) -> Sizes {
        Sizes::of(&self.weights)
    }

    /// What is kept of a sequence: by each layer with a state of its own, and by the drafting head.
    pub fn state_shapes(&self, float: CacheFloat) -> Vec<LayerShape> {
        self.spec.layer_shapes(float).into_iter().chain(self.spec.draft_shape(float)).collect()
    }
}
