//! A model and what its sequences may take: the longest context, the floats of caches, bytes.

use backend::pool::{Layers, Layout};
use backend::{Backend, CacheFloat};
use models::Model;

use crate::Error;
use crate::pools::Pools;

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
    layout: Layout,
    chunk: usize,
    context: usize,
}

impl Caches {
    /// Checks that the context's caches fit: a context that was asked for must fit whole; otherwise `own`, the model's, is
    /// shortened to what does. `layout` is what a machine keeps of a sequence, for a drafting head, too.
    pub fn new(layout: Layout, own: Option<usize>, options: &EngineOptions) -> Result<Self, Error> {
        let wanted = options.context.or(own).unwrap_or(DEFAULT_CONTEXT).max(1);
        let mut caches = Self { layout, chunk: options.chunk.max(1), context: wanted };
        let fits = caches.longest(wanted);
        if fits == 0 || (options.context.is_some() && fits < wanted) {
            let (needed, available) = (caches.bytes(wanted), caches.layout.budget);
            return Err(Error::ContextTooLarge { context: wanted, needed, available, fits });
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
        self.layout.bytes(tokens, self.chunk)
    }

    /// The longest sequence whose caches fit.
    fn longest(&self, at_most: usize) -> usize {
        let (mut fits, mut above) = (0, at_most + 1);
        while above - fits > 1 {
            let middle = fits + (above - fits) / 2;
            if self.layout.holds(middle, self.chunk) { fits = middle } else { above = middle }
        }
        fits
    }
}

/// A model with its sequences.
pub struct Engine<B: Backend> {
    model: Model<B>,
    pools: Pools<B>,
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
        let layout = Layers::new(&shapes).layout(model.backend(), memory);
        let caches = Caches::new(layout, model.summary().context, options)?;
        let pools = Pools::new(&model, options.cache, memory)?;
        Ok(Self { model, pools, cache: options.cache, caches, drafting: drafter.is_some() })
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

    /// Bytes of a sequence's recurrent states; 0 for models that have none.
    pub fn recurrent_bytes(&self) -> u64 {
        self.caches.layout.state_bytes
    }

    /// What all sequences keep.
    pub(crate) fn pools(&self) -> &Pools<B> {
        &self.pools
    }

    /// The machine, and what all sequences keep on it.
    pub(crate) fn parts(&mut self) -> (&B, &mut Pools<B>) {
        (self.model.backend(), &mut self.pools)
    }

    /// The model, and what its sequences keep.
    pub(crate) fn model_and_pools(&mut self) -> (&Model<B>, &mut Pools<B>) {
        (&self.model, &mut self.pools)
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

    /// Steps that may be under way.
    pub(crate) fn depth(&self) -> usize {
        if self.model.embeds_all() { self.model.backend().depth() } else { 1 }
    }
}
