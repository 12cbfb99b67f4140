//! How far the work has come: a bar on a terminal, now and then a line elsewhere.

use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines where there is no terminal.
const PAUSE: Duration = Duration::from_secs(5);

/// Progress on the standard error stream.
pub(super) struct Progress {
    total: u64,
    done: u64,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Progress {
    /// Of `total` bytes, none is done.
    pub fn new(total: u64) -> Progress {
        let template = "{bar:40} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left";
        let bar = stderr().is_terminal().then(|| ProgressBar::new(total));
        if let (Some(bar), Ok(style)) = (&bar, ProgressStyle::with_template(template)) {
            bar.set_style(style);
        }
        Progress { total, done: 0, bar, last_line: Instant::now() }
    }

    /// So many bytes more are done.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        match &self.bar {
            Some(bar) => bar.set_position(self.done),
            None if self.last_line.elapsed() >= PAUSE => {
                self.last_line = Instant::now();
                let percent = 100 * u128::from(self.done) / u128::from(self.total.max(1));
                eprintln!("{percent}%: {} of {}", gigabytes(self.done), gigabytes(self.total));
            }
            None => {}
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

/// A size for people.
pub(super) fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
