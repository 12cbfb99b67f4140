//! What the program has taken.

/// The most memory the program has had at a time, pages of mapped files included; `None` where that is unknown.
pub fn peak_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// The part of the weights' pages in memory that are large ones, from 0 to 1; `None` where no weights are mapped, or the system does not say.
///
/// Large pages are the system's gift: how a file came into memory decides, and what has been put out and read again is often small.
/// Products read small ones half as fast.
pub fn large_pages() -> Option<f64> {
    large_part(&std::fs::read_to_string("/proc/self/smaps").ok()?)
}

/// Of a text in the form of Linux' `smaps`: a line for each mapping, then lines with its numbers in kB.
fn large_part(text: &str) -> Option<f64> {
    let (mut mapped, mut large, mut weights) = (0, 0, false);
    for line in text.lines() {
        let Some((name, kilobytes)) = line.split_once(':').filter(|(name, _)| !name.contains(' ')) else {
            weights = line.ends_with(".safetensors");
            continue;
        };
        let number = || kilobytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok();
        match name {
            "Rss" if weights => mapped += number()?,
            "FilePmdMapped" if weights => large += number()?,
            _ => {}
        }
    }
    (mapped > 0).then(|| large as f64 / mapped as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_of_weights_are_counted() {
        let mapping = |name: &str, rss: u64, large: u64| {
            format!(
                "7f00-7f80 r--s 00000000 fe:00 42    /a b/{name}\nSize: 9999 kB\nRss:  {rss} kB\nAnonHugePages:  4 kB\n\
                 FilePmdMapped:   {large} kB\nVmFlags: rd mr sh\n"
            )
        };
        let text = [mapping("one.safetensors", 6000, 4096), mapping("libc.so", 500, 0)].concat();
        let both = text.clone() + &mapping("two.safetensors", 2000, 2000);
        assert_eq!(large_part(&text), Some(4096.0 / 6000.0));
        assert_eq!(large_part(&both), Some(6096.0 / 8000.0));
        assert_eq!(large_part(&mapping("libc.so", 500, 0)), None);
    }
}
