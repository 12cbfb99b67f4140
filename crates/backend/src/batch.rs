//! The tokens of one step.

use crate::{Ops, Result, Run, check};

/// Consecutive tokens of one sequence inside a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row of the batch that belongs to this sequence.
    pub row: usize,
    /// Number of rows.
    pub len: usize,
    /// Position of the first of them in its sequence: how many tokens its caches already hold.
    pub position: usize,
}

impl Span {
    /// The rows of the batch this span covers.
    pub fn rows(&self) -> std::ops::Range<usize> {
        self.row..self.row + self.len
    }
}

/// The tokens of one step, in spans: one token of one sequence (decode), a long prompt (prefill) and many sequences at
/// once (serving) are the same thing. Operations that touch caches take one cache per span, in the same order.
pub struct Batch<B: Ops> {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    data: B::BatchData,
}

impl<B: Ops> Batch<B> {
    /// One batch of several sequences: for each, its new tokens and the position of the first of them.
    pub fn new(backend: &B, sequences: &[(&[u32], usize)]) -> Result<Self> {
        let mut tokens = Vec::new();
        let mut spans = Vec::with_capacity(sequences.len());
        for (index, (ids, position)) in sequences.iter().enumerate() {
            if ids.is_empty() {
                return Err(check::error(
                    "batch",
                    "a sequence's token count",
                    format!("0 (sequence {index})"),
                    "1 or more",
                ));
            }
            spans.push(Span { row: tokens.len(), len: ids.len(), position: *position });
            tokens.extend_from_slice(ids);
        }
        if spans.is_empty() {
            return Err(check::error("batch", "the number of sequences", 0, "1 or more"));
        }
        let data = backend.prepare_batch(&tokens, &spans)?;
        Ok(Self { tokens, spans, data })
    }

    /// All token ids, span after span; 0 for one that only the machine knows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of tokens: rows of every activation of this step.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// The spans, in row order, without gaps.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// What the backend keeps for this step (positions on the device, for example).
    pub fn data(&self) -> &B::BatchData {
        &self.data
    }
}

impl<B: Run> Batch<B> {
    /// The batch of one token that the machine [chooses](Run::choose), at `position` of its sequence.
    pub fn following(backend: &B, chosen: &B::Chosen, position: usize) -> Result<Self> {
        let span = Span { row: 0, len: 1, position };
        let data = backend.prepare_chosen(chosen, span)?;
        Ok(Self { tokens: vec![0], spans: vec![span], data })
    }
}
