//! Names for answers and calls: unlike any other, and not to be guessed.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A new name with this beginning.
pub fn fresh(prefix: &str) -> String {
    // Keys from the operating system, different in every process: the hash of a counter is as good as a random number.
    static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let [first, second] = KEYS.each_ref().map(|keys| keys.hash_one(count));
    format!("{prefix}{first:016x}{:08x}", second as u32)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Seconds since 1970 as a date and time of day, such as `2025-02-28T09:05:07Z`.
pub fn date(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400);
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{:02}Z", month + 1, days + 1, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_740_733_507, "2025-02-28T09:05:07Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn names_differ() {
        let names: std::collections::HashSet<String> = (0..1000).map(|_| fresh("call_")).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| name.len() == "call_".len() + 24));
    }
}
