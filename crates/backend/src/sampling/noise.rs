//! Noise of a draw: a function of seed, draw and token, the same on every machine.

/// The golden ratio in 64 bits: steps of it visit everything, neighbours far apart.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of 64 bits in which each bit depends on all others (SplitMix64).
fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The key of a draw.
pub(super) fn key(seed: u64, draw: u32) -> [u32; 2] {
    let start = mix64(seed.wrapping_add(GOLDEN));
    let key = mix64(start.wrapping_add(u64::from(draw).wrapping_add(1).wrapping_mul(GOLDEN)));
    [key as u32, (key >> 32) as u32]
}

/// 32 random bits for a token, by the [key](crate::Choice::noise_key) of a draw.
///
/// Two rounds of a bijection of 32 bits with little bias (Wellons' hash-prospector), a half of the
/// key before each: six multiplications and shifts that every GPU has.
#[inline]
pub fn noise_bits([first, second]: [u32; 2], token: u32) -> u32 {
    let mut x = token ^ first;
    x = (x ^ (x >> 16)).wrapping_mul(0x21f0_aaad);
    x = (x ^ (x >> 15)).wrapping_mul(0xd35a_2d97);
    x = (x ^ (x >> 15)).wrapping_add(second);
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Standard Gumbel noise of such bits.
pub(super) fn gumbel(bits: u32) -> f64 {
    let v = (f64::from(bits) + 0.5) * (1.0 / 4_294_967_296.0);
    -(-(-v).ln_1p()).ln()
}

/// A little more than [`gumbel`], without logarithms.
///
/// `-ln(1 - v) >= v`, so the noise is at most `-ln v`; and the bits of a float are at most its
/// logarithm, up to a factor, since it is concave.
#[inline]
pub(super) fn most_gumbel(bits: u32) -> f32 {
    const LN_2: f32 = std::f32::consts::LN_2;
    // Rounded down: v is at least this times 2^-31.
    let v = (bits >> 1) as i32 as f32 + 0.25;
    (31.0 + 127.0) * LN_2 + 1e-3 - v.to_bits() as i32 as f32 * (LN_2 / (1 << 23) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_and_are_close() {
        let edges = [0, 1, 2, 3, u32::MAX - 1, u32::MAX];
        let powers = (0..32).flat_map(|i| [1u32 << i, (1 << i) - 1, 1 << i | 1]);
        let many = (0..100_000u32).map(|i| i.wrapping_mul(42_949));
        for bits in edges.into_iter().chain(powers).chain(many) {
            let (exact, most) = (gumbel(bits), f64::from(most_gumbel(bits)));
            assert!(exact.is_finite() && exact <= most, "{bits}: {exact} {most}");
            assert!(bits > 1 << 20 || most < exact + 0.2 || bits < 8, "{bits}: {exact} {most}");
        }
        assert!(gumbel(0) > gumbel(1) && gumbel(u32::MAX - 1) > gumbel(u32::MAX));
    }

    /// Pearson's statistic of counts that should be alike.
    fn chi_square(counts: &[u32]) -> f64 {
        let mean = counts.iter().sum::<u32>() as f64 / counts.len() as f64;
        counts.iter().map(|count| (f64::from(*count) - mean).powi(2) / mean).sum()
    }

    /// That many words look random in all of their bits, and beside their neighbours.
    fn check(what: &str, word: impl Fn(u32) -> u32) {
        const N: u32 = 1 << 18;
        // 255 degrees of freedom: 347 is exceeded once in ten thousand.
        let limit = 355.0;
        for shift in [0, 8, 16, 24] {
            let mut counts = [0; 256];
            (0..N).for_each(|i| counts[(word(i) >> shift & 255) as usize] += 1);
            let statistic = chi_square(&counts);
            assert!(statistic < limit, "{what}, byte {shift}: {statistic}");
            // Not too even either: bytes of a counter would be.
            assert!(statistic > 175.0, "{what}, byte {shift}: {statistic}");
        }
        // Pairs of neighbours, near and far.
        for distance in [1, 2, 3, 7, 32, 256, 4096] {
            for shift in [0, 13, 28] {
                let mut counts = [0; 256];
                for i in 0..N {
                    let pair = (word(i) >> shift & 15) << 4 | word(i + distance) >> shift & 15;
                    counts[pair as usize] += 1;
                }
                let statistic = chi_square(&counts);
                assert!(statistic < limit, "{what}, distance {distance}, bits {shift}: {statistic}");
            }
            // Each bit changes half of the time.
            let mut flips = [0u32; 32];
            for i in 0..N {
                let changed = word(i) ^ word(i + distance);
                flips.iter_mut().enumerate().for_each(|(bit, count)| *count += changed >> bit & 1);
            }
            for (bit, count) in flips.into_iter().enumerate() {
                let deviation = (f64::from(count) - f64::from(N) / 2.0) / (f64::from(N) / 4.0).sqrt();
                assert!(deviation.abs() < 5.0, "{what}, distance {distance}, bit {bit}: {deviation}");
            }
        }
    }

    #[test]
    fn neighbouring_tokens_draws_and_seeds_are_independent() {
        for seed in [0, 1, 42, u64::MAX] {
            for draw in [0, 1, 1000] {
                let key = key(seed, draw);
                check("tokens", |token| noise_bits(key, token));
            }
            for token in [0, 1, 151_643] {
                check("draws", |draw| noise_bits(key(seed, draw), token));
                check("seeds", |other| noise_bits(key(seed.wrapping_add(u64::from(other)), 3), token));
            }
        }
        // Along a diagonal: the next draw of the next token.
        check("a diagonal", |i| noise_bits(key(7, i), i));
        check("high halves of seeds", |i| noise_bits(key(u64::from(i) << 32, 0), 5));
    }

    #[test]
    fn the_average_is_eulers_constant_and_the_variance_known() {
        let n = 1 << 20;
        let key = key(3, 4);
        let (mut sum, mut squares) = (0.0, 0.0);
        for token in 0..n {
            let g = gumbel(noise_bits(key, token));
            sum += g;
            squares += g * g;
        }
        let mean = sum / f64::from(n);
        let variance = squares / f64::from(n) - mean * mean;
        assert!((mean - 0.577_215_664_9).abs() < 5.0 * (variance / f64::from(n)).sqrt(), "{mean}");
        assert!((variance - std::f64::consts::PI.powi(2) / 6.0).abs() < 0.02, "{variance}");
    }

    #[test]
    fn written_down_once() {
        // A change here changes what every user's seed means.
        assert_eq!(key(5, 0), KEY_OF_5);
        assert_eq!([0, 1, 2, 248_319].map(|token| noise_bits(KEY_OF_5, token)), BITS_OF_5);
    }

    const KEY_OF_5: [u32; 2] = [1_898_267_189, 4_208_386_630];
    const BITS_OF_5: [u32; 4] = [1_827_456_067, 522_348_597, 894_048_613, 478_719_550];
}
