//! A loaded model.

use std::cell::RefCell;

use backend::{Backend, Batch, CacheFloat};
use checkpoint::Checkpoint;

use crate::loader::Loaded;
use crate::state::{LayerShape, State, StateImage};
use crate::traffic::{Sizes, Traffic};
use crate::{Error, Result, deepseek_v3, gemma4, qwen3, qwen3_5};

/// The values of `model_type` that [`Model::load`] takes.
pub const FAMILIES: &[&str] =
    &["qwen3_5_moe", "qwen3_5", "qwen3_next", "qwen3_moe", "qwen3", "deepseek_v3", "gemma4", "gemma4_text"];

/// What a family builds from a checkpoint.
pub(crate) type Built<B> = (Box<dyn Network<B>>, Summary);

/// Where weights are noted down as they are loaded, under mlx-lm's names.
pub(crate) type Log<'a> = &'a RefCell<Weights>;

/// Weights under mlx-lm's names.
type Weights = Vec<(String, Loaded)>;

/// What a family has to say for itself.
pub(crate) trait Network<B: Backend>: Send {
    /// Hidden states of a batch before the final norm; one state per span.
    fn forward(&self, b: &B, batch: &Batch<B>, states: &mut [&mut State<B>]) -> Result<B::Tensor>;

    /// Logits of hidden states: the final norm and the head.
    fn logits(&self, b: &B, hidden: &B::Tensor) -> Result<B::Tensor>;

    /// What each layer keeps of a sequence.
    fn layer_shapes(&self, float: CacheFloat) -> Vec<LayerShape>;
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
    /// Those of each of its tokens.
    All,
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

fn build<B: Backend>(checkpoint: &Checkpoint, backend: &B) -> Result<(Built<B>, Weights)> {
    let family = checkpoint.config().model_type()?;
    let load = match family {
        "qwen3_5_moe" | "qwen3_5" | "qwen3_next" => qwen3_5::load,
        "qwen3_moe" | "qwen3" => qwen3::load,
        "deepseek_v3" => deepseek_v3::load,
        "gemma4" | "gemma4_text" => gemma4::load,
        other => return Err(Error::UnknownFamily { found: other.into(), known: FAMILIES.join(", ") }),
    };
    let log = RefCell::new(Vec::new());
    let built = load(checkpoint, backend, family, &log)?;
    Ok((built, log.into_inner()))
}

/// Every weight of a checkpoint under mlx-lm's own name and in its layout, whatever the checkpoint's: what a conversion
/// writes. `backend` only has to take the weights over, which costs nothing on the CPU.
pub fn weights<B: Backend>(checkpoint: &Checkpoint, backend: &B) -> Result<Vec<(String, Loaded)>> {
    Ok(build(checkpoint, backend)?.1)
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
    /// Builds the network that the checkpoint's config declares.
    pub fn load(checkpoint: &Checkpoint, backend: B) -> Result<Self> {
        let ((network, summary), weights) = build(checkpoint, &backend)?;
        let (traffic, sizes) = (Traffic::of(&weights), Sizes::of(&weights));
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
        let sequences: Vec<_> = requests.iter().map(|r| (r.tokens, r.state.len)).collect();
        let batch = Batch::new(&self.backend, &sequences)?;
        let mut states: Vec<_> = requests.iter_mut().map(|r| &mut *r.state).collect();
        let hidden = self.network.forward(&self.backend, &batch, &mut states)?;
        let mut rows = Vec::new();
        for (request, span) in requests.iter_mut().zip(batch.spans()) {
            request.state.len += span.len;
            match request.logits {
                Logits::None => {}
                Logits::Last => rows.push(span.row + span.len - 1),
                Logits::All => rows.extend(span.rows()),
            }
        }
        if rows.is_empty() {
            return Ok(None);
        }
        // Most tokens of a prompt need no logits, and the vocabulary is the widest matrix of all.
        let hidden =
            if rows.len() == batch.rows() { hidden } else { self.backend.select_rows(&hidden, &rows)? };
        self.network.logits(&self.backend, &hidden).map(Some)
    }
}
