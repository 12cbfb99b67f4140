//! A thread for what the host can find out while another records and the device computes.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use ::backend::{Error, Result};

type Task = Box<dyn FnOnce() + Send>;

/// Runs tasks in their order.
pub(crate) struct Aside {
    /// Absent only at the end, upon which the thread leaves.
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
}

impl Aside {
    pub fn new() -> Result<Self> {
        let (tasks, receiver) = channel::<Task>();
        let thread = std::thread::Builder::new()
            .name("aside".into())
            .spawn(move || receiver.into_iter().for_each(|task| task()))
            .map_err(|e| Error::Device(format!("cannot start a thread beside the device's: {e}")))?;
        Ok(Self { tasks: Some(tasks), thread: Some(thread) })
    }

    pub fn push(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            // If the thread has panicked over another task, whoever needs this one does it later.
            let _ = tasks.send(task);
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.tasks = None;
        // A task may hold the last clone of its own device; nobody waits for himself.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn tasks_run_in_order_and_are_waited_for() {
        let count = Arc::new(AtomicUsize::new(0));
        let aside = Aside::new().unwrap();
        for i in 0..100 {
            let count = count.clone();
            aside.push(Box::new(move || assert_eq!(count.fetch_add(1, Ordering::SeqCst), i)));
        }
        drop(aside);
        assert_eq!(count.load(Ordering::SeqCst), 100);
    }

    #[test]
    fn a_panic_ends_no_one_else() {
        let aside = Aside::new().unwrap();
        aside.push(Box::new(|| panic!("on purpose")));
        while !aside.thread.as_ref().unwrap().is_finished() {
            std::thread::yield_now();
        }
        aside.push(Box::new(|| ()));
    }
}
