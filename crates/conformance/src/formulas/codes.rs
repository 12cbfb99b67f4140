//! What a cache of codes keeps of a row.

use backend::CacheFloat;
use half::f16;

/// `code * s` for every group of a row: `s` the least half with `127 s >= max |v|`, `code = round(v / s)`, ties to even.
pub fn rounded(row: &[f32]) -> Vec<f64> {
    row.chunks(CacheFloat::GROUP).flat_map(group).collect()
}

fn group(values: &[f32]) -> Vec<f64> {
    let largest = values.iter().fold(0.0, |m, v| f64::from(v.abs()).max(m));
    // Positive halves are in the order of their bits.
    let enough = |bits: u16| 127.0 * f16::from_bits(bits).to_f64() >= largest;
    let mut bits = f16::from_f64(largest / 127.0).to_bits();
    while bits > 0 && enough(bits - 1) {
        bits -= 1;
    }
    while !enough(bits) {
        bits += 1;
    }
    let s = f16::from_bits(bits).to_f64();
    let kept = |v: &f32| if s == 0.0 { 0.0 } else { (f64::from(*v) / s).round_ties_even() * s };
    values.iter().map(kept).collect()
}
