// log(1 + exp(x)), without overflow.
fn softplus(x: f32) -> f32 {
    let e = exp(-abs(x));
    // log(1 + e) loses the last bits of a small e.
    let small = e * (1.0 - e * (0.5 - e * (0.333333333 - e * 0.25)));
    return max(x, 0.0) + select(log(1.0 + e), small, e < 0.01);
}

// How much of the state a token keeps.
fn decay(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    return exp(-exp(a_log) * softplus(a + dt_bias));
}
