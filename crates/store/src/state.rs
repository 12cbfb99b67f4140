//! What is in memory, what is being read, and what is to be read next.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use checkpoint::Weight;

use crate::frequencies::Frequencies;
use crate::memory::{Block, Slot, slots};
use crate::pass::Pass;
use crate::reader::{Piece, Reader};
use crate::{Error, Result};

/// Settings of a [`Store`].
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes for experts.
    pub memory: u64,
    /// Reads at the same time.
    pub threads: usize,
    /// How long a pass waits for a disk that gives no answer.
    pub patience: Duration,
}

impl StoreOptions {
    /// Reads at the same time that saturate the disks we have measured; more does no harm.
    pub const THREADS: usize = 8;

    /// So many bytes for experts, and the defaults.
    pub fn new(memory: u64) -> Self {
        Self { memory, threads: Self::THREADS, patience: Duration::from_secs(30) }
    }
}

/// What a store has done since it was last asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Experts that were in memory when a step needed them.
    pub hits: u64,
    /// Experts that were not.
    pub misses: u64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Time in which at least one read was under way.
    pub reading: Duration,
    /// Time that steps have waited for experts, by layer.
    pub waited: Vec<Duration>,
}

/// An expert in memory.
pub struct Expert {
    /// Its gate, up and down matrices.
    pub parts: [Weight; 3],
    slot: Arc<Slot>,
}

impl Expert {
    /// Its slot, for another.
    fn into_slot(self) -> Option<Slot> {
        let Self { parts, slot } = self;
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
}

/// One read.
struct Read {
    key: Key,
    piece: usize,
    pieces: Arc<[Piece]>,
    block: Block,
}

/// An expert that a step needs: those of the running pass first, then those of the next layer; in each, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Need {
    pub ahead: bool,
    pub expert: usize,
}

/// What the threads share.
pub(crate) struct State {
    layers: Vec<[Weight; 3]>,
    /// Bytes of the largest expert.
    slot_bytes: usize,
    /// Made when the first expert is needed, after all layers are known.
    free: Option<Vec<Slot>>,
    pub entries: HashMap<Key, Entry>,
    pub frequencies: Frequencies,
    /// The layer of the running pass, or of the last one.
    pub layer: usize,
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
    ending: bool,
}

impl State {
    /// The key of a need.
    pub fn key(&self, need: Need) -> Key {
        (self.layer + usize::from(need.ahead), need.expert)
    }

    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    pub fn experts(&self, layer: usize) -> usize {
        self.layers[layer][0].count
    }

    /// Begins to read what is missing, as far as there are slots for it.
    fn fill(&mut self, memory: u64, reader: &Reader) {
        while let Some(need) = self.missing.first().copied() {
            let key = self.key(need);
            let begun = self.pieces(key, reader).and_then(|pieces| {
                let slot = self.take_slot(memory, need)?;
                Ok(slot.map(|slot| self.start(key, slot, pieces)))
            });
            match begun {
                Ok(Some(())) => {}
                Ok(None) => return,
                Err(error) => {
                    self.failures.insert(key, error);
                }
            }
            self.missing.remove(&need);
        }
    }

    /// What is to be read of an expert.
    fn pieces(&self, (layer, expert): Key, reader: &Reader) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        for part in &self.layers[layer] {
            pieces.extend(reader.pieces(part, expert)?.into_iter().flatten());
        }
        Ok(pieces)
    }

    fn start(&mut self, key: Key, slot: Slot, pieces: Vec<Piece>) {
        let (slot, blocks) = slot.cut(pieces.iter().map(Piece::room));
        let pieces: Arc<[Piece]> = pieces.into();
        let arrivals = Arrivals {
            slot,
            blocks: blocks.iter().map(|_| None).collect(),
            outstanding: blocks.len(),
            failure: None,
        };
        self.entries.insert(key, Entry::Reading(arrivals));
        let reads = blocks.into_iter().enumerate();
        self.queue.extend(reads.map(|(piece, block)| Read { key, piece, pieces: pieces.clone(), block }));
    }

    /// A slot for an expert that is needed: a free one, else that of the expert used least often and not needed, else that
    /// of one needed later than this.
    fn take_slot(&mut self, memory: u64, need: Need) -> Result<Option<Slot>> {
        let free = match &mut self.free {
            Some(free) => free,
            none => {
                // One is enough to get on.
                let count = (memory / self.slot_bytes.max(1) as u64).max(1);
                none.insert(slots(count as usize, self.slot_bytes)?)
            }
        };
        if let Some(slot) = free.pop() {
            return Ok(Some(slot));
        }
        let is_idle = |entry: &Entry| matches!(entry, Entry::Here(expert) if Arc::strong_count(expert) == 1);
        let need_of = |key: &Key| {
            let ahead = key.0 == self.layer + 1;
            let need = Need { ahead, expert: key.1 };
            (ahead || key.0 == self.layer).then_some(need).filter(|need| self.needed.contains(need))
        };
        let mut unneeded: Option<(f32, Key)> = None;
        let mut latest: Option<(Need, Key)> = None;
        for (key, _) in self.entries.iter().filter(|(_, entry)| is_idle(entry)) {
            match need_of(key) {
                None => {
                    let candidate = (self.frequencies.of(key.0, key.1), *key);
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
        let Some(Entry::Here(expert)) = self.entries.remove(&key) else { unreachable!("it was just there") };
        Ok(Arc::into_inner(expert).and_then(Expert::into_slot))
    }

    fn next_read(&mut self) -> Option<Read> {
        let read = self.queue.pop_front()?;
        if self.under_way == 0 {
            self.reading_since = Instant::now();
            self.heard = self.reading_since;
        }
        self.under_way += 1;
        Some(read)
    }

    /// Takes in what a read has brought. Returns whether an expert is complete, or known not to come.
    fn arrived(&mut self, read: Read, result: Result<()>) -> bool {
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
        let Arrivals { slot, blocks, failure, .. } = arrivals;
        if let Some(error) = failure {
            self.failures.insert(key, error);
            drop(blocks);
            self.free.get_or_insert_default().extend(Arc::try_unwrap(slot).ok());
            return true;
        }
        let mut bytes = pieces.iter().zip(blocks).filter_map(|(piece, block)| Some(piece.bytes(block?)));
        let parts = self.layers[key.0].each_ref().map(|part| {
            let count = part.pieces(key.1).len();
            part.moved(key.1, bytes.by_ref().take(count))
        });
        self.entries.insert(key, Entry::Here(Arc::new(Expert { parts, slot })));
        true
    }
}

pub(crate) struct Shared {
    state: Mutex<State>,
    /// There is something to read.
    work: Condvar,
    /// An expert has come.
    pub news: Condvar,
    pub reader: Reader,
    pub options: StoreOptions,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in here would be a defect; the state is whole between statements that matter.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to read what is missing.
    pub fn fill(&self, state: &mut State) {
        state.fill(self.options.memory, &self.reader);
        if !state.queue.is_empty() {
            self.work.notify_all();
        }
    }

    fn serve(&self) {
        let mut state = self.lock();
        while !state.ending {
            let Some(mut read) = state.next_read() else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let result = read.pieces[read.piece].read(&mut read.block);
            state = self.lock();
            if state.arrived(read, result) {
                self.news.notify_all();
            }
        }
    }
}

/// Experts in a bounded part of memory.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Store {
    /// Starts the threads that read.
    pub fn new(options: StoreOptions) -> std::io::Result<Self> {
        let reader = Reader::new(options.threads);
        Self::with_reader(options, reader)
    }

    /// The same with files opened by `reader`.
    pub fn with_reader(options: StoreOptions, reader: Reader) -> std::io::Result<Self> {
        let now = Instant::now();
        let state = State {
            layers: Vec::new(),
            slot_bytes: 0,
            free: None,
            entries: HashMap::new(),
            frequencies: Frequencies::default(),
            layer: 0,
            needed: BTreeSet::new(),
            missing: BTreeSet::new(),
            failures: HashMap::new(),
            queue: VecDeque::new(),
            under_way: 0,
            reading_since: now,
            heard: now,
            stats: Stats::default(),
            ending: false,
        };
        let threads = options.threads.max(1);
        let (work, news) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), work, news, reader, options });
        let mut store = Self { shared, threads: Vec::new() };
        for i in 0..threads {
            let shared = store.shared.clone();
            let thread = std::thread::Builder::new().name(format!("read-{i}"));
            store.threads.push(thread.spawn(move || shared.serve())?);
        }
        Ok(store)
    }

    /// Reads weights that stay in memory.
    pub fn reader(&self) -> &Reader {
        &self.shared.reader
    }

    /// Takes in the experts of a layer, and returns its number; `None` if they are in memory already. Layers are used in the
    /// order in which they come.
    pub fn add_layer(&self, parts: [&Weight; 3]) -> Result<Option<usize>> {
        let mut slot_bytes = 0;
        for expert in 0..parts[0].count {
            let mut bytes = 0;
            for part in parts {
                let Some(pieces) = self.shared.reader.pieces(part, expert)? else { return Ok(None) };
                bytes += pieces.iter().map(Piece::room).sum::<usize>();
            }
            slot_bytes = slot_bytes.max(bytes);
        }
        let mut state = self.shared.lock();
        state.slot_bytes = state.slot_bytes.max(slot_bytes);
        state.layers.push(parts.map(Weight::clone));
        state.stats.waited.push(Duration::ZERO);
        Ok(Some(state.frequencies.add_layer(parts[0].count)))
    }

    /// Begins a step of a layer with so many tokens: `uses` are the experts it needs, in ascending order, each with the number of
    /// tokens that use it.
    ///
    /// # Panics
    /// If there is no such layer or expert, or another pass is under way.
    pub fn pass(&self, layer: usize, tokens: usize, uses: &[(usize, usize)]) -> Pass<'_> {
        Pass::begin(&self.shared, layer, tokens, uses)
    }

    /// What it has done since this was last asked.
    pub fn take_stats(&self) -> Stats {
        let mut state = self.shared.lock();
        let fresh = Stats { waited: vec![Duration::ZERO; state.layers.len()], ..Stats::default() };
        std::mem::replace(&mut state.stats, fresh)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.work.notify_all();
        // A thread that waits for a silent disk is left behind with what it holds.
        let deadline = Instant::now() + Duration::from_millis(100);
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}
