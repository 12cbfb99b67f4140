//! The tokens of one step.

use std::sync::Arc;

use crate::pool::{LayerShape, Layers, Pool, Slot, Table};
use crate::{Cache, Error, GdnShape, KvShape, Ops, Result, check};

/// The next tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens<'a> {
    /// These.
    Ids(&'a [u32]),
    /// The one that was last [chosen](crate::Run::submit) for its slot, which the host need not know.
    Last,
}

/// Consecutive tokens of one sequence inside a [`Batch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The sequence.
    pub slot: Slot,
    /// First row of the batch that belongs to this sequence.
    pub row: usize,
    /// Number of rows.
    pub len: usize,
    /// Position of the first of them in its sequence: how many tokens its caches already hold.
    pub position: usize,
    /// The sequence's state row; 0 where there are no recurrent layers.
    pub state: u32,
    /// Whether its token is the one that was last chosen for its slot.
    pub follows: bool,
}

impl Span {
    /// The rows of the batch this span covers.
    pub fn rows(&self) -> std::ops::Range<usize> {
        self.row..self.row + self.len
    }
}

/// The blocks in which the sequences of a batch have their keys and values.
#[derive(Clone, Debug)]
pub struct StepTables {
    layers: Arc<Layers>,
    /// For each group, a table for each span.
    groups: Vec<Vec<Table>>,
}

impl StepTables {
    /// The layers of the pool.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// For each group of layers, a table for each span.
    pub fn groups(&self) -> &[Vec<Table>] {
        &self.groups
    }

    /// Those of a layer with keys, one for each span.
    pub fn of(&self, layer: usize) -> &[Table] {
        self.layers.group(layer).map_or(&[], |group| &self.groups[group])
    }
}

/// The tokens of one step, in spans: one token of one sequence (decode), a long prompt (prefill) and many sequences at
/// once (serving) are the same thing.
pub struct Batch<B: Ops> {
    tokens: Vec<u32>,
    spans: Vec<Span>,
    tables: StepTables,
    data: B::BatchData,
}

impl<B: Cache> Batch<B> {
    /// One batch of several sequences, each with its next tokens, for which room was [reserved](Pool::reserve).
    pub fn new(backend: &B, pool: &Pool<B>, sequences: &[(Slot, Tokens<'_>)]) -> Result<Self> {
        let mut tokens = Vec::new();
        let mut spans = Vec::with_capacity(sequences.len());
        for (index, (slot, next)) in sequences.iter().enumerate() {
            let (ids, follows) = match next {
                Tokens::Ids(ids) => (*ids, false),
                Tokens::Last => (&[0][..], true),
            };
            if ids.is_empty() {
                let found = format!("0 (sequence {index})");
                return Err(check::error("batch", "a sequence's token count", found, "1 or more"));
            }
            let state = pool.tables().row(*slot).unwrap_or_default();
            let (row, position) = (tokens.len(), pool.len(*slot));
            spans.push(Span { slot: *slot, row, len: ids.len(), position, state, follows });
            tokens.extend_from_slice(ids);
        }
        if spans.is_empty() {
            return Err(check::error("batch", "the number of sequences", 0, "1 or more"));
        }
        let layers = pool.layers().clone();
        let groups = 0..layers.group_count();
        let of = |span: &Span, group| pool.tables().room(span.slot, group, span.position + span.len);
        let groups = groups.map(|group| {
            let tables = spans.iter().map(|span| of(span, group).cloned());
            tables.collect::<Option<Vec<_>>>()
        });
        let groups = groups.collect::<Option<_>>().ok_or_else(|| {
            check::error("batch", "the room reserved for a sequence", "less", "as much as its tokens")
        })?;
        let tables = StepTables { layers, groups };
        let data = backend.prepare_batch(&tokens, &spans, &tables, pool.slabs())?;
        Ok(Self { tokens, spans, tables, data })
    }
}

impl<B: Ops> Batch<B> {
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

    /// Where their keys and values lie.
    pub fn tables(&self) -> &StepTables {
        &self.tables
    }

    /// What the backend keeps for this step (positions on the device, for example).
    pub fn data(&self) -> &B::BatchData {
        &self.data
    }

    fn layer(&self, layer: usize) -> Result<&LayerShape> {
        let shapes = self.tables.layers.shapes();
        let wrong = || Error::Unsupported(format!("layer {layer} of a pool that has {}", shapes.len()));
        shapes.get(layer).ok_or_else(wrong)
    }

    /// The shape of a layer with keys and values.
    pub fn kv_shape(&self, layer: usize) -> Result<KvShape> {
        match self.layer(layer)? {
            LayerShape::Kv(shape) => Ok(*shape),
            LayerShape::Recurrent(_) => {
                Err(Error::Unsupported(format!("layer {layer} of the pool is recurrent: it has no keys")))
            }
        }
    }

    /// The shape of a recurrent layer.
    pub fn gdn_shape(&self, layer: usize) -> Result<GdnShape> {
        match self.layer(layer)? {
            LayerShape::Recurrent(shape) => Ok(*shape),
            LayerShape::Kv(_) => {
                Err(Error::Unsupported(format!("layer {layer} of the pool has keys: it is not recurrent")))
            }
        }
    }
}
