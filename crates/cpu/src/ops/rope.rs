//! Rotary positions.

use std::sync::{Arc, Mutex, PoisonError};

use ::backend::{Pairing, RopeSpec, Span};

use crate::Machine;
use crate::arena::Buffer;
use crate::vector::vectorised;

/// Sines and cosines of the positions of one batch, `[row][cos.., sin..]`.
struct Table {
    spec: RopeSpec,
    turns: Buffer,
}

/// The tables of a batch: angles are costly, and all layers with one embedding turn by the same.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Vec<Arc<Table>>>);

impl Turns {
    fn table(&self, machine: &Machine, spec: &RopeSpec, spans: &[Span]) -> Arc<Table> {
        // A panic leaves no half-made table in the list.
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.iter().find(|table| table.spec == *spec) {
            return table.clone();
        }
        let table = Arc::new(Table { spec: spec.clone(), turns: turns(machine, spec, spans) });
        tables.push(table.clone());
        table
    }
}

fn turns(machine: &Machine, spec: &RopeSpec, spans: &[Span]) -> Buffer {
    let width = spec.rotary_dim();
    let positions: Vec<usize> = spans.iter().flat_map(|s| s.position..s.position + s.len).collect();
    let mut turns = machine.arena.take(positions.len() * width);
    if width > 0 {
        // An angle takes as long as some tens of other values.
        let together = 1024usize.div_ceil(width);
        machine.pool.pieces(&mut turns, together * width, |i, rows| {
            let first = i * together;
            for (row, position) in rows.chunks_exact_mut(width).zip(&positions[first..]) {
                let (cos, sin) = row.split_at_mut(width / 2);
                for ((cos, sin), f) in cos.iter_mut().zip(sin).zip(&spec.inv_freq) {
                    let (s, c) = (*position as f64 * f).sin_cos();
                    (*cos, *sin) = ((c * spec.factor) as f32, (s * spec.factor) as f32);
                }
            }
        });
    }
    turns
}

/// Turns the channels of every head in place.
pub(crate) fn rope(
    machine: &Machine,
    x: &mut [f32],
    cols: usize,
    head: usize,
    spec: &RopeSpec,
    turns: &Turns,
    spans: &[Span],
) {
    let width = spec.rotary_dim();
    if width == 0 {
        return;
    }
    let table = turns.table(machine, spec, spans);
    machine.rows(x, cols, |first, rows| {
        for (row, turns) in rows.chunks_exact_mut(cols).zip(table.turns[first * width..].chunks_exact(width))
        {
            match spec.pairing {
                Pairing::Halves => turn_halves(machine.set, row, head, turns),
                Pairing::Interleaved => turn_neighbours(machine.set, row, head, turns),
            }
        }
    });
}

vectorised! {
    fn turn_halves<A>(row: &mut [f32], head: usize, turns: &[f32]) {
        let half = turns.len() / 2;
        let (cos, sin) = turns.split_at(half);
        for slice in row.chunks_exact_mut(head) {
            let (a, b) = slice[..2 * half].split_at_mut(half);
            for ((a, b), (cos, sin)) in a.iter_mut().zip(b).zip(cos.iter().zip(sin)) {
                (*a, *b) = (A::fma(*a, *cos, -(*b * sin)), A::fma(*a, *sin, *b * cos));
            }
        }
    }
}

vectorised! {
    fn turn_neighbours<A>(row: &mut [f32], head: usize, turns: &[f32]) {
        let half = turns.len() / 2;
        let (cos, sin) = turns.split_at(half);
        for slice in row.chunks_exact_mut(head) {
            let (pairs, _) = slice.as_chunks_mut::<2>();
            for ([a, b], (cos, sin)) in pairs.iter_mut().zip(cos.iter().zip(sin)) {
                (*a, *b) = (A::fma(*a, *cos, -(*b * sin)), A::fma(*a, *sin, *b * cos));
            }
        }
    }
}
