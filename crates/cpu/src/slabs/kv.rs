//! Keys and values of one layer, in blocks.

use std::ops::Range;

use ::backend::pool::{BLOCK, Table};
use ::backend::{KvImage, KvShape, Result, Span};

use super::rows::{Form, Order, Read, Rows};
use super::segments::Segments;
use crate::Numerics;
use crate::ops::dense::PANEL;
use crate::ops::pairs::Whole;
use crate::ops::softmax::{self, Numbers, Values};
use crate::pool::Pool;

/// How a block is laid out.
struct Layout {
    shape: KvShape,
    keys: Rows,
    /// None where keys are values too.
    values: Option<Rows>,
}

impl Layout {
    fn new(shape: &KvShape, numerics: Numerics) -> Self {
        let KvShape { heads, key_dim, value_dim, float, .. } = *shape;
        let form = Form::new(float, numerics);
        let latent = value_dim == 0;
        let keys = match form {
            _ if latent => Order::Rows,
            Form::Codes { units: false } => Order::Rows,
            _ => Order::Panels { run: if form.is_whole() { 2 } else { 1 } },
        };
        let values = if form == Form::Whole { Order::Pairs } else { Order::Rows };
        let keys = Rows::new(form, keys, heads, key_dim, 0);
        let values = (!latent).then(|| Rows::new(form, values, heads, value_dim, keys.end()));
        Self { shape: *shape, keys, values }
    }

    fn bytes(&self) -> usize {
        self.values.as_ref().unwrap_or(&self.keys).end()
    }
}

/// The blocks of a layer.
pub(crate) struct Kv {
    layout: Layout,
    pub(super) blocks: Segments,
}

/// Rows of a batch that are written to one block.
struct Piece {
    /// The first row of the batch.
    row: usize,
    /// Positions of the block.
    slots: Range<usize>,
}

impl Kv {
    pub fn new(shape: &KvShape, numerics: Numerics) -> Self {
        let layout = Layout::new(shape, numerics);
        let blocks = Segments::new(layout.bytes());
        Self { layout, blocks }
    }

    /// Bytes of a block.
    pub fn place_bytes(shape: &KvShape, numerics: Numerics) -> u64 {
        Segments::place_bytes(Layout::new(shape, numerics).bytes()) as u64
    }

    pub fn shape(&self) -> &KvShape {
        &self.layout.shape
    }

    /// What each sequence of a batch has, the batch's own tokens included.
    pub fn of<'a>(&'a self, spans: &[Span], tables: &'a [Table]) -> Vec<Cached<'a>> {
        let cached =
            |(span, table): (&Span, &'a Table)| Cached { kv: self, table, len: span.position + span.len };
        spans.iter().zip(tables).map(cached).collect()
    }

    /// Writes keys and values of a batch; `row(t)` gives the two parts of a key, and a value.
    pub fn append<'a>(
        &mut self,
        pool: &Pool,
        spans: &[Span],
        tables: &[Table],
        row: impl Fn(usize) -> ([&'a [f32]; 2], &'a [f32]) + Sync,
    ) -> Result<()> {
        let Self { layout, blocks } = self;
        let Layout { shape, keys, values } = &*layout;
        let (mut pieces, mut places) = (Vec::new(), Vec::new());
        for (span, table) in spans.iter().zip(tables) {
            let (mut at, end) = (span.position, span.position + span.len);
            while at < end {
                let slots = at % BLOCK..BLOCK.min(at % BLOCK + end - at);
                places.push(table.block(at));
                at += slots.len();
                pieces.push(Piece { row: span.row + at - span.position - slots.len(), slots });
            }
        }
        let mut tasks: Vec<_> = blocks.several(&places)?.into_iter().zip(pieces).collect();
        let few = tasks.len().div_ceil(2 * pool.threads());
        pool.pieces(&mut tasks, few, |_, tasks| {
            for (block, Piece { row: first, slots }) in tasks {
                for (i, slot) in slots.clone().enumerate() {
                    let ([key, rest], value) = row(*first + i);
                    let joined = if rest.is_empty() { Vec::new() } else { [key, rest].concat() };
                    let key = if rest.is_empty() { key } else { &joined };
                    for (head, key) in key.chunks_exact(shape.key_dim).enumerate() {
                        keys.write(block, head, slot, key);
                    }
                    if let Some(values) = values {
                        for (head, value) in value.chunks_exact(shape.value_dim).enumerate() {
                            values.write(block, head, slot, value);
                        }
                    }
                }
            }
        });
        Ok(())
    }

    /// Copies positions to an image.
    pub fn save(&self, table: &Table, positions: Range<usize>) -> KvImage {
        let Layout { shape, keys, values } = &self.layout;
        let bytes = |width: usize| positions.len() * shape.heads * shape.float.row_bytes(width);
        let mut image = KvImage {
            first: positions.start,
            len: positions.end,
            keys: Vec::with_capacity(bytes(shape.key_dim)),
            values: Vec::with_capacity(bytes(shape.value_dim)),
        };
        for position in positions {
            let block = self.blocks.place(table.block(position));
            for head in 0..shape.heads {
                keys.save(block, head, position % BLOCK, &mut image.keys);
                if let Some(values) = values {
                    values.save(block, head, position % BLOCK, &mut image.values);
                }
            }
        }
        image
    }

    /// Writes a checked image from the first position that `table` holds on. What is before it in its block becomes
    /// zeros: attention multiplies it with weights of 0.
    pub fn load(&mut self, table: &Table, image: &KvImage) {
        let Self { layout: Layout { shape, keys, values }, blocks } = self;
        let first = table.first().max(image.first);
        if first < image.len && !first.is_multiple_of(BLOCK) {
            blocks.place_mut(table.block(first)).fill(0);
        }
        for position in first..image.len {
            let block = blocks.place_mut(table.block(position));
            let row = (position - image.first) * shape.heads;
            for head in 0..shape.heads {
                let of = |width: usize| {
                    let bytes = shape.float.row_bytes(width);
                    (row + head) * bytes..(row + head + 1) * bytes
                };
                keys.load(block, head, position % BLOCK, &image.keys[of(shape.key_dim)]);
                if let Some(values) = values {
                    values.load(block, head, position % BLOCK, &image.values[of(shape.value_dim)]);
                }
            }
        }
    }
}

/// Keys and values of one sequence in a layer.
#[derive(Clone, Copy)]
pub(crate) struct Cached<'a> {
    kv: &'a Kv,
    table: &'a Table,
    len: usize,
}

impl<'a> Cached<'a> {
    pub fn shape(&self) -> &'a KvShape {
        &self.kv.layout.shape
    }

    /// Positions that are written.
    pub fn len(&self) -> usize {
        self.len
    }

    fn block(&self, start: usize) -> &'a [u8] {
        self.kv.blocks.place(self.table.block(start))
    }

    /// One head's keys and values of the `n` first positions of the block that begins at `start`, as they are kept.
    /// Where a position is not written yet, what its place holds.
    pub fn read(&self, start: usize, n: usize, head: usize) -> softmax::Block<'a> {
        let (block, Layout { keys, values, .. }) = (self.block(start), &self.kv.layout);
        let Some(values) = values else {
            return match keys.read(block, head, n.next_multiple_of(2)) {
                Read::Floats(keys) => softmax::Block::Rows { keys, values: Values::OfKeys },
                Read::Numbers(rows) => softmax::Block::WholeRows(rows),
            };
        };
        let read = (
            keys.read(block, head, n.next_multiple_of(PANEL)),
            values.read(block, head, n.next_multiple_of(2)),
        );
        match read {
            (Read::Floats(own), Read::Floats(values)) if keys.are_rows() => {
                softmax::Block::Rows { keys: own, values: Values::Rows(values) }
            }
            (Read::Floats(keys), Read::Floats(values)) => softmax::Block::Panels { keys, values },
            (Read::Numbers(keys), Read::Numbers(values)) => softmax::Block::WholePanels { keys, values },
            _ => unreachable!("keys and values are stored alike"),
        }
    }

    /// One head's keys in the block that begins at `start`, to prefetch them; nothing if they are floats.
    pub fn ahead(&self, start: usize, head: usize) -> &'a [i16] {
        let n = BLOCK.min(self.len - start).next_multiple_of(PANEL);
        match self.kv.layout.keys.read(self.block(start), head, n) {
            Read::Floats(_) => &[],
            Read::Numbers(rows) => rows.words(),
        }
    }

    /// Writes the first `n` rows of the block that begins at `start` of a latent cache.
    pub fn write_latents(&self, start: usize, n: usize, out: &mut [f32]) {
        let width = self.shape().key_dim;
        match self.kv.layout.keys.read(self.block(start), 0, n) {
            Read::Floats(rows) => rows.write(out),
            Read::Numbers(Numbers::Codes(codes)) => codes.write(width, out),
            Read::Numbers(Numbers::Whole(Whole { numbers, scales })) => {
                for ((out, row), scale) in
                    out.chunks_exact_mut(width).zip(numbers.chunks_exact(width)).zip(scales)
                {
                    out.iter_mut().zip(row).for_each(|(out, n)| *out = f32::from(*n) * scale);
                }
            }
        }
    }
}
