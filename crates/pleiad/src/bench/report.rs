//! What was found, for people and for programs.

use std::io::{self, Write};

use engine::{SamplingParams, bytes};
use models::Traffic;
use serde_json::{Value, json};

use super::Bandwidth;
use super::measure::{Measured, Profile, Speeds, Work};
use crate::streamed::Streamed;

/// Everything there is to say.
pub struct Report {
    /// Name of the model.
    pub model: String,
    pub family: String,
    /// Bytes of the whole checkpoint.
    pub weights: u64,
    pub backend: String,
    /// On the CPU.
    pub threads: Option<usize>,
    pub numerics: String,
    pub work: Work,
    pub measured: Measured,
    pub traffic: Traffic,
    /// Of the memory that the CPU reads.
    pub bandwidth: Option<Bandwidth>,
    /// Bytes per second of the disk, where experts are read from it as they are needed.
    pub disk: Option<f64>,
    /// From the folder to a model that can run.
    pub open_seconds: f64,
    pub peak_memory: Option<u64>,
    /// The part of the weights' pages that are large ones.
    pub large_pages: Option<f64>,
    /// Whether to tell where the time went.
    pub profiled: bool,
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

impl Report {
    /// Tokens per second if weights came as fast as the memory can give them and nothing else took time.
    pub fn limit(&self) -> Option<f64> {
        self.bandwidth.map(|bandwidth| bandwidth.all_threads / (self.traffic.total() as f64).max(1.0))
    }

    /// The share of [`Report::limit`] that some decoding reached.
    fn share(&self, decode: &Speeds) -> Option<f64> {
        self.limit().map(|limit| decode.best() / limit.max(1e-9))
    }

    /// Speeds of decoding by context, ascending: behind the prompt, and wherever else was asked for.
    pub fn curve(&self) -> Vec<(usize, &Speeds)> {
        let others = self.measured.contexts.iter().map(|(context, speeds)| (*context, speeds));
        let mut curve: Vec<_> = others.chain([(self.work.prefill, &self.measured.decode)]).collect();
        curve.sort_by_key(|(context, _)| *context);
        curve
    }

    /// One object: its `prefill` and `decode` are those that llama_bench.py prints.
    pub fn json(&self) -> Value {
        let speeds = |s: &Speeds| (round(s.best(), 2), round(s.median(), 2));
        let speed = |tokens: usize, s: &Speeds| {
            let (best, median) = speeds(s);
            json!({"tokens": tokens, "best": best, "median": median})
        };
        let context = |(context, s): (usize, &Speeds)| {
            let (best, median) = speeds(s);
            json!({"context": context, "best": best, "median": median})
        };
        let Traffic { attention, experts, dense, head } = self.traffic;
        let mut profile = Vec::new();
        if self.profiled {
            profile.extend(profile_json("prefill", &self.measured.prefill_profile));
            profile.extend(profile_json("decode", &self.measured.decode_profile));
            for (answers, _, together) in &self.measured.answers {
                profile.extend(profile_json(&format!("{answers} answers"), together));
            }
        }
        json!({
            "engine": concat!("pleiad ", env!("CARGO_PKG_VERSION")),
            "model": self.model,
            "backend": self.backend,
            "threads": self.threads,
            "numerics": self.numerics,
            "sampling": self.work.sampling,
            "prefill": speed(self.work.prefill, &self.measured.prefill),
            "decode": speed(self.work.decode, &self.measured.decode),
            "answers": self.measured.answers.iter().map(|(answers, s, _)| {
                let (best, median) = speeds(s);
                json!({"answers": answers, "best": best, "median": median})
            }).collect::<Vec<_>>(),
            "contexts": self.curve().into_iter().map(context).collect::<Vec<_>>(),
            "weight_bytes_per_token": self.traffic.total(),
            "weight_bytes_by_part": {"attention": attention, "experts": experts, "dense": dense, "head": head},
            "bandwidth": self.bandwidth.map(|bandwidth| bandwidth.all_threads as u64),
            "bandwidth_one_thread": self.bandwidth.map(|bandwidth| bandwidth.one_thread as u64),
            "share_of_limit": self.share(&self.measured.decode).map(|share| round(share, 4)),
            "dispatches_per_token": self.measured.dispatches_per_token.map(|n| round(n, 1)),
            "open_seconds": round(self.open_seconds, 4),
            "peak_memory": self.peak_memory,
            "large_pages": self.large_pages.map(|part| round(part, 4)),
            "streaming": self.disk.map(|disk| json!({
                "disk": disk as u64,
                "prefill": self.measured.prefill_streamed.json(disk),
                "decode": self.measured.decode_streamed.json(disk),
            })),
            "profile": profile,
        })
    }

    /// A table.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "model      {} ({}, {})", self.model, self.family, bytes(self.weights))?;
        writeln!(out, "machine    {}", self.backend)?;
        writeln!(out, "opened     in {:.3} s", self.open_seconds)?;
        writeln!(out, "decoding   {}\n", self.decoding())?;
        self.print_speeds(out)?;

        let Traffic { attention, experts, dense, head } = self.traffic;
        let parts = [("attention", attention), ("experts", experts), ("dense", dense), ("head", head)];
        let parts: Vec<String> = parts.map(|(name, n)| format!("{name} {}", bytes(n))).into();
        writeln!(out, "\nweights    {} per token: {}", bytes(self.traffic.total()), parts.join(", "))?;
        if let Some(dispatches) = self.measured.dispatches_per_token {
            writeln!(out, "kernels    {dispatches:.0} dispatches per decoded token")?;
        }
        self.print_limit(out)?;
        if let Some(disk) = self.disk {
            let Measured { prefill_streamed, decode_streamed, .. } = &self.measured;
            writeln!(out, "disk       {}/s\n", bytes(disk as u64))?;
            writeln!(out, "experts    {}", Streamed::HEAD)?;
            writeln!(out, "prefill    {}", prefill_streamed.line(disk))?;
            writeln!(out, "decode     {}\n", decode_streamed.line(disk))?;
        }
        if let Some(peak) = self.peak_memory {
            let large =
                self.large_pages.map(|part| format!(", {:.0}% of them large", (100.0 * part).floor()));
            let large = large.unwrap_or_default();
            writeln!(
                out,
                "memory     {} at most, with the pages of weights that were read{large}",
                bytes(peak)
            )?;
        }
        if self.profiled {
            print_profile(out, "prefill", &self.measured.prefill_profile)?;
            print_profile(out, "decode", &self.measured.decode_profile)?;
            for (answers, _, together) in &self.measured.answers {
                print_profile(out, &format!("{answers} answers"), together)?;
            }
        }
        Ok(())
    }

    /// How tokens are chosen.
    fn decoding(&self) -> String {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = &self.work.sampling;
        match temperature {
            0.0 => "greedy".into(),
            t => format!("sampled: temperature {t}, top-k {top_k}, top-p {top_p}, min-p {min_p}"),
        }
    }

    fn print_limit(&self, out: &mut impl Write) -> io::Result<()> {
        let (Some(bandwidth), Some(limit)) = (self.bandwidth, self.limit()) else { return Ok(()) };
        let others = match self.threads {
            None | Some(1) => String::new(),
            Some(threads) => format!(", {}/s with {threads}", bytes(bandwidth.all_threads as u64)),
        };
        writeln!(out, "bandwidth  {}/s with 1 thread{others}", bytes(bandwidth.one_thread as u64))?;
        let share = self.measured.decode.best() / limit.max(1e-9);
        // Where weights need not come from memory at all, its speed is no limit.
        let cached = if share > 1.0 { " (they stay in the processor's cache)" } else { "" };
        writeln!(
            out,
            "limit      {limit:.1} tokens/s if reading weights were all; decode has {:.0}% of it{cached}",
            100.0 * share
        )
    }

    fn print_speeds(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{:9} {:>8} {:>7}  {:>21}", "", "", "", "tokens/s")?;
        writeln!(
            out,
            "{:9} {:>8} {:>7}  {:>10} {:>10}  {:>9}{}",
            "",
            "context",
            "tokens",
            "best",
            "median",
            "ms/token",
            if self.bandwidth.is_some() { "  of limit" } else { "" }
        )?;
        let Work { prefill, decode, .. } = self.work;
        let line = |name: &str, context: usize, tokens: usize, speeds: &Speeds| {
            let (best, median) = (speeds.best(), speeds.median());
            let ms = 1000.0 / best.max(1e-9);
            format!("{name:9} {context:>8} {tokens:>7}  {best:>10.2} {median:>10.2}  {ms:>9.3}")
        };
        writeln!(out, "{}", line("prefill", 0, prefill, &self.measured.prefill))?;
        for (context, speeds) in self.curve() {
            let share =
                self.share(speeds).map_or(String::new(), |share| format!("  {:>7.0}%", 100.0 * share));
            writeln!(out, "{}{share}", line("decode", context, decode, speeds))?;
        }
        for (answers, speeds, _) in &self.measured.answers {
            writeln!(out, "{}", line(&format!("{answers} at once"), prefill, answers * decode, speeds))?;
        }
        Ok(())
    }
}

/// One operation's part of a profile.
struct Row {
    name: &'static str,
    calls_per_step: f64,
    ms_per_token: f64,
    share: f64,
}

/// The operations and, last, what is left of the time.
fn rows(profile: &Profile) -> Vec<Row> {
    let (steps, tokens) = (profile.steps.max(1) as f64, profile.tokens.max(1) as f64);
    let total = profile.time.as_secs_f64().max(1e-9);
    let row = |name, calls: u64, seconds: f64| Row {
        name,
        calls_per_step: calls as f64 / steps,
        ms_per_token: 1000.0 * seconds / tokens,
        share: seconds / total,
    };
    let operations = profile.operations();
    let inside: f64 = operations.iter().map(|o| o.time.as_secs_f64()).sum();
    let mut rows: Vec<Row> = operations.iter().map(|o| row(o.name, o.calls, o.time.as_secs_f64())).collect();
    if !rows.is_empty() {
        rows.push(row("(between)", 0, (total - inside).max(0.0)));
    }
    rows
}

fn profile_json(phase: &str, profile: &Profile) -> Vec<Value> {
    let row = |row: Row| {
        json!({
            "phase": phase,
            "operation": row.name,
            "calls_per_step": round(row.calls_per_step, 2),
            "ms_per_token": round(row.ms_per_token, 6),
            "share": round(row.share, 4),
        })
    };
    rows(profile).into_iter().map(row).collect()
}

fn print_profile(out: &mut impl Write, phase: &str, profile: &Profile) -> io::Result<()> {
    let rows = rows(profile);
    if rows.is_empty() {
        return writeln!(out, "\n{phase}: this machine does not measure its operations");
    }
    writeln!(out, "\n{phase:24} {:>10}  {:>9}  {:>6}", "calls/step", "ms/token", "share")?;
    for Row { name, calls_per_step, ms_per_token, share } in rows {
        writeln!(out, "{name:24} {calls_per_step:>10.1}  {ms_per_token:>9.4}  {:>5.1}%", 100.0 * share)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use backend::OperationTime;

    use super::*;

    #[test]
    fn a_profile_accounts_for_all_of_the_time() {
        let mut profile = Profile::default();
        assert!(rows(&profile).is_empty());
        let operation = |name, ms| OperationTime { name, calls: 8, time: Duration::from_millis(ms) };
        profile.add(4, 2, Duration::from_millis(20), vec![operation("small", 5), operation("large", 10)]);
        let rows = rows(&profile);
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names, ["large", "small", "(between)"]);
        assert_eq!((rows[0].calls_per_step, rows[0].ms_per_token, rows[0].share), (4.0, 2.5, 0.5));
        assert!((rows.iter().map(|row| row.share).sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
