//! Weights, read from their files into memory.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use checkpoint::{Bytes, MappedFile, Weight};

use crate::disk::{Disk, Files, Source};
use crate::memory::{ALIGN, Block, slots};
use crate::{Error, Result};

/// Bytes that one thread reads at a time of a large weight.
const PART: usize = 2 << 20;

/// What is to be read for one piece of a weight.
pub(crate) struct Piece {
    source: Arc<dyn Source>,
    file: Arc<MappedFile>,
    /// Whole pages of the file.
    start: u64,
    /// Of the first byte behind those.
    skip: usize,
    len: usize,
}

impl Piece {
    /// Bytes that a block must have for it.
    pub fn room(&self) -> usize {
        (self.skip + self.len).next_multiple_of(ALIGN)
    }

    /// Reads it into its block.
    pub fn read(&self, block: &mut [u8]) -> Result<()> {
        self.read_part(0, block)
    }

    /// Reads what belongs at `offset`, whole pages, of its block.
    fn read_part(&self, offset: usize, part: &mut [u8]) -> Result<()> {
        let needed = (self.skip + self.len).saturating_sub(offset).min(part.len());
        let result = self.source.read(self.start + offset as u64, part, needed);
        result.map_err(|error| failed(&self.file, &error))
    }

    /// The bytes of the weight in the block that has been read.
    pub fn bytes(&self, block: Block) -> Bytes {
        Bytes::from_owner(block).slice(self.skip..self.skip + self.len)
    }
}

fn failed(file: &MappedFile, error: &std::io::Error) -> Error {
    let problem = match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the file has been cut short".into(),
        _ => error.to_string(),
    };
    Error::Read { file: file.path.display().to_string(), problem }
}

/// Opens files once, and copies weights from them.
pub struct Reader {
    disk: Box<dyn Disk>,
    open: Mutex<HashMap<PathBuf, Arc<dyn Source>>>,
    /// What has been copied, by its place: weights may be views of the same bytes.
    copies: Mutex<HashMap<(PathBuf, Range<u64>), Bytes>>,
    threads: usize,
}

impl Reader {
    /// Reads with so many threads at once.
    pub fn new(threads: usize) -> Self {
        Self::with_disk(threads, Box::new(Files))
    }

    /// The same from another disk, for tests.
    pub fn with_disk(threads: usize, disk: Box<dyn Disk>) -> Self {
        Self { disk, open: Mutex::default(), copies: Mutex::default(), threads: threads.max(1) }
    }

    /// What is to be read of one matrix; `None` if it is in memory already.
    pub(crate) fn pieces(&self, weight: &Weight, matrix: usize) -> Result<Option<Vec<Piece>>> {
        weight.pieces(matrix).iter().map(|bytes| self.piece(bytes)).collect()
    }

    fn piece(&self, bytes: &Bytes) -> Result<Option<Piece>> {
        let Some((file, range)) = bytes.place() else { return Ok(None) };
        let skip = (range.start % ALIGN as u64) as usize;
        let start = range.start - skip as u64;
        Ok(Some(Piece { source: self.source(file)?, file: file.clone(), start, skip, len: bytes.len() }))
    }

    fn source(&self, file: &Arc<MappedFile>) -> Result<Arc<dyn Source>> {
        let mut open = lock(&self.open);
        if let Some(source) = open.get(&file.path) {
            return Ok(source.clone());
        }
        let source = self.disk.open(file).map_err(|error| failed(file, &error))?;
        open.insert(file.path.clone(), source.clone());
        Ok(source)
    }

    /// A weight with its bytes in memory; where they are there already, as it is. They stay there as long as the reader.
    pub fn copy(&self, weight: &Weight) -> Result<Weight> {
        weight.relocated(|bytes| {
            let Some((file, range)) = bytes.place() else { return Ok(bytes.clone()) };
            let place = (file.path.clone(), range);
            if let Some(copy) = lock(&self.copies).get(&place) {
                return Ok(copy.clone());
            }
            let Some(piece) = self.piece(bytes)? else { return Ok(bytes.clone()) };
            let copy = self.read(&piece)?;
            lock(&self.copies).insert(place, copy.clone());
            Ok(copy)
        })
    }

    /// Bytes per second of random reads of [`PART`] bytes in the file of a piece.
    pub(crate) fn speed(&self, piece: &Piece, time: Duration) -> Result<f64> {
        let parts = (piece.file.len / PART as u64).max(1);
        let begun = Instant::now();
        let read = |thread: usize| -> Result<u64> {
            let mut random = thread as u64;
            let mut slots = slots(1, PART)?;
            let Some((_, mut blocks)) = slots.pop().map(|slot| slot.cut([PART])) else { return Ok(0) };
            let mut bytes = 0;
            while begun.elapsed() < time {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let start = (random >> 32) % parts * PART as u64;
                let needed = PART.min((piece.file.len - start) as usize);
                piece
                    .source
                    .read(start, &mut blocks[0], needed)
                    .map_err(|error| failed(&piece.file, &error))?;
                bytes += needed as u64;
            }
            Ok(bytes)
        };
        let bytes = in_threads(self.threads, read).into_iter().sum::<Result<u64>>()?;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }

    fn read(&self, piece: &Piece) -> Result<Bytes> {
        let Some(slot) = slots(1, piece.room())?.pop() else { return Ok(Bytes::from_vec(Vec::new())) };
        let (_, mut blocks) = slot.cut([piece.room()]);
        let Some(mut block) = blocks.pop() else { return Ok(Bytes::from_vec(Vec::new())) };
        let parts = Mutex::new(block.chunks_mut(PART).enumerate());
        let next = || lock(&parts).next();
        let work = |_| -> Result<()> {
            while let Some((i, part)) = next() {
                piece.read_part(i * PART, part)?;
            }
            Ok(())
        };
        in_threads(self.threads, work).into_iter().collect::<Result<()>>()?;
        Ok(piece.bytes(block))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here is left half-changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `work` once on each of so many threads, with its number.
fn in_threads<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = (1..threads).map(|i| scope.spawn(move || work(i))).collect();
        let mut results = vec![work(0)];
        results.extend(others.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(cause) => std::panic::resume_unwind(cause),
        }));
        results
    })
}
