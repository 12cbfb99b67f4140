//! One function per operation, on slices whose shapes the caller has checked.

pub(crate) mod attention;
pub(crate) mod gdn;
pub(crate) mod latent;
pub(crate) mod layout;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod rope;

use ::backend::Activation;

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `act(g) * u`
pub(crate) fn glu(activation: Activation, g: f32, u: f32) -> f32 {
    let act = match activation {
        Activation::Silu => silu(g),
        Activation::GeluTanh => {
            let inner = std::f32::consts::FRAC_2_PI.sqrt() * (g + 0.044715 * g * g * g);
            0.5 * g * (1.0 + inner.tanh())
        }
    };
    act * u
}
