//! What is in memory, what is being read, and what is to be read next.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use checkpoint::Weight;

use crate::frequencies::Frequencies;
use crate::memory::{Block, Slot, slots};
use crate::reader::Piece;
use crate::store::Stats;
use crate::{Error, Result};

/// An expert in memory.
pub struct Expert {
    /// Its number in its layer.
    pub number: usize,
    /// Its gate, up and down matrices.
    pub parts: [Weight; 3],
    slot: Arc<Slot>,
}

impl Expert {
    /// Its slot, for another.
    fn into_slot(self) -> Option<Slot> {
        let Self { parts, slot, .. } = self;
        drop(parts);
        Arc::try_unwrap(slot).ok()
    }
}

/// An expert, by its layer and its number there.
pub(crate) type Key = (usize, usize);

/// What there is of an expert.
pub(crate) enum Entry {
    Reading(Arrivals),
    Here(Arc<Expert>),
}

/// The blocks of an expert as they come in.
pub(crate) struct Arrivals {
    slot: Arc<Slot>,
    /// Those that have been read.
    blocks: Vec<Option<Block>>,
    outstanding: usize,
    failure: Option<Error>,
    /// They were asked for before the running pass: what fails is tried again for it.
    pub earlier: bool,
}

/// The experts of a layer.
struct Layer {
    /// Gate, up and down of all of them.
    parts: [Weight; 3],
    /// What is to be read of each.
    pieces: Vec<Arc<[Piece]>>,
}

/// One read.
pub(crate) struct Read {
    key: Key,
    piece: usize,
    pieces: Arc<[Piece]>,
    block: Block,
}

impl Read {
    /// Reads.
    pub fn run(&mut self) -> Result<()> {
        self.pieces[self.piece].read(&mut self.block)
    }
}

/// An expert that a step needs: those of the running pass first, then those of the next layer; in each, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Need {
    pub ahead: bool,
    pub expert: usize,
}

/// All of it; under one lock.
pub(crate) struct State {
    layers: Vec<Layer>,
    /// Bytes of the largest expert.
    slot_bytes: usize,
    /// Made when the first expert is needed, after all layers are known.
    free: Option<Vec<Slot>>,
    pub entries: HashMap<Key, Entry>,
    /// Of these, what no pass has used since it was read.
    pub unused: HashSet<Key>,
    pub frequencies: Frequencies,
    /// The layer of the running pass, or of the last one.
    pub layer: usize,
    /// Experts of that layer that are read on a guess.
    pub guessed: BTreeSet<usize>,
    /// What is needed and has not been handed out.
    pub needed: BTreeSet<Need>,
    /// Of these, what is neither here nor being read.
    pub missing: BTreeSet<Need>,
    /// Why experts could not be read.
    pub failures: HashMap<Key, Error>,
    queue: VecDeque<Read>,
    under_way: usize,
    reading_since: Instant,
    /// When the disk last gave an answer.
    pub heard: Instant,
    pub stats: Stats,
    pub ending: bool,
}

impl State {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            layers: Vec::new(),
            slot_bytes: 0,
            free: None,
            entries: HashMap::new(),
            unused: HashSet::new(),
            frequencies: Frequencies::default(),
            layer: 0,
            guessed: BTreeSet::new(),
            needed: BTreeSet::new(),
            missing: BTreeSet::new(),
            failures: HashMap::new(),
            queue: VecDeque::new(),
            under_way: 0,
            reading_since: now,
            heard: now,
            stats: Stats::default(),
            ending: false,
        }
    }

    /// Takes in a layer, and returns its number.
    pub fn add_layer(&mut self, parts: [Weight; 3], pieces: Vec<Arc<[Piece]>>) -> usize {
        let room = |pieces: &Arc<[Piece]>| pieces.iter().map(Piece::room).sum();
        self.slot_bytes = pieces.iter().map(room).max().unwrap_or(0).max(self.slot_bytes);
        self.stats.waited.push(Duration::ZERO);
        let layer = self.frequencies.add_layer(pieces.len());
        self.layers.push(Layer { parts, pieces });
        layer
    }

    /// What was done since this was last asked.
    pub fn take_stats(&mut self) -> Stats {
        let fresh = Stats { waited: vec![Duration::ZERO; self.layers.len()], ..Stats::default() };
        std::mem::replace(&mut self.stats, fresh)
    }

    /// Something to be read of the first expert.
    pub fn any_pieces(&self) -> Option<Arc<[Piece]>> {
        self.layers.first()?.pieces.first().cloned()
    }

    /// The key of a need.
    pub fn key(&self, need: Need) -> Key {
        (self.layer + usize::from(need.ahead), need.expert)
    }

    /// The need of an expert, if there is one.
    fn need_of(&self, (layer, expert): Key) -> Option<Need> {
        let ahead = layer == self.layer + 1;
        let need = Need { ahead, expert };
        (ahead || layer == self.layer).then_some(need).filter(|need| self.needed.contains(need))
    }

    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    pub fn experts(&self, layer: usize) -> usize {
        self.layers[layer].pieces.len()
    }

    /// Begins to read what is missing, as far as there are slots for it.
    pub fn fill(&mut self, memory: u64) {
        while let Some(need) = self.missing.first().copied() {
            let key = self.key(need);
            match self.take_slot(memory, need) {
                Ok(Some(slot)) => self.start(key, slot),
                Ok(None) => return,
                Err(error) => {
                    self.failures.insert(key, error);
                }
            }
            self.missing.remove(&need);
        }
    }

    fn start(&mut self, key: Key, slot: Slot) {
        let pieces = self.layers[key.0].pieces[key.1].clone();
        let (slot, blocks) = slot.cut(pieces.iter().map(Piece::room));
        let arrivals = Arrivals {
            slot,
            blocks: blocks.iter().map(|_| None).collect(),
            outstanding: blocks.len(),
            failure: None,
            earlier: false,
        };
        self.entries.insert(key, Entry::Reading(arrivals));
        self.unused.insert(key);
        let reads = blocks.into_iter().enumerate();
        self.queue.extend(reads.map(|(piece, block)| Read { key, piece, pieces: pieces.clone(), block }));
    }

    /// A slot for an expert that is needed: a free one, else that of the expert used least often and not needed, else that
    /// of one needed later than this.
    fn take_slot(&mut self, memory: u64, need: Need) -> Result<Option<Slot>> {
        let free = match &mut self.free {
            Some(free) => free,
            none => {
                // One is enough to get on, and one for each is all that can be used.
                let all: usize = self.layers.iter().map(|layer| layer.pieces.len()).sum();
                let count = (memory / self.slot_bytes.max(1) as u64).clamp(1, all as u64);
                none.insert(slots(count as usize, self.slot_bytes)?)
            }
        };
        if let Some(slot) = free.pop() {
            return Ok(Some(slot));
        }
        let is_idle = |entry: &Entry| matches!(entry, Entry::Here(expert) if Arc::strong_count(expert) == 1);
        let mut unneeded: Option<(f64, Key)> = None;
        let mut latest: Option<(Need, Key)> = None;
        for (key, _) in self.entries.iter().filter(|(_, entry)| is_idle(entry)) {
            match self.need_of(*key) {
                None => {
                    let candidate = (self.frequencies.level(key.0, key.1), *key);
                    if unneeded.is_none_or(|least| candidate < least) {
                        unneeded = Some(candidate);
                    }
                }
                Some(other) if other > need => latest = latest.max(Some((other, *key))),
                Some(_) => {}
            }
        }
        let key = match (unneeded, latest) {
            (Some((_, key)), _) => key,
            (None, Some((other, key))) => {
                self.missing.insert(other);
                key
            }
            (None, None) => return Ok(None),
        };
        self.unused.remove(&key);
        let Some(Entry::Here(expert)) = self.entries.remove(&key) else { unreachable!("it was just there") };
        Ok(Arc::into_inner(expert).and_then(Expert::into_slot))
    }

    /// Now that it is known what is needed: forgets reads that were guessed wrongly, as far as they can be, and lets the others
    /// wait.
    pub fn settle(&mut self, guessed: &BTreeSet<usize>) {
        let right = guessed.iter().filter(|expert| self.need_of((self.layer, **expert)).is_some()).count();
        self.stats.guessed_right += right as u64;
        let (needed, unneeded): (VecDeque<Read>, VecDeque<Read>) =
            std::mem::take(&mut self.queue).into_iter().partition(|read| self.need_of(read.key).is_some());
        self.queue = needed;
        let mut queued = BTreeMap::<Key, Vec<Read>>::new();
        unneeded.into_iter().for_each(|read| queued.entry(read.key).or_default().push(read));
        for (key, reads) in queued {
            if reads.len() < self.layers[key.0].pieces[key.1].len() {
                // A thread is at it.
                self.queue.extend(reads);
                continue;
            }
            drop(reads);
            self.unused.remove(&key);
            if let Some(Entry::Reading(Arrivals { slot, .. })) = self.entries.remove(&key) {
                self.free.get_or_insert_default().extend(Arc::try_unwrap(slot).ok());
            }
        }
    }

    /// Whether there is something to read.
    pub fn has_reads(&self) -> bool {
        !self.queue.is_empty()
    }

    pub fn next_read(&mut self) -> Option<Read> {
        let read = self.queue.pop_front()?;
        if self.under_way == 0 {
            self.reading_since = Instant::now();
            self.heard = self.reading_since;
        }
        self.under_way += 1;
        Some(read)
    }

    /// Takes in what a read has brought. Returns whether an expert is complete, or known not to come.
    pub fn arrived(&mut self, read: Read, result: Result<()>) -> bool {
        let Read { key, piece, pieces, block } = read;
        self.under_way -= 1;
        self.heard = Instant::now();
        if self.under_way == 0 {
            self.stats.reading += self.heard - self.reading_since;
        }
        let Some(Entry::Reading(arrivals)) = self.entries.get_mut(&key) else {
            unreachable!("an expert stays until all its reads are back")
        };
        arrivals.outstanding -= 1;
        match result {
            Ok(()) => {
                self.stats.bytes_read += block.len() as u64;
                arrivals.blocks[piece] = Some(block);
            }
            Err(error) => {
                drop(block);
                arrivals.failure.get_or_insert(error);
            }
        }
        if arrivals.outstanding > 0 {
            return false;
        }
        let Some(Entry::Reading(arrivals)) = self.entries.remove(&key) else { unreachable!("as above") };
        let Arrivals { slot, blocks, failure, earlier, .. } = arrivals;
        if let Some(error) = failure {
            match self.need_of(key) {
                Some(need) if earlier => {
                    self.missing.insert(need);
                }
                _ => {
                    self.failures.insert(key, error);
                }
            }
            drop(blocks);
            self.free.get_or_insert_default().extend(Arc::try_unwrap(slot).ok());
            return true;
        }
        let mut bytes = pieces.iter().zip(blocks).filter_map(|(piece, block)| Some(piece.bytes(block?)));
        let parts = self.layers[key.0].parts.each_ref().map(|part| part.moved(key.1, &mut bytes));
        self.entries.insert(key, Entry::Here(Arc::new(Expert { number: key.1, parts, slot })));
        true
    }
}
