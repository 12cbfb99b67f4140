//! Experts of a layer of which the device holds some at a time.
//!
//! A layer has slots for a part of its experts. A step reads back which experts its tokens chose, puts those that are missing into
//! slots of the ones used least often, and runs with the numbers of slots in place of experts. A step that needs more experts than
//! there are slots goes through them in ascending order, as many at a time as fit; kernels pass over pairs whose expert is beyond
//! the last slot.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::backend::{Error, Ops, Result};
use checkpoint::Weight;
use store::{Expert, Frequencies, Store, StoreOptions};

use crate::Gpu;
use crate::ops::route::Routes;
use crate::pool::Buffer;
use crate::weights::{Experts, Source, Stack, UpStacks};

/// Threads that arrange experts for the device.
const THREADS: usize = 8;

/// Settings for models larger than the device's memory.
#[derive(Clone, Debug)]
pub struct Streaming {
    /// The part of each layer's experts that the device holds, from 0 to 1.
    pub part: f64,
    /// How the others are read, and the memory of the host that they share.
    pub store: StoreOptions,
}

/// What experts are read with.
pub(crate) struct Stream {
    pub part: f64,
    pub store: Store,
    staging: Staging,
}

impl Stream {
    pub fn new(streaming: Streaming) -> Result<Self> {
        let store = Store::new(streaming.store);
        let store = store.map_err(|e| Error::Unsupported(format!("cannot start threads that read: {e}")))?;
        Ok(Self { part: streaming.part, store, staging: Staging::default() })
    }

    /// Slots for the experts of a layer; `None` if there is room for all of them, or if they are not in a file.
    pub fn slots(&self, parts: [&Weight; 3]) -> Result<Option<Slots>> {
        let experts = parts[0].count;
        let count = ((self.part * experts as f64) as usize).max(1);
        if count >= experts {
            return Ok(None);
        }
        let layer = self.store.add_layer(parts).map_err(|e| Error::Read(e.to_string()))?;
        Ok(layer.map(|layer| Slots { layer, count, held: Mutex::new(Held::new(experts, count)) }))
    }
}

/// The slots of a layer.
pub(crate) struct Slots {
    /// Its number in the store.
    layer: usize,
    pub count: usize,
    held: Mutex<Held>,
}

/// Which experts are where.
struct Held {
    slot_of: Vec<Option<usize>>,
    expert_in: Vec<Option<usize>>,
    /// Of this layer alone, which is number 0 here.
    frequencies: Frequencies,
}

impl Held {
    fn new(experts: usize, slots: usize) -> Self {
        let mut frequencies = Frequencies::default();
        frequencies.add_layer(experts);
        Self { slot_of: vec![None; experts], expert_in: vec![None; slots], frequencies }
    }

    /// Slots that these experts do not need, the best to take first: empty ones, then those of experts that are used least often.
    fn free_for(&self, needed: &[(usize, usize)]) -> impl Iterator<Item = usize> + use<> {
        let is_needed = |expert: usize| needed.binary_search_by_key(&expert, |(expert, _)| *expert).is_ok();
        let level = |slot: &usize| {
            self.expert_in[*slot].map_or(f64::NEG_INFINITY, |expert| self.frequencies.level(0, expert))
        };
        let free = |slot: &usize| !self.expert_in[*slot].is_some_and(is_needed);
        let mut slots: Vec<usize> = (0..self.expert_in.len()).filter(free).collect();
        slots.sort_by(|a, b| level(a).total_cmp(&level(b)));
        slots.into_iter()
    }

    /// Forgets what is in a slot, since it will be overwritten.
    fn empty(&mut self, slot: usize) {
        if let Some(expert) = self.expert_in[slot].take() {
            self.slot_of[expert] = None;
        }
    }

    fn fill(&mut self, slot: usize, expert: usize) {
        self.expert_in[slot] = Some(expert);
        self.slot_of[expert] = Some(slot);
    }
}

impl Slots {
    fn held(&self) -> MutexGuard<'_, Held> {
        // A slot is emptied before it is written, and known only afterwards.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gpu {
    /// Calls `step` with all of the routes, their experts' slots in place of experts: at once, or some experts at a time.
    pub(crate) fn in_waves(
        &self,
        routes: &Routes,
        weights: &Experts,
        slots: &Slots,
        mut step: impl FnMut(&Routes) -> Result<()>,
    ) -> Result<()> {
        let (ids, _) = self.read_routes(routes)?;
        let mut uses = BTreeMap::<usize, usize>::new();
        ids.iter().for_each(|id| *uses.entry(*id as usize).or_default() += 1);
        let uses: Vec<(usize, usize)> = uses.into_iter().collect();
        let mut held = slots.held();
        held.frequencies.count(0, routes.tokens, uses.iter().copied());
        for wave in uses.chunks(slots.count) {
            self.load(weights, slots, &mut held, wave, routes.tokens)?;
            let place = |id: &u32| {
                let expert = *id as usize;
                let here = wave.binary_search_by_key(&expert, |(expert, _)| *expert).is_ok();
                // Beyond the last slot is no expert.
                held.slot_of[expert].filter(|_| here).unwrap_or(slots.count) as u32
            };
            let places: Vec<u32> = ids.iter().map(place).collect();
            let buffer = self.pool.take(4 * places.len() as u64)?;
            self.recorder.write(&buffer, bytemuck::cast_slice(&places));
            step(&Routes { ids: buffer, weights: routes.weights.clone(), ..*routes })?;
        }
        Ok(())
    }

    /// Puts those of some experts into slots that are not there.
    fn load(
        &self,
        weights: &Experts,
        slots: &Slots,
        held: &mut Held,
        wave: &[(usize, usize)],
        tokens: usize,
    ) -> Result<()> {
        let Some(stream) = &self.stream else { unreachable!("slots come with what fills them") };
        let is_missing = |(expert, _): &(usize, usize)| held.slot_of[*expert].is_none();
        let missing: Vec<_> = wave.iter().copied().filter(is_missing).collect();
        stream.store.count_hits(wave.len() - missing.len());
        if missing.is_empty() {
            return Ok(());
        }
        let mut free = held.free_for(wave);
        let mut pass = stream.store.pass(slots.layer, tokens, &missing);
        let (mut left, mut taken) = (missing.len(), Vec::new());
        while left > 0 {
            let here = pass.wait().map_err(|error| Error::Read(error.to_string()))?;
            left -= here.len();
            for expert in &here {
                let Some(slot) = free.next() else { unreachable!("a wave has no more experts than slots") };
                held.empty(slot);
                taken.push((slot, expert.clone()));
            }
            let images: Vec<Image<'_>> =
                taken.iter().flat_map(|(slot, expert)| images(weights, *slot, expert)).collect();
            self.send(stream, &images)?;
            taken.drain(..).for_each(|(slot, expert)| held.fill(slot, expert.number));
        }
        Ok(())
    }
}

/// Rows of a source that are written to a buffer, and where.
struct Image<'a> {
    to: &'a Buffer,
    at: u64,
    source: Arc<Source>,
    rows: Range<usize>,
    row_words: usize,
    /// Not scales.
    codes: bool,
}

impl Image<'_> {
    fn len(&self) -> usize {
        4 * self.rows.len() * self.row_words
    }

    fn write(&self, out: &mut Bytes<'_>, scratch: &mut Vec<u8>) {
        scratch.clear();
        for row in self.rows.clone() {
            if self.codes {
                self.source.push_codes(row, self.row_words, scratch);
            } else {
                self.source.push_scales(row, self.row_words, scratch);
            }
        }
        out.0.copy_from_slice(scratch);
    }
}

/// Bytes of a mapped buffer that one thread writes.
struct Bytes<'a>(wgpu::WriteOnly<'a, [u8]>);

// SAFETY: like `&mut [u8]`, the only way to these bytes while it lives. (That wgpu says so only for types of known size seems an oversight.)
unsafe impl Send for Bytes<'_> {}

/// An expert as a slot has it.
fn images<'a>(weights: &'a Experts, slot: usize, expert: &Expert) -> Vec<Image<'a>> {
    let [gate, up, down] = &expert.parts;
    let mut images = match &weights.up {
        UpStacks::Alternating(stack) => images_of(stack, slot, Source::in_turn([gate, up], None)),
        UpStacks::Apart { gate: gates, up: ups } => {
            let mut images = images_of(gates, slot, Source::one(gate));
            images.extend(images_of(ups, slot, Source::one(up)));
            images
        }
    };
    images.extend(images_of(&weights.down, slot, Source::one(down)));
    images
}

/// A matrix of a stack.
fn images_of(stack: &Stack, matrix: usize, source: Source) -> Vec<Image<'_>> {
    let (first, source) = (matrix * source.rows(), Arc::new(source));
    let end = first + source.rows();
    let mut images = Vec::new();
    for part in stack.parts.iter().filter(|part| part.rows.start < end && first < part.rows.end) {
        let rows = first.max(part.rows.start)..end.min(part.rows.end);
        let planes = [(&part.codes, stack.row_words, true), (&part.scales, stack.row_scales, false)];
        for (to, row_words, codes) in planes.into_iter().filter(|(_, row_words, _)| *row_words > 0) {
            let at = 4 * ((rows.start - part.rows.start) * row_words) as u64;
            let rows = rows.start - first..rows.end - first;
            images.push(Image { to, at, source: source.clone(), rows, row_words, codes });
        }
    }
    images
}

/// Memory through which experts go to the device, used again and again.
#[derive(Default)]
struct Staging(Arc<Mutex<Vec<wgpu::Buffer>>>);

impl Staging {
    fn free(&self) -> MutexGuard<'_, Vec<wgpu::Buffer>> {
        // A list of buffers, never half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mapped buffer of at least `len` bytes.
    fn take(&self, gpu: &Gpu, len: u64) -> Result<wgpu::Buffer> {
        let mut free = self.free();
        match free.iter().position(|buffer| buffer.size() >= len) {
            Some(i) => Ok(free.swap_remove(i)),
            None => gpu.device.mapped_buffer("experts on their way", len.next_power_of_two()),
        }
    }

    /// Takes a buffer back whose copies have been submitted: it is free when the device is done with them.
    fn give_back(&self, buffer: wgpu::Buffer) {
        let free = self.0.clone();
        buffer.clone().map_async(wgpu::MapMode::Write, .., move |mapped| {
            // One that cannot be mapped is dropped; a lost device is noticed by whoever reads from it.
            if mapped.is_ok() {
                free.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
            }
        });
    }
}

impl Gpu {
    /// Writes images to the device, after everything recorded so far.
    fn send(&self, stream: &Stream, images: &[Image<'_>]) -> Result<()> {
        let staging = stream.staging.take(self, images.iter().map(|image| image.len() as u64).sum())?;
        let mut view = staging
            .get_mapped_range_mut(..)
            .map_err(|e| Error::Device(format!("{}: {e}", self.device.adapter.name)))?;
        let mut rest = view.slice(..);
        let mut jobs = Vec::new();
        for image in images {
            let (out, later) = rest.split_at(image.len());
            rest = later;
            jobs.push((image, Bytes(out)));
        }
        // To arrange experts takes longer than to send them: several at a time.
        std::thread::scope(|scope| {
            let share = jobs.len().div_ceil(THREADS).max(1);
            for jobs in jobs.chunks_mut(share) {
                scope.spawn(|| {
                    let mut scratch = Vec::new();
                    jobs.iter_mut().for_each(|(image, out)| image.write(out, &mut scratch));
                });
            }
        });
        drop(view);
        staging.unmap();
        let mut from = 0;
        for image in images {
            let len = image.len() as u64;
            self.recorder.copy_from(&staging, from, image.to, image.at, len);
            from += len;
        }
        self.recorder.submit();
        stream.staging.give_back(staging);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_the_least_used_are_taken_first() {
        let mut held = Held::new(8, 3);
        assert_eq!(held.free_for(&[(1, 1)]).collect::<Vec<_>>(), [0, 1, 2]);
        held.fill(0, 5);
        held.fill(2, 6);
        held.frequencies.count(0, 1, [(5, 3), (6, 1), (7, 1)]);
        assert_eq!(held.free_for(&[]).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(held.free_for(&[(2, 1), (6, 1)]).collect::<Vec<_>>(), [1, 0]);
        held.empty(2);
        held.fill(2, 7);
        assert_eq!((held.slot_of[6], held.slot_of[7]), (None, Some(2)));
    }
}
