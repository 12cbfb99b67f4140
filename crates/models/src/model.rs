//! A loaded model.

use backend::pool::{LayerShape, Pool, Slot};
use backend::{Backend, Batch, CacheFloat, Checked, Span, Tokens};
use checkpoint::Checkpoint;

use crate::layers::Decoder;
use crate::loader::{Loader, untaken};
use crate::outline::{Outline, Summary};
use crate::spec::Spec;
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

/// The next tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The sequence.
    pub slot: Slot,
    /// The tokens that come next, at least one; room for them has been
    /// [reserved](Pool::reserve).
    pub tokens: Tokens<'a>,
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

    /// A pool for its sequences that takes at most `budget` bytes.
    pub fn pool(&self, float: CacheFloat, budget: u64) -> Result<Pool<B>> {
        Ok(Pool::new(&self.backend, &self.layer_shapes(float), budget)?)
    }

    /// The same for the drafting head, where there is one: what the head keeps of a sequence has a
    /// slot and positions of its own.
    pub fn draft_pool(&self, float: CacheFloat, budget: u64) -> Result<Option<Pool<B>>> {
        let pool = |shape| Ok(Pool::new(&self.backend, &[shape], budget)?);
        self.draft_shape(float).map(pool).transpose()
    }

    /// Whether every token has an embedding in all its tables, also one that only the machine
    /// knows: else no step may go on with [`Tokens::Last`].
    pub fn embeds_all(&self) -> bool {
        self.spec.embeds_all()
    }

    /// Runs one batch and returns the wanted logits of all requests, one row each, in their order;
    /// `None` when nobody wants any. The result is a handle: choose tokens by it with
    /// [`Run::submit`](backend::Run::submit), or read it.
    pub fn step(&self, pool: &mut Pool<B>, requests: &[Request<'_>]) -> Result<Option<B::Tensor>> {
        Ok(self.run(pool, requests)?.0)
    }

    /// The same, and what the drafting head takes of every token, if there is such a head.
    pub fn step_with_hidden(&self, pool: &mut Pool<B>, requests: &[Request<'_>]) -> Result<Stepped<B>> {
        let (logits, hidden) = self.run(pool, requests)?;
        let drafter = self.decoder.drafter();
        let hidden = drafter.map(|_| self.decoder.drafter_input(&self.checked(), &hidden)).transpose()?;
        Ok(Stepped { logits, hidden })
    }

    /// The wanted logits, and the hidden states of all tokens before the final norm.
    fn run(&self, pool: &mut Pool<B>, requests: &[Request<'_>]) -> Result<(Option<B::Tensor>, B::Tensor)> {
        let (batch, rows) = self.batch(pool, requests)?;
        let hidden = self.decoder.forward(&self.checked(), &batch, pool.slabs_mut())?;
        advance(pool, &batch);
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

    /// Shows the drafting head some positions of several sequences: `hidden` has a row for each, in
    /// the requests' order. A request's tokens are those that follow its positions, its slot is in
    /// the [head's own pool](Self::draft_pool), and its logits are those of the tokens after these.
    /// `None` when nobody wants any, or there is no head.
    pub fn draft(
        &self,
        pool: &mut Pool<B>,
        hidden: &B::Tensor,
        requests: &[Request<'_>],
    ) -> Result<Option<Drafted<B>>> {
        let Some(drafter) = self.decoder.drafter() else { return Ok(None) };
        let b = self.checked();
        let (batch, rows) = self.batch(pool, requests)?;
        let embedded = self.decoder.embed(&b, &batch)?;
        let output = drafter.forward(&b, &batch, [&embedded, hidden], pool.slabs_mut(), &rows)?;
        advance(pool, &batch);
        let Some(hidden) = output else { return Ok(None) };
        Ok(Some(Drafted { logits: self.decoder.draft_logits(&b, &hidden)?, hidden }))
    }

    /// The batch of some requests, and its rows whose logits are wanted.
    fn batch(&self, pool: &Pool<B>, requests: &[Request<'_>]) -> Result<(Batch<B>, Vec<usize>)> {
        let sequences: Vec<_> = requests.iter().map(|r| (r.slot, r.tokens)).collect();
        let batch = Batch::new(&self.backend, pool, &sequences)?;
        let wanted = requests.iter().zip(batch.spans()).flat_map(|(r, span)| r.logits.rows(span));
        let rows = wanted.collect();
        Ok((batch, rows))
    }
}

/// The sequences of a batch have seen its tokens.
fn advance<B: Backend>(pool: &mut Pool<B>, batch: &Batch<B>) {
    batch.spans().iter().for_each(|span| pool.advance(span.slot, span.len));
}
