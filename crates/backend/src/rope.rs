//! Rotary positions: which angle each channel pair turns per position.

use crate::Handle;

/// Which channels form a rotated pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pairing {
    /// `(i, i + half)`: Qwen, Gemma.
    Halves,
    /// `(2i, 2i + 1)`: DeepSeek.
    Interleaved,
}

/// A rotary embedding: the first `2 * inv_freq.len()` channels of each head turn, the rest stay.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeSpec {
    /// Radians per position for each pair. In f64, because angles reach tens of thousands of radians and a rounded
    /// frequency is multiplied by the position.
    pub inv_freq: Vec<f64>,
    /// Which channels form a pair.
    pub pairing: Pairing,
    /// Factor on cos and sin (YaRN's mscale); 1 otherwise.
    pub factor: f64,
}

/// Parameters of YaRN's context extension.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct YarnSpec {
    /// How much longer the context becomes.
    pub factor: f64,
    /// Context the model was trained with.
    pub original_context: f64,
    /// Rotations above which a frequency is kept as it is.
    pub beta_fast: f64,
    /// Rotations below which a frequency is divided by the factor.
    pub beta_slow: f64,
    /// Attention temperature, and the part of it that the attention scale carries instead.
    pub mscale: f64,
    /// See `mscale`.
    pub mscale_all_dim: f64,
}

impl YarnSpec {
    /// `0.1 m ln(factor) + 1`, or 1 when the context is not extended.
    pub fn temperature(&self, m: f64) -> f64 {
        if self.factor <= 1.0 { 1.0 } else { 0.1 * m * self.factor.ln() + 1.0 }
    }
}

impl RopeSpec {
    /// `inv_freq[i] = theta^(-2i / dim)` for the `dim / 2` pairs of a head's first `dim` channels.
    pub fn plain(dim: usize, theta: f64, pairing: Pairing) -> Self {
        let inv_freq = (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect();
        Self { inv_freq, pairing, factor: 1.0 }
    }

    /// The plain frequencies divided by `factor`: linear position interpolation.
    pub fn linear(dim: usize, theta: f64, pairing: Pairing, factor: f64) -> Self {
        let mut spec = Self::plain(dim, theta, pairing);
        spec.inv_freq.iter_mut().for_each(|f| *f /= factor);
        spec
    }

    /// YaRN: between the pairs that turn `beta_fast` and `beta_slow` times over the original context, the frequency
    /// goes over from the plain one to the interpolated one, `inv = plain * ((1 - r) + r / factor)`, `r` a linear ramp.
    pub fn yarn(dim: usize, theta: f64, pairing: Pairing, yarn: &YarnSpec) -> Self {
        let pair_turning = |rotations: f64| {
            dim as f64 * (yarn.original_context / (rotations * std::f64::consts::TAU)).ln()
                / (2.0 * theta.ln())
        };
        let low = pair_turning(yarn.beta_fast).floor().max(0.0);
        let mut high = pair_turning(yarn.beta_slow).ceil().min(dim as f64 - 1.0);
        if low == high {
            high += 0.001;
        }
        let mut spec = Self::plain(dim, theta, pairing);
        for (i, f) in spec.inv_freq.iter_mut().enumerate() {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            *f *= (1.0 - ramp) + ramp / yarn.factor;
        }
        spec.factor = yarn.temperature(yarn.mscale) / yarn.temperature(yarn.mscale_all_dim);
        spec
    }

    /// Gemma's global layers: the frequencies of a head of `dim` channels, of which only the first `rotated / 2` pairs
    /// turn. With paired halves the turning channels are not the first ones, so the others turn by zero.
    pub fn proportional(dim: usize, rotated: usize, theta: f64, pairing: Pairing, factor: f64) -> Self {
        let mut spec = Self::plain(dim, theta, pairing);
        for (i, f) in spec.inv_freq.iter_mut().enumerate() {
            *f = if i < rotated / 2 { *f / factor } else { 0.0 };
        }
        spec
    }

    /// Channels of each head that take part.
    pub fn rotary_dim(&self) -> usize {
        2 * self.inv_freq.len()
    }
}

impl Handle for RopeSpec {
    type Shape = usize;

    fn shape(&self) -> usize {
        self.rotary_dim()
    }
}
