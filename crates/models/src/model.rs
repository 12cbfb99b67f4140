//! A loaded model.

use backend::{Backend, Batch, CacheFloat, Checked, Span};
use checkpoint::Checkpoint;

use crate::layers::Decoder;
use crate::loader::{Loader, untaken};
use crate::outline::{Outline, Summary};
use crate::spec::Spec;
use crate::state::{LayerShape, State, StateImage};
use crate::traffic::{Sizes, Traffic};
use crate::{Error, Result};

/// Which logits a request wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logits {
    /// None: more of the prompt follows.
    None,
    /// Those of its last token.
    Last,
    /// Those of so many of its last tokens.
    Tail(usize),
    /// Those of each of its tokens.
    All,
}

impl Logits {
    /// The rows of a span that are wanted.
    fn rows(self, span: &Span) -> std::ops::Range<usize> {
        let count = match self {
            Logits::None => 0,
            Logits::Last => 1,
            Logits::Tail(count) => count.min(span.len),
            Logits::All => span.len,
        };
        let end = span.row + span.len;
        end - count..end
    }
}

/// Some tokens of one sequence.
pub struct Request<'a, B: Backend> {
    /// The tokens that come next, at least one.
    pub tokens: &'a [u32],
    /// What the sequence has seen before.
    pub state: &'a mut State<B>,
    /// Which logits are wanted.
    pub logits: Logits,
}

/// What a step leaves.
pub struct Stepped<B: Backend> {
    /// The wanted logits, one row each.
    pub logits: Option<B::Tensor>,
    /// What the drafting head takes of every token, where there is such a head.
    pub hidden: Option<B::Tensor>,
}

/// A step of one token that was recorded before the token was known.
pub struct Ahead<B: Backend> {
    batch: Batch<B>,
    logits: B::Tensor,
    recorded: B::Recorded,
}

/// Guesses of a drafting head.
pub struct Drafted<B: Backend> {
    /// Logits of the tokens after the next, one row for each that was wanted.
    pub logits: B::Tensor,
    /// What takes the place of the model's hidden states for guesses after these.
    pub hidden: B::Tensor,
}

/// A model on a backend.
pub struct Model<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    spec: Spec,
    summary: Summary,
    traffic: Traffic,
    sizes: Sizes,
    identity: String,
}

impl<B: Backend> Model<B> {
    /// Builds the network that the checkpoint's config declares, without a drafting head.
    pub fn load(checkpoint: &Checkpoint, backend: B) -> Result<Self> {
        Self::new(Outline::open(checkpoint, false)?, backend)
    }

    /// The same with the drafting head, if the checkpoint has one.
    pub fn load_drafting(checkpoint: &Checkpoint, backend: B) -> Result<Self> {
        Self::new(Outline::open(checkpoint, true)?, backend)
    }

    /// Brings a model's weights to a backend.
    pub fn new(outline: Outline, backend: B) -> Result<Self> {
        let (summary, traffic, sizes) = (outline.summary(), outline.traffic(), outline.sizes());
        let (spec, prefix) = (outline.spec().clone(), outline.family().prefix);
        let identity = outline.identity().to_owned();
        let weights = untaken(outline.into_weights());
        let root = Loader::new(&weights, &backend, prefix);
        let decoder = Decoder::load(&root, &spec)?;
        match weights.into_inner().into_keys().next() {
            Some(path) => Err(Error::NotListed { path }),
            None => Ok(Self { backend, decoder, spec, summary, traffic, sizes, identity }),
        }
    }

    /// The machine it runs on.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The same, behind its checks.
    fn checked(&self) -> Checked<'_, B> {
        Checked(&self.backend)
    }

    /// What it is.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// What one decoded token reads of the weights.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// What its weights take.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The checkpoint's [identity](Checkpoint::identity).
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// What each layer keeps of a sequence.
    pub fn layer_shapes(&self, float: CacheFloat) -> Vec<LayerShape> {
        self.spec.layer_shapes(float)
    }

    /// What the drafting head keeps of a sequence, where there is one.
    pub fn draft_shape(&self, float: CacheFloat) -> Option<LayerShape> {
        self.spec.draft_shape(float)
    }

    /// The drafting head's state of a sequence of which it has seen nothing.
    pub fn draft_state(&self, float: CacheFloat) -> Result<Option<State<B>>> {
        self.draft_shape(float).map(|shape| State::new(&self.backend, vec![shape])).transpose()
    }

    /// The state of a sequence that has seen nothing.
    pub fn state(&self, float: CacheFloat) -> Result<State<B>> {
        State::new(&self.backend, self.layer_shapes(float))
    }

    /// A state from its image.
    pub fn state_from(&self, image: &StateImage, float: CacheFloat) -> Result<State<B>> {
        State::from_image(&self.backend, self.layer_shapes(float), image)
    }

    /// Runs one batch and returns the wanted logits of all requests, one row each, in their order; `None` when nobody
    /// wants any. The result is a handle: read it with the backend.
    pub fn step(&self, requests: &mut [Request<'_, B>]) -> Result<Option<B::Tensor>> {
        Ok(self.run(requests)?.0)
    }

    /// The same, and what the drafting head takes of every token, if there is such a head.
    pub fn step_with_hidden(&self, requests: &mut [Request<'_, B>]) -> Result<Stepped<B>> {
        let (logits, hidden) = self.run(requests)?;
        let drafter = self.decoder.drafter();
        let hidden = drafter.map(|_| self.decoder.drafter_input(&self.checked(), &hidden)).transpose()?;
        Ok(Stepped { logits, hidden })
    }

    /// Whether [`step_ahead`](Self::step_ahead) works.
    pub fn records_ahead(&self) -> bool {
        self.backend.records_ahead() && self.spec.embeds_all()
    }

    /// Records the step of the next token, whichever it will be, while the device computes the one before. The state counts it from
    /// now on: [start](Self::start) it before anything else is done with the state, or drop the state.
    pub fn step_ahead(&self, state: &mut State<B>) -> Result<Ahead<B>> {
        let ((batch, logits), recorded) = self.backend.record(|| -> Result<_> {
            // Any id will do until the token is known.
            let mut requests = [Request { tokens: &[0], state, logits: Logits::Last }];
            let (batch, _) = self.batch(&requests)?;
            let hidden = self.forward(&batch, &mut requests)?;
            Ok((batch, self.decoder.logits(&self.checked(), &hidden)?))
        })?;
        Ok(Ahead { batch, logits, recorded })
    }

    /// Starts a step that was recorded ahead, now that its token is known, and returns the token's logits.
    pub fn start(&self, ahead: Ahead<B>, token: u32) -> Result<B::Tensor> {
        let vocabulary = self.summary.vocabulary;
        if token as usize >= vocabulary {
            return Err(backend::Error::TokenOutOfRange { id: token, vocabulary }.into());
        }
        self.backend.start(ahead.recorded, &ahead.batch, token)?;
        Ok(ahead.logits)
    }

    /// Runs a token that the machine has [chosen](backend::Run::choose), whether or not the host knows it. Returns its logits, and the choice by them.
    /// Only where steps are recorded ahead.
    pub fn step_chosen(&self, chosen: &B::Chosen, state: &mut State<B>) -> Result<(B::Tensor, B::Chosen)> {
        let batch = Batch::following(&self.backend, chosen, state.len)?;
        let mut requests = [Request { tokens: &[0], state, logits: Logits::Last }];
        let hidden = self.forward(&batch, &mut requests)?;
        let logits = self.decoder.logits(&self.checked(), &hidden)?;
        let next = self.backend.choose(&logits)?;
        Ok((logits, next))
    }

    /// Hidden states of all tokens before the final norm.
    fn forward(&self, batch: &Batch<B>, requests: &mut [Request<'_, B>]) -> Result<B::Tensor> {
        let mut states: Vec<_> = requests.iter_mut().map(|r| &mut *r.state).collect();
        let hidden = self.decoder.forward(&self.checked(), batch, &mut states)?;
        Self::advance(requests);
        Ok(hidden)
    }

    /// The wanted logits, and the hidden states of all tokens before the final norm.
    fn run(&self, requests: &mut [Request<'_, B>]) -> Result<(Option<B::Tensor>, B::Tensor)> {
        let single = |r: &Request<'_, B>| r.tokens.len() == 1 && !matches!(r.logits, Logits::None);
        if (2..=self.backend.faster_alone()).contains(&requests.len()) && requests.iter().all(single) {
            return self.run_one_by_one(requests);
        }
        self.run_together(requests)
    }

    /// The same for requests of one token each, one after the other.
    fn run_one_by_one(&self, requests: &mut [Request<'_, B>]) -> Result<(Option<B::Tensor>, B::Tensor)> {
        let alone = requests.iter_mut().map(|request| self.run_together(std::slice::from_mut(request)));
        let (logits, hidden): (Vec<_>, Vec<_>) = alone.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let logits: Vec<_> = logits.iter().flatten().collect();
        let hidden: Vec<_> = hidden.iter().collect();
        Ok((Some(self.checked().join_rows(&logits)?), self.checked().join_rows(&hidden)?))
    }

    fn run_together(&self, requests: &mut [Request<'_, B>]) -> Result<(Option<B::Tensor>, B::Tensor)> {
        let (batch, rows) = self.batch(requests)?;
        let hidden = self.forward(&batch, requests)?;
        if rows.is_empty() {
            return Ok((None, hidden));
        }
        // Most tokens of a prompt need no logits, and the vocabulary is the widest matrix of all.
        if rows.len() == batch.rows() {
            return Ok((Some(self.decoder.logits(&self.checked(), &hidden)?), hidden));
        }
        let wanted = self.checked().select_rows(&hidden, &rows)?;
        Ok((Some(self.decoder.logits(&self.checked(), &wanted)?), hidden))
    }

    /// Lets the drafting head see some positions of several sequences: `hidden` has a row for each, in the requests' order. A request's
    /// tokens are those that follow its positions, its state is the head's own, and its logits are guesses of what comes after
    /// these. `None` when nobody wants any, or there is no head.
    pub fn draft(&self, hidden: &B::Tensor, requests: &mut [Request<'_, B>]) -> Result<Option<Drafted<B>>> {
        let Some(drafter) = self.decoder.drafter() else { return Ok(None) };
        let b = self.checked();
        let (batch, rows) = self.batch(requests)?;
        let mut states: Vec<_> = requests.iter_mut().map(|r| &mut *r.state).collect();
        let embedded = self.decoder.embed(&b, &batch)?;
        let output = drafter.forward(&b, &batch, [&embedded, hidden], &mut states, &rows)?;
        Self::advance(requests);
        let Some(hidden) = output else { return Ok(None) };
        Ok(Some(Drafted { logits: self.decoder.draft_logits(&b, &hidden)?, hidden }))
    }

    /// The batch of some requests, and its rows whose logits are wanted.
    fn batch(&self, requests: &[Request<'_, B>]) -> Result<(Batch<B>, Vec<usize>)> {
        let sequences: Vec<_> = requests.iter().map(|r| (r.tokens, r.state.len)).collect();
        let batch = Batch::new(&self.backend, &sequences)?;
        let wanted = requests.iter().zip(batch.spans()).flat_map(|(r, span)| r.logits.rows(span));
        let rows = wanted.collect();
        Ok((batch, rows))
    }

    /// The states have seen their tokens.
    fn advance(requests: &mut [Request<'_, B>]) {
        requests.iter_mut().for_each(|r| r.state.len += r.tokens.len());
    }
}
