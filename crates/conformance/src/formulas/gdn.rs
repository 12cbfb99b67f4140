//! Gated DeltaNet, token by token.

use backend::GdnShape;

use super::{dot, sigmoid, silu};
use crate::host::Rows;

/// Causal convolution of a whole sequence that starts with an empty window, then SiLU.
pub fn conv(x: &Rows, taps: &Rows) -> Rows {
    let kernel = taps[0].len();
    let at = |t: usize, c: usize| {
        // Tap j sees input t - (kernel - 1) + j; before the sequence there are zeros.
        let seen = (0..kernel).filter(|j| t + j + 1 >= kernel);
        silu(seen.map(|j| taps[c][j] * x[t + j + 1 - kernel][c]).sum())
    };
    (0..x.len()).map(|t| (0..taps.len()).map(|c| at(t, c)).collect()).collect()
}

/// `rms(q) / dk` and `rms(k) / sqrt(dk)`, the eps of the mean being `1e-6 / dk`.
pub fn qk_norm(qkv: &Rows, shape: &GdnShape) -> Rows {
    let dk = shape.key_dim as f64;
    let mut y = qkv.clone();
    for row in &mut y {
        for (i, head) in row[..2 * shape.key_total()].chunks_exact_mut(shape.key_dim).enumerate() {
            let mean = head.iter().map(|v| v * v).sum::<f64>() / dk;
            let divisor = if i < shape.key_heads { dk } else { dk.sqrt() };
            head.iter_mut().for_each(|v| *v /= (mean + 1e-6 / dk).sqrt() * divisor);
        }
    }
    y
}

/// `exp(-exp(a_log) * softplus(a + dt_bias))`
pub fn decay(a: &Rows, a_log: &[f64], dt_bias: &[f64]) -> Rows {
    let softplus = |x: f64| if x > 500.0 { x } else { x.exp().ln_1p() };
    let one = |h: usize, a: f64| (-a_log[h].exp() * softplus(a + dt_bias[h])).exp();
    a.iter().map(|row| row.iter().enumerate().map(|(h, a)| one(h, *a)).collect()).collect()
}

/// `sigmoid(b)`
pub fn beta(b: &Rows) -> Rows {
    b.iter().map(|row| row.iter().map(|b| sigmoid(*b)).collect()).collect()
}

/// The recurrence over a sequence; returns `y` and leaves the state `[value_head][dv][dk]` behind.
pub fn recurrence(qkv: &Rows, g: &Rows, beta: &Rows, shape: &GdnShape, state: &mut Vec<Rows>) -> Rows {
    let (dk, dv) = (shape.key_dim, shape.value_dim);
    state.resize(shape.value_heads, vec![vec![0.0; dk]; dv]);
    let mut y = Vec::new();
    for (t, row) in qkv.iter().enumerate() {
        let (q, rest) = row.split_at(shape.key_total());
        let (k, v) = rest.split_at(shape.key_total());
        let mut out = Vec::new();
        for (h, s) in state.iter_mut().enumerate() {
            let key_head = h / (shape.value_heads / shape.key_heads);
            let (q, k) = (&q[key_head * dk..][..dk], &k[key_head * dk..][..dk]);
            for (s, v) in s.iter_mut().zip(&v[h * dv..][..dv]) {
                s.iter_mut().for_each(|s| *s *= g[t][h]);
                let u = (v - dot(s, k)) * beta[t][h];
                s.iter_mut().zip(k).for_each(|(s, k)| *s += u * k);
                out.push(dot(s, q));
            }
        }
        y.push(out);
    }
    y
}
