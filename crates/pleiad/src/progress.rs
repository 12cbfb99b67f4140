//! How far the work has come: a bar on a terminal, now and then a line elsewhere.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use engine::bytes;
use indicatif::{ProgressBar, ProgressStyle};
use models::counted;

/// Between two lines where there is no terminal.
const PAUSE: Duration = Duration::from_secs(5);

/// Progress on the standard error stream.
pub struct Progress {
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
    /// When the last line was written where there is no bar; `None`: never.
    last_line: Option<Instant>,
    /// How an amount is said.
    amount: fn(u64) -> String,
}

impl Progress {
    /// Of `total` bytes, none is done.
    pub fn new(total: u64) -> Progress {
        let template = "{bar:40} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
        Self::with_template(total, template, bytes)
    }

    /// Of `total` tokens, none is done.
    pub fn tokens(total: u64) -> Progress {
        let template = "{bar:40} {percent:>3}%  {pos} of {len} tokens  {eta} left";
        Self::with_template(total, template, |n| counted(n as usize, "token"))
    }

    /// Of `total` questions, none is answered.
    pub fn questions(total: u64) -> Progress {
        let template = "{bar:40} {percent:>3}%  {pos} of {len} questions  {eta} left";
        Self::with_template(total, template, |n| counted(n as usize, "question"))
    }

    /// Of `total` bytes on their way to a device, none is there. Without a terminal nothing is said.
    pub fn upload(total: u64) -> Progress {
        let template = "loading the weights {bar:30} {decimal_bytes} of {decimal_total_bytes}, {eta} left";
        let mut progress = Self::with_template(total, template, bytes);
        progress.last_line = None;
        progress
    }

    fn with_template(total: u64, template: &str, amount: fn(u64) -> String) -> Progress {
        let bar = stderr().is_terminal().then(|| ProgressBar::new(total));
        if let (Some(bar), Ok(style)) = (&bar, ProgressStyle::with_template(template)) {
            bar.set_style(style);
        }
        Progress { total, done: 0, bar, last_line: Some(Instant::now()), amount }
    }

    /// So many bytes more are done.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None if self.last_line.is_some_and(|line| line.elapsed() >= PAUSE) => {
                self.last_line = Some(Instant::now());
                let percent = 100 * u128::from(self.done) / u128::from(self.total.max(1));
                eprintln!("{percent}%: {} of {}", (self.amount)(self.done), (self.amount)(self.total));
            }
            None => {}
        }
    }

    /// So many bytes are done in all.
    pub fn set(&mut self, bytes: u64) {
        self.add(bytes.saturating_sub(self.done));
    }

    /// So many bytes were done before the work began: they say nothing about its speed.
    pub fn found(&mut self, bytes: u64) {
        self.done += bytes;
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            bar.reset_eta();
        }
    }

    /// So many bytes must be done again.
    pub fn lost(&mut self, bytes: u64) {
        self.done = self.done.saturating_sub(bytes);
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }

    /// A line above the bar.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
