//! A loaded model.

use std::cell::RefCell;

use backend::{Backend, Batch, CacheFloat, Span};
use checkpoint::Checkpoint;

use crate::layers::Drafts;
use crate::loader::Loaded;
use crate::state::{LayerShape, State, StateImage};
use crate::traffic::{Sizes, Traffic};
use crate::{Error, Result, deepseek_v3, gemma4, qwen3, qwen3_5};

/// The values of `model_type` that [`Model::load`] takes.
pub const FAMILIES: &[&str] =
    &["qwen3_5_moe", "qwen3_5", "qwen3_next", "qwen3_moe", "qwen3", "deepseek_v3", "gemma4", "gemma4_text"];

/// What a family builds from a checkpoint.
pub(crate) type Built<B> = (Box<dyn Network<B>>, Summary);

/// Where weights are noted down as they are loaded.
pub(crate) type Log<'a> = &'a Notes;

/// What a family is asked to load, and what it has loaded.
#[derive(Default)]
pub(crate) struct Notes {
    /// Whether a drafting head is wanted.
    pub drafting: bool,
    pub model: RefCell<Vec<(String, Loaded)>>,
    /// Weights of the drafting head.
    pub drafter: RefCell<Vec<(String, Loaded)>>,
}

/// Weights under mlx-lm's names.
pub struct Weights {
    /// The model's own.
    pub model: Vec<(String, Loaded)>,
    /// Those of the head that guesses, which mlx-lm drops: under the names of the original, in mlx-lm's layouts.
    pub drafter: Vec<(String, Loaded)>,
}

/// What a family has to say for itself.
pub(crate) trait Network<B: Backend>: Send {
    /// Hidden states of a batch before the final norm; one state per span.
    fn forward(&self, b: &B, batch: &Batch<B>, states: &mut [&mut State<B>]) -> Result<B::Tensor>;

    /// Logits of hidden states: the final norm and the head.
    fn logits(&self, b: &B, hidden: &B::Tensor) -> Result<B::Tensor>;

    /// What each layer keeps of a sequence.
    fn layer_shapes(&self, float: CacheFloat) -> Vec<LayerShape>;

    /// Whether every id below the vocabulary can be embedded.
    fn embeds_all(&self) -> bool {
        true
    }

    /// The head that guesses, where there is one.
    fn drafts(&self) -> Option<Drafts<'_, B>> {
        None
    }
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

fn build<B: Backend>(checkpoint: &Checkpoint, backend: &B, drafting: bool) -> Result<(Built<B>, Weights)> {
    let family = checkpoint.config().model_type()?;
    let load = match family {
        "qwen3_5_moe" | "qwen3_5" | "qwen3_next" => qwen3_5::load,
        "qwen3_moe" | "qwen3" => qwen3::load,
        "deepseek_v3" => deepseek_v3::load,
        "gemma4" | "gemma4_text" => gemma4::load,
        other => return Err(Error::UnknownFamily { found: other.into(), known: FAMILIES.join(", ") }),
    };
    let notes = Notes { drafting, ..Notes::default() };
    let built = load(checkpoint, backend, family, &notes)?;
    Ok((built, Weights { model: notes.model.into_inner(), drafter: notes.drafter.into_inner() }))
}

/// Every weight of a checkpoint under mlx-lm's own name and in its layout, whatever the checkpoint's: what a conversion
/// writes. `backend` only has to take the weights over, which costs nothing on the CPU.
pub fn weights<B: Backend>(checkpoint: &Checkpoint, backend: &B) -> Result<Weights> {
    Ok(build(checkpoint, backend, true)?.1)
}

/// A model on a backend.
pub struct Model<B: Backend> {
    backend: B,
    network: Box<dyn Network<B>>,
    summary: Summary,
    traffic: Traffic,
    sizes: Sizes,
    identity: String,
}

impl<B: Backend> Model<B> {
    /// Builds the network that the checkpoint's config declares, without a drafting head.
    pub fn load(checkpoint: &Checkpoint, backend: B) -> Result<Self> {
        Self::load_parts(checkpoint, backend, false)
    }

    /// The same with the drafting head, if the checkpoint has one.
    pub fn load_drafting(checkpoint: &Checkpoint, backend: B) -> Result<Self> {
        Self::load_parts(checkpoint, backend, true)
    }

    fn load_parts(checkpoint: &Checkpoint, backend: B, drafting: bool) -> Result<Self> {
        let ((network, summary), weights) = build(checkpoint, &backend, drafting)?;
        let traffic = Traffic::of(&weights.model);
        let sizes = Sizes::of(weights.model.iter().chain(&weights.drafter));
        Ok(Self { backend, network, summary, traffic, sizes, identity: checkpoint.identity() })
    }

    /// The machine it runs on.
    pub fn backend(&self) -> &B {
        &self.backend
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
        self.network.layer_shapes(float)
    }

    /// What the drafting head keeps of a sequence, where there is one.
    pub fn draft_shape(&self, float: CacheFloat) -> Option<LayerShape> {
        Some(self.network.drafts()?.shape(float))
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
        let drafts = self.network.drafts();
        let hidden = drafts.map(|drafts| drafts.hidden(&self.backend, &hidden)).transpose()?;
        Ok(Stepped { logits, hidden })
    }

    /// Whether [`step_ahead`](Self::step_ahead) works.
    pub fn records_ahead(&self) -> bool {
        self.backend.records_ahead() && self.network.embeds_all()
    }

    /// Records the step of the next token, whichever it will be, while the device computes the one before. The state counts it from
    /// now on: [start](Self::start) it before anything else is done with the state, or drop the state.
    pub fn step_ahead(&self, state: &mut State<B>) -> Result<Ahead<B>> {
        let ((batch, logits), recorded) = self.backend.record(|| -> Result<_> {
            // Any id will do until the token is known.
            let mut requests = [Request { tokens: &[0], state, logits: Logits::Last }];
            let (batch, _) = self.batch(&requests)?;
            let hidden = self.forward(&batch, &mut requests)?;
            Ok((batch, self.network.logits(&self.backend, &hidden)?))
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

    /// Runs a token that the machine has [chosen](Backend::choose), whether or not the host knows it. Returns its logits, and the choice by them.
    /// Only where steps are recorded ahead.
    pub fn step_chosen(&self, chosen: &B::Chosen, state: &mut State<B>) -> Result<(B::Tensor, B::Chosen)> {
        let batch = Batch::following(&self.backend, chosen, state.len)?;
        let mut requests = [Request { tokens: &[0], state, logits: Logits::Last }];
        let hidden = self.forward(&batch, &mut requests)?;
        let logits = self.network.logits(&self.backend, &hidden)?;
        let next = self.backend.choose(&logits)?;
        Ok((logits, next))
    }

    /// Hidden states of all tokens before the final norm.
    fn forward(&self, batch: &Batch<B>, requests: &mut [Request<'_, B>]) -> Result<B::Tensor> {
        let mut states: Vec<_> = requests.iter_mut().map(|r| &mut *r.state).collect();
        let hidden = self.network.forward(&self.backend, batch, &mut states)?;
        Self::advance(requests);
        Ok(hidden)
    }

    /// The wanted logits, and the hidden states of all tokens before the final norm.
    fn run(&self, requests: &mut [Request<'_, B>]) -> Result<(Option<B::Tensor>, B::Tensor)> {
        let single = |r: &Request<'_, B>| r.tokens.len() == 1 && !matches!(r.logits, Logits::None);
        if (2..=self.backend.sooner_alone()).contains(&requests.len()) && requests.iter().all(single) {
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
        Ok((Some(self.backend.join_rows(&logits)?), self.backend.join_rows(&hidden)?))
    }

    fn run_together(&self, requests: &mut [Request<'_, B>]) -> Result<(Option<B::Tensor>, B::Tensor)> {
        let (batch, rows) = self.batch(requests)?;
        let hidden = self.forward(&batch, requests)?;
        if rows.is_empty() {
            return Ok((None, hidden));
        }
        // Most tokens of a prompt need no logits, and the vocabulary is the widest matrix of all.
        if rows.len() == batch.rows() {
            return Ok((Some(self.network.logits(&self.backend, &hidden)?), hidden));
        }
        let wanted = self.backend.select_rows(&hidden, &rows)?;
        Ok((Some(self.network.logits(&self.backend, &wanted)?), hidden))
    }

    /// Lets the drafting head see some positions of several sequences: `hidden` has a row for each, in the requests' order. A request's
    /// tokens are those that follow its positions, its state is the head's own, and its logits are guesses of what comes after
    /// these. `None` when nobody wants any, or there is no head.
    pub fn draft(&self, hidden: &B::Tensor, requests: &mut [Request<'_, B>]) -> Result<Option<Drafted<B>>> {
        let Some(drafts) = self.network.drafts() else { return Ok(None) };
        let (batch, rows) = self.batch(requests)?;
        let mut states: Vec<_> = requests.iter_mut().map(|r| &mut *r.state).collect();
        let output = drafts.forward(&self.backend, &batch, hidden, &mut states, &rows)?;
        Self::advance(requests);
        let Some(hidden) = output else { return Ok(None) };
        Ok(Some(Drafted { logits: drafts.logits(&self.backend, &hidden)?, hidden }))
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
