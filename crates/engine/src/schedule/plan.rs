//! A step before it runs: which tokens of which requests, with which draft tokens.

use std::ops::Range;

use backend::Backend;

use super::request::Request;

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
    /// How many of them are draft tokens.
    pub drafts: usize,
    /// Whether the drafts are the drafting head's.
    pub by_head: bool,
    /// Its rows among the step's logits: those after its last tokens.
    pub rows: Range<usize>,
}

impl Part {
    /// Place of the sequence behind it, if all drafts are accepted.
    pub fn end(&self) -> usize {
        self.begin + self.tokens.len()
    }

    /// Draft tokens of the drafting head; `None` where there are others.
    pub fn head_drafts(&self) -> Option<usize> {
        (self.drafts == 0 || self.by_head).then_some(self.drafts)
    }
}

impl Plan {
    /// A step of these parts, whose rows of logits follow one another.
    pub fn new(number: u64, mut parts: Vec<Part>, prompt_tokens: usize) -> Self {
        let mut row = 0;
        for part in &mut parts {
            part.rows = row..row + part.rows.len();
            row = part.rows.end;
        }
        Self { number, parts, prompt_tokens }
    }

    /// Draft tokens of the drafting head; `None` where there are others.
    pub fn head_drafts(&self) -> Option<usize> {
        self.parts.iter().map(Part::head_drafts).sum()
    }

    /// The parts whose requests still run, with these.
    pub fn with<'a, B: Backend>(
        &'a self,
        running: &'a mut [Request<B>],
    ) -> impl Iterator<Item = (&'a Part, &'a mut Request<B>)> {
        let mut rest = &self.parts[..];
        running.iter_mut().filter_map(move |request| {
            let at = rest.iter().position(|part| part.request == request.number)?;
            let part = &rest[at];
            rest = &rest[at + 1..];
            Some((part, request))
        })
    }
}
