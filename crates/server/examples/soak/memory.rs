//! The memory of the server.

use crate::http::get;
use crate::options::Options;

/// Growth of memory over the second half that is still none.
pub const MOST_GROWTH: f64 = 0.05;

/// Memory of the server at a time.
#[derive(Clone, Copy)]
pub struct Memory {
    pub seconds: f64,
    /// Bytes of the process.
    pub resident: f64,
    /// Those of them that it keeps of finished chats, up to a limit of its own.
    pub kept: f64,
}

/// Memory of the server now.
pub async fn memory(options: &Options, seconds: f64) -> Option<Memory> {
    let metrics = get(options, "/metrics").await.unwrap_or_default();
    let resident = match options.pid {
        Some(pid) => {
            number(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS:")? * 1024.0
        }
        None => number(&metrics, "process_resident_memory_bytes ")?,
    };
    Some(Memory { seconds, resident, kept: number(&metrics, "pleiad_prefix_bytes ").unwrap_or(0.0) })
}

/// The number in the line that begins so.
fn number(text: &str, beginning: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(beginning))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Growth over the second half, as a share of the mean there: the slope of the line that fits best, times its length.
pub fn growth(samples: &[Memory], bytes: impl Fn(&Memory) -> f64) -> Option<f64> {
    let half = &samples[samples.len() / 2..];
    let length = half.last()?.seconds - half.first()?.seconds;
    let mean = |value: &dyn Fn(&Memory) -> f64| half.iter().map(value).sum::<f64>() / half.len() as f64;
    let (middle, level) = (mean(&|sample| sample.seconds), mean(&bytes));
    let square = mean(&|sample| (sample.seconds - middle).powi(2));
    let product = mean(&|sample| (sample.seconds - middle) * (bytes(sample) - level));
    (square > 0.0 && level > 0.0).then(|| product / square * length / level)
}
