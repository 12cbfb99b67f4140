//! Random contents of tensors: cheap, addressable at any offset, the same for a seed on every machine.

use checkpoint::Float;
use half::bf16;

/// What a tensor is filled with. The ranges keep a random network's activations near 1, so that logits are finite and
/// differ, routing varies and recurrent memories neither vanish nor grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fill {
    /// Quantised codes, every one as likely as another: plain random words, whatever the width.
    Codes,
    /// Scales of groups: `step`, give or take a quarter.
    Scales {
        /// Distance of neighbouring codes.
        step: f32,
    },
    /// The biases that centre the groups of the same `step` around zero.
    Biases {
        /// As given to the scales.
        step: f32,
        /// Bits of a code.
        bits: u32,
    },
    /// Every value of a range alike.
    Uniform {
        /// Smallest value.
        low: f32,
        /// Largest value.
        high: f32,
    },
    /// `A_log` of a recurrent layer: rates from 1 to 16, as trained models start with.
    DecayRate,
    /// `dt_bias` of a recurrent layer: steps from 0.001 to 0.1 before the input has its say, as trained models start
    /// with. Together with the rates: memories of a few tokens to about a thousand.
    TimeStep,
}

impl Fill {
    /// Values of mean 0 and the given standard deviation.
    pub fn spread(deviation: f32) -> Fill {
        let end = deviation * 3f32.sqrt();
        Fill::Uniform { low: -end, high: end }
    }

    /// Values a quarter around `centre`: what learned factors look like.
    pub fn around(centre: f32) -> Fill {
        Fill::Uniform { low: 0.75 * centre, high: 1.25 * centre }
    }

    /// The distance of codes that gives dequantised values this standard deviation.
    pub fn step(deviation: f32, bits: u32) -> f32 {
        let levels = (1u32 << bits) as f32;
        deviation / ((levels * levels - 1.0) / 12.0).sqrt()
    }

    /// Writes the bytes of a tensor from byte `offset` on, a multiple of 8. Where a tensor is cut into blocks does not
    /// show in them. `float` is the type of the values; codes have none.
    pub fn write(self, stream: Stream, float: Float, offset: u64, block: &mut [u8]) {
        debug_assert!(offset.is_multiple_of(8));
        if self == Fill::Codes {
            for (i, bytes) in (offset / 8..).zip(block.chunks_mut(8)) {
                bytes.copy_from_slice(&stream.word(i).to_le_bytes()[..bytes.len()]);
            }
            return;
        }
        let width = float.bytes();
        for (i, bytes) in (offset / width as u64..).zip(block.chunks_mut(width)) {
            let value = self.value(stream.unit(i));
            match float {
                Float::F32 => bytes.copy_from_slice(&value.to_le_bytes()),
                Float::F16 => bytes.copy_from_slice(&half::f16::from_f32(value).to_le_bytes()),
                Float::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            }
        }
    }

    /// A value from a uniform draw of [0, 1).
    fn value(self, draw: f32) -> f32 {
        let between = |low: f32, high: f32| low + draw * (high - low);
        match self {
            Fill::Codes => 0.0,
            Fill::Scales { step } => step * between(0.75, 1.25),
            Fill::Biases { step, bits } => {
                // From the scale as it is stored: the centre should be that of the codes as read.
                let scale = bf16::from_f32(Fill::Scales { step }.value(draw)).to_f32();
                -scale * ((1u32 << bits) - 1) as f32 / 2.0
            }
            Fill::Uniform { low, high } => between(low, high),
            Fill::DecayRate => between(1.0, 16.0).ln(),
            // The inverse of softplus.
            Fill::TimeStep => between(0.001f32.ln(), 0.1f32.ln()).exp().exp_m1().ln(),
        }
    }
}

/// A sequence of random words, by position: SplitMix64 as a function of its counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream(u64);

impl Stream {
    /// The sequence of a seed and a name.
    pub fn new(seed: u64, name: &str) -> Stream {
        // FNV-1a.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Stream(mix(hash ^ mix(seed.wrapping_add(1))))
    }

    #[inline]
    fn word(self, i: u64) -> u64 {
        mix(self.0.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    #[inline]
    fn unit(self, i: u64) -> f32 {
        (self.word(i) >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// The finisher of SplitMix64.
#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(fill: Fill, float: Float, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill.write(Stream::new(7, "name"), float, 0, &mut bytes);
        bytes
    }

    #[test]
    fn blocks_do_not_show() {
        let scales = Fill::Scales { step: 0.1 };
        for (fill, float) in [(Fill::Codes, Float::F32), (scales, Float::Bf16), (Fill::DecayRate, Float::F32)]
        {
            let whole = bytes(fill, float, 100);
            for cut in [8, 16, 96] {
                let mut parts = vec![0; 100];
                let (head, tail) = parts.split_at_mut(cut);
                fill.write(Stream::new(7, "name"), float, 0, head);
                fill.write(Stream::new(7, "name"), float, cut as u64, tail);
                assert_eq!(parts, whole, "{fill:?} cut at {cut}");
            }
            let mut other = vec![0; 100];
            fill.write(Stream::new(8, "name"), float, 0, &mut other);
            assert_ne!(other, whole, "the seed matters");
            fill.write(Stream::new(7, "eman"), float, 0, &mut other);
            assert_ne!(other, whole, "the name matters");
        }
    }

    #[test]
    fn dequantised_values_have_the_wanted_spread() {
        const GROUP: usize = 64;
        for bits in [1u32, 2, 3, 4, 5, 6, 8] {
            let (groups, deviation) = (1000, 0.03);
            let step = Fill::step(deviation, bits);
            let codes = bytes(Fill::Codes, Float::F32, groups * GROUP / 8 * bits as usize);
            let scales = bytes(Fill::Scales { step }, Float::Bf16, 2 * groups);
            let biases = bytes(Fill::Biases { step, bits }, Float::Bf16, 2 * groups);
            let value = |i: usize| {
                let code: u32 = (0..bits as usize)
                    .map(|b| (i * bits as usize + b, b))
                    .map(|(at, b)| u32::from(codes[at / 8] >> (at % 8) & 1) << b)
                    .sum();
                code as f32 * Float::Bf16.get(&scales, i / GROUP) + Float::Bf16.get(&biases, i / GROUP)
            };
            let n = groups * GROUP;
            let mean = (0..n).map(value).sum::<f32>() / n as f32;
            let variance = (0..n).map(|i| value(i).powi(2)).sum::<f32>() / n as f32;
            assert!(mean.abs() < 0.02 * deviation, "{bits} bits: mean {mean}");
            assert!((variance.sqrt() / deviation - 1.0).abs() < 0.05, "{bits} bits: variance {variance}");
        }
    }

    #[test]
    fn ranges_hold() {
        for (fill, low, high) in [
            (Fill::around(2.0), 1.5, 2.5),
            (Fill::DecayRate, 0.0, 16f32.ln()),
            (Fill::TimeStep, 0.001f32.exp_m1().ln(), 0.1f32.exp_m1().ln()),
        ] {
            let values = bytes(fill, Float::F32, 4000);
            let values: Vec<f32> = (0..1000).map(|i| Float::F32.get(&values, i)).collect();
            let (min, max) = values.iter().fold((f32::MAX, f32::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
            assert!(min >= low - 1e-3 && max <= high + 1e-3, "{fill:?}: {min}..{max}");
            assert!(max - min > 0.9 * (high - low), "{fill:?}: {min}..{max}");
        }
    }
}
