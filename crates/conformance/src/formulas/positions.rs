//! Rotary positions.

use std::f64::consts::PI;

use backend::{Pairing, YarnSpec};

use crate::host::Rows;

/// Turns the first `2 * inv_freq.len()` channels of each head of `width`; row `t` sits at `positions[t]`.
pub fn rope(
    x: &Rows,
    positions: &[usize],
    width: usize,
    inv_freq: &[f64],
    pairing: Pairing,
    factor: f64,
) -> Rows {
    let mut y = x.clone();
    for (row, position) in y.iter_mut().zip(positions) {
        for head in row.chunks_exact_mut(width) {
            for (i, frequency) in inv_freq.iter().enumerate() {
                let angle = *position as f64 * frequency;
                let (first, second) = match pairing {
                    Pairing::Halves => (i, i + inv_freq.len()),
                    Pairing::Interleaved => (2 * i, 2 * i + 1),
                };
                let (a, b) = (head[first], head[second]);
                head[first] = factor * (a * angle.cos() - b * angle.sin());
                head[second] = factor * (b * angle.cos() + a * angle.sin());
            }
        }
    }
    y
}

/// `1 / theta^(2i / dim)`
pub fn plain(dim: usize, theta: f64) -> Vec<f64> {
    (0..dim / 2).map(|i| 1.0 / theta.powf((2 * i) as f64 / dim as f64)).collect()
}

/// YaRN as its paper has it, by wavelengths: a pair that turns often over the original context keeps its frequency,
/// one that turns rarely is slowed down by the factor, those between are mixed.
pub fn yarn(dim: usize, theta: f64, yarn: &YarnSpec) -> Vec<f64> {
    // Real-valued index of the pair that makes `turns` turns: theta^(2i/dim) = context / (2 pi turns).
    let pair = |turns: f64| {
        let wavelength = yarn.original_context / turns;
        (wavelength / (2.0 * PI)).log(theta) * dim as f64 / 2.0
    };
    let low = f64::max(pair(yarn.beta_fast).floor(), 0.0);
    let high = f64::min(pair(yarn.beta_slow).ceil(), (dim - 1) as f64);
    let mix = |(i, keep): (usize, f64)| {
        let slow = keep / yarn.factor;
        let share = match i as f64 {
            i if i <= low => 0.0,
            i if i >= high => 1.0,
            i => (i - low) / (high - low),
        };
        slow * share + keep * (1.0 - share)
    };
    plain(dim, theta).into_iter().enumerate().map(mix).collect()
}

/// YaRN's factor on cos and sin.
pub fn yarn_factor(yarn: &YarnSpec) -> f64 {
    let mscale = |m: f64| if yarn.factor > 1.0 { 1.0 + 0.1 * m * yarn.factor.ln() } else { 1.0 };
    mscale(yarn.mscale) / mscale(yarn.mscale_all_dim)
}
