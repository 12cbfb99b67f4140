//! The oracle: every operation's formula in f64, in plain loops, from the specification alone. Nothing here is shared
//! with a backend.

pub mod attention;
pub mod codes;
pub mod decode;
pub mod gdn;
pub mod moe;
pub mod norms;
pub mod positions;
pub mod products;

use backend::Activation;

/// `1 / (1 + exp(-x))`
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x * sigmoid(x)`
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// The non-linearity of a gated unit.
pub fn act(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => silu(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

/// `sum_i a[i] b[i]`
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `exp(s) / sum exp(s)`, shifted by the largest.
pub fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|e| e / sum).collect()
}
