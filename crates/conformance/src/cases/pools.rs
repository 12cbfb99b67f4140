//! Random operations on a pool, against a plain model: one list of tokens for each sequence.

use backend::pool::{LayerImage, LayerShape, Pool, Slot, StateImage};
use backend::{Backend, Batch, CacheFloat, Checked, GdnShape, KvShape, Tokens};

use super::caches::{are_near, held, stored};
use super::ensure;
use super::test_pool::BUDGET;
use crate::Fault;
use crate::host::Host;
use crate::random::Rng;

/// Operations on one pool.
const OPERATIONS: usize = 40;

/// Sequences at once, and images.
const MOST: usize = 12;

/// The part of a latent row that has positions.
const PE: usize = 2;

const GDN: GdnShape = GdnShape { key_heads: 1, value_heads: 2, key_dim: 2, value_dim: 3, kernel: 4 };

type Result<T> = std::result::Result<T, Fault>;

/// Layers of every kind, of which each pool has some.
fn kinds() -> Vec<LayerShape> {
    let kv = |heads, key_dim, value_dim, float, window| {
        LayerShape::Kv(KvShape { heads, key_dim, value_dim, float, window })
    };
    vec![
        kv(2, 3, 2, CacheFloat::F32, None),
        kv(1, 5, 4, CacheFloat::F16, None),
        kv(1, 40, 33, CacheFloat::Q8, None),
        // Latents.
        kv(1, 6, 0, CacheFloat::F32, None),
        kv(1, 36, 0, CacheFloat::Q8, None),
        kv(2, 2, 3, CacheFloat::F32, Some(30)),
        kv(1, 4, 2, CacheFloat::F16, Some(65)),
        LayerShape::Recurrent(GDN),
    ]
}

/// A sequence, and a number for each of its tokens, by which the token's rows are known.
struct Sequence {
    slot: Slot,
    tokens: Vec<usize>,
}

/// An image, and what it should hold.
struct Saved {
    image: StateImage,
    tokens: Vec<usize>,
}

/// A pool, and what it should hold.
struct Run<'a, B: Backend> {
    b: Checked<'a, B>,
    pool: Pool<B>,
    layers: Vec<LayerShape>,
    sequences: Vec<Sequence>,
    saved: Vec<Saved>,
    /// The number of the next token.
    next: usize,
}

/// The rows of some tokens in a layer; no two tokens have the same.
fn rows(tokens: &[usize], layer: usize, width: usize) -> Host {
    let row = |token: &usize| Rng::named(&format!("{token} {layer}")).calm(1, width).values;
    Host { rows: tokens.len(), cols: width, values: tokens.iter().flat_map(row).collect() }
}

/// Runs so many random sequences of operations, each on a pool of its own.
///
/// # Errors
/// Where a pool holds anything but what it should: which sequence, which operation.
pub fn check<B: Backend>(b: &B, name: &str, count: usize) -> Result<()> {
    for i in 0..count {
        let mut rng = Rng::named(&format!("{name} {i}"));
        let mut run = Run::new(b, &mut rng)?;
        for operation in 0..OPERATIONS {
            run.operation(&mut rng).map_err(|fault| {
                let layers = &run.layers;
                Fault::Wrong(format!("{name}, sequence {i}, operation {operation}: {fault} ({layers:?})"))
            })?;
        }
        run.end().map_err(|fault| Fault::Wrong(format!("{name}, sequence {i}: {fault}")))?;
    }
    Ok(())
}

impl<'a, B: Backend> Run<'a, B> {
    fn new(b: &'a B, rng: &mut Rng) -> Result<Self> {
        let kinds = kinds();
        let count = 1 + rng.below(4);
        let layers: Vec<LayerShape> = (0..count).map(|_| kinds[rng.below(kinds.len())]).collect();
        let places: u64 = layers.iter().map(|shape| b.place_bytes(shape)).sum();
        let budget = if rng.below(2) == 0 { BUDGET } else { places * (1 + rng.below(20) as u64) };
        let pool = Pool::new(b, &layers, budget)?;
        Ok(Self { b: Checked(b), pool, layers, sequences: Vec::new(), saved: Vec::new(), next: 0 })
    }

    /// One operation; then one of the sequences must hold what it should.
    fn operation(&mut self, rng: &mut Rng) -> Result<()> {
        let some = rng.below(self.sequences.len().max(1));
        match rng.below(12) {
            0 | 1 => self.create()?,
            2..7 => self.step(rng)?,
            _ if self.sequences.is_empty() => self.create()?,
            7 => self.fork(rng, some)?,
            8 => self.truncate(rng, some)?,
            9 => self.pool.release(self.sequences.swap_remove(some).slot),
            10 => self.save(rng, some)?,
            _ => self.load(rng)?,
        }
        match self.sequences.len() {
            0 => Ok(()),
            count => self.check(&self.sequences[rng.below(count)]),
        }
    }

    fn create(&mut self) -> Result<()> {
        if self.sequences.len() < MOST {
            let slot = self.pool.create(self.b.0)?;
            self.sequences.extend(slot.map(|slot| Sequence { slot, tokens: Vec::new() }));
        }
        Ok(())
    }

    /// New tokens for some sequences, as far as there is room for them.
    fn step(&mut self, rng: &mut Rng) -> Result<()> {
        const NEW: [usize; 8] = [1, 1, 2, 5, 63, 64, 65, 130];
        let mut parts = Vec::new();
        let order = rng.order(self.sequences.len());
        for i in order.into_iter().take(1 + rng.below(4)) {
            let (n, more) = (NEW[rng.below(NEW.len())], [0, 0, 100][rng.below(3)]);
            let sequence = &mut self.sequences[i];
            if self.pool.reserve(self.b.0, sequence.slot, n + more)? {
                let new: Vec<usize> = (self.next..self.next + n).collect();
                self.next += n;
                sequence.tokens.extend(&new);
                parts.push((sequence.slot, new));
            }
        }
        if parts.is_empty() {
            return Ok(());
        }
        let ids = [0; 130];
        let spans: Vec<_> = parts.iter().map(|(slot, new)| (*slot, Tokens::Ids(&ids[..new.len()]))).collect();
        let batch = Batch::new(self.b.0, &self.pool, &spans)?;
        let new: Vec<usize> = parts.iter().flat_map(|(_, new)| new.iter().copied()).collect();
        for layer in 0..self.layers.len() {
            self.write(&batch, layer, &new)?;
        }
        parts.iter().for_each(|(slot, new)| self.pool.advance(*slot, new.len()));
        Ok(())
    }

    /// What a layer of a model would write for these tokens.
    fn write(&mut self, batch: &Batch<B>, layer: usize, tokens: &[usize]) -> Result<()> {
        let b = self.b;
        let slabs = self.pool.slabs_mut();
        match self.layers[layer] {
            LayerShape::Kv(KvShape { value_dim: 0, key_dim, .. }) => {
                let x = rows(tokens, layer, key_dim).on(&b)?;
                let (latent, k_pe) = (b.columns(&x, 0, key_dim - PE)?, b.columns(&x, key_dim - PE, PE)?);
                b.mla_append(&latent, &k_pe, batch, slabs, layer)?;
            }
            LayerShape::Kv(KvShape { heads, key_dim, value_dim, .. }) => {
                let x = rows(tokens, layer, heads * (key_dim + value_dim)).on(&b)?;
                let k = b.columns(&x, 0, heads * key_dim)?;
                let v = b.columns(&x, heads * key_dim, heads * value_dim)?;
                b.kv_append(&k, &v, batch, slabs, layer)?;
            }
            LayerShape::Recurrent(shape) => {
                let x = rows(tokens, layer, shape.channels()).on(&b)?;
                let heads = tokens.len() * shape.value_heads;
                let of = |value| b.upload(tokens.len(), shape.value_heads, &vec![value; heads]);
                let taps =
                    b.upload(shape.channels(), shape.kernel, &vec![1.0; shape.channels() * shape.kernel])?;
                b.conv_causal(&x, &taps, batch, slabs, layer)?;
                // All of the past is forgotten: the state is the last token's.
                b.gdn(&x, &of(0.0)?, &of(1.0)?, batch, slabs, layer)?;
            }
        }
        Ok(())
    }

    fn fork(&mut self, rng: &mut Rng, from: usize) -> Result<()> {
        let Sequence { slot, tokens } = &self.sequences[from];
        let len = if rng.below(2) == 0 { tokens.len() } else { rng.below(tokens.len() + 1) };
        let (reaches, tokens) = (self.pool.tables().reaches(*slot, len), tokens[..len].to_vec());
        if self.sequences.len() < MOST
            && let Some(slot) = self.pool.fork(self.b.0, *slot, len)?
        {
            ensure(reaches, "a fork of what is gone")?;
            self.sequences.push(Sequence { slot, tokens });
        }
        Ok(())
    }

    fn truncate(&mut self, rng: &mut Rng, which: usize) -> Result<()> {
        let Sequence { slot, tokens } = &mut self.sequences[which];
        let len = rng.below(tokens.len() + 1);
        let whole = |shape: &LayerShape| matches!(shape, LayerShape::Kv(KvShape { window: None, .. }));
        let done = self.pool.truncate(*slot, len);
        ensure(done || !self.layers.iter().all(whole), "a sequence that is whole cannot be cut back")?;
        if done {
            tokens.truncate(len);
        }
        Ok(())
    }

    fn save(&mut self, rng: &mut Rng, which: usize) -> Result<()> {
        let Sequence { slot, tokens } = &self.sequences[which];
        let (image, tokens) = (self.pool.save(self.b.0, *slot)?, tokens.clone());
        if self.saved.len() == MOST {
            self.saved.swap_remove(rng.below(MOST));
        }
        self.saved.push(Saved { image, tokens });
        Ok(())
    }

    fn load(&mut self, rng: &mut Rng) -> Result<()> {
        if self.saved.is_empty() || self.sequences.len() == MOST {
            return Ok(());
        }
        let Saved { image, tokens } = &self.saved[rng.below(self.saved.len())];
        if let Some(slot) = self.pool.load(self.b.0, image)? {
            ensure(self.pool.save(self.b.0, slot)? == *image, "what was loaded is not what was saved")?;
            self.sequences.push(Sequence { slot, tokens: tokens.clone() });
        }
        Ok(())
    }

    /// That a sequence holds the rows of its tokens, at least those that the next one sees.
    fn check(&self, Sequence { slot, tokens }: &Sequence) -> Result<()> {
        let image = self.pool.save(self.b.0, *slot)?;
        ensure(image.len == tokens.len(), &format!("{} tokens of {}", image.len, tokens.len()))?;
        for (i, (shape, image)) in self.layers.iter().zip(&image.layers).enumerate() {
            let holds = match (shape, image) {
                (LayerShape::Kv(shape), LayerImage::Kv(image)) => {
                    let KvShape { heads, key_dim, value_dim, float, window } = *shape;
                    let needed = window.map_or(0, |window| (tokens.len() + 1).saturating_sub(window));
                    let all = rows(tokens, i, heads * (key_dim + value_dim));
                    let same = |bytes: &[u8], start: usize, width: usize| {
                        let part = Host::from_fn(all.rows, heads * width, |t, c| all.row(t)[start + c]);
                        let expected =
                            if width > 0 { stored(float, &part, image.first, width) } else { Vec::new() };
                        let found = if width > 0 { held(float, bytes, width) } else { Vec::new() };
                        are_near(float, &found, &expected, width.max(1))
                    };
                    image.first <= needed
                        && same(&image.keys, 0, key_dim)
                        && same(&image.values, heads * key_dim, value_dim)
                }
                (LayerShape::Recurrent(shape), LayerImage::Recurrent(image)) => {
                    image.window == window(shape, i, tokens) && image.state == state(shape, i, tokens)
                }
                _ => false,
            };
            ensure(holds, &format!("layer {i} of {slot:?} does not hold its {} tokens", tokens.len()))?;
        }
        Ok(())
    }

    /// All sequences hold what they should; without them the pool is empty.
    fn end(mut self) -> Result<()> {
        self.sequences.iter().try_for_each(|sequence| self.check(sequence))?;
        self.sequences.iter().for_each(|sequence| self.pool.release(sequence.slot));
        ensure(self.pool.is_empty(), "memory is in use, but nobody has it")
    }
}

/// The last inputs of the convolution, zeros before the first token.
fn window(shape: &GdnShape, layer: usize, tokens: &[usize]) -> Vec<f32> {
    let kept = shape.kernel - 1;
    let last = &tokens[tokens.len().saturating_sub(kept)..];
    let zeros = vec![0.0; (kept - last.len()) * shape.channels()];
    [zeros, rows(last, layer, shape.channels()).values].concat()
}

/// `v k^T` of the last token.
fn state(shape: &GdnShape, layer: usize, tokens: &[usize]) -> Vec<f32> {
    let Some(last) = tokens.last() else { return vec![0.0; shape.state_len()] };
    let row = rows(&[*last], layer, shape.channels()).values;
    let (keys, values) = row[shape.key_total()..].split_at(shape.key_total());
    values.iter().flat_map(|v| keys.iter().map(move |k| v * k)).collect()
}
