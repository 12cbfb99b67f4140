//! Weights on their way from the file to the device, in a thread of its own.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ::backend::{Error, Result};

use crate::device::Device;
use crate::pool::Buffer;
use crate::weights::Source;

/// Bytes that are copied at a time: a staging buffer of this size.
const CHUNK: usize = 16 << 20;

/// What was asked for and what is done, in bytes.
#[derive(Default)]
struct Counts {
    asked: u64,
    done: u64,
}

/// What waits for weights.
#[derive(Default)]
pub(crate) struct Gate {
    counts: Mutex<Counts>,
    changed: Condvar,
}

impl Gate {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Two counters, never half-changed.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything that was asked for is on its way to the device.
    pub fn wait(&self) {
        let mut counts = self.counts();
        while counts.done < counts.asked {
            counts = self.changed.wait(counts).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, bytes: u64) {
        self.counts().done += bytes;
        self.changed.notify_all();
    }
}

/// Counts a job's bytes as done when it ends, however it ends: nobody may wait for ever.
struct Done<'a>(&'a Gate, u64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.done(self.1);
    }
}

/// Which of a source's planes.
#[derive(Clone, Copy)]
enum Plane {
    Codes,
    Scales,
}

struct Job {
    source: Arc<Source>,
    rows: Range<usize>,
    plane: Plane,
    row_words: usize,
    buffer: wgpu::Buffer,
}

impl Job {
    fn bytes(&self) -> u64 {
        4 * (self.rows.len() * self.row_words) as u64
    }
}

/// The thread that uploads.
pub(crate) struct Uploads {
    pub gate: Arc<Gate>,
    /// Absent only at the end, upon which the thread leaves.
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Uploads {
    /// Waits for the thread: it must not be at work on a device while the program ends.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been told already.
            let _ = thread.join();
        }
    }
}

impl Uploads {
    pub fn new(device: Arc<Device>) -> Result<Self> {
        // Jobs are small; whoever asks for more than this many waits.
        let (jobs, receiver) = sync_channel(1024);
        let gate = Arc::new(Gate::default());
        let at_work = gate.clone();
        let thread = std::thread::Builder::new()
            .name("upload".into())
            .spawn(move || work(&device, &at_work, &receiver))
            .map_err(|e| Error::Device(format!("cannot start the thread that uploads: {e}")))?;
        Ok(Self { gate, jobs: Some(jobs), thread: Some(thread) })
    }

    /// Uploads rows of a source: its codes and its scales, each with the words of a row.
    pub fn push(&self, source: &Arc<Source>, rows: Range<usize>, planes: [(&Buffer, usize); 2]) {
        for (plane, (buffer, row_words)) in [Plane::Codes, Plane::Scales].into_iter().zip(planes) {
            let buffer = buffer.wgpu().clone();
            let job = Job { source: source.clone(), rows: rows.clone(), plane, row_words, buffer };
            let bytes = job.bytes();
            self.gate.counts().asked += bytes;
            let sent = self.jobs.as_ref().filter(|_| bytes > 0).is_some_and(|jobs| jobs.send(job).is_ok());
            if !sent {
                self.gate.done(bytes);
            }
        }
    }

    /// Bytes done and bytes asked for.
    pub fn progress(&self) -> (u64, u64) {
        let counts = self.gate.counts();
        (counts.done, counts.asked)
    }
}

fn work(device: &Device, gate: &Gate, jobs: &Receiver<Job>) {
    let mut bytes = Vec::new();
    let mut before = None;
    for job in jobs {
        let _done = Done(gate, job.bytes());
        let step = (CHUNK / (4 * job.row_words)).max(1);
        let mut offset = 0;
        for start in job.rows.clone().step_by(step) {
            bytes.clear();
            for row in start..job.rows.end.min(start + step) {
                match job.plane {
                    Plane::Codes => job.source.push_codes(row, job.row_words, &mut bytes),
                    Plane::Scales => job.source.push_scales(row, job.row_words, &mut bytes),
                }
            }
            device.queue.write_buffer(&job.buffer, offset, &bytes);
            offset += bytes.len() as u64;
            // Start the copy, and keep no more than two staging buffers alive.
            let now = device.queue.submit([]);
            if let Some(index) = before.replace(now) {
                // A lost device is noticed by whoever reads from it.
                let _ =
                    device.wgpu.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None });
            }
        }
    }
}
