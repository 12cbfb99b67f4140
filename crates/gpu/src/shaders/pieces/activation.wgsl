// ACTIVATION: 0 SiLU, 1 GELU by tanh.
fn activate(x: f32) -> f32 {
    if ACTIVATION == 0u {
        return silu(x);
    }
    return 0.5 * x * (1.0 + bounded_tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}
