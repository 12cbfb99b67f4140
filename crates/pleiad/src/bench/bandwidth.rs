//! How fast the machine reads memory: the limit of decoding, which reads its weights once for every token.

use std::hint::black_box;
use std::io;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use memmap2::MmapMut;

use crate::error::Error;

/// More than any processor's caches hold.
const BYTES: u64 = 1 << 30;
/// For a quick look: still more than most.
const QUICK_BYTES: u64 = 512 << 20;
/// How often the buffer is read.
const PASSES: usize = 12;
/// Bytes under one clock, of all threads together. The best of all such pieces counts: on a shared machine others take
/// their part of the bandwidth now and then, and a long piece would always have someone in it.
const PIECE: u64 = 128 << 20;

/// Bytes per second, read in order.
#[derive(Clone, Copy, Debug)]
pub struct Bandwidth {
    /// With one thread.
    pub one_thread: f64,
    /// With as many as asked for.
    pub all_threads: f64,
}

impl Bandwidth {
    /// Measures it, in a buffer that takes at most a quarter of the free memory.
    pub fn measure(threads: usize, free_memory: Option<u64>, quick: bool) -> Result<Self, Error> {
        let wanted = if quick { QUICK_BYTES } else { BYTES };
        let bytes = free_memory.map_or(QUICK_BYTES, |free| free / 4).min(wanted);
        // More readers than cores read no faster.
        let threads = threads.min(thread::available_parallelism().map_or(1, usize::from)).max(1);
        let read_speed = |threads| {
            let refused = |e| {
                let size = engine::bytes(bytes);
                Error::Usage(format!("cannot measure the bandwidth: {size} of memory were refused: {e}"))
            };
            read_speed(threads, bytes).map_err(refused)
        };
        let one_thread = read_speed(1)?;
        let all_threads = if threads == 1 { one_thread } else { read_speed(threads)? };
        Ok(Self { one_thread, all_threads })
    }
}

/// Bytes per second of the best piece of `bytes`, each thread reading its part.
fn read_speed(threads: usize, bytes: u64) -> io::Result<f64> {
    // Whole large pages, at least one.
    let part = |bytes: u64| ((bytes / threads as u64) as usize >> 21).max(1) << 21;
    let piece = part(PIECE.min(bytes));
    let bytes = part(bytes) / piece * piece;
    let barrier = Barrier::new(threads);
    let times: Vec<Vec<(Instant, Instant)>> = thread::scope(|scope| {
        let read = || read_pieces(bytes, piece, &barrier);
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        let join = |reader: thread::ScopedJoinHandle<'_, _>| {
            reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        readers.into_iter().map(join).collect::<io::Result<_>>()
    })?;
    let seconds = |i: usize| {
        let start = times.iter().map(|times| times[i].0).min()?;
        let end = times.iter().map(|times| times[i].1).max()?;
        Some((end - start).as_secs_f64())
    };
    let best = (0..PASSES * (bytes / piece)).filter_map(seconds).fold(f64::INFINITY, f64::min);
    Ok((piece * threads) as f64 / best.max(1e-9))
}

/// Memory for `bytes`, in large pages where the system has them: with small ones looking up addresses takes its part.
fn buffer(bytes: usize) -> io::Result<MmapMut> {
    let mut buffer = MmapMut::map_anon(bytes)?;
    // A wish: without them the figure is a little lower.
    #[cfg(target_os = "linux")]
    let _ = buffer.advise(memmap2::Advice::HugePage);
    // Written, not just reserved: pages that nobody has touched are all the same page.
    buffer.fill(1);
    Ok(buffer)
}

/// Reads a buffer of its own several times, piece by piece; each begins when all readers are ready. Every reader notes
/// the time itself: one that only waits for them would wake up late when all cores are busy.
fn read_pieces(bytes: usize, piece: usize, barrier: &Barrier) -> io::Result<Vec<(Instant, Instant)>> {
    let buffer = buffer(bytes);
    // Nobody waits for ever for a reader that has no buffer.
    let pieces = buffer.as_deref().unwrap_or(&[]);
    let read = |i: usize| {
        barrier.wait();
        let start = Instant::now();
        black_box(sum(black_box(pieces.chunks(piece).nth(i % (bytes / piece)).unwrap_or(&[]))));
        (start, Instant::now())
    };
    let times = (0..PASSES * (bytes / piece)).map(read).collect();
    buffer.map(|_| times)
}

/// Of all words. Said plainly, it becomes vector instructions on every machine; cleverer loops do on some only.
fn sum(bytes: &[u8]) -> u64 {
    bytes.as_chunks().0.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_words() {
        let words: Vec<u8> = (0..641u64).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(sum(&words), 640 * 641 / 2);
    }

    #[test]
    fn speeds_are_those_of_a_memory() {
        let Bandwidth { one_thread, all_threads } = Bandwidth::measure(2, Some(64 << 20), true).unwrap();
        for speed in [one_thread, all_threads] {
            assert!((1e8..1e13).contains(&speed), "{speed}");
        }
    }
}
