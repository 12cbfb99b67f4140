//! Running a model over sequences: prompts in chunks, then token by token.

use std::time::{Duration, Instant};

use backend::{Backend, CacheFloat};
use models::{LayerShape, Logits, Model, Request, State};

use crate::sequence::{Sequence, common_prefix};
use crate::{Error, Sampler};

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

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop here; what has been computed stays.
    Stop,
}

/// What a generation tells its caller on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A step of the prompt comes next.
    Prompt {
        /// Tokens of the prompt that are behind, those the sequence knew before included.
        done: usize,
        /// Tokens of the prompt.
        of: usize,
    },
    /// A token was chosen.
    Token(u32),
}

/// Why a generation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The model said so, by one of its end tokens.
    End,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// The caller said so.
    Stopped,
}

/// What a generation did, and how long it took.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The tokens, without an end token.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that were still in the caches.
    pub reused_tokens: usize,
    /// Time for the prompt, until its logits were there.
    pub prompt_time: Duration,
    /// Time after that.
    pub decode_time: Duration,
}

impl Generated {
    /// Prompt tokens computed per second.
    pub fn prompt_speed(&self) -> f64 {
        (self.prompt_tokens - self.reused_tokens) as f64 / self.prompt_time.as_secs_f64().max(1e-9)
    }

    /// Tokens generated per second. The first comes with the prompt.
    pub fn decode_speed(&self) -> f64 {
        self.ids.len().saturating_sub(1) as f64 / self.decode_time.as_secs_f64().max(1e-9)
    }
}

/// What to generate.
pub struct Task<'a> {
    /// All tokens so far; those the sequence has already seen are not computed again.
    pub prompt: &'a [u32],
    /// How many tokens of the prompt a later prompt will probably begin with too: a place worth returning to.
    pub stable: usize,
    /// At most so many tokens; until the context is full when absent.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer.
    pub end_ids: &'a [u32],
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
}

impl<B: Backend> Engine<B> {
    /// Checks that the context's caches fit in memory. A context that was asked for must fit whole; otherwise the
    /// model's own is shortened to what does.
    pub fn new(model: Model<B>, options: &EngineOptions) -> Result<Self, Error> {
        let mut shapes = model.layer_shapes(options.cache);
        shapes.extend(model.draft_shape(options.cache));
        let memory = options.cache_memory.or_else(|| model.backend().free_memory()).unwrap_or(u64::MAX);
        let caches = Caches::new(shapes, model.summary().context, options, memory)?;
        Ok(Self { model, cache: options.cache, caches })
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

    /// What a sequence keeps that has seen nothing.
    pub(crate) fn fresh_state(&self) -> Result<State<B>, Error> {
        Ok(self.model.state(self.cache)?)
    }

    /// A sequence that has seen nothing.
    pub fn sequence(&self) -> Result<Sequence<B>, Error> {
        Ok(Sequence::new(self.fresh_state()?, Vec::new(), None))
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { context: self.caches.context, vocabulary: self.model.summary().vocabulary }
    }

    /// Tokens of a prompt per step.
    pub(crate) fn chunk(&self) -> usize {
        self.caches.chunk
    }

    /// Bytes that the states of all sequences may take together.
    pub(crate) fn memory(&self) -> u64 {
        self.caches.memory
    }

    /// Runs some tokens; the sequence then holds the logits of the last one, if any were wanted.
    fn step(&self, sequence: &mut Sequence<B>, tokens: &[u32], logits: Logits) -> Result<(), Error> {
        let mut requests = [Request { tokens, state: &mut sequence.state, logits }];
        let rows = match self.model.step(&mut requests) {
            Ok(rows) => rows,
            Err(error) => {
                // Some layers have taken the tokens and some have not: only a new state is right again.
                *sequence = self.sequence()?;
                return Err(error.into());
            }
        };
        sequence.tokens.extend_from_slice(tokens);
        sequence.logits = rows;
        Ok(())
    }

    /// Chooses the token that follows. Reads no more of the logits than the sampler needs.
    fn sample(&self, logits: &B::Tensor, history: &[u32], sampler: &mut Sampler) -> Result<u32, Error> {
        let backend = self.model.backend();
        let sampled = match sampler.needed() {
            Some(k) => {
                let top = backend.read_top(logits, k)?;
                sampler.sample_largest(top.first().map_or(&[], Vec::as_slice))?
            }
            None => sampler.sample(&backend.read(logits)?, history)?,
        };
        Ok(sampled.id)
    }

    /// The same, and runs the token that was chosen: its step is recorded while the device is busy with the one before, so that nothing
    /// but the token has to be told when it is known. Where the likeliest is wanted, the device chooses it, and the one after it, which is
    /// kept in `chosen`, and goes on by itself. The sequence has then seen the token, whatever it means to the caller.
    fn sample_and_step(
        &self,
        sequence: &mut Sequence<B>,
        logits: &B::Tensor,
        sampler: &mut Sampler,
        chosen: &mut Option<B::Chosen>,
    ) -> Result<u32, Error> {
        let backend = self.model.backend();
        let mut run = || {
            if sampler.needed() == Some(1) {
                let present = chosen.take().map_or_else(|| backend.choose(logits), Ok)?;
                let (next_logits, next) = self.model.step_chosen(&present, &mut sequence.state)?;
                *chosen = Some(next);
                let likeliest = backend.read_chosen(present)?;
                return Ok((sampler.sample_largest(&[likeliest])?.id, next_logits));
            }
            let ahead = self.model.step_ahead(&mut sequence.state)?;
            let id = self.sample(logits, &sequence.tokens, sampler)?;
            Ok((id, self.model.start(ahead, id)?))
        };
        match run() {
            Ok((id, next)) => {
                sequence.tokens.push(id);
                sequence.logits = Some(next);
                Ok(id)
            }
            Err(error) => {
                // The state counts a token that nobody knows.
                *sequence = self.sequence()?;
                Err(error)
            }
        }
    }

    /// Brings a sequence to `prompt`, keeping what it has in common with what was seen, and returns how many tokens
    /// that was. Afterwards the sequence holds the logits of the last token, unless `watch`, called before each step with the
    /// tokens of the prompt that are behind, stopped it.
    pub fn prefill(
        &self,
        sequence: &mut Sequence<B>,
        prompt: &[u32],
        stable: usize,
        mut watch: impl FnMut(usize) -> Flow,
    ) -> Result<usize, Error> {
        self.limits().check(prompt)?;
        let common = common_prefix(&sequence.tokens, prompt);
        if common == prompt.len() && common == sequence.tokens.len() && sequence.logits.is_some() {
            return Ok(common);
        }
        // The last token runs again even when it was seen: its logits are what is asked for.
        let reachable = common.min(prompt.len() - 1);
        let reused = sequence.rewind(self.model.backend(), reachable, || self.fresh_state())?;
        let mut done = reused;
        while done < prompt.len() {
            if watch(done) == Flow::Stop {
                return Ok(reused);
            }
            let mut end = prompt.len().min(done + self.caches.chunk);
            if (done + 1..end).contains(&stable) {
                end = stable;
            }
            let last = end == prompt.len();
            let wanted = if last { Logits::Last } else { Logits::None };
            self.step(sequence, &prompt[done..end], wanted)?;
            if !last && end == stable {
                sequence.mark(self.model.backend())?;
            }
            done = end;
        }
        Ok(reused)
    }

    /// Logits of every token of a fresh sequence, row after row.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<f32>, Error> {
        self.limits().check(ids)?;
        let mut sequence = self.sequence()?;
        let mut rows = Vec::new();
        for chunk in ids.chunks(self.caches.chunk) {
            self.step(&mut sequence, chunk, Logits::All)?;
            if let Some(logits) = &sequence.logits {
                rows.extend(self.model.backend().read(logits)?);
            }
        }
        Ok(rows)
    }

    /// Continues a sequence. `watch` is called before each step of the prompt and with each token as it is chosen; the
    /// token at which it stops is still part of the answer. The sequence may have seen the answer's last token, or the one that
    /// ended it, or not.
    pub fn generate(
        &self,
        sequence: &mut Sequence<B>,
        task: &Task<'_>,
        sampler: &mut Sampler,
        mut watch: impl FnMut(Event) -> Flow,
    ) -> Result<Generated, Error> {
        let started = Instant::now();
        let prompt_tokens = task.prompt.len();
        sampler.set_prompt_len(prompt_tokens);
        let before_step = |done| watch(Event::Prompt { done, of: prompt_tokens });
        let reused_tokens = self.prefill(sequence, task.prompt, task.stable, before_step)?;
        let prompt_time = started.elapsed();
        let mut generated = Generated {
            ids: Vec::new(),
            finish: Finish::Stopped,
            prompt_tokens,
            reused_tokens,
            prompt_time,
            decode_time: Duration::ZERO,
        };
        let started = Instant::now();
        let mut chosen = None;
        generated.finish = loop {
            let Some(logits) = &sequence.logits else { break Finish::Stopped };
            if generated.ids.len() == task.max_tokens.unwrap_or(usize::MAX) {
                break Finish::Length;
            }
            let full = sequence.tokens.len() == self.caches.context;
            let last = full || Some(generated.ids.len() + 1) == task.max_tokens;
            let ahead = !last && self.model.records_ahead();
            let id = match ahead {
                true => self.sample_and_step(sequence, &logits.clone(), sampler, &mut chosen)?,
                false => self.sample(logits, &sequence.tokens, sampler)?,
            };
            if task.end_ids.contains(&id) {
                break Finish::End;
            }
            generated.ids.push(id);
            if watch(Event::Token(id)) == Flow::Stop {
                break Finish::Stopped;
            }
            if Some(generated.ids.len()) == task.max_tokens {
                break Finish::Length;
            }
            if full {
                break Finish::Context;
            }
            if !ahead {
                self.step(sequence, &[id], Logits::Last)?;
            }
        };
        generated.decode_time = started.elapsed();
        Ok(generated)
    }
}
