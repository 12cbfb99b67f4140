//! Experts of a layer of which the device holds some at a time.
//!
//! A layer has slots for a part of its experts. A step reads back which experts its tokens chose, puts those that are missing into
//! slots of the ones used least often, and runs with the numbers of slots in place of experts. A step that needs more experts than
//! there are slots goes through them in ascending order, as many at a time as fit; kernels pass over pairs whose expert is beyond
//! the last slot.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::backend::{Backend, Error, Result};
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
}

impl Stream {
    pub fn new(streaming: Streaming) -> Result<Self> {
        let store = Store::new(streaming.store);
        let store = store.map_err(|e| Error::Unsupported(format!("cannot start threads that read: {e}")))?;
        Ok(Self { part: streaming.part, store })
    }

    /// Slots for the experts of a layer; `None` if there is room for all of them, or if they are not in a file.
    pub fn slots(&self, parts: [&Weight; 3]) -> Result<Option<Slots>> {
        let experts = parts[0].count;
        let count = (self.part * experts as f64) as usize;
        if count >= experts {
            return Ok(None);
        }
        let layer = self.store.add_layer(parts).map_err(|e| Error::Read(e.to_string()))?;
        Ok(layer.map(|layer| Slots {
            layer,
            count: count.max(1),
            held: Mutex::new(Held::new(experts, count.max(1))),
        }))
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
            // To arrange experts takes longer than to send them: several at a time.
            std::thread::scope(|scope| {
                let images = |taken: &[(usize, Arc<Expert>)]| -> Vec<Image> {
                    taken.iter().flat_map(|(slot, expert)| images(weights, *slot, expert)).collect()
                };
                let share = taken.len().div_ceil(THREADS);
                let threads: Vec<_> =
                    taken.chunks(share).map(|taken| scope.spawn(move || images(taken))).collect();
                for thread in threads {
                    // A panic there is one here.
                    for image in thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                        self.recorder.write_at(image.to, image.at, &image.bytes);
                    }
                }
            });
            taken.drain(..).for_each(|(slot, expert)| held.fill(slot, expert.number));
        }
        Ok(())
    }
}

/// What is written to a buffer, and where.
struct Image<'a> {
    to: &'a Buffer,
    at: u64,
    bytes: Vec<u8>,
}

/// An expert as a slot has it.
fn images<'a>(weights: &'a Experts, slot: usize, expert: &Expert) -> Vec<Image<'a>> {
    let [gate, up, down] = &expert.parts;
    let mut images = Vec::new();
    match &weights.up {
        UpStacks::Alternating(stack) => {
            add_images(stack, slot, &Source::in_turn([gate, up], None), &mut images)
        }
        UpStacks::Apart { gate: gates, up: ups } => {
            add_images(gates, slot, &Source::one(gate), &mut images);
            add_images(ups, slot, &Source::one(up), &mut images);
        }
    }
    add_images(&weights.down, slot, &Source::one(down), &mut images);
    images
}

/// A matrix of a stack.
fn add_images<'a>(stack: &'a Stack, matrix: usize, source: &Source, images: &mut Vec<Image<'a>>) {
    let first = matrix * source.rows();
    for part in &stack.parts {
        let rows = first.max(part.rows.start)..(first + source.rows()).min(part.rows.end);
        for (to, words, is_codes) in
            [(&part.codes, stack.row_words, true), (&part.scales, stack.row_scales, false)]
        {
            let mut bytes = Vec::with_capacity(4 * rows.len() * words);
            for row in rows.clone() {
                if is_codes {
                    source.push_codes(row - first, words, &mut bytes);
                } else {
                    source.push_scales(row - first, words, &mut bytes);
                }
            }
            if !bytes.is_empty() {
                images.push(Image { to, at: 4 * ((rows.start - part.rows.start) * words) as u64, bytes });
            }
        }
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
