//! Spans of a batch that one dispatch takes.

use std::ops::{Range, RangeInclusive};

use ::backend::{Batch, Span};

use crate::Gpu;

/// Spans of a batch that have so many tokens: those from the first such to the last, among which kernels pass
/// over others.
pub(crate) struct Spans<'a> {
    all: &'a [Span],
    /// The first of them, and how many, others included.
    pub first: usize,
    pub count: usize,
    pub tokens: RangeInclusive<usize>,
    /// Rows of the batch, from those of the first to those of the last.
    pub rows: Range<usize>,
}

impl<'a> Spans<'a> {
    /// `None` where there are none.
    pub fn of(batch: &'a Batch<Gpu>, tokens: RangeInclusive<usize>) -> Option<Self> {
        Self::among(batch.spans(), 0, tokens)
    }

    /// Those among spans of a batch of which the first has this number.
    fn among(spans: &'a [Span], number: usize, tokens: RangeInclusive<usize>) -> Option<Self> {
        let taken = |span: &Span| tokens.contains(&span.len);
        let first = spans.iter().position(taken)?;
        let last = spans.iter().rposition(taken)?;
        let all = &spans[first..=last];
        let rows = all[0].row..spans[last].rows().end;
        Some(Self { all, first: number + first, count: all.len(), tokens, rows })
    }

    /// The first and the second half of several.
    pub fn halves(&self) -> [Option<Self>; 2] {
        let (first, second) = self.all.split_at(self.count / 2);
        [(first, self.first), (second, self.first + first.len())]
            .map(|(spans, number)| Self::among(spans, number, self.tokens.clone()))
    }

    /// Those of so many tokens.
    pub fn taken(&self) -> impl Iterator<Item = &Span> {
        self.all.iter().filter(|span| self.tokens.contains(&span.len))
    }

    /// Tokens of the longest.
    pub fn most(&self) -> usize {
        self.taken().map(|span| span.len).max().unwrap_or_default()
    }
}
