//! A pool with the layer that a case is about.

use std::ops::Range;

use backend::pool::{BLOCK, LayerImage, LayerShape, Pool, Slot, StateImage};
use backend::{
    Backend, Batch, CacheFloat, Checked, Error, GdnShape, KvImage, KvShape, RecurrentImage, Result, Tokens,
};

use crate::Fault;
use crate::random::Rng;

/// More than any case takes.
pub(super) const BUDGET: u64 = 1 << 40;

/// Other layers of a pool.
const WHOLE: KvShape = KvShape { heads: 1, key_dim: 3, value_dim: 2, float: CacheFloat::F32, window: None };
const WINDOW: KvShape =
    KvShape { heads: 2, key_dim: 4, value_dim: 5, float: CacheFloat::F16, window: Some(30) };
const RECURRENT: GdnShape = GdnShape { key_heads: 1, value_heads: 2, key_dim: 3, value_dim: 2, kernel: 3 };

/// A pool whose blocks and rows are handed out in a random order, with the layer that a case is
/// about among others.
pub(super) struct TestPool<'a, B: Backend> {
    pub b: Checked<'a, B>,
    pub pool: Pool<B>,
    /// The number of the layer.
    pub layer: usize,
}

impl<'a, B: Backend> TestPool<'a, B> {
    /// The layer alone or behind layers of any kind.
    pub fn new(b: &Checked<'a, B>, rng: &mut Rng, shape: LayerShape) -> Result<Self> {
        let other = match shape {
            LayerShape::Kv(_) => LayerShape::Recurrent(RECURRENT),
            LayerShape::Recurrent(_) => LayerShape::Kv(WHOLE),
        };
        let window = LayerShape::Kv(WINDOW);
        Self::among(b, rng, shape, &[&[], &[other], &[window, other, shape]])
    }

    /// The same where sequences can go back: the other layers keep all their tokens.
    pub fn reversible(b: &Checked<'a, B>, rng: &mut Rng, shape: LayerShape) -> Result<Self> {
        let whole = LayerShape::Kv(WHOLE);
        Self::among(b, rng, shape, &[&[], &[whole], &[shape, whole]])
    }

    /// The layer behind one of these lists of others, and with one layer behind it if there are any.
    fn among(b: &Checked<'a, B>, rng: &mut Rng, shape: LayerShape, others: &[&[LayerShape]]) -> Result<Self> {
        let before = others[rng.below(others.len())];
        let layers = [before, &[shape], &before[..before.len().min(1)]].concat();
        let pool = Pool::new(b.0, &layers, BUDGET)?;
        let mut pool = Self { b: *b, pool, layer: before.len() };
        pool.scatter(rng)?;
        Ok(pool)
    }

    /// Blocks and rows that others have had: they come back in a random order, and not all.
    fn scatter(&mut self, rng: &mut Rng) -> Result<()> {
        const BLOCKS: usize = 5;
        let others = self.create_all(8)?;
        for tokens in (0..BLOCKS).map(|block| block * BLOCK + 1) {
            others.iter().try_for_each(|slot| self.reserve(*slot, tokens))?;
        }
        let order = rng.order(others.len());
        order.into_iter().skip(2).for_each(|i| self.pool.release(others[i]));
        Ok(())
    }

    /// A new sequence.
    pub fn create(&mut self) -> Result<Slot> {
        self.pool.create(self.b.0)?.ok_or_else(|| full("create"))
    }

    /// Several new sequences.
    pub fn create_all(&mut self, count: usize) -> Result<Vec<Slot>> {
        (0..count).map(|_| self.create()).collect()
    }

    fn reserve(&mut self, slot: Slot, tokens: usize) -> Result<()> {
        if self.pool.reserve(self.b.0, slot, tokens)? { Ok(()) } else { Err(full("reserve")) }
    }

    /// One step: so many tokens of each of these sequences. `run` is given the batch, the memory
    /// and the number of the layer.
    pub fn step<T>(
        &mut self,
        parts: &[(Slot, usize)],
        run: impl FnOnce(&Batch<B>, &mut B::Slabs, usize) -> Result<T>,
    ) -> Result<T> {
        let batch = self.batch(parts)?;
        let out = run(&batch, self.pool.slabs_mut(), self.layer)?;
        parts.iter().for_each(|(slot, n)| self.pool.advance(*slot, *n));
        Ok(out)
    }

    /// The batch of a step.
    pub fn batch(&mut self, parts: &[(Slot, usize)]) -> Result<Batch<B>> {
        parts.iter().try_for_each(|(slot, n)| self.reserve(*slot, *n))?;
        let tokens = vec![0; parts.iter().map(|(_, n)| *n).max().unwrap_or(0)];
        let next = |(slot, n): &(Slot, usize)| (*slot, Tokens::Ids(&tokens[..*n]));
        Batch::new(self.b.0, &self.pool, &parts.iter().map(next).collect::<Vec<_>>())
    }

    /// A fork that must be possible.
    pub fn fork(&mut self, from: Slot, len: usize) -> Result<Slot> {
        self.pool.fork(self.b.0, from, len)?.ok_or_else(|| full("fork"))
    }

    /// A sequence on the host.
    pub fn save(&self, slot: Slot) -> Result<StateImage> {
        self.pool.save(self.b.0, slot)
    }

    /// A sequence from its image.
    pub fn load(&mut self, image: &StateImage) -> Result<Slot> {
        self.pool.load(self.b.0, image)?.ok_or_else(|| full("load"))
    }

    /// The keys and values of the layer.
    pub fn kv_image(&self, slot: Slot) -> std::result::Result<KvImage, Fault> {
        match self.save(slot)?.layers.swap_remove(self.layer) {
            LayerImage::Kv(image) => Ok(image),
            LayerImage::Recurrent(_) => Err(Fault::Wrong("the image is one of a recurrent layer".into())),
        }
    }

    /// The state of the layer.
    pub fn save_state(&self, slot: Slot) -> Result<RecurrentImage> {
        let row = self.pool.tables().row(slot).unwrap_or_default();
        self.b.save_state(self.pool.slabs(), self.layer, row)
    }
}

fn full(what: &str) -> Error {
    Error::OutOfMemory(format!("{what}: the pool of the case is full, or the sequence cannot go back"))
}

/// Tokens that each of some sequences has seen, and its tokens of the step that is looked at: at
/// the edges of blocks and between them. Of one token each, or of several as well.
pub(super) fn crowd(count: usize, mixed: bool) -> Vec<(usize, usize)> {
    const PAST: [usize; 11] = [64, 63, 65, 0, 130, 1, 127, 128, 5, 191, 40];
    const NEW: [usize; 7] = [1, 2, 1, 1, 66, 1, 3];
    let new = |i: usize| if mixed { NEW[i % NEW.len()] } else { 1 };
    (0..count).map(|i| (PAST[i % PAST.len()], new(i))).collect()
}

/// Steps that bring sequences to where they are in turns, so that their blocks lie between each
/// other's: which sequences, and which of their tokens.
pub(super) fn in_turns(spans: &[(usize, usize)]) -> Vec<Vec<(usize, Range<usize>)>> {
    const TURN: usize = 47;
    let longest = spans.iter().map(|(past, _)| *past).max().unwrap_or(0);
    let turn = |start: usize| {
        let part = |(i, (past, _)): (usize, &(usize, usize))| (i, start..(*past).min(start + TURN));
        spans.iter().enumerate().map(part).filter(|(_, range)| !range.is_empty()).collect()
    };
    (0..longest).step_by(TURN).map(turn).collect()
}
