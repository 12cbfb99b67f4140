//! Seeded inputs: the same on every machine and in every run.

use crate::host::Host;

/// One value in so many is an outlier.
const OUTLIER_EVERY: usize = 50;

/// How much larger an outlier is.
const OUTLIER: f32 = 30.0;

/// A small generator (splitmix64).
pub struct Rng(u64);

impl Rng {
    /// A generator seeded by a case's name, so that cases do not depend on each other's order.
    pub fn named(name: &str) -> Rng {
        let hash = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Rng(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in `[from, to)`.
    pub fn uniform(&mut self, from: f32, to: f32) -> f32 {
        from + (to - from) * ((self.bits() >> 40) as f32 / (1u32 << 24) as f32)
    }

    /// About normal, with deviation 1: the sum of three uniforms.
    pub fn normal(&mut self) -> f32 {
        self.uniform(-1.0, 1.0) + self.uniform(-1.0, 1.0) + self.uniform(-1.0, 1.0)
    }

    /// Random bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.bits() >> 56) as u8).collect()
    }

    /// Activations without outliers.
    pub fn calm(&mut self, rows: usize, cols: usize) -> Host {
        Host::from_fn(rows, cols, |_, _| self.normal())
    }

    /// Activations as models have them: mostly small, a few channels thirty times as large.
    pub fn values(&mut self, rows: usize, cols: usize) -> Host {
        Host::from_fn(rows, cols, |_, _| {
            let v = self.normal();
            if self.below(OUTLIER_EVERY) == 0 { v * OUTLIER } else { v }
        })
    }

    /// A learned vector around 1.
    pub fn gain(&mut self, cols: usize) -> Host {
        Host::from_fn(1, cols, |_, _| 1.0 + 0.3 * self.normal())
    }

    /// A random order of `0..n`.
    pub fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        (1..n).rev().for_each(|i| order.swap(i, self.below(i + 1)));
        order
    }

    /// Token ids: any, because only `embed` looks at them.
    pub fn tokens(&mut self, n: usize, vocabulary: usize) -> Vec<u32> {
        (0..n).map(|_| self.below(vocabulary) as u32).collect()
    }
}
