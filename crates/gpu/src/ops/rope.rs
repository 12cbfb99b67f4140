//! Rotary positions. Angles are computed on the host in f64, since positions times frequencies reach tens of thousands of
//! radians, once per batch and embedding.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ::backend::{Batch, Handle, Pairing, Result, RopeSpec, Shape, Span};

use super::word;
use crate::kernels::elementwise::rope;
use crate::pool::Buffer;
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

/// What a batch brings to the device: its tokens, and angles for its positions.
pub struct Positions {
    pub(crate) tokens: Buffer,
    angles: Buffer,
    /// Where each embedding's angles begin, in pairs of numbers.
    places: Vec<(Arc<RopeSpec>, usize)>,
}

/// Appends cosine and sine for every token and pair.
fn push_angles(spec: &RopeSpec, spans: &[Span], out: &mut Vec<f32>) {
    for position in spans.iter().flat_map(|span| span.position..span.position + span.len) {
        for frequency in &spec.inv_freq {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            out.extend([(cos * spec.factor) as f32, (sin * spec.factor) as f32]);
        }
    }
}

impl Gpu {
    pub(crate) fn positions(&self, tokens: &[u32], spans: &[Span]) -> Result<Positions> {
        let ids = self.pool.take(4 * tokens.len() as u64)?;
        self.recorder.write(&ids, bytemuck::cast_slice(tokens));
        self.positions_of(ids, spans)
    }

    /// The same for tokens that are there.
    pub(crate) fn positions_of(&self, tokens: Buffer, spans: &[Span]) -> Result<Positions> {
        // A step begins.
        self.pool.wake();
        let mut places = Vec::new();
        let mut values = Vec::new();
        for spec in self.ropes.all() {
            places.push((spec.clone(), values.len() / 2));
            push_angles(&spec, spans, &mut values);
        }
        let angles = self.pool.take(4 * values.len() as u64)?;
        self.recorder.write(&angles, bytemuck::cast_slice(&values));
        Ok(Positions { tokens, angles, places })
    }

    /// Where a batch's angles of an embedding are, in pairs of numbers.
    pub(crate) fn angles_of(&self, rope: &Rope, batch: &Batch<Self>) -> Result<(Buffer, usize)> {
        let data = batch.data();
        if let Some((_, first)) = data.places.iter().find(|(spec, _)| Arc::ptr_eq(spec, &rope.0)) {
            return Ok((data.angles.clone(), *first));
        }
        // Made after the batch.
        let mut values = Vec::new();
        push_angles(&rope.0, batch.spans(), &mut values);
        let late = self.pool.take(4 * values.len() as u64)?;
        self.recorder.write(&late, bytemuck::cast_slice(&values));
        Ok((late, 0))
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
