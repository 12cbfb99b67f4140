//! Exponentials that give the same bits on every platform.
//!
//! The standard library's `exp` calls the platform's own, whose last bit differs between systems.
//! Additions and multiplications do not differ.

/// e^x for x <= 0, to about 1e-14 relative; 0 for x below -700 and for -infinity.
#[inline]
pub(super) fn exp(x: f64) -> f64 {
    // x = n ln 2 + r with |r| <= ln 2 / 2, then the series of e^r. ln 2 is split so that
    // n * LN2_HIGH is exact.
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits; no branch and no call,
    // so that a loop over this becomes vector instructions.
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

/// The sum of the terms of all values, always added up in the same order.
pub(super) fn sum_of(values: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for (sum, &value) in sums.iter_mut().zip(block) {
            *sum += term(value);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(|&value| term(value)).sum::<f64>()
}

/// The sum of e^(value - max).
pub(super) fn sum_exp(values: &[f32], max: f32) -> f64 {
    let max = f64::from(max);
    sum_of(values, |value| exp(f64::from(value) - max))
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
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        let logits: Vec<f32> = (0..1003).map(|i| (i * 37 % 101) as f32 / 7.0).collect();
        let want: f64 = logits.iter().map(|x| (f64::from(*x) - 15.0).exp()).sum();
        assert!((sum_exp(&logits, 15.0) - want).abs() < 1e-12 * want);
    }
}
