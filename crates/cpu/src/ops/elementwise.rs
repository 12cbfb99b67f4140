//! Operations on each value, and the functions they are made of.

use ::backend::{Activation, Shared};

use crate::vector::{Arch, exp, vectorised};
use crate::{Machine, Tensor};

/// `1 / (1 + exp(-x))`
#[inline(always)]
pub(crate) fn sigmoid_lane<A: Arch>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<A>(-x))
}

/// `x * sigmoid(x)`
#[inline(always)]
pub(crate) fn silu_lane<A: Arch>(x: f32) -> f32 {
    x * sigmoid_lane::<A>(x)
}

/// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, through the sigmoid, which it is: no difference of near equals.
#[inline(always)]
pub(crate) fn gelu_lane<A: Arch>(x: f32) -> f32 {
    // 2 sqrt(2/pi)
    const FACTOR: f32 = 1.595_769;
    x * sigmoid_lane::<A>(FACTOR * A::fma(0.044715 * x * x, x, x))
}

/// The hyperbolic tangent without branches: a polynomial near 0, where `1 - 2 / (exp(2x) + 1)` would cancel.
#[inline(always)]
pub(crate) fn tanh<A: Arch>(x: f32) -> f32 {
    let size = x.abs();
    let far = 1.0 - 2.0 / (exp::<A>(2.0 * size) + 1.0);
    let far = f32::from_bits(far.to_bits() | (x.to_bits() & 0x8000_0000));
    let square = x * x;
    let p = -5.704_988_7e-3;
    let p = A::fma(p, square, 2.063_909e-2);
    let p = A::fma(p, square, -5.373_971e-2);
    let p = A::fma(p, square, 1.333_144_2e-1);
    let p = A::fma(p, square, -3.333_328e-1);
    let near = A::fma(p * square, x, x);
    if size < 0.625 { near } else { far }
}

vectorised! {
    /// `gate = act(gate) * up`
    pub(crate) fn glu_slice<A>(activation: Activation, gate: &mut [f32], up: &[f32]) {
        match activation {
            Activation::Silu => gate.iter_mut().zip(up).for_each(|(g, u)| *g = silu_lane::<A>(*g) * u),
            Activation::GeluTanh => gate.iter_mut().zip(up).for_each(|(g, u)| *g = gelu_lane::<A>(*g) * u),
        }
    }
}

vectorised! {
    fn sigmoid_gate_slice<A>(x: &mut [f32], gate: &[f32]) {
        x.iter_mut().zip(gate).for_each(|(x, g)| *x *= sigmoid_lane::<A>(*g));
    }
}

vectorised! {
    fn soft_cap_slice<A>(x: &mut [f32], cap: f32) {
        x.iter_mut().for_each(|x| *x = cap * tanh::<A>(*x / cap));
    }
}

vectorised! {
    /// `y = h + moe + strength * x`
    fn combine_row<A>(h: &[f32], moe: &[f32], x: &[f32], strength: f32, y: &mut [f32]) {
        for (((y, h), m), x) in y.iter_mut().zip(h).zip(moe).zip(x) {
            *y = A::fma(strength, *x, h + m);
        }
    }
}

vectorised! {
    fn add_row<A>(a: &[f32], b: &[f32], y: &mut [f32]) {
        y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = a + b);
    }
}

/// `gate = act(gate) * up`
pub(crate) fn glu(machine: &Machine, activation: Activation, gate: &mut [f32], up: &[f32]) {
    machine.rows(gate, 1, |first, gate| glu_slice(machine.set, activation, gate, &up[first..]));
}

/// `x = x * sigmoid(gate)`
pub(crate) fn sigmoid_gate(machine: &Machine, x: &mut [f32], gate: &[f32]) {
    machine.rows(x, 1, |first, x| sigmoid_gate_slice(machine.set, x, &gate[first..]));
}

/// `x = cap * tanh(x / cap)`
pub(crate) fn soft_cap(machine: &Machine, x: &mut [f32], cap: f32) {
    machine.rows(x, 1, |_, x| soft_cap_slice(machine.set, x, cap));
}

/// `y = h + moe`, plus the shared expert.
pub(crate) fn combine(
    machine: &Machine,
    width: usize,
    h: &[f32],
    moe: &[f32],
    shared: &Shared<'_, Tensor>,
    y: &mut [f32],
) {
    machine.rows(y, width, |first, y| {
        for (i, y) in y.chunks_exact_mut(width).enumerate() {
            let t = first + i;
            let row = |x: &[f32]| t * width..x.len().min((t + 1) * width);
            let (h, moe) = (&h[row(h)], &moe[row(moe)]);
            match shared {
                Shared::Absent => add_row(machine.set, h, moe, y),
                Shared::Plain(x) => combine_row(machine.set, h, moe, x.row(t), 1.0, y),
                Shared::Gated { x, gate } => {
                    combine_row(machine.set, h, moe, x.row(t), super::sigmoid(gate.values()[t]), y);
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Set;

    vectorised! {
        fn tanh_all<A>(x: &mut [f32]) {
            x.iter_mut().for_each(|x| *x = tanh::<A>(*x));
        }
    }

    /// The largest relative error over a range, and at values far out.
    fn check(what: &str, ours: impl Fn(Set, &mut [f32]), exact: impl Fn(f64) -> f64) {
        let x: Vec<f32> =
            (-12_000..12_000).map(|i| i as f32 * 1e-3 + 1e-5).chain([1e-20, -1e-20, 1e4, -1e4]).collect();
        for set in Set::available() {
            let mut y = x.clone();
            ours(set, &mut y);
            for (x, y) in x.iter().zip(y) {
                let expected = exact(f64::from(*x));
                let error = (f64::from(y) - expected).abs();
                assert!(
                    error <= 6e-7 * expected.abs() + 1e-30,
                    "{set:?}: {what}({x}) is {y}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn functions_are_close() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let ones = vec![1.0; 30_000];
        check("tanh", tanh_all, f64::tanh);
        check("silu", |set, x| glu_slice(set, Activation::Silu, x, &ones), |x| x * sigmoid(x));
        let gelu =
            |x: f64| x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x));
        // Far below 0 its exponent is large, and so is the relative error of what it makes of it.
        let y = |set, x: &mut [f32]| glu_slice(set, Activation::GeluTanh, x, &ones);
        for set in Set::available() {
            for x in (-2000..5000).map(|i| i as f32 * 1e-3) {
                let mut v = [x; 1];
                y(set, &mut v);
                assert!(
                    (f64::from(v[0]) - gelu(f64::from(x))).abs() <= 6e-7 * gelu(f64::from(x)).abs(),
                    "{x}"
                );
            }
        }
    }
}
