//! Arithmetic that gives the same bits on every platform.
//!
//! The standard library's `exp` calls the platform's own, whose last bit differs between systems; a draw that falls
//! on a boundary would then give another token. Additions and multiplications do not differ.

/// e^x for x <= 0, to about 1e-14 relative; 0 for x below -700 and for -infinity.
#[inline]
pub(super) fn exp(x: f64) -> f64 {
    // x = n ln 2 + r with |r| <= ln 2 / 2, then the series of e^r. ln 2 is split so that n * LN2_HIGH is exact.
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits; no branch and no call, so that a loop
    // over this becomes vector instructions.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let clamped = x.max(-700.0);
    let shifted = clamped * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut sum = 0.0;
    for coefficient in COEFFICIENTS {
        sum = sum * r + coefficient;
    }
    let power_of_two = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    if x < -700.0 { 0.0 } else { sum * power_of_two }
}

/// e^x of all values in place.
pub(super) fn exp_all(values: &mut [f64]) {
    const LANES: usize = 8;
    let (blocks, rest) = values.as_chunks_mut::<LANES>();
    // Side by side, so that the sums of the series do not wait for themselves.
    for block in blocks {
        *block = block.map(exp);
    }
    rest.iter_mut().for_each(|value| *value = exp(*value));
}

/// The sum of e^((logit - max) / temperature), always added up in the same order.
pub(super) fn sum_exp(logits: &[f32], max: f32, temperature: f32) -> f64 {
    const LANES: usize = 8;
    let (max, scale) = (f64::from(max), 1.0 / f64::from(temperature));
    let term = |logit: f32| exp((f64::from(logit) - max) * scale);
    let mut sums = [0.0; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest: f64 = chunks.remainder().iter().map(|&logit| term(logit)).sum();
    for chunk in chunks {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += term(logit);
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// 1/13!, 1/12!, ..., 1/1!, 1/0!.
const COEFFICIENTS: [f64; 14] = {
    let mut coefficients = [1.0; 14];
    let mut factorial = 1.0;
    let mut k = 1;
    while k < 14 {
        factorial *= k as f64;
        coefficients[13 - k] = 1.0 / factorial;
        k += 1;
    }
    coefficients
};

/// SplitMix64: 64 bits of state, passes BigCrush, five lines. Its output for a seed will never change.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), 53 bits.
    pub(super) fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_agrees_with_the_standard_library() {
        for i in 0..=70_000 {
            let x = -f64::from(i) / 100.0;
            let (got, want) = (exp(x), x.exp());
            assert!((got - want).abs() <= 2e-14 * want, "exp({x}) = {got}, expected {want}");
        }
        let mut all: Vec<f64> = (0..1003).map(|i| -f64::from(i) / 7.0).collect();
        exp_all(&mut all);
        assert!(all.iter().enumerate().all(|(i, x)| *x == exp(-(i as f64) / 7.0)));
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        let logits: Vec<f32> = (0..1003).map(|i| (i * 37 % 101) as f32 / 7.0).collect();
        let want: f64 = logits.iter().map(|x| (f64::from(*x - 15.0) / 0.5).exp()).sum();
        assert!((sum_exp(&logits, 15.0, 0.5) - want).abs() < 1e-12 * want);
    }

    #[test]
    fn random_matches_the_published_splitmix64() {
        let mut random = Random::new(1234567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }
}
