//! Experts in a bounded part of memory.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use checkpoint::Weight;

use crate::Result;
use crate::pass::Pass;
use crate::reader::Reader;
use crate::state::{Need, State};

/// Settings of a [`Store`].
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes for experts.
    pub memory: u64,
    /// Reads at the same time.
    pub threads: usize,
    /// Most experts of a step that are read on a guess.
    pub guesses: usize,
    /// How long a pass waits for a disk that gives no answer.
    pub patience: Duration,
}

impl StoreOptions {
    /// So many bytes for experts, and what has measured best: eight reads at a time saturate fast disks, and two guesses are
    /// nearly always right and done when the mixer is.
    pub fn new(memory: u64) -> Self {
        Self { memory, threads: 8, guesses: 2, patience: Duration::from_secs(30) }
    }
}

/// What a store has done since it was last asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Experts that steps needed and that were in memory from earlier ones.
    pub hits: u64,
    /// Experts that had to be read, in advance or not.
    pub misses: u64,
    /// Experts that were to be read on a guess.
    pub guessed: u64,
    /// Of these, those that were needed.
    pub guessed_right: u64,
    /// Bytes read from disk.
    pub bytes_read: u64,
    /// Time in which at least one read was under way.
    pub reading: Duration,
    /// Time that steps have waited for experts, by layer.
    pub waited: Vec<Duration>,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.guessed += other.guessed;
        self.guessed_right += other.guessed_right;
        self.bytes_read += other.bytes_read;
        self.reading += other.reading;
        self.waited.resize(self.waited.len().max(other.waited.len()), Duration::ZERO);
        self.waited.iter_mut().zip(other.waited).for_each(|(sum, more)| *sum += more);
    }
}

/// What the threads share.
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
        state.fill(self.options.memory);
        if state.has_reads() {
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
            let result = read.run();
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
        let threads = options.threads.max(1);
        let (work, news) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(State::new()), work, news, reader, options });
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
    /// order in which they come, and all of them come before the first pass.
    pub fn add_layer(&self, parts: [&Weight; 3]) -> Result<Option<usize>> {
        let mut pieces = Vec::new();
        for expert in 0..parts[0].count {
            let mut of_expert = Vec::new();
            for part in parts {
                let Some(of_part) = self.shared.reader.pieces(part, expert)? else { return Ok(None) };
                of_expert.extend(of_part);
            }
            pieces.push(Arc::from(of_expert));
        }
        Ok(Some(self.shared.lock().add_layer(parts.map(Weight::clone), pieces)))
    }

    /// Begins a step of a layer with so many tokens: `uses` are the experts it needs, in ascending order, each with the number of
    /// tokens that use it. One pass at a time: a second one makes the first forget what it has not begun to read.
    ///
    /// # Panics
    /// If there is no such layer or expert.
    pub fn pass(&self, layer: usize, tokens: usize, uses: &[(usize, usize)]) -> Pass<'_> {
        Pass::begin(&self.shared, layer, tokens, uses)
    }

    /// Says that the next pass will be of this layer and will need these experts; where that is a guess, the first are the surest,
    /// and only a few are read.
    pub fn expect(&self, layer: usize, experts: impl IntoIterator<Item = usize>, guess: bool) {
        let mut state = self.shared.lock();
        if state.needed.iter().any(|need| need.ahead) {
            // All of them are being read already.
            return;
        }
        state.layer = layer;
        let guessed = std::mem::take(&mut state.guessed);
        state.needed.clear();
        state.missing.clear();
        for expert in experts {
            let need = Need { ahead: false, expert };
            let is_missing = !state.entries.contains_key(&(layer, expert));
            if guess && is_missing {
                if state.guessed.len() == self.shared.options.guesses {
                    break;
                }
                state.guessed.insert(expert);
            }
            state.needed.insert(need);
            if is_missing {
                state.missing.insert(need);
            }
        }
        state.stats.guessed += state.guessed.len() as u64;
        if !guessed.is_empty() {
            state.settle(&guessed);
        }
        self.shared.fill(&mut state);
    }

    /// Counts experts that a step found where it needs them, without asking here.
    pub fn count_hits(&self, hits: usize) {
        self.shared.lock().stats.hits += hits as u64;
    }

    /// What it has done since this was last asked.
    pub fn take_stats(&self) -> Stats {
        self.shared.lock().take_stats()
    }

    /// Bytes per second that the disk gives when large parts of the experts' file are read at random, by as many threads as
    /// read experts; `None` without experts, or where it cannot be read.
    pub fn disk_speed(&self, time: Duration) -> Option<f64> {
        let pieces = self.shared.lock().any_pieces()?;
        self.shared.reader.speed(pieces.first()?, time).ok()
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
