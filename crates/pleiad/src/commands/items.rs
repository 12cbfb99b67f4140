//! Questions with exact answers: `pleiad eval --items`.
//!
//! Each line of the file is a JSON object with `messages`, the `answer` they should get, a `kind` to count by, and
//! `tools` where some are offered. The model answers greedily through its chat template; an answer is right when it
//! equals the expected one, white space around it aside.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::Path;

use engine::{Job, Loop, TemplateInput, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::generate::{Flow, generate};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::terminal;

/// More tokens than any answer has: a model that goes on and on is wrong.
const LONGEST: usize = 160;

#[derive(Deserialize)]
struct Item {
    kind: String,
    messages: Vec<Value>,
    answer: String,
    tools: Option<Vec<Value>>,
}

/// How many of how many were right, in all and by kind.
#[derive(Default)]
pub struct Tally {
    right: usize,
    asked: usize,
    kinds: BTreeMap<String, (usize, usize)>,
}

fn read(path: &Path) -> Result<Vec<Item>, Error> {
    let cannot = |problem: String| Error::Usage(format!("{}: {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| cannot(e.to_string()))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let items: Vec<Item> = lines
        .map(|(i, line)| serde_json::from_str(line).map_err(|e| cannot(format!("line {}: {e}", i + 1))))
        .collect::<Result<_, _>>()?;
    if items.is_empty() { Err(cannot("there are no items in it".into())) } else { Ok(items) }
}

/// Asks everything in the file; `None` when the user stopped it.
pub fn ask<B: Machine>(
    steps: &mut Loop<B>,
    tokenizer: &Tokenizer,
    path: &Path,
) -> Result<Option<Tally>, Error> {
    let items = read(path)?;
    let mut progress = Progress::questions(items.len() as u64);
    let mut tally = Tally::default();
    for Item { kind, messages, answer, tools } in items {
        let input = TemplateInput { messages, tools, add_generation_prompt: true, ..Default::default() };
        let prompt = tokenizer.encode(&tokenizer.render(input)?, false)?;
        let (max_tokens, end_ids) = (Some(LONGEST), tokenizer.eos_ids().to_vec());
        let job = |listener| Job { max_tokens, end_ids, ..Job::new(prompt, listener) };
        let generated = generate(steps, job, |_| Ok(Flow::Continue))?;
        if terminal::interrupted() {
            return Ok(None);
        }
        let right = tokenizer.decode(&generated.ids(), false)?.trim() == answer.trim();
        let count = tally.kinds.entry(kind).or_default();
        for (r, n) in [(&mut count.0, &mut count.1), (&mut tally.right, &mut tally.asked)] {
            *r += usize::from(right);
            *n += 1;
        }
        progress.add(1);
    }
    Ok(Some(tally))
}

impl Tally {
    /// Prints the counts.
    pub fn print(&self, as_json: bool) -> std::io::Result<()> {
        let mut out = stdout().lock();
        let share = self.right as f64 / self.asked.max(1) as f64;
        if as_json {
            let kinds: BTreeMap<_, _> =
                self.kinds.iter().map(|(k, (r, n))| (k, json!({"right": r, "asked": n}))).collect();
            return writeln!(
                out,
                "{:#}",
                json!({"right": self.right, "asked": self.asked, "share": share, "kinds": kinds})
            );
        }
        for (kind, (right, asked)) in &self.kinds {
            writeln!(out, "{kind:14}  {right} of {asked}")?;
        }
        writeln!(out, "{:14}  {} of {}, {:.1}%", "right", self.right, self.asked, 100.0 * share)
    }
}
