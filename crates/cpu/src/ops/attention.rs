//! Grouped-query attention over caches.

use std::ops::Range;

use ::backend::{Scores, Span};

use super::schedule::{self, Layer};
use super::softmax::{Block, Source};
use crate::Machine;
use crate::slabs::Cached;

/// One layer's attention for a batch.
pub(crate) struct Grouped<'a> {
    pub q: &'a [f32],
    pub spans: &'a [Span],
    pub caches: &'a [Cached<'a>],
    pub scores: Scores,
    pub group: usize,
}

impl Grouped<'_> {
    /// Writes `y [n, heads * value width]`.
    pub fn run(&self, machine: &Machine, y: &mut [f32]) {
        schedule::attention(machine, self, y);
    }
}

impl Layer for Grouped<'_> {
    type Source<'a>
        = Head<'a>
    where
        Self: 'a;

    fn key_heads(&self) -> usize {
        self.scores.heads / self.group
    }

    fn group(&self) -> usize {
        self.group
    }

    fn widths(&self) -> (usize, usize) {
        self.source(0, 0).widths()
    }

    fn soft_cap(&self) -> Option<f32> {
        self.scores.soft_cap
    }

    fn spans(&self) -> &[Span] {
        self.spans
    }

    fn source(&self, span: usize, key_head: usize) -> Head<'_> {
        Head { cache: self.caches[span], head: key_head }
    }

    fn seen(&self, span: usize, t: usize) -> Range<usize> {
        let position = self.spans[span].position + t;
        let first = self.scores.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first..position + 1
    }

    fn query(&self, row: usize, head: usize, out: &mut [f32]) {
        let q = &self.q[(row * self.scores.heads + head) * out.len()..];
        out.iter_mut().zip(q).for_each(|(out, q)| *out = q * self.scores.scale);
    }
}

/// One head of a cache.
pub(crate) struct Head<'a> {
    cache: Cached<'a>,
    head: usize,
}

impl Source for Head<'_> {
    fn widths(&self) -> (usize, usize) {
        (self.cache.shape().key_dim, self.cache.shape().value_dim)
    }

    fn read(&self, start: usize, n: usize) -> Block<'_> {
        self.cache.read(start, n, self.head)
    }

    fn ahead(&self, start: usize) -> &[i16] {
        self.cache.ahead(start, self.head)
    }
}
