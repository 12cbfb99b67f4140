//! A step before it runs: which tokens of which requests, with which draft tokens.

use std::ops::Range;

use super::request::Request;
use crate::sampling::Draw;

/// A step.
pub(super) struct Plan {
    /// Its number, from 1.
    pub number: u64,
    /// In the order of the running requests.
    pub parts: Vec<Part>,
    /// Tokens of prompts in it.
    pub prompt_tokens: usize,
}

/// The part of one request in a step.
pub(super) struct Part {
    /// Number of the request.
    pub request: u64,
    /// Tokens the sequence has before this step.
    pub begin: usize,
    /// Tokens that run, draft tokens last. One that the step before has yet to bring is 0.
    pub tokens: Vec<u32>,
    /// Whether its token is one that the step before has yet to bring.
    pub follows: bool,
    /// Whether its tokens are a prompt's.
    pub is_prompt: bool,
    /// How many of them are draft tokens.
    pub drafts: usize,
    /// Whether the drafts are the drafting head's.
    pub by_head: bool,
    /// Its rows among the step's logits: those after its last tokens.
    pub rows: Range<usize>,
    /// How tokens are chosen from the last of these.
    pub draws: Vec<Draw>,
    /// Whether its logits are told.
    pub scores: bool,
}

impl Part {
    /// Place of the sequence behind it, if all drafts are accepted.
    pub fn end(&self) -> usize {
        self.begin + self.tokens.len()
    }

    /// Draft tokens.
    pub fn draft_tokens(&self) -> &[u32] {
        &self.tokens[self.tokens.len() - self.drafts..]
    }

    /// Takes draft tokens behind the first `kept` out of it.
    pub fn cut_drafts(&mut self, kept: usize) {
        let dropped = self.drafts.saturating_sub(kept);
        self.drafts -= dropped;
        self.tokens.truncate(self.tokens.len() - dropped);
        self.draws.truncate(self.draws.len() - dropped);
        self.rows.end -= dropped;
    }

    /// Its rows from which tokens are chosen.
    pub fn chosen_rows(&self) -> Range<usize> {
        self.rows.end - self.draws.len()..self.rows.end
    }

    /// Draft tokens of the drafting head; `None` where there are others.
    pub fn head_drafts(&self) -> Option<usize> {
        (self.drafts == 0 || self.by_head).then_some(self.drafts)
    }
}

impl Plan {
    /// A step of these parts, whose rows of logits follow one another.
    pub fn new(number: u64, mut parts: Vec<Part>) -> Self {
        let mut row = 0;
        for part in &mut parts {
            part.rows = row..row + part.rows.len();
            row = part.rows.end;
        }
        let of_prompt = |part: &Part| if part.is_prompt { part.tokens.len() } else { 0 };
        let prompt_tokens = parts.iter().map(of_prompt).sum();
        Self { number, parts, prompt_tokens }
    }

    /// Draft tokens of the drafting head; `None` where there are others.
    pub fn head_drafts(&self) -> Option<usize> {
        self.parts.iter().map(Part::head_drafts).sum()
    }

    /// The parts whose requests still run, with these.
    pub fn with<'a>(
        &'a self,
        running: &'a mut [Request],
    ) -> impl Iterator<Item = (&'a Part, &'a mut Request)> {
        let mut rest = &self.parts[..];
        running.iter_mut().filter_map(move |request| {
            let at = rest.iter().position(|part| part.request == request.number)?;
            let part = &rest[at];
            rest = &rest[at + 1..];
            Some((part, request))
        })
    }
}
