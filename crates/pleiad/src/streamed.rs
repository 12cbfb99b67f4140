//! How experts came from disk, in figures.

use std::fmt;
use std::time::Duration;

use engine::bytes;
use serde_json::{Value, json};
use store::Stats;

/// What was read for some tokens.
#[derive(Clone, Debug, Default)]
pub struct Streamed {
    tokens: usize,
    /// All the time that they took.
    time: Duration,
    stats: Stats,
}

impl Streamed {
    /// Adds some tokens; nothing on machines that read nothing.
    pub fn add(&mut self, tokens: usize, time: Duration, stats: Option<Stats>) {
        let Some(stats) = stats else { return };
        self.tokens += tokens;
        self.time += time;
        self.stats += stats;
    }

    /// Part of the experts needed that were in memory.
    fn hits(&self) -> f64 {
        self.stats.hits as f64 / ((self.stats.hits + self.stats.misses) as f64).max(1.0)
    }

    fn bytes_per_token(&self) -> f64 {
        self.stats.bytes_read as f64 / (self.tokens as f64).max(1.0)
    }

    /// Bytes per second while any were read.
    fn speed(&self) -> f64 {
        self.stats.bytes_read as f64 / self.stats.reading.as_secs_f64().max(1e-9)
    }

    /// Part of the time that was spent waiting.
    fn waited(&self) -> f64 {
        self.stats.waited.iter().sum::<Duration>().as_secs_f64() / self.time.as_secs_f64().max(1e-9)
    }

    /// Tokens per second if reading these bytes from a disk of so many bytes per second were all.
    fn limit(&self, disk: f64) -> f64 {
        disk / self.bytes_per_token().max(1e-9)
    }

    /// The part of [`Streamed::limit`] that was reached, over all rounds.
    fn share(&self, disk: f64) -> f64 {
        self.tokens as f64 / self.time.as_secs_f64().max(1e-9) / self.limit(disk)
    }

    /// The columns of [`Streamed::line`].
    pub const HEAD: &str = "in memory  read/token  reading at   waited  limit tokens/s   of it";

    /// A line of a table.
    pub fn line(&self, disk: f64) -> String {
        format!(
            "{:>8.0}%  {:>10}  {:>8}/s  {:>6.0}%  {:>14.2}  {:>5.0}%",
            100.0 * self.hits(),
            bytes(self.bytes_per_token() as u64),
            bytes(self.speed() as u64),
            100.0 * self.waited(),
            self.limit(disk),
            100.0 * self.share(disk)
        )
    }

    /// Milliseconds per token that each layer has waited.
    fn waits(&self) -> Vec<f64> {
        let per_token = |wait: &Duration| {
            let ms = 1000.0 * wait.as_secs_f64() / (self.tokens as f64).max(1.0);
            (1000.0 * ms).round() / 1000.0
        };
        self.stats.waited.iter().map(per_token).collect()
    }

    /// The same for programs.
    pub fn json(&self, disk: f64) -> Value {
        json!({
            "hits": self.hits(),
            "bytes_per_token": self.bytes_per_token() as u64,
            "read_speed": self.speed() as u64,
            "waited": self.waited(),
            "waited_ms_by_layer": self.waits(),
            "guessed": self.stats.guessed,
            "guessed_right": self.stats.guessed_right,
            "limit": self.limit(disk),
            "share_of_limit": self.share(disk),
        })
    }
}

impl fmt::Display for Streamed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [read, speed] = [self.bytes_per_token(), self.speed()].map(|n| bytes(n as u64));
        let (hits, waited) = (100.0 * self.hits(), 100.0 * self.waited());
        write!(
            f,
            "{hits:.0}% of the experts were in memory, {read} per token were read at {speed}/s, waiting took {waited:.0}% of the time"
        )?;
        let waits = self.waits();
        match (waits.iter().copied().reduce(f64::min), waits.iter().copied().reduce(f64::max)) {
            (Some(least), Some(most)) => write!(f, ", {least:.2} to {most:.2} ms per layer and token"),
            _ => Ok(()),
        }
    }
}
