//! A model and what its sequences may take: the longest context, the floats of caches, bytes.

use backend::{Backend, CacheFloat};
use models::{LayerShape, Model, State};

use crate::Error;
use crate::sequence::Sequence;

/// Tokens of a prompt that run in one step: enough to share each weight that is read among many tokens, few enough
/// that activations stay small and a caller can stop between steps.
pub const DEFAULT_CHUNK: usize = 512;

/// Context when neither the user nor the config names one.
pub const DEFAULT_CONTEXT: usize = 32_768;

/// Settings of an [`Engine`].
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How key-value caches store their values.
    pub cache: CacheFloat,
    /// Tokens of a prompt per step.
    pub chunk: usize,
    /// Longest sequence; the model's own when absent, as far as memory allows.
    pub context: Option<usize>,
    /// Bytes for caches; what the backend says is free when absent.
    pub cache_memory: Option<u64>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { cache: CacheFloat::F16, chunk: DEFAULT_CHUNK, context: None, cache_memory: None }
    }
}

/// What a prompt must keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Longest sequence.
    pub context: usize,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
}

impl Limits {
    /// That a prompt can be continued.
    pub fn check(&self, prompt: &[u32]) -> Result<(), Error> {
        let Self { context, vocabulary } = *self;
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > context {
            return Err(Error::PromptTooLong { tokens: prompt.len(), context });
        }
        match prompt.iter().find(|id| **id as usize >= vocabulary) {
            Some(&id) => Err(backend::Error::TokenOutOfRange { id, vocabulary }.into()),
            None => Ok(()),
        }
    }
}

/// What sequences keep, and how long they can be.
#[derive(Clone, Debug)]
pub struct Caches {
    shapes: Vec<LayerShape>,
    chunk: usize,
    context: usize,
    /// Bytes that the states of all sequences may take together.
    memory: u64,
}

impl Caches {
    /// Checks that the context's caches fit in so many bytes: a context that was asked for must fit whole; otherwise `own`, the
    /// model's, is shortened to what does. `shapes` is what each layer keeps, that of a drafting head included.
    pub fn new(
        shapes: Vec<LayerShape>,
        own: Option<usize>,
        options: &EngineOptions,
        memory: u64,
    ) -> Result<Self, Error> {
        let wanted = options.context.or(own).unwrap_or(DEFAULT_CONTEXT).max(1);
        let mut caches = Self { shapes, chunk: options.chunk.max(1), context: wanted, memory };
        let fits = caches.longest(wanted);
        if fits == 0 || (options.context.is_some() && fits < wanted) {
            let needed = caches.bytes(wanted);
            return Err(Error::ContextTooLarge { context: wanted, needed, available: memory, fits });
        }
        caches.context = fits;
        Ok(caches)
    }

    /// Longest sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Bytes that a sequence of so many tokens keeps.
    pub fn bytes(&self, tokens: usize) -> u64 {
        self.shapes.iter().map(|shape| shape.bytes(tokens, self.chunk)).sum()
    }

    /// The longest sequence whose caches fit.
    fn longest(&self, at_most: usize) -> usize {
        let (mut fits, mut above) = (0, at_most + 1);
        while above - fits > 1 {
            let middle = fits + (above - fits) / 2;
            if self.bytes(middle) <= self.memory { fits = middle } else { above = middle }
        }
        fits
    }
}

/// A model with its sequences' settings.
pub struct Engine<B: Backend> {
    model: Model<B>,
    cache: CacheFloat,
    caches: Caches,
    /// Whether there is a drafting head.
    drafting: bool,
}

impl<B: Backend> Engine<B> {
    /// Checks that the context's caches fit in memory. A context that was asked for must fit whole; otherwise the
    /// model's own is shortened to what does.
    pub fn new(model: Model<B>, options: &EngineOptions) -> Result<Self, Error> {
        let mut shapes = model.layer_shapes(options.cache);
        let drafter = model.draft_shape(options.cache);
        shapes.extend(drafter);
        let memory = options.cache_memory.or_else(|| model.backend().free_memory()).unwrap_or(u64::MAX);
        let caches = Caches::new(shapes, model.summary().context, options, memory)?;
        Ok(Self { model, cache: options.cache, caches, drafting: drafter.is_some() })
    }

    /// The model.
    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    /// Longest sequence.
    pub fn context(&self) -> usize {
        self.caches.context
    }

    /// How caches store their values.
    pub fn cache(&self) -> CacheFloat {
        self.cache
    }

    /// Bytes that a sequence of so many tokens keeps.
    pub fn state_bytes(&self, tokens: usize) -> u64 {
        self.caches.bytes(tokens)
    }

    /// Bytes of a snapshot of a sequence's recurrent states; 0 for models that have none.
    pub fn snapshot_bytes(&self) -> u64 {
        let recurrent = self.caches.shapes.iter().filter(|shape| matches!(shape, LayerShape::Recurrent(_)));
        recurrent.map(|shape| shape.bytes(0, self.caches.chunk)).sum()
    }

    /// What a sequence keeps that has seen nothing.
    pub(crate) fn fresh_state(&self) -> Result<State<B>, Error> {
        Ok(self.model.state(self.cache)?)
    }

    /// A sequence that has seen nothing.
    pub(crate) fn sequence(&self) -> Result<Sequence<B>, Error> {
        Ok(Sequence::new(self.fresh_state()?, Vec::new()))
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { context: self.caches.context, vocabulary: self.model.summary().vocabulary }
    }

    /// Whether the model has a drafting head.
    pub(crate) fn has_drafting_head(&self) -> bool {
        self.drafting
    }

    /// Tokens of a prompt per step.
    pub(crate) fn chunk(&self) -> usize {
        self.caches.chunk
    }

    /// Bytes that the states of all sequences may take together.
    pub(crate) fn memory(&self) -> u64 {
        self.caches.memory
    }
}
