//! Rotary positions.

use ::backend::{Pairing, RopeSpec, Span};
use rayon::prelude::*;

/// Turns the channels of every head in place.
pub(crate) fn rope(x: &mut [f32], cols: usize, head: usize, spec: &RopeSpec, spans: &[Span]) {
    for span in spans {
        let rows = &mut x[span.row * cols..(span.row + span.len) * cols];
        rows.par_chunks_exact_mut(cols)
            .enumerate()
            .for_each(|(i, row)| turn_row(row, head, spec, span.position + i));
    }
}

fn turn_row(row: &mut [f32], head: usize, spec: &RopeSpec, position: usize) {
    let half = spec.inv_freq.len();
    let turns: Vec<(f32, f32)> = spec
        .inv_freq
        .iter()
        .map(|f| {
            let (sin, cos) = (position as f64 * f).sin_cos();
            ((sin * spec.factor) as f32, (cos * spec.factor) as f32)
        })
        .collect();
    for slice in row.chunks_exact_mut(head) {
        for (i, (sin, cos)) in turns.iter().enumerate() {
            let (a, b) = match spec.pairing {
                Pairing::Halves => (i, i + half),
                Pairing::Interleaved => (2 * i, 2 * i + 1),
            };
            let (x, y) = (slice[a], slice[b]);
            slice[a] = x * cos - y * sin;
            slice[b] = x * sin + y * cos;
        }
    }
}
