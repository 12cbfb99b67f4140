//! What a batch brings to the device: places and rotary positions. Angles are computed on the host in f64,
//! since positions times frequencies reach tens of thousands of radians, once per batch and embedding.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ::backend::{Batch, Error, Handle, Pairing, Result, RopeSpec, Shape, Span, StepTables};

use super::word;
use crate::kernels::elementwise::rope;
use crate::pool::Buffer;
use crate::slabs::Slabs;
use crate::{Gpu, Tensor};

/// A rotary embedding known to the backend, so that every batch brings its angles along.
pub struct Rope(Arc<RopeSpec>);

impl Rope {
    pub(crate) fn rotary_dim(&self) -> usize {
        self.0.rotary_dim()
    }

    /// Whether pairs are neighbours.
    pub(crate) fn interleaved(&self) -> bool {
        self.0.pairing == Pairing::Interleaved
    }
}

impl Handle for Rope {
    type Shape = usize;

    fn shape(&self) -> usize {
        self.rotary_dim()
    }
}

/// The rotary embeddings in use.
#[derive(Default)]
pub(crate) struct Ropes(Mutex<Vec<Weak<RopeSpec>>>);

impl Ropes {
    /// Equal embeddings are one.
    pub fn add(&self, spec: &RopeSpec) -> Rope {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|spec| spec.strong_count() > 0);
        if let Some(same) = known.iter().filter_map(Weak::upgrade).find(|known| **known == *spec) {
            return Rope(same);
        }
        let spec = Arc::new(spec.clone());
        known.push(Arc::downgrade(&spec));
        Rope(spec)
    }

    fn all(&self) -> Vec<Arc<RopeSpec>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().filter_map(Weak::upgrade).collect()
    }
}

/// What a batch brings to the device, in one buffer: what its sequences are and where they have their places
/// (`pieces/steps.wgsl`), its tokens, and angles for its positions.
pub struct Positions {
    pub(crate) steps: Buffer,
    /// The words of each span's tokens.
    pub(crate) tokens_at: usize,
    /// Where tokens are that the host does not know.
    pub(crate) last: Buffer,
    /// Where each embedding's angles begin, in pairs of numbers.
    places: Vec<(Arc<RopeSpec>, usize)>,
    /// Where the tables of each group of layers begin, and words of one.
    groups: Vec<(usize, usize)>,
    /// The group of each layer with keys.
    of_layers: Vec<Option<usize>>,
}

impl Positions {
    /// Where the tables of a layer with keys begin in `steps`, and words from one span's to the next one's.
    pub(crate) fn table(&self, layer: usize) -> (usize, usize) {
        self.of_layers.get(layer).copied().flatten().map_or((0, 0), |group| self.groups[group])
    }
}

/// A token that only the device knows: the last one of a slot, whose index is in the other bits.
pub(crate) const FOLLOWS: u32 = 1 << 31;

/// The words of `pieces/steps.wgsl`, and where the tables of each group begin, with the words of one.
fn step_words(spans: &[Span], tables: &StepTables) -> (Vec<u32>, Vec<(usize, usize)>) {
    let mut words = Vec::new();
    for span in spans {
        words.extend([word(span.row), word(span.len), word(span.position), span.state]);
    }
    for (i, span) in spans.iter().enumerate() {
        words.extend(std::iter::repeat_n(word(i), span.len));
    }
    let mut groups = Vec::with_capacity(tables.groups().len());
    for tables in tables.groups() {
        let stride = 1 + tables.iter().map(|table| table.held.len()).max().unwrap_or_default();
        groups.push((words.len(), stride));
        for table in tables {
            let next = words.len() + stride;
            words.push(word(table.passed));
            words.extend_from_slice(&table.held);
            words.resize(next, 0);
        }
    }
    (words, groups)
}

/// Appends cosine and sine for every token and pair; returns where they begin, in pairs of numbers.
fn push_angles(spec: &RopeSpec, spans: &[Span], out: &mut Vec<u32>) -> usize {
    out.resize(out.len().next_multiple_of(2), 0);
    let first = out.len() / 2;
    for position in spans.iter().flat_map(|span| span.position..span.position + span.len) {
        for frequency in &spec.inv_freq {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            out.extend([cos, sin].map(|part| ((part * spec.factor) as f32).to_bits()));
        }
    }
    first
}

impl Gpu {
    pub(crate) fn positions(
        &self,
        tokens: &[u32],
        spans: &[Span],
        tables: &StepTables,
        slabs: &Slabs,
    ) -> Result<Positions> {
        // A step begins.
        self.pool.wake();
        let (mut words, groups) = step_words(spans, tables);
        let tokens_at = words.len();
        for span in spans {
            match span.follows {
                true if span.slot.index() < slabs.slots() => words.push(FOLLOWS | word(span.slot.index())),
                true => {
                    return Err(Error::Unsupported("a token that was chosen last where none was".into()));
                }
                false => words.extend_from_slice(&tokens[span.rows()]),
            }
        }
        let places = self.ropes.all().into_iter().map(|spec| {
            let first = push_angles(&spec, spans, &mut words);
            (spec, first)
        });
        let places = places.collect();
        let of_layers =
            (0..tables.layers().shapes().len()).map(|layer| tables.layers().group(layer)).collect();
        let steps = self.step_buffer(&words)?;
        Ok(Positions { steps, tokens_at, last: slabs.last().clone(), places, groups, of_layers })
    }

    fn step_buffer(&self, words: &[u32]) -> Result<Buffer> {
        let buffer = self.pool.take(4 * words.len() as u64)?;
        self.recorder.write(&buffer, bytemuck::cast_slice(words));
        Ok(buffer)
    }

    /// Where a batch's angles of an embedding are, in pairs of numbers, in a buffer that begins as `steps`
    /// does.
    pub(crate) fn angles_of(&self, rope: &Rope, batch: &Batch<Self>) -> Result<(Buffer, usize)> {
        let data = batch.data();
        if let Some((_, first)) = data.places.iter().find(|(spec, _)| Arc::ptr_eq(spec, &rope.0)) {
            return Ok((data.steps.clone(), *first));
        }
        // Made after the batch.
        let (mut words, _) = step_words(batch.spans(), batch.tables());
        let first = push_angles(&rope.0, batch.spans(), &mut words);
        Ok((self.step_buffer(&words)?, first))
    }

    pub(crate) fn rope_of(
        &self,
        x: &Tensor,
        batch: &Batch<Self>,
        rope: &Rope,
        width: usize,
    ) -> Result<Tensor> {
        let Shape { rows, cols } = x.shape();
        let y = self.tensor(rows, cols)?;
        let (angles, first) = self.angles_of(rope, batch)?;
        let params = rope::Params {
            len: word(rows * cols),
            cols: word(cols),
            width: word(width),
            pairs: word(rope.0.inv_freq.len()),
            first_angle: word(first),
            interleaved: rope.interleaved().into(),
        };
        let bindings = rope::Bindings { x: x.buffer(), angles: &angles, y: y.buffer() };
        self.run_each(rope::call(params, bindings), rows * cols);
        Ok(y)
    }
}
