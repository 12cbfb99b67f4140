//! Counters for Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use engine::Stats;

/// Upper bounds of times to the first token, in seconds.
const FIRST_TOKEN: [f64; 11] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Upper bounds of times from token to token.
const TOKEN: [f64; 11] = [0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0];

/// How often a time fell between which bounds.
#[derive(Default)]
struct Histogram {
    /// The last counts what is above all bounds.
    counts: [AtomicU64; 12],
    microseconds: AtomicU64,
}

impl Histogram {
    fn add(&self, bounds: &[f64; 11], time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = bounds.iter().position(|bound| seconds <= *bound).unwrap_or(bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, bounds: &[f64; 11], name: &str, help: &str) {
        head(out, name, "histogram", help);
        let mut total = 0;
        for (count, bound) in self.counts.iter().zip(bounds.iter().map(Some).chain([None])) {
            total += count.load(Ordering::Relaxed);
            let bound = bound.map_or("+Inf".to_string(), f64::to_string);
            line(out, format_args!("{name}_bucket{{le=\"{bound}\"}} {total}"));
        }
        let seconds = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        line(out, format_args!("{name}_sum {seconds}"));
        line(out, format_args!("{name}_count {total}"));
    }
}

/// What the server counts itself; the scheduler counts the rest.
#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<(String, u16), u64>>,
    first_token: Histogram,
    token: Histogram,
    /// Open connections.
    pub connections: AtomicUsize,
}

impl Metrics {
    /// A request was answered, or its answer began.
    pub fn request(&self, route: &str, status: u16) {
        // A panic elsewhere cannot leave a map of counters half changed.
        let mut requests = self.requests.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *requests.entry((route.into(), status)).or_default() += 1;
    }

    /// A first token came so long after its request.
    pub fn first_token(&self, time: Duration) {
        self.first_token.add(&FIRST_TOKEN, time);
    }

    /// Another token came so long after the one before.
    pub fn token(&self, time: Duration) {
        self.token.add(&TOKEN, time);
    }

    /// Everything, as Prometheus reads it.
    pub fn text(&self, stats: &Stats, started: u64) -> String {
        let mut out = String::new();
        head(&mut out, "pleiad_requests_total", "counter", "Requests by path and status.");
        let requests = self.requests.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        for ((route, status), count) in requests {
            line(
                &mut out,
                format_args!("pleiad_requests_total{{route=\"{route}\",status=\"{status}\"}} {count}"),
            );
        }
        let connections = self.connections.load(Ordering::Relaxed) as u64;
        for (name, kind, help, value) in [
            ("pleiad_connections", "gauge", "Open connections.", connections),
            ("pleiad_jobs_waiting", "gauge", "Answers that wait.", stats.waiting as u64),
            ("pleiad_jobs_running", "gauge", "Answers that are generated.", stats.running as u64),
            ("pleiad_jobs_finished_total", "counter", "Answers done, of every outcome.", stats.finished),
            (
                "pleiad_jobs_cancelled_total",
                "counter",
                "Answers whose client had gone or whose stop string had come.",
                stats.cancelled,
            ),
            ("pleiad_jobs_failed_total", "counter", "Answers that failed.", stats.failed),
            (
                "pleiad_jobs_set_aside_total",
                "counter",
                "Times that an answer gave way for want of memory.",
                stats.preempted,
            ),
            (
                "pleiad_prompt_tokens_total",
                "counter",
                "Tokens of prompts that were computed.",
                stats.prompt_tokens,
            ),
            ("pleiad_reused_tokens_total", "counter", "Tokens of prompts known before.", stats.reused_tokens),
            ("pleiad_tokens_total", "counter", "Tokens generated.", stats.tokens),
            ("pleiad_guessed_tokens_total", "counter", "Tokens guessed in advance.", stats.drafted),
            ("pleiad_guessed_right_tokens_total", "counter", "Tokens guessed right.", stats.accepted),
            ("pleiad_steps_total", "counter", "Steps of the model.", stats.steps),
            (
                "pleiad_cache_bytes",
                "gauge",
                "Bytes of caches and recurrent states in use.",
                stats.cache_bytes,
            ),
            ("pleiad_prefix_bytes", "gauge", "Of these, bytes kept for later prompts.", stats.prefix_bytes),
            ("process_start_time_seconds", "gauge", "Start of the server, since 1970.", started),
        ] {
            head(&mut out, name, kind, help);
            line(&mut out, format_args!("{name} {value}"));
        }
        self.first_token.write(
            &mut out,
            &FIRST_TOKEN,
            "pleiad_time_to_first_token_seconds",
            "From a request to the first token of an answer.",
        );
        self.token.write(
            &mut out,
            &TOKEN,
            "pleiad_token_seconds",
            "From one token of an answer to the next.",
        );
        if let Some(bytes) = resident_bytes() {
            head(
                &mut out,
                "process_resident_memory_bytes",
                "gauge",
                "Memory in use, mapped weights included.",
            );
            line(&mut out, format_args!("process_resident_memory_bytes {bytes}"));
        }
        out
    }
}

fn line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{line}");
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    line(out, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
}

/// Memory of this process; known on Linux only.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let metrics = Metrics::default();
        metrics.request("/health", 200);
        metrics.request("/health", 200);
        for milliseconds in [1, 60, 60, 1_000_000] {
            metrics.first_token(Duration::from_millis(milliseconds));
        }
        let text = metrics.text(&Stats { tokens: 7, ..Stats::default() }, 0);
        for expected in [
            "pleiad_requests_total{route=\"/health\",status=\"200\"} 2",
            "pleiad_time_to_first_token_seconds_bucket{le=\"0.05\"} 1",
            "pleiad_time_to_first_token_seconds_bucket{le=\"0.1\"} 3",
            "pleiad_time_to_first_token_seconds_bucket{le=\"300\"} 3",
            "pleiad_time_to_first_token_seconds_bucket{le=\"+Inf\"} 4",
            "pleiad_time_to_first_token_seconds_sum 1000.121",
            "pleiad_time_to_first_token_seconds_count 4",
            "pleiad_tokens_total 7",
        ] {
            assert!(text.lines().any(|line| line == expected), "{expected}\n{text}");
        }
        #[cfg(target_os = "linux")]
        assert!(text.contains("\nprocess_resident_memory_bytes "));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (_, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
}
