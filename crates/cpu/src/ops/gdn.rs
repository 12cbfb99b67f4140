//! Gated DeltaNet.

use std::ops::Range;

use ::backend::{GdnShape, GdnVectors, Span};

use super::norm::inverse_root;
use super::{sigmoid, silu_lane};
use crate::kernels::Set;
use crate::pool::Parts;
use crate::slabs::{ROWS, State, Window, head_len};
use crate::vector::{Arch, vectorised};
use crate::{Machine, Tensor};

/// Tokens that go through convolution, norm and recurrence together: what they need stays in the second cache.
const TOKENS: usize = 32;

/// The input that a tap of the convolution meets at token `t` of the rows `x`.
fn input<'a>(x: &'a [f32], past: &'a Window<'_>, t: usize, tap: usize) -> &'a [f32] {
    match (t + tap + 1).checked_sub(past.kernel()) {
        Some(row) => &x[row * past.channels()..][..past.channels()],
        None => past.input(t + tap),
    }
}

/// Channels `start..start + y.len()` of the convolution at token `t`; `taps` is `[kernel][channels]`.
fn conv_row(set: Set, x: &[f32], taps: &[f32], past: &Window<'_>, t: usize, start: usize, y: &mut [f32]) {
    let of_tap = |tap: usize| [&taps[tap * past.channels() + start..], &input(x, past, t, tap)[start..]];
    if past.kernel() == 4 {
        return conv_four(set, [of_tap(0), of_tap(1), of_tap(2), of_tap(3)], y);
    }
    y.fill(0.0);
    (0..past.kernel()).for_each(|tap| conv_tap(set, of_tap(tap), y));
    silu_all(set, y);
}

vectorised! {
    fn conv_four<A>(taps: [[&[f32]; 2]; 4], y: &mut [f32]) {
        let n = y.len();
        let [a, b, c, d] = [taps[0][0], taps[1][0], taps[2][0], taps[3][0]].map(|w| &w[..n]);
        let [p, q, r, s] = [taps[0][1], taps[1][1], taps[2][1], taps[3][1]].map(|x| &x[..n]);
        for i in 0..n {
            let sum = A::fma(d[i], s[i], A::fma(c[i], r[i], A::fma(b[i], q[i], a[i] * p[i])));
            y[i] = silu_lane::<A>(sum);
        }
    }
}

vectorised! {
    fn conv_tap<A>(tap: [&[f32]; 2], y: &mut [f32]) {
        for ((y, w), x) in y.iter_mut().zip(tap[0]).zip(tap[1]) {
            *y = A::fma(*w, *x, *y);
        }
    }
}

vectorised! {
    fn silu_all<A>(y: &mut [f32]) {
        y.iter_mut().for_each(|y| *y = silu_lane::<A>(*y));
    }
}

/// Causal convolution and SiLU over the rows `x` of one span; the window moves on. `taps` is `[kernel][channels]`.
pub(crate) fn conv_causal(machine: &Machine, x: &[f32], taps: &[f32], past: &mut Window<'_>, y: &mut [f32]) {
    let channels = past.channels();
    let window = &*past;
    machine.rows(y, channels, |first, rows| {
        for (i, y) in rows.chunks_exact_mut(channels).enumerate() {
            conv_row(machine.set, x, taps, window, first + i, 0, y);
        }
    });
    past.advance(x);
}

/// Normalises query heads, with the scale they carry, or key heads in place.
fn normalise(set: Set, heads: &mut [f32], dk: usize, scale: f32) {
    for head in heads.chunks_exact_mut(dk) {
        let factor = scale * inverse_root(set, head, 1.0, 1e-6);
        head.iter_mut().for_each(|v| *v *= factor);
    }
}

/// The scale that queries carry.
fn query_scale(dk: usize) -> f32 {
    (1.0 / (dk as f64).sqrt()) as f32
}

/// Normalises the query and key heads of every row of `[q | k | v]` in place.
pub(crate) fn qk_norm(machine: &Machine, qkv: &mut [f32], shape: &GdnShape) {
    machine.rows(qkv, shape.channels(), |_, rows| {
        for row in rows.chunks_exact_mut(shape.channels()) {
            let (q, rest) = row.split_at_mut(shape.key_total());
            normalise(machine.set, q, shape.key_dim, query_scale(shape.key_dim));
            normalise(machine.set, &mut rest[..shape.key_total()], shape.key_dim, 1.0);
        }
    });
}

/// `ln(1 + exp(x))` without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn decay(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    (-a_log.exp() * softplus(a + dt_bias)).exp()
}

/// Decay and write strength of every value head.
pub(crate) fn gates(machine: &Machine, [a, b, a_log, dt_bias]: [&[f32]; 4], [g, beta]: [&mut [f32]; 2]) {
    let heads = a_log.len();
    machine.rows(g, heads, |first, rows| {
        for (i, (g, a)) in rows.iter_mut().zip(&a[first * heads..]).enumerate() {
            *g = decay(*a, a_log[i % heads], dt_bias[i % heads]);
        }
    });
    beta.iter_mut().zip(b).for_each(|(beta, b)| *beta = sigmoid(*b));
}

/// Some tokens of one value head.
struct Steps<'a> {
    /// Rows that hold query, key and value at these places.
    rows: &'a [f32],
    stride: usize,
    q: usize,
    k: usize,
    v: usize,
    /// Decay and write strength of each token.
    g: &'a [f32],
    beta: &'a [f32],
}

/// Runs one head over some tokens; `write(t, first row of the block, values)` takes the results. `out` is memory for as many.
fn run_head(
    set: Set,
    shape: &GdnShape,
    head: &mut [f32],
    steps: &Steps<'_>,
    out: &mut [[f32; ROWS]],
    mut write: impl FnMut(usize, usize, &[f32]),
) {
    let (dk, dv) = (shape.key_dim, shape.value_dim);
    for (block, state) in head.chunks_exact_mut(dk * ROWS).enumerate() {
        let first = block * ROWS;
        let width = ROWS.min(dv - first);
        let out = &mut out[..steps.g.len()];
        block_steps(set, state, dk, steps, first, width, out);
        out.iter().enumerate().for_each(|(t, y)| write(t, first, &y[..width]));
    }
}

vectorised! {
    /// The recurrence on one block of rows: `u = (v - g S k) beta; S = g S + u k^T; y = S q`.
    fn block_steps<A>(
        state: &mut [f32],
        dk: usize,
        steps: &Steps<'_>,
        first: usize,
        width: usize,
        out: &mut [[f32; ROWS]],
    ) {
        let (state, _) = state.as_chunks_mut::<ROWS>();
        for (t, out) in out.iter_mut().enumerate() {
            let row = &steps.rows[t * steps.stride..];
            let (q, k) = (&row[steps.q..][..dk], &row[steps.k..][..dk]);
            let (g, beta) = (steps.g[t], steps.beta[t]);
            let mut u = [0.0; ROWS];
            u[..width].copy_from_slice(&row[steps.v + first..][..width]);
            let known = recall::<A>(state, k);
            for i in 0..ROWS {
                u[i] = A::fma(-g, known[i], u[i]) * beta;
            }
            *out = update::<A>(state, k, q, g, &u);
        }
    }
}

/// `S k`. Four sums side by side: one alone would wait for itself.
#[inline(always)]
fn recall<A: Arch>(state: &[[f32; ROWS]], k: &[f32]) -> [f32; ROWS] {
    let mut sums = [[0.0f32; ROWS]; 4];
    let (fours, rest) = state.as_chunks::<4>();
    let (k_fours, k_rest) = k.as_chunks::<4>();
    for (s, k) in fours.iter().zip(k_fours) {
        for j in 0..4 {
            for i in 0..ROWS {
                sums[j][i] = A::fma(s[j][i], k[j], sums[j][i]);
            }
        }
    }
    for (s, k) in rest.iter().zip(k_rest) {
        for i in 0..ROWS {
            sums[0][i] = A::fma(s[i], *k, sums[0][i]);
        }
    }
    total(&sums)
}

/// `S = g S + u k^T`, returns `S q`.
#[inline(always)]
fn update<A: Arch>(state: &mut [[f32; ROWS]], k: &[f32], q: &[f32], g: f32, u: &[f32; ROWS]) -> [f32; ROWS] {
    let mut sums = [[0.0f32; ROWS]; 4];
    let (fours, rest) = state.as_chunks_mut::<4>();
    let (k_fours, k_rest) = k.as_chunks::<4>();
    let (q_fours, q_rest) = q.as_chunks::<4>();
    for ((s, k), q) in fours.iter_mut().zip(k_fours).zip(q_fours) {
        // In a copy, so that the compiler need not ask what else lies at `s`.
        let mut rows = *s;
        for j in 0..4 {
            for i in 0..ROWS {
                rows[j][i] = A::fma(u[i], k[j], g * rows[j][i]);
            }
        }
        for j in 0..4 {
            for i in 0..ROWS {
                sums[j][i] = A::fma(rows[j][i], q[j], sums[j][i]);
            }
        }
        *s = rows;
    }
    for ((s, k), q) in rest.iter_mut().zip(k_rest).zip(q_rest) {
        for i in 0..ROWS {
            s[i] = A::fma(u[i], *k, g * s[i]);
            sums[0][i] = A::fma(s[i], *q, sums[0][i]);
        }
    }
    total(&sums)
}

#[inline(always)]
fn total(sums: &[[f32; ROWS]; 4]) -> [f32; ROWS] {
    let mut total = [0.0; ROWS];
    for i in 0..ROWS {
        total[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    }
    total
}

/// The recurrence over the rows of one span. Value heads are independent, and so are the rows of a head's matrix.
pub(crate) fn recurrence(
    machine: &Machine,
    qkv: &[f32],
    [g, beta]: [&[f32]; 2],
    shape: GdnShape,
    matrices: &mut [f32],
    y: &mut [f32],
) {
    let GdnShape { value_heads: heads, key_dim: dk, value_dim: dv, .. } = shape;
    let (keys, channels) = (shape.key_total(), shape.channels());
    let n = g.len() / heads;
    let y = Parts::new(y);
    machine.pool.pieces(matrices, head_len(&shape), |h, head| {
        let key_head = h / (heads / shape.key_heads);
        for start in (0..n).step_by(TOKENS) {
            let len = TOKENS.min(n - start);
            let of_head = |x: &[f32]| {
                std::array::from_fn::<f32, TOKENS, _>(|t| x[(start + t.min(len - 1)) * heads + h])
            };
            let steps = Steps {
                rows: &qkv[start * channels..],
                stride: channels,
                q: key_head * dk,
                k: keys + key_head * dk,
                v: 2 * keys + h * dv,
                g: &of_head(g)[..len],
                beta: &of_head(beta)[..len],
            };
            run_head(machine.set, &shape, head, &steps, &mut [[0.0; ROWS]; TOKENS], |t, first, values| {
                // SAFETY: this head's part of this token's row; heads are different tasks.
                let y = unsafe { y.range(((start + t) * heads + h) * dv + first, values.len()) };
                y.copy_from_slice(values);
            });
        }
    });
}

/// One span on its way through a layer's core.
struct Part<'a> {
    rows: Span,
    past: &'a Window<'a>,
    /// The recurrent matrices of all heads.
    matrices: Parts<'a, f32>,
}

/// Whether spans are whole tasks: where they are many and short, to hand out their heads one by one takes longer than the work.
fn whole(machine: &Machine, spans: &[Span]) -> bool {
    const TASKS: usize = 4;
    const SHORT: usize = 4;
    spans.iter().filter(|span| span.len <= SHORT).count() >= TASKS * machine.pool.threads()
}

/// A whole layer's core, from `[q | k | v]`, `a` and `b` to `y`. A task takes a key head and the value heads that read it through
/// everything, so that nothing in between leaves its caches.
pub(crate) fn gated_delta(
    machine: &Machine,
    [x, a, b]: [&[f32]; 3],
    shape: &GdnShape,
    vectors: &GdnVectors<Tensor>,
    spans: &[Span],
    states: &mut [State<'_>],
    y: &mut [f32],
) {
    let shape = *shape;
    let taps = &*vectors.conv.turned(machine.set);
    let layer = Layer { machine, shape, x, a, b, taps, vectors, y: Parts::new(y) };
    let parts: Vec<Part<'_>> = (spans.iter().zip(&mut *states))
        .map(|(span, state)| {
            let State { window, matrices } = state;
            Part { rows: *span, past: window, matrices: Parts::new(matrices) }
        })
        .collect();
    let whole = whole(machine, spans);
    let mut tasks: Vec<(usize, Range<usize>)> = Vec::new();
    for (i, span) in spans.iter().enumerate() {
        let heads = if whole && span.len < TOKENS { shape.key_heads } else { 1 };
        tasks.extend((0..shape.key_heads).step_by(heads).map(|head| (i, head..head + heads)));
    }
    // Long ones first, so that threads end together.
    tasks.sort_by_key(|(i, _)| std::cmp::Reverse(spans[*i].len));
    machine.pool.run(tasks.len(), |task| {
        let (i, heads) = &tasks[task];
        // SAFETY: every head of every span is in one task.
        heads.clone().for_each(|head| unsafe { layer.key_head(&parts[*i], head) });
    });
    let mut windows: Vec<_> = spans.iter().zip(states).collect();
    machine.pool.pieces(&mut windows, WINDOWS, |_, some| {
        for (span, state) in some {
            let channels = shape.channels();
            state.window.advance(&x[span.row * channels..][..span.len * channels]);
        }
    });
}

/// Spans whose windows a task moves on.
const WINDOWS: usize = 8;

/// What all tasks of a layer's core share.
struct Layer<'a> {
    machine: &'a Machine,
    shape: GdnShape,
    x: &'a [f32],
    a: &'a [f32],
    b: &'a [f32],
    taps: &'a [f32],
    vectors: &'a GdnVectors<Tensor>,
    y: Parts<'a, f32>,
}

impl Layer<'_> {
    /// One key head of one span, and the value heads that read it.
    ///
    /// # Safety
    /// Nobody else may work on this head of this span.
    unsafe fn key_head(&self, part: &Part<'_>, key_head: usize) {
        let Self { machine, shape, taps, vectors, .. } = self;
        let GdnShape { key_heads, value_heads: heads, key_dim: dk, value_dim: dv, .. } = *shape;
        let (keys, per_key) = (shape.key_total(), heads / key_heads);
        let (a_log, dt_bias) = (vectors.a_log.values(), vectors.dt_bias.values());
        let Span { row: first_row, len: n, .. } = part.rows;
        let x = &self.x[first_row * shape.channels()..][..n * shape.channels()];
        let width = 2 * dk + per_key * dv;
        let len = per_key * head_len(shape);
        // SAFETY: by the caller's promise.
        let matrices = unsafe { part.matrices.range(key_head * len, len) };
        let mut memory = machine.arena.take(TOKENS.min(n) * (width + ROWS));
        let (memory, out) = memory.split_at_mut(TOKENS.min(n) * width);
        let out = out.as_chunks_mut::<ROWS>().0;
        for start in (0..n).step_by(TOKENS) {
            let len = TOKENS.min(n - start);
            for (t, row) in memory.chunks_exact_mut(width).enumerate().take(len) {
                let (q, rest) = row.split_at_mut(dk);
                let (k, v) = rest.split_at_mut(dk);
                let parts = [
                    (key_head * dk, &mut *q),
                    (keys + key_head * dk, &mut *k),
                    (2 * keys + key_head * per_key * dv, v),
                ];
                parts
                    .into_iter()
                    .for_each(|(at, y)| conv_row(machine.set, x, taps, part.past, start + t, at, y));
                normalise(machine.set, q, dk, query_scale(dk));
                normalise(machine.set, k, dk, 1.0);
            }
            for (i, head) in matrices.chunks_exact_mut(head_len(shape)).enumerate() {
                let h = key_head * per_key + i;
                let (mut g, mut beta) = ([0.0; TOKENS], [0.0; TOKENS]);
                for t in 0..len {
                    let at = (first_row + start + t) * heads + h;
                    (g[t], beta[t]) = (decay(self.a[at], a_log[h], dt_bias[h]), sigmoid(self.b[at]));
                }
                let (g, beta) = (&g[..len], &beta[..len]);
                let steps = Steps { rows: memory, stride: width, q: 0, k: dk, v: 2 * dk + i * dv, g, beta };
                run_head(machine.set, shape, head, &steps, out, |t, first, values| {
                    let at = ((first_row + start + t) * heads + h) * dv + first;
                    // SAFETY: this head's part of this token's row, which is the caller's.
                    let y = unsafe { self.y.range(at, values.len()) };
                    y.copy_from_slice(values);
                });
            }
        }
    }
}
