//! Which task takes which queries and which part of a cache.

use std::ops::Range;

use ::backend::Span;

use super::softmax::{BLOCK, PIECE, Partial, Queries, ROWS, Source, attend, scratch_len};
use crate::Machine;
use crate::pool::Parts;

/// Up to so many query rows of a span, its cache is cut into pieces for several tasks; with more, there are enough tasks
/// without that.
const FEW_ROWS: usize = 256;

/// Queries of one span over the keys of one head: rows of the batch and heads that share keys.
pub(crate) trait Layer: Sync {
    /// What reads the keys of a head.
    type Source<'a>: Source
    where
        Self: 'a;

    /// Heads of keys.
    fn key_heads(&self) -> usize;
    /// Query heads per head of keys.
    fn group(&self) -> usize;
    /// Widths of a key and a value.
    fn widths(&self) -> (usize, usize);
    fn soft_cap(&self) -> Option<f32>;
    /// The rows of each span.
    fn spans(&self) -> &[Span];
    /// Keys and values of one head in the cache of one span.
    fn source(&self, span: usize, key_head: usize) -> Self::Source<'_>;
    /// Positions that token `t` of a span sees.
    fn seen(&self, span: usize, t: usize) -> Range<usize>;
    /// Reads the query of one head of row `row` of the batch, multiplied by the scale.
    fn query(&self, row: usize, head: usize, out: &mut [f32]);
}

/// Some query rows of a span and the keys they meet.
struct Job {
    span: usize,
    key_head: usize,
    /// Row `r` is head `r % group` of the key head's group in token `r / group` of the span.
    rows: Range<usize>,
    /// Positions that any of them sees.
    seen: Range<usize>,
    /// Where the results of its pieces begin, when several tasks take them.
    partials: Option<usize>,
}

impl Job {
    fn pieces(&self) -> Range<usize> {
        self.seen.start / PIECE..self.seen.end.div_ceil(PIECE)
    }

    /// The first block of a piece, or of all of them.
    fn start(&self, piece: Option<usize>) -> usize {
        self.seen.start.max(piece.unwrap_or_default() * PIECE) / BLOCK * BLOCK
    }
}

/// Attention of every span of a batch; `y` is `[n, heads * value width]`.
pub(crate) fn attention(machine: &Machine, layer: &impl Layer, y: &mut [f32]) {
    let (_, width) = layer.widths();
    let Plan { jobs, tasks, partial_len } = Plan::new(layer);
    let y = Parts::new(y);
    let mut partials = machine.arena.take(partial_len);
    let parts = Parts::new(&mut partials);
    machine.pool.run(tasks.len(), |task| {
        let (job, piece) = (&jobs[tasks[task].0], tasks[task].1);
        let rows = job.rows.len();
        with_queries(machine, layer, job, |queries, memory| {
            let source = layer.source(job.span, job.key_head);
            let within =
                |piece: usize| job.seen.start.max(piece * PIECE)..job.seen.end.min((piece + 1) * PIECE);
            match (job.partials, piece) {
                (Some(start), Some(piece)) => {
                    let len = Partial::len(rows, width);
                    let at = start + (piece - job.pieces().start) * len;
                    // SAFETY: every piece of every job has its own part.
                    let mut partial = Partial::of(unsafe { parts.range(at, len) }, rows);
                    partial.clear();
                    // The other threads take the tasks in between.
                    let after = tasks.get(task + machine.pool.threads()).map(|(job, piece)| {
                        let job = &jobs[*job];
                        (layer.source(job.span, job.key_head), job.start(*piece))
                    });
                    let then = after.as_ref().map_or(&[][..], |(source, start)| source.ahead(*start));
                    attend(machine.set, queries, &source, within(piece), then, &mut partial, memory.scratch);
                }
                _ => {
                    let (mut total, mut partial) =
                        (Partial::of(memory.total, rows), Partial::of(memory.partial, rows));
                    total.clear();
                    for piece in job.pieces() {
                        partial.clear();
                        let more = piece + 1 < job.pieces().end;
                        let then = if more { source.ahead((piece + 1) * PIECE) } else { &[] };
                        let within = within(piece);
                        attend(machine.set, queries, &source, within, then, &mut partial, memory.scratch);
                        total.merge(machine.set, &partial);
                    }
                    // SAFETY: no two jobs have a row in common.
                    unsafe { write(layer, job, &total, &y) };
                }
            }
        });
    });
    let split: Vec<&Job> = jobs.iter().filter(|job| job.partials.is_some()).collect();
    // Little work, unless the cache is long.
    let together = if partial_len < 1 << 15 { split.len() } else { 1 };
    machine.pool.run(split.len().div_ceil(together.max(1)), |i| {
        for job in split.iter().skip(i * together).take(together) {
            let (rows, start) = (job.rows.len(), job.partials.unwrap_or_default());
            let len = Partial::len(rows, width);
            let mut memory = machine.arena.take(len);
            let mut total = Partial::of(&mut memory, rows);
            total.clear();
            for piece in 0..job.pieces().len() {
                // SAFETY: every job has its own parts, and the tasks that wrote them have ended.
                let next = Partial::of(unsafe { parts.range(start + piece * len, len) }, rows);
                total.merge(machine.set, &next);
            }
            // SAFETY: no two jobs have a row in common.
            unsafe { write(layer, job, &total, &y) };
        }
    });
}

/// What there is to do.
struct Plan {
    jobs: Vec<Job>,
    /// A job, and which of its pieces if not all.
    tasks: Vec<(usize, Option<usize>)>,
    /// Memory for the results of pieces.
    partial_len: usize,
}

impl Plan {
    fn new(layer: &impl Layer) -> Self {
        let mut plan = Self { jobs: Vec::new(), tasks: Vec::new(), partial_len: 0 };
        let (heads, group) = (layer.key_heads(), layer.group());
        for (span, Span { len, .. }) in layer.spans().iter().enumerate() {
            let few = len * group * heads <= FEW_ROWS;
            for key_head in 0..heads {
                // The last tokens see most: long tasks first.
                for start in (0..len * group).step_by(ROWS).rev() {
                    let rows = start..(len * group).min(start + ROWS);
                    let first = layer.seen(span, rows.start / group);
                    let last = layer.seen(span, (rows.end - 1) / group);
                    let seen = first.start..last.end;
                    plan.add(Job { span, key_head, rows, seen, partials: None }, few, layer.widths().1);
                }
            }
        }
        plan
    }

    fn add(&mut self, mut job: Job, split: bool, width: usize) {
        let index = self.jobs.len();
        if split {
            job.partials = Some(self.partial_len);
            self.partial_len += job.pieces().len() * Partial::len(job.rows.len(), width);
            self.tasks.extend(job.pieces().map(|piece| (index, Some(piece))));
        } else {
            self.tasks.push((index, None));
        }
        self.jobs.push(job);
    }
}

/// Memory of a task.
struct Memory<'a> {
    total: &'a mut [f32],
    partial: &'a mut [f32],
    scratch: &'a mut [f32],
}

/// Reads the queries of a job and calls `then` with them and memory to work in.
fn with_queries(
    machine: &Machine,
    layer: &impl Layer,
    job: &Job,
    then: impl FnOnce(&Queries<'_>, Memory<'_>),
) {
    let (key_width, value_width) = layer.widths();
    let (rows, group) = (job.rows.len(), layer.group());
    let partial = Partial::len(rows, value_width);
    let mut memory = machine.arena.take(rows * key_width + 2 * partial + scratch_len(key_width, value_width));
    let (q, rest) = memory.split_at_mut(rows * key_width);
    let (total, rest) = rest.split_at_mut(partial);
    let (partial, scratch) = rest.split_at_mut(partial);
    let row = layer.spans()[job.span].row;
    for (r, q) in job.rows.clone().zip(q.chunks_exact_mut(key_width)) {
        layer.query(row + r / group, job.key_head * group + r % group, q);
    }
    let seen: Vec<Range<usize>> = job.rows.clone().map(|r| layer.seen(job.span, r / group)).collect();
    then(&Queries { q, seen: &seen, soft_cap: layer.soft_cap() }, Memory { total, partial, scratch });
}

/// Writes the results of a job.
///
/// # Safety
/// Nobody else may write the rows of this job.
unsafe fn write(layer: &impl Layer, job: &Job, total: &Partial<'_>, y: &Parts<'_, f32>) {
    let (group, heads) = (layer.group(), layer.key_heads() * layer.group());
    let width = layer.widths().1;
    let row = layer.spans()[job.span].row;
    for (i, r) in job.rows.clone().enumerate() {
        let at = (row + r / group) * heads + job.key_head * group + r % group;
        // SAFETY: by the caller's promise.
        total.finish(i, unsafe { y.range(at * width, width) });
    }
}
