//! Latent attention, in its two forms.

use std::ops::Range;

use ::backend::{LatentScores, Span};

use super::dense::{Rows, RowsMut, Size, nn, nt};
use super::product::head_products;
use super::schedule::{self, Layer};
use super::softmax::{self, BLOCK, Block, PIECE, Partial, Queries, ROWS, Source, Stored, Values, attend};
use crate::Machine;
use crate::kernels::Set;
use crate::pool::Parts;
use crate::slabs::Cached;
use crate::weights::HeadMatrices;

/// Widths of a latent layer.
#[derive(Clone, Copy)]
pub(crate) struct Widths {
    pub rank: usize,
    pub pe: usize,
    /// Of the plain part of a query head.
    pub nope: usize,
    /// Of a value head.
    pub value: usize,
}

impl Widths {
    /// Whether it takes less work to make all keys and values of a sequence of `len` tokens than to bring `n` queries
    /// into latent space, where every score and every output is wider. A single token never pays for the former.
    pub fn expanding_pays(&self, n: usize, len: usize) -> bool {
        let Self { rank, pe, nope, value } = *self;
        let matrices = rank * (nope + value);
        let absorbed = n * len * (2 * rank + pe) + n * matrices;
        let expanded = n * len * (nope + pe + value) + len * matrices;
        expanded < absorbed
    }
}

/// Attention in latent space: keys are `[c | k_pe]`, values the `c` of them.
pub(crate) struct Absorbed<'a> {
    pub q: &'a [f32],
    pub q_pe: &'a [f32],
    pub spans: &'a [Span],
    pub caches: &'a [Cached<'a>],
    pub scores: LatentScores,
    pub rank: usize,
    pub pe: usize,
}

impl Absorbed<'_> {
    /// Writes `y [n, heads * rank]`.
    pub fn run(&self, machine: &Machine, y: &mut [f32]) {
        schedule::attention(machine, self, y);
    }
}

impl Layer for Absorbed<'_> {
    type Source<'a>
        = Latents<'a>
    where
        Self: 'a;

    fn key_heads(&self) -> usize {
        1
    }

    fn group(&self) -> usize {
        self.scores.heads
    }

    fn widths(&self) -> (usize, usize) {
        (self.rank + self.pe, self.rank)
    }

    fn soft_cap(&self) -> Option<f32> {
        None
    }

    fn spans(&self) -> &[Span] {
        self.spans
    }

    fn source(&self, span: usize, _key_head: usize) -> Latents<'_> {
        Latents { cache: self.caches[span], rank: self.rank }
    }

    fn seen(&self, span: usize, t: usize) -> Range<usize> {
        0..self.spans[span].position + t + 1
    }

    fn query(&self, row: usize, head: usize, out: &mut [f32]) {
        let i = row * self.scores.heads + head;
        read_query(&self.q[i * self.rank..][..self.rank], &self.q_pe[i * self.pe..], self.scores.scale, out);
    }
}

/// The two parts of a query, multiplied by the scale.
fn read_query(plain: &[f32], turned: &[f32], scale: f32, out: &mut [f32]) {
    out.iter_mut().zip(plain.iter().chain(turned)).for_each(|(out, q)| *out = q * scale);
}

/// A latent cache, read once for keys and values.
pub(crate) struct Latents<'a> {
    cache: Cached<'a>,
    rank: usize,
}

impl Source for Latents<'_> {
    fn widths(&self) -> (usize, usize) {
        (self.cache.shape().key_dim, self.rank)
    }

    fn read(&self, start: usize, n: usize) -> Block<'_> {
        self.cache.read(start, n, 0)
    }

    fn ahead(&self, start: usize) -> &[i16] {
        self.cache.ahead(start, 0)
    }
}

/// Latent attention of some spans from queries to values `y [n, heads * value]`, each in whichever form takes less work.
pub(crate) struct Latent<'a> {
    pub q: &'a [f32],
    pub q_pe: &'a [f32],
    pub spans: &'a [Span],
    pub caches: &'a [Cached<'a>],
    pub embed_q: &'a HeadMatrices,
    pub unembed_out: &'a HeadMatrices,
    pub scores: LatentScores,
    pub widths: Widths,
}

impl Latent<'_> {
    pub fn run(&self, machine: &Machine, y: &mut [f32]) {
        let pays = |(span, cache): (&Span, &Cached<'_>)| self.widths.expanding_pays(span.len, cache.len());
        if !self.spans.iter().zip(self.caches).any(pays) {
            return self.absorbed(machine, y);
        }
        let Widths { pe, nope, value, .. } = self.widths;
        let heads = self.scores.heads;
        for (span, cache) in self.spans.iter().zip(self.caches) {
            let rows = |x: usize| span.row * heads * x..(span.row + span.len) * heads * x;
            let (q, q_pe) = (&self.q[rows(nope)], &self.q_pe[rows(pe)]);
            let alone = [Span { row: 0, ..*span }];
            let one = Latent { q, q_pe, spans: &alone, caches: &[*cache], ..*self };
            if pays((span, cache)) {
                one.expanded(machine, &mut y[rows(value)]);
            } else {
                one.absorbed(machine, &mut y[rows(value)]);
            }
        }
    }

    fn absorbed(&self, machine: &Machine, y: &mut [f32]) {
        let Latent { embed_q, unembed_out, .. } = *self;
        let n = self.q.len() / (self.scores.heads * self.widths.nope);
        let mut q = machine.arena.take(n * self.scores.heads * self.widths.rank);
        head_products(machine, &embed_q.weight, embed_q.transposed, self.q, n, &mut q);
        let mut o = machine.arena.take(q.len());
        let Latent { q_pe, spans, caches, scores, widths: Widths { rank, pe, .. }, .. } = *self;
        Absorbed { q: &q, q_pe, spans, caches, scores, rank, pe }.run(machine, &mut o);
        head_products(machine, &unembed_out.weight, unembed_out.transposed, &o, n, y);
    }

    /// Attention of the only span over the keys and values of every head, made from the latents piece by piece.
    fn expanded(&self, machine: &Machine, y: &mut [f32]) {
        let heads = self.scores.heads;
        let y = Parts::new(y);
        machine.pool.run(heads, |h| self.expand_head(machine, h, &y));
    }

    fn expand_head(&self, machine: &Machine, h: usize, y: &Parts<'_, f32>) {
        let Widths { rank, pe, nope, value } = self.widths;
        let (span, cache, heads) = (self.spans[0], self.caches[0], self.scores.heads);
        let (set, key, latent) = (machine.set, nope + pe, rank + pe);
        let Latent { embed_q, unembed_out, .. } = *self;
        let mut q = machine.arena.take(span.len * key);
        for (t, q) in q.chunks_exact_mut(key).enumerate() {
            let i = t * heads + h;
            read_query(&self.q[i * nope..][..nope], &self.q_pe[i * pe..], self.scores.scale, q);
        }
        let seen: Vec<Range<usize>> = (0..span.len).map(|t| 0..span.position + t + 1).collect();
        let [to_keys, to_values] = [embed_q, unembed_out].map(|matrices| {
            let mut matrix = machine.arena.take(matrices.weight.rows * matrices.weight.cols);
            let cols = matrices.weight.cols;
            for r in 0..matrices.weight.rows {
                matrices.weight.decode_row(h, r, &mut matrix[r * cols..][..cols]);
            }
            matrix
        });
        let mut totals = machine.arena.take(Partial::len(span.len, value));
        totals_of(&mut totals, span.len, value).for_each(|(_, mut total)| total.clear());
        let mut partial = machine.arena.take(Partial::len(ROWS, value));
        let mut scratch = machine.arena.take(softmax::scratch_len(key, value));
        let mut latents = machine.arena.take(PIECE * latent);
        let (mut keys, mut values) = (machine.arena.take(PIECE * key), machine.arena.take(PIECE * value));
        for start in (0..cache.len()).step_by(PIECE) {
            let n = PIECE.min(cache.len() - start);
            for block in (0..n).step_by(BLOCK) {
                cache.write_latents(start + block, BLOCK.min(n - block), &mut latents[block * latent..]);
            }
            // What brings queries to latents brings latents to keys, the other way round.
            let from = (&*latents, latent);
            apply(set, (n, rank, nope), from, &to_keys, !embed_q.transposed, (&mut keys, key));
            apply(set, (n, rank, value), from, &to_values, unembed_out.transposed, (&mut values, value));
            for (key, latent) in keys.chunks_exact_mut(key).zip(latents.chunks_exact(latent)).take(n) {
                key[nope..].copy_from_slice(&latent[rank..]);
            }
            let source = Piece { keys: (&keys, key), values: (&values, value), start };
            for (rows, mut total) in totals_of(&mut totals, span.len, value) {
                let end = seen[rows.end - 1].end.min(start + n);
                if start >= end {
                    continue;
                }
                let queries =
                    Queries { q: &q[rows.start * key..], seen: &seen[rows.clone()], soft_cap: None };
                let mut partial = Partial::of(&mut partial[..Partial::len(rows.len(), value)], rows.len());
                partial.clear();
                attend(set, &queries, &source, start..end, &[], &mut partial, &mut scratch);
                total.merge(set, &partial);
            }
        }
        for (rows, total) in totals_of(&mut totals, span.len, value) {
            for (i, t) in rows.enumerate() {
                // SAFETY: this head's part of this token's row; heads are different tasks.
                total.finish(i, unsafe { y.range((t * heads + h) * value, value) });
            }
        }
    }
}

/// The running results of all tokens, in tiles of query rows.
fn totals_of(
    memory: &mut [f32],
    n: usize,
    value: usize,
) -> impl Iterator<Item = (Range<usize>, Partial<'_>)> {
    memory.chunks_mut(Partial::len(ROWS, value)).enumerate().map(move |(i, memory)| {
        let rows = i * ROWS..n.min((i + 1) * ROWS);
        (rows.clone(), Partial::of(memory, rows.len()))
    })
}

/// `y[t] = W x[t]` for `n` rows of `inner` values; `turned` when the matrix is stored as `[inner][outer]`.
fn apply(
    set: Set,
    (n, inner, outer): (usize, usize, usize),
    x: Rows<'_>,
    matrix: &[f32],
    turned: bool,
    y: RowsMut<'_>,
) {
    let size = Size { m: n, n: outer, k: inner };
    if turned { nn(set, size, x, (matrix, outer), y, false) } else { nt(set, size, x, (matrix, inner), y) }
}

/// Keys and values of one piece.
struct Piece<'a> {
    keys: Rows<'a>,
    values: Rows<'a>,
    start: usize,
}

impl<'a> Source for Piece<'a> {
    fn widths(&self) -> (usize, usize) {
        (self.keys.1, self.values.1)
    }

    fn read(&self, start: usize, _n: usize) -> Block<'_> {
        let rows = |(x, stride): Rows<'a>| Stored::F32(&x[(start - self.start) * stride..]);
        Block::Rows { keys: rows(self.keys), values: Values::Rows(rows(self.values)) }
    }
}
