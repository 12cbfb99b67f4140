//! The largest values of a row.

use std::cmp::Ordering;

/// Values that are compared together.
const BLOCK: usize = 32;

/// Larger values first, ties to the lower column; what is not a number comes before all others.
fn larger_first(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.is_nan().cmp(&a.1.is_nan()).then(b.1.total_cmp(&a.1)).then(a.0.cmp(&b.0))
}

/// The `k` largest values with their columns, largest first, ties to the lower column; what is not a number comes before
/// all others.
///
/// Holds at most 2k of them at a time: most of a vocabulary is below the k-th largest seen so far and is passed over with
/// one comparison, many at a time.
pub fn largest(row: &[f32], k: usize) -> Vec<(u32, f32)> {
    let mut found = Vec::new();
    if k == 0 {
        return found;
    }
    let room = k.saturating_mul(2).max(64);
    let mut floor = f32::NEG_INFINITY;
    for (block, values) in row.chunks(BLOCK).enumerate() {
        // Columns ascend, so a later one with the same value as the k-th loses the tie anyway. Not `any`, which would look at
        // one after the other.
        let above = values.iter().fold(false, |above, value| above | (*value > floor) | value.is_nan());
        if !above && found.len() >= k {
            continue;
        }
        for (i, &value) in values.iter().enumerate() {
            if value > floor || value.is_nan() || found.len() < k {
                found.push(((block * BLOCK + i) as u32, value));
                if found.len() == room {
                    let (_, kth, _) = found.select_nth_unstable_by(k - 1, larger_first);
                    floor = if kth.1.is_nan() { f32::INFINITY } else { kth.1 };
                    found.truncate(k);
                }
            }
        }
    }
    found.sort_unstable_by(larger_first);
    found.truncate(k);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_many() {
        let row: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 500) as f32).collect();
        let mut all: Vec<(u32, f32)> = row.iter().copied().enumerate().map(|(i, v)| (i as u32, v)).collect();
        all.sort_by(larger_first);
        for k in [0, 1, 2, 40, 999, 1000, 2000] {
            assert_eq!(largest(&row, k), all[..k.min(1000)]);
        }
        assert_eq!(largest(&[1.0, f32::NAN, 2.0], 1)[0].0, 1);
    }
}
