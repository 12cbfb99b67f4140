//! Worker threads with short hand-offs.
//!
//! A token has hundreds of parallel sections of some ten microseconds each, so waiting must not go through the system:
//! workers watch for the next section for a while before they sleep, and the thread that starts a section takes part in
//! it. Tasks are claimed one by one, so a thread that is held up elsewhere delays no more than the task it has.

use std::any::Any;
use std::collections::VecDeque;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// How often a worker looks for work before it sleeps: some hundred microseconds.
const LOOKS: u32 = 20_000;

/// How often a thread looks before it lets others go first that wait for its core, and then again and again: a server's
/// connections, say, on a machine with few cores.
const PATIENCE: u32 = 512;

/// Waits a little, the `looks`-th time in a row.
fn pause(looks: u32) {
    if looks.is_multiple_of(PATIENCE) {
        thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}

/// A task of the running section, without its lifetime.
type Task<'a> = &'a (dyn Fn(usize) + Sync);

/// What the threads share.
struct Shared {
    /// Number of the running section (upper half) and of the next task to claim (lower half). Together, so that a thread
    /// which looked at an older section cannot claim a task of this one.
    next: AtomicU64,
    /// Tasks in the section.
    count: AtomicUsize,
    /// Tasks that have ended.
    ended: AtomicUsize,
    /// Points to the section's `Task`, which lives on the stack of the thread that runs the section.
    task: AtomicPtr<Task<'static>>,
    /// Work for those who find no section to take part in.
    aside: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
    /// Its length.
    aside_count: AtomicUsize,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    /// What a task has panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    door: Mutex<()>,
    bell: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing here is left half-changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn section_of(next: u64) -> u64 {
    next >> 32
}

impl Shared {
    /// Whether there is a task to claim, judged by the counters alone.
    fn has_work(&self) -> bool {
        // In one order with `sleepers`, see `serve`.
        let next = self.next.load(Ordering::SeqCst);
        (next & u64::from(u32::MAX)) < self.count.load(Ordering::SeqCst) as u64
    }

    /// Claims and runs tasks of the current section until there is none left.
    fn work(&self) {
        loop {
            let next = self.next.load(Ordering::Acquire);
            // Both may belong to a newer section than `next`; then the claim fails.
            let (count, task) = (self.count.load(Ordering::Acquire), self.task.load(Ordering::Acquire));
            let index = (next & u64::from(u32::MAX)) as usize;
            if index >= count {
                return;
            }
            if self.next.compare_exchange(next, next + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            // SAFETY: the claim succeeded, so the section numbered in `next` is the running one and `task` is its: it
            // was stored before that number was. The section does not end, and the task it points to stays alive,
            // until `ended` counts this claim.
            let task = unsafe { *task };
            if let Err(cause) = catch_unwind(AssertUnwindSafe(|| task(index))) {
                lock(&self.panic).get_or_insert(cause);
            }
            self.ended.fetch_add(1, Ordering::Release);
        }
    }

    /// Does one thing that lies aside. What panics in it is lost with it.
    fn work_aside(&self) {
        let mut aside = lock(&self.aside);
        let task = aside.pop_front();
        self.aside_count.store(aside.len(), Ordering::Relaxed);
        drop(aside);
        if let Some(task) = task {
            let _ = catch_unwind(AssertUnwindSafe(task));
        }
    }

    /// A worker's life.
    fn serve(&self) {
        let mut looks = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.has_work() {
                self.work();
                looks = 0;
                continue;
            }
            if self.aside_count.load(Ordering::Relaxed) > 0 {
                self.work_aside();
                continue;
            }
            looks += 1;
            if looks < LOOKS {
                pause(looks);
                continue;
            }
            let door = lock(&self.door);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            // Looked at again after signing in: who starts a section looks at the sleepers after it has started.
            if !self.has_work() && !self.stop.load(Ordering::SeqCst) {
                drop(self.bell.wait(door).unwrap_or_else(PoisonError::into_inner));
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            looks = 0;
        }
    }
}

/// The threads of a backend.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a section runs. A section started inside a task, or beside another, runs on its own thread alone.
    running: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads, the calling one among them.
    pub fn new(threads: NonZero<usize>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            next: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            task: AtomicPtr::new(std::ptr::null_mut()),
            aside: Mutex::default(),
            aside_count: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            door: Mutex::new(()),
            bell: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new(), running: Mutex::new(()) };
        for i in 1..threads.get() {
            let shared = pool.shared.clone();
            pool.workers.push(thread::Builder::new().name(format!("cpu-{i}")).spawn(move || shared.serve())?);
        }
        Ok(pool)
    }

    /// Threads that work, the calling one among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i)` once for every `i` below `count`, on all threads, and returns when all have ended.
    ///
    /// # Panics
    /// If a task panics; the others have ended then.
    pub fn run(&self, count: usize, task: impl Fn(usize) + Sync) {
        let alone = self.workers.is_empty() || count < 2 || u32::try_from(count).is_err();
        let Some(_running) = (!alone).then(|| self.running.try_lock().ok()).flatten() else {
            (0..count).for_each(task);
            return;
        };
        let shared = &*self.shared;
        let task: Task<'_> = &task;
        // SAFETY: only the lifetime changes. The pointer is read by those who have claimed a task of this section, and
        // this function returns after all claims have ended.
        let task: Task<'static> = unsafe { std::mem::transmute(task) };
        // First close the last section's count, so that nobody claims a task between these stores.
        shared.count.store(0, Ordering::Release);
        shared.ended.store(0, Ordering::Relaxed);
        shared.task.store((&raw const task).cast_mut(), Ordering::Release);
        let section = section_of(shared.next.load(Ordering::Relaxed)) + 1;
        shared.next.store(section << 32, Ordering::Release);
        shared.count.store(count, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&shared.door));
            shared.bell.notify_all();
        }
        shared.work();
        let mut looks = 0;
        while shared.ended.load(Ordering::Acquire) < count {
            looks += 1;
            pause(looks);
        }
        if let Some(cause) = lock(&shared.panic).take() {
            resume_unwind(cause);
        }
    }

    /// Has a worker that waits for the next section do this. A worker that sleeps is not woken: it finds it when it wakes.
    pub fn beside(&self, task: Box<dyn FnOnce() + Send>) {
        if self.workers.is_empty() {
            return;
        }
        let mut aside = lock(&self.shared.aside);
        aside.push_back(task);
        self.shared.aside_count.store(aside.len(), Ordering::Relaxed);
    }

    /// Cuts `out` into pieces of `size` values, the last may be shorter, and calls `task(i, piece)` for each.
    pub fn pieces<T: Send>(&self, out: &mut [T], size: usize, task: impl Fn(usize, &mut [T]) + Sync) {
        let size = size.max(1);
        let parts = Parts::new(out);
        self.run(parts.len().div_ceil(size), |i| {
            // SAFETY: every `i` comes once, and the pieces of different `i` do not overlap.
            task(i, unsafe { parts.range(i * size, size.min(parts.len() - i * size)) });
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.door));
        self.shared.bell.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

/// A slice that several threads write to, each in places of its own.
pub(crate) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    slice: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out exclusive parts of a slice that is borrowed exclusively; `range` asks the caller to keep them apart.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: std::marker::PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// `len` values from `start` on.
    ///
    /// # Safety
    /// No two ranges that are alive at the same time may overlap.
    ///
    /// # Panics
    /// If the range reaches beyond the end.
    #[expect(clippy::mut_from_ref, reason = "the caller keeps ranges apart")]
    pub unsafe fn range(&self, start: usize, len: usize) -> &mut [T] {
        assert!(start <= self.len && len <= self.len - start, "a part beyond the end");
        // SAFETY: inside the slice, which is borrowed for `'a`; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}

/// Cores of this machine that this process may use, counting a core with several threads once: a second thread of a core
/// adds nothing where memory or vector units are the limit.
pub(crate) fn physical_cores() -> NonZero<usize> {
    let usable = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let cores = std::collections::BTreeSet::from_iter((0..).map_while(|cpu| {
        let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(file).ok()
    }));
    NonZero::new(cores.len()).map_or(usable, |cores| cores.min(usable))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZero::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn every_task_runs_once() {
        let rounds = if cfg!(miri) { 3 } else { 2000 };
        for threads in [1, 2, 3] {
            let pool = pool(threads);
            for round in 0..rounds {
                let mut out = vec![0u32; round % 37];
                pool.pieces(&mut out, 1 + round % 5, |i, piece| piece.fill(i as u32 + 1));
                let expected: Vec<u32> = (0..out.len()).map(|i| (i / (1 + round % 5)) as u32 + 1).collect();
                assert_eq!(out, expected);
            }
        }
    }

    #[test]
    fn sleepers_wake() {
        let pool = pool(2);
        for _ in 0..3 {
            thread::sleep(std::time::Duration::from_millis(20));
            let sum = AtomicUsize::new(0);
            pool.run(100, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 4950);
        }
    }

    #[test]
    fn sections_nest_and_run_beside_each_other() {
        let pool = pool(2);
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    pool.run(10, |_| {
                        pool.run(10, |i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        })
                    })
                });
            }
        });
        assert_eq!(sum.into_inner(), 2 * 10 * 45);
    }

    #[test]
    fn workers_do_what_lies_aside() {
        let pool = pool(2);
        let (sender, done) = std::sync::mpsc::channel();
        pool.beside(Box::new(|| panic!("lost")));
        for i in 0..10 {
            let sender = sender.clone();
            pool.beside(Box::new(move || sender.send(i).unwrap()));
        }
        // Wakes the worker, should it sleep.
        pool.run(2, |_| {});
        assert_eq!(done.iter().take(10).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = pool(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(8, |i| assert!(i != 5, "five"))));
        assert!(result.is_err());
        let mut out = [0; 8];
        pool.pieces(&mut out, 1, |i, piece| piece[0] = i);
        assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
