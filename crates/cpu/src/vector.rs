//! Loops that the compiler turns into vector code, once per instruction set.
//!
//! Everything but the integer products of `kernels` is written here and in `ops` as plain loops over fixed numbers of
//! lanes. The macro [`vectorised`] compiles such a function once for each instruction set and calls the one that the
//! backend has chosen, so that there is one text for all machines and no intrinsics in it.

/// Lanes that loops work on at a time: one AVX-512 register, two of AVX2, four of NEON.
pub(crate) const LANES: usize = 16;

/// One value per lane.
pub(crate) type Lanes = [f32; LANES];

/// What differs between instruction sets in plain loops.
pub(crate) trait Arch: Copy {
    /// `a * b + c`, in one rounding where the set has it. (Where it does not, `f32::mul_add` would call a function.)
    fn fma(a: f32, b: f32, c: f32) -> f32;
}

/// With fused multiply-add: AVX2, AVX-512, NEON.
#[derive(Clone, Copy)]
pub(crate) struct Fused;

/// Without.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Arch for Fused {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Arch for Plain {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// A half as a float, without branches: shifted into place, the exponent is corrected by a product, which also makes
/// subnormal halves normal; infinities and NaN get their exponent back.
#[inline(always)]
pub(crate) fn widen_half(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << 13;
    let value = f32::from_bits(magnitude) * f32::from_bits((254 - 15) << 23);
    let special = if magnitude >= 0x7c00 << 13 { 255 << 23 } else { 0 };
    f32::from_bits(value.to_bits() | special | (u32::from(half & 0x8000) << 16))
}

/// Compiles `fn name<A: Arch>(..)` once per instruction set, as `fn name(set: Set, ..)`.
macro_rules! vectorised {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$arch:ident>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[expect(clippy::allow_attributes, reason = "not every function has as many arguments")]
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(set: $crate::kernels::Set, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body<$arch: $crate::vector::Arch>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                body::<$crate::vector::Fused>($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                body::<$crate::vector::Fused>($($arg),*)
            }

            match set {
                // SAFETY: a set is only made where the machine has its instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Set::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Set::Avx2 => unsafe { avx2($($arg),*) },
                // Part of every aarch64.
                #[cfg(target_arch = "aarch64")]
                $crate::kernels::Set::Neon => body::<$crate::vector::Fused>($($arg),*),
                $crate::kernels::Set::Scalar => body::<$crate::vector::Plain>($($arg),*),
            }
        }
    };
}
pub(crate) use vectorised;

/// The sum of all lanes, by halves: the error stays small, and the order is always the same.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: Lanes) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The largest of all lanes, none of which is NaN.
#[inline(always)]
pub(crate) fn max_lanes(mut lanes: Lanes) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = if lanes[i + width] > lanes[i] { lanes[i + width] } else { lanes[i] };
        }
        width /= 2;
    }
    lanes[0]
}

/// `sum_i a[i] b[i]` for use inside vectorised functions.
#[inline(always)]
pub(crate) fn dot_lanes<A: Arch>(a: &[f32], b: &[f32]) -> f32 {
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    // Several sums at a time: one alone would wait for itself.
    let mut sums = [[0.0f32; LANES]; 4];
    let (a_fours, a_blocks) = a_blocks.as_chunks::<4>();
    let (b_fours, b_blocks) = b_blocks.as_chunks::<4>();
    for (a, b) in a_fours.iter().zip(b_fours) {
        for j in 0..4 {
            for i in 0..LANES {
                sums[j][i] = A::fma(a[j][i], b[j][i], sums[j][i]);
            }
        }
    }
    for (a, b) in a_blocks.iter().zip(b_blocks) {
        for i in 0..LANES {
            sums[0][i] = A::fma(a[i], b[i], sums[0][i]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(x, y)| x * y).sum();
    let mut total = [0.0; LANES];
    for i in 0..LANES {
        total[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    }
    sum_lanes(total) + rest
}

vectorised! {
    /// `sum_i a[i] b[i]`, always in the same order.
    pub(crate) fn dot<A>(a: &[f32], b: &[f32]) -> f32 {
        dot_lanes::<A>(a, b)
    }
}

/// `exp(x)` to within two units in the last place, without branches, so that loops over it become vector code. 0 below
/// -104, infinite above 89, NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<A: Arch>(x: f32) -> f32 {
    // exp(x) = 2^n exp(r), n the nearest whole number of x / ln 2, |r| <= ln 2 / 2.
    // Adding and subtracting 1.5 * 2^23 rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let rounded = A::fma(x, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    // ln 2 in two parts, the first exact when multiplied by a small whole number.
    let r = A::fma(n, -0.693_359_4, x);
    let r = A::fma(n, 2.121_944_4e-4, r);
    let p = 1.987_569_1e-4;
    let p = A::fma(p, r, 1.398_199_9e-3);
    let p = A::fma(p, r, 8.333_452e-3);
    let p = A::fma(p, r, 4.166_579_6e-2);
    let p = A::fma(p, r, 1.666_666_6e-1);
    let p = A::fma(p, r, 0.5);
    let p = A::fma(p, r * r, r) + 1.0;
    // 2^n in two steps: a single one would overflow or lose subnormal results.
    // The last bits of the rounded sum are n itself. (A conversion would check for values that do not fit.)
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
    p * power(half) * power(n - half)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Set;

    vectorised! {
        fn exp_all<A>(x: &mut [f32]) {
            x.iter_mut().for_each(|x| *x = exp::<A>(*x));
        }
    }

    #[test]
    fn exp_is_close() {
        for set in Set::available() {
            let x: Vec<f32> = (-110_000..95_000).map(|i| i as f32 * 1e-3).collect();
            let mut y = x.clone();
            exp_all(set, &mut y);
            for (x, y) in x.iter().zip(y) {
                let expected = f64::from(*x).exp();
                let error = (f64::from(y) - expected).abs();
                let close =
                    error <= 2.5 * f64::from(f32::EPSILON) * expected.max(f64::from(f32::MIN_POSITIVE));
                assert!(close || expected > f64::from(f32::MAX), "{set:?}: exp({x}) is {y}, not {expected}");
            }
            let mut special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
            exp_all(set, &mut special);
            assert!(
                special[0].is_nan() && special[1] == f32::INFINITY && special[2] == 0.0 && special[3] == 1.0
            );
        }
    }

    #[test]
    fn all_halves() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (widen_half(bits), half::f16::from_bits(bits).to_f32());
            assert!(ours == theirs || (ours.is_nan() && theirs.is_nan()), "{bits:#x}: {ours}, not {theirs}");
        }
    }
}
